"""All optimizations, by name; and settings of several of them that go together."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import get_args

from hasten.errors import PlanError
from hasten.optimizations import (
    allocator,
    batch_size,
    bf16,
    cache,
    channels_last,
    checkpoints,
    compile,
    copies,
    cudnn_benchmark,
    ddp,
    decode,
    float32,
    flush_denormal,
    fp16,
    fused_optimizer,
    keep_device_memory,
    loader,
    matmul_precision,
    no_debug,
    no_grad_validation,
    resize,
    schedules,
    set_to_none,
    tf32,
    threads,
    workers,
)
from hasten.optimizations.optimization import Experiment, Optimization, Problem, spec_of
from hasten.protocol import FixSpec
from hasten.records import Guarantee, Settings

GUARANTEES: tuple[Guarantee, ...] = get_args(Guarantee)
GROUPS: dict[str, tuple[Optimization, ...]] = {
    "Input": (
        workers.NUM_WORKERS,
        workers.PREFETCH_FACTOR,
        workers.PERSISTENT_WORKERS,
        copies.PIN_MEMORY,
        copies.NON_BLOCKING,
        loader.GATHER,
        loader.LOADER,
        loader.RAY,
        resize.OPTIMIZATION,
        cache.CACHE,
        cache.DISK_CACHE,
        cache.PURE,
        decode.OPTIMIZATION,
        loader.PIXELS,
    ),
    "Precision": (bf16.OPTIMIZATION, fp16.OPTIMIZATION, tf32.OPTIMIZATION, matmul_precision.OPTIMIZATION),
    "Execution": (
        channels_last.OPTIMIZATION,
        fused_optimizer.OPTIMIZATION,
        set_to_none.OPTIMIZATION,
        no_debug.OPTIMIZATION,
        no_grad_validation.OPTIMIZATION,
        threads.CPU_THREADS,
        threads.OMP_WAIT,
        flush_denormal.OPTIMIZATION,
        allocator.OPTIMIZATION,
        keep_device_memory.OPTIMIZATION,
        cudnn_benchmark.OPTIMIZATION,
        compile.OPTIMIZATION,  # in the place of the forward itself, so inside everything that is around it
    ),
    "Ranks": (
        ddp.DDP_GRADIENTS,
        ddp.DDP_BUCKET_VIEW,
        ddp.DDP_BATCHED_COPY,
        ddp.DDP_BUCKET_MB,
        ddp.DDP_NO_SEARCH,
        ddp.DDP_STATIC_GRAPH,
    ),
    "Recipe": (batch_size.OPTIMIZATION, schedules.ADAMW, schedules.ONECYCLE, schedules.CYCLIC),
}
CATALOG: dict[str, Optimization] = {one.name: one for group in GROUPS.values() for one in group}
# Causes that can be measured, with what enables the experiment.
EXPERIMENTS: dict[str, tuple[Experiment, Optimization | None]] = {
    **{experiment.cause: (experiment, one) for one in CATALOG.values() for experiment in one.experiments},
    **{experiment.cause: (experiment, None) for experiment in (checkpoints.EXPERIMENT, float32.EXPERIMENT)},
}
PROBLEMS: tuple[Problem, ...] = (*(problem for one in CATALOG.values() for problem in one.problems), float32.PROBLEM)


def nearest(name: str, known: Mapping[str, object]) -> str:
    """A hint at what was meant, or at where the names are."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else "docs/fixes.md names them all"


def checked(settings: Mapping[str, object]) -> Settings:
    """The settings, all known, each valid, none against another. Raises PlanError."""
    known: Settings = {}
    for name, value in settings.items():
        optimization = CATALOG.get(name)
        if optimization is None:
            raise PlanError(f"unknown setting {name}; {nearest(name, CATALOG)}")
        known[name] = optimization.check(value)
    enabled = enabled_in(known)
    for name in enabled:
        for other in CATALOG[name].excludes:
            if other in enabled:
                raise PlanError(f"{name} and {other} contradict each other; keep one of them")
        if not CATALOG[name].is_supported(enabled):
            others = " or ".join(CATALOG[name].needs)
            raise PlanError(f"{name} does nothing without {others}; turn one on, or take {name} out")
    if enabled.get("num_workers") == 0:
        for other in ("prefetch_factor", "persistent_workers"):
            if other in enabled:
                raise PlanError(f"{other} needs workers, and num_workers is 0; take one of the two out")
    return {name: known[name] for name in CATALOG if name in known}


def enabled_in(settings: Settings) -> Settings:
    """Those that do something."""
    return {name: value for name, value in settings.items() if value is not False}


def specs_of(settings: Settings) -> tuple[FixSpec, ...]:
    """What the training process enables, in order."""
    enabled = enabled_in(settings)
    return tuple(
        spec_of(name, one.enable, enabled[name])
        for name, one in CATALOG.items()
        if name in enabled and one.enable is not None
    )


def variables_of(settings: Settings, *, scratch: Path | None = None) -> dict[str, str]:
    """The environment of a launch under these settings.

    `scratch` is the folder of launches that may be killed: what they keep for later ones lies there, for in the
    user's own place it might be left torn.
    """
    found: dict[str, str] = {}
    for name, value in enabled_in(settings).items():
        found.update(CATALOG[name].environment(value))
        if scratch is not None and CATALOG[name].keeps_in:
            found[CATALOG[name].keeps_in] = str(scratch.resolve() / f"kept-by-{name}")
    return found


def start_seconds_of(settings: Settings) -> float:
    """How much longer a launch under these settings may take to its first step."""
    return sum(CATALOG[name].start_seconds for name in enabled_in(settings))


def weakest(settings: Iterable[str]) -> Guarantee:
    """The weakest guarantee of these optimizations; of none, that everything is as it was."""
    declared = [CATALOG[name].guarantee for name in settings]
    for guarantee in reversed(GUARANTEES):
        if guarantee in declared:
            return guarantee
    return "identical"
