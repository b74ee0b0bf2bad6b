"""Memory that is free on the GPU stays with PyTorch: `torch.cuda.empty_cache()` does nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hasten.optimizations.optimization import Experiment, Optimization, Problem, Symptoms, from_finding
from hasten.protocol import Value

if TYPE_CHECKING:
    from hasten.agent.handle import Handle
    from hasten.diagnosis.case import Case

Function = Callable[..., object]


def enable(handle: Handle, _value: Value) -> None:
    """Ignore the script's calls to empty the allocator's cache; where memory runs out, PyTorch empties it itself."""
    from hasten.devices import accelerator

    def make(original: Function) -> Function:
        @functools.wraps(original)
        def empty_cache() -> None:
            return None

        return empty_cache

    for module in accelerator.cache_holders():
        handle.patches.wrap(module, "empty_cache", make)


def _suspect(symptoms: Symptoms) -> bool | None:
    return True if (symptoms.facts.memory_requests or 0.0) >= 1.0 else None


def _evidence(case: Case) -> Sequence[str]:
    requests = case.facts.memory_requests
    return [f"memory is requested from the driver {requests:.0f} times per step"] if requests is not None else []


OPTIMIZATION = Optimization(
    name="keep_device_memory",
    title="memory that is free on the GPU stays with PyTorch: torch.cuda.empty_cache() does nothing",
    guarantee="identical",
    answers=("allocator_thrash",),
    propose=from_finding("allocator_thrash", otherwise="no memory is given back to the device and asked for again"),
    enable=enable,
    experiments=(Experiment(cause="allocator_thrash", suspect=_suspect, usual=0.1),),
    problems=(
        Problem(
            kind="allocator_thrash",
            title="GPU memory is freed and allocated again every step",
            remedy="Remove torch.cuda.empty_cache() from the loop: PyTorch reuses free memory automatically.",
            evidence=_evidence,
        ),
    ),
)
