"""Rules about the script's own code (reading back, logging, validation, checkpoints), and about the rest of the machine."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from hasten import format
from hasten.diagnosis.case import WORTH, Case
from hasten.records import Finding, HotLine, Phase, Where

LOGGING = re.compile(
    # Logarithms are not logging: np.log(x) and x.log() do not match, self.log(loss) and wandb.log(...) do.
    r"\blogs?\b(?!\()|(?<![.\w])log\(|\b(self|wandb|mlflow|run|trainer|fabric|accelerator)\.log\("
    r"|\blogg(er|ing)\b|\blog_(?!softmax|prob|sigmoid)|_log\b|\bprint|\.write|\bjson\.|\bcsv\b|histogram|\bhistc?\("
    r"|tqdm|wandb|summary|writer",
    re.IGNORECASE,
)
EMPTYING = re.compile(r"\bempty_cache\(")  # what the trial of allocator_thrash removes
OWN_CODE = 0.08  # smallest share of the step for which a function of the script is reported
OWN_LINE = 0.02  # smallest share for which a line of the training loop counts: each needs a fix of its own
MOST_OFTEN = 1.0  # validations and checkpoints per epoch that are normal
RECORDING = 0.2  # share of validation that recording gradients usually takes
RARELY = 0.01  # share of the time that checkpoints should take, where it is not known how long an epoch is


def findings(case: Case) -> Iterator[Finding]:
    """All findings about the script's own code and other load on the machine."""
    taken: set[tuple[str, int]] = set()
    for found in (_logging(case, taken), _sync(case, taken), _own_code(case, taken)):
        if found is not None:
            yield found
    gradients = _validation_gradients(case)
    # What validating too often costs is a share of its time without gradients.
    often = _validation_often(case, spared=gradients.recoverable if gradients is not None else 0.0)
    for found in (gradients, often, _checkpoint_often(case)):
        if found is not None:
            yield found
    for found in (_memory(case), _busy_machine(case)):
        if found is not None:
            yield found


def _spot(where: Where) -> tuple[str, int]:
    return where.file, where.line


def _sync(case: Case, taken: set[tuple[str, int]]) -> Finding | None:
    """Reading tensors back to the host, with the rest of the lines that do it."""
    points = [p for p in case.run.sync_points if _spot(p.where) not in taken]
    if not points:
        return None
    spots = {_spot(p.where) for p in points if p.calls >= 0.9}
    own = sum(h.seconds for h in case.lines("script", "loss") if _spot(h.where) in spots)
    known = sum(p.seconds for p in case.run.sync_points)
    # For many calls, marking costs as much as the call itself, so the sum comes from uninstrumented steps.
    reading = case.phase("sync") * sum(p.seconds for p in points) / known if known else 0.0
    calls = sum(p.calls for p in points)
    saved = reading + (own if calls > 4 else 0.0)
    if not case.on_cpu:
        if case.idle is None:
            return None  # the host may be waiting for device work that has to be done anyway
        saved = min(saved, case.idle)
    if calls <= 4 and case.on_cpu and reading < 0.2 * case.step:
        return None
    worst = max(points, key=lambda p: p.seconds)
    taken.update(spots)
    return Finding(
        kind="sync_points",
        title="Tensors are read back to the host in every step",
        recoverable=saved,
        because=(
            f"{calls:.0f} calls per step, the costliest {worst.kind}; {format.seconds(saved)} including the rest of their lines",
        ),
        remedy="Keep these values as tensors and read them once every N steps.",
        where=worst.where,
    )


def _logging(case: Case, taken: set[tuple[str, int]]) -> Finding | None:
    """Logging with print, loggers and trackers, and the script's lines that prepare or write a log."""
    lines = [h for h in case.lines("script", "logging") if h.phase == "logging" or _logs(h.where)]
    points = [p for p in case.run.sync_points if _logs(p.where)]
    own = sum(h.seconds for h in lines if h.phase != "logging")
    # A value read back waits for device work that has to be done anyway: only the idle time of a device is lost.
    reading = sum(p.seconds for p in points)
    saved = case.phase("logging") + own + (reading if case.on_cpu else min(reading, case.idle or 0.0))
    if saved < WORTH * case.step or not lines:
        return None
    taken.update(_spot(found.where) for found in (*lines, *points))
    return Finding(
        kind="logging_each_step",
        title="Logging in every step",
        recoverable=saved,
        because=(f"{format.seconds(saved)} per step, {format.share(saved / case.step)} of it",),
        remedy="Log every N steps.",
        where=max(lines, key=lambda h: h.seconds).where,
    )


def _logs(where: Where) -> bool:
    return bool(LOGGING.search(where.source) or LOGGING.search(where.function))


def _own_code(case: Case, taken: set[tuple[str, int]]) -> Finding | None:
    """The script's own Python code between the phases, by function."""
    by_function: dict[tuple[str, str], list[HotLine]] = defaultdict(list)
    answered = taken | {_spot(line.where) for line in case.profiling()}
    emptying = EMPTYING if case.measured("allocator_thrash") is not None else None
    loops = {w.function for w in case.facts.where.values()}
    for line in case.lines("script"):
        if line.where.function in loops and line.seconds < OWN_LINE * case.step:
            continue
        if _spot(line.where) not in answered and not (emptying and emptying.search(line.where.source)):
            by_function[line.where.file, line.where.function].append(line)
    if not by_function:
        return None
    worst = max(by_function.values(), key=lambda lines: sum(h.seconds for h in lines))
    seconds = sum(h.seconds for h in worst)
    if seconds < OWN_CODE * case.step:
        return None
    top = max(worst, key=lambda h: h.seconds)
    # The function of the training loop contains everything, so its name does not help.
    name = f"{top.where.function}()" if top.where.function not in loops else "the script's own code"
    return Finding(
        kind="script_bound",
        title=f"Time in {name}",
        recoverable=seconds,
        because=(f"{format.seconds(seconds)} per step, outside forward, backward, optimizer and loader",),
        remedy="Vectorize it, do it less often, or move it into loader workers.",
        where=top.where,
    )


def _validation_gradients(case: Case) -> Finding | None:
    validation = case.phase("validation")
    if not case.facts.validation_grad or validation < WORTH * case.step:
        return None
    measured, because = case.measured("validation_gradients", of=case.step), ()
    if measured is None:
        if case.tried("validation_gradients"):
            return None
        measured, because = (
            (RECORDING * validation, None),
            ("the saving is a guess: too few validations were measured",),
        )
    return Finding(
        kind="validation_gradients",
        title="Validation records gradients",
        recoverable=measured[0],
        interval=measured[1],
        confirmed_by="validation_gradients" if measured[1] is not None else None,
        because=(
            f"validation takes {format.seconds(validation)} per step, {format.share(validation / case.step)}",
            *because,
        ),
        remedy="Run validation under torch.no_grad() (or torch.inference_mode()).",
        where=case.facts.validation_where,
    )


def _too_often(case: Case, seconds: float, every: float | None, *, otherwise: float) -> tuple[float, str] | None:
    """Seconds per step saved by doing something once per epoch, and how often it is done now.

    It takes `seconds` per step, and `otherwise` is what it should take where it is not known how long an epoch is.
    """
    if every is None or seconds < WORTH * case.step:
        return None
    epoch = case.facts.steps_per_epoch
    if epoch is None:
        return max(0.0, seconds - otherwise), f"every {every:.0f} steps"
    times = epoch / every
    if times <= 1.5 * MOST_OFTEN:
        return None
    return seconds * (1 - MOST_OFTEN / times), f"every {every:.0f} steps, {times:.0f} times per epoch"


def _is_alone(case: Case, phase: Phase) -> bool:
    """Whether other ranks wait meanwhile: that is a finding of its own."""
    return case.run.ranks is not None and phase in case.run.ranks.only


def _validation_often(case: Case, *, spared: float) -> Finding | None:
    if _is_alone(case, "validation"):
        return None
    left = max(0.0, case.phase("validation") - spared)
    often = _too_often(case, left, case.facts.steps_per_validation, otherwise=left / 2)
    if often is None:
        return None
    half = case.facts.steps_per_epoch is None
    return Finding(
        kind="validation_often",
        title="Validation too often",
        recoverable=often[0],
        because=(f"{format.share(case.share('validation'))} of the time is spent on validation, {often[1]}",),
        remedy="Validate half as often, or on half of the validation set."
        if half
        else "Validate once per epoch, or on part of the validation set.",
        where=case.facts.validation_where or case.where("validation"),
    )


def _checkpoint_often(case: Case) -> Finding | None:
    if _is_alone(case, "checkpoint"):
        return None
    often = _too_often(case, case.phase("checkpoint"), case.facts.steps_per_checkpoint, otherwise=RARELY * case.step)
    if often is None:
        return None
    # Saving also evicts the step's data from the CPU caches; that cost was measured by a trial.
    cache_effect = case.measured("checkpoint_often")
    return Finding(
        kind="checkpoint_often",
        title="Checkpoints too often",
        recoverable=often[0] + (cache_effect[0] if cache_effect is not None else 0.0),
        confirmed_by="checkpoint_often" if cache_effect is not None else None,
        because=(f"{format.share(case.share('checkpoint'))} of the time is spent on saving, {often[1]}",),
        remedy="Save once per epoch, or from a copy in a background thread.",
        where=case.where("checkpoint"),
    )


def _memory(case: Case) -> Finding | None:
    samples = [s for s in case.run.resources if s.at >= case.run.steps[0].start]
    if len(samples) < 3:
        return None
    first, last = samples[0], samples[-1]
    swapped = last.swap_used_bytes - first.swap_used_bytes
    faults = (last.major_faults or 0) - (first.major_faults or 0)
    rate = faults / max(1e-9, last.at - first.at)
    least = min(s.available_bytes for s in samples)
    # Memory-mapped files also cause faults, which are harmless.
    if rate < 50 or not (swapped > 64 << 20 or least < 0.1 * case.run.machine.memory_bytes):
        return None
    return Finding(
        kind="memory_full",
        title="Memory is full and the system swaps",
        # A major fault waits for the disk: 0.1 ms on an SSD, more elsewhere.
        recoverable=min(0.9 * case.step, rate * 1e-4 * case.step),
        because=(
            f"{rate:.0f} major page faults per second, {format.size(swapped)} swapped out during the run",
            f"{format.size(least)} available at the lowest point",
        ),
        remedy="Use fewer workers, smaller prefetch or cache, or a machine with more memory.",
    )


def _busy_machine(case: Case) -> Finding | None:
    """Time in which the training thread was runnable but other processes used the cores (Linux's run delay)."""
    busy, delay = case.cores_busy(), case.facts.run_delay
    if busy is None or delay is None or case.facts.num_training_processes > 1:
        return None
    tree, _, others = busy
    if others < 0.2:
        return None
    # The thread also waits for its own workers and threads; only the others' share counts.
    lost = delay * others / (others + max(0.0, tree - 1.0))
    return Finding(
        kind="busy_machine",
        title="Other processes use the machine",
        recoverable=min(lost, 0.9 * case.step),
        because=(
            f"other processes use {others:.1f} of {case.run.machine.num_cores:g} cores, this run {tree:.1f}",
            f"the training thread waited for a core for {format.seconds(delay)} per step",
        ),
        remedy="Measure and train when the machine is idle.",
    )
