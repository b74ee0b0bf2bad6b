"""Fixes that carry out the same mathematics otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes.util import find_library

from hasten.errors import PlanError
from hasten.fixes.fix import Fix, NotProposed, Proposal, Situation, from_finding
from hasten.measurement.interventions import FUSED, KEEP_MEMORY
from hasten.records import Value

INSIDE = "hasten.fixes.inside.execution"
PRELOADS = {"jemalloc": ("jemalloc",), "tcmalloc": ("tcmalloc_minimal", "tcmalloc")}


def _allocator_variables(value: Value) -> Mapping[str, str]:
    if value == "glibc":
        return KEEP_MEMORY
    found = next(filter(None, map(find_library, PRELOADS[str(value)])), None)
    if found is None:
        raise PlanError(f'allocator = "{value}" is not installed here; install it, or write "glibc"')
    return {"LD_PRELOAD": found}


def _thread_variables(value: Value) -> Mapping[str, str]:
    return {"OMP_NUM_THREADS": str(value)} if value else {}


def _cpu_threads(situation: Situation) -> list[Proposal] | NotProposed | str:
    if not situation.case.on_cpu:
        return "the model is not trained on the CPU"
    machine, train = situation.case.run.machine, situation.case.train
    busy = int(situation.settings.get("num_workers", train.num_workers if train is not None else 0))
    number = max(1, int(machine.num_cores) - min(busy, int(machine.num_cores) - 1))
    otherwise = "threads and workers do not compete for cores"
    likely = 0.05 * situation.case.step
    return from_finding("thread_contention", value=number, otherwise=otherwise, prior=lambda _: likely)(situation)


def _omp_wait(situation: Situation) -> list[Proposal] | NotProposed | str:
    if not situation.case.on_cpu or situation.case.facts.num_threads < 2:
        return "no threads wait for each other on the CPU"
    tried = situation.case.measured("passive_waiting")
    if tried is not None:
        return [Proposal(value="passive", saves=tried[0], because="threads spin while others want their core")]
    likely = 0.03 * situation.case.step
    otherwise = "no other process wants the cores that threads wait on"
    return from_finding("passive_waiting", value="passive", otherwise=otherwise, prior=lambda _: likely)(situation)


def _compile(situation: Situation) -> list[Proposal] | str:
    facts = situation.case.facts
    if any(model.compiled for model in facts.models):
        return "the script compiles its model itself"
    finding = situation.finding("launch_bound")
    if finding is not None:
        return [Proposal(value="default", saves=finding.recoverable, because=finding.title)]
    if situation.case.on_cpu:
        return "on a CPU it pays where a step is many small operators, and this one is not"
    saves = 0.15 * situation.case.phase("forward", "loss", "backward")
    return [Proposal(value="default", saves=saves, because="operators run one by one")]


def _cudnn(situation: Situation) -> list[Proposal] | NotProposed | str:
    if situation.case.on_cpu:
        return "cuDNN is of NVIDIA GPUs"
    if situation.case.facts.cudnn_benchmark:
        return "it is on already"
    likely = 0.03 * situation.case.phase("forward", "backward")
    return from_finding("cudnn_autotune", otherwise="input shapes vary", prior=lambda _: likely)(situation)


def _saved_by_channels_last(situation: Situation) -> float | None:
    models = situation.case.facts.models
    suits = any(m.num_convolutions and not m.channels_last for m in models) and not any(m.compiled for m in models)
    return 0.1 * situation.case.phase("forward", "backward") if suits else None


def _saved_by_fusing(situation: Situation) -> float | None:
    suits = any(o.name in FUSED and not o.fused for o in situation.case.facts.optimizers)
    return 0.5 * situation.case.phase("optimizer") if suits else None


def _saved_without_debugging(situation: Situation) -> float | None:
    facts = situation.case.facts
    if not facts.anomaly_detection and not facts.profiler:
        return None
    return 0.2 * situation.case.phase("forward", "loss", "backward")


def _saved_by_keeping_memory(situation: Situation) -> float | None:
    """A page fault that zeroes a page takes about a microsecond on the servers of docs/log.md."""
    faults = situation.case.faults_per_step
    computing = situation.case.phase("forward", "loss", "backward")
    return min(1e-6 * faults, 0.5 * computing) if faults is not None else None


def _saved_by_flushing(situation: Situation) -> float | None:
    if not situation.case.on_cpu:
        return None
    return min(0.1, situation.case.facts.subnormal_share or 0.0) * situation.case.phase("forward", "backward")


def _set_to_none(situation: Situation) -> list[Proposal] | NotProposed | str:
    zeroed = situation.case.facts.zero_grad_in_place
    likely = 0.5 * situation.case.phase("zero_grad") if zeroed else None
    otherwise = "filling them with zeros takes next to nothing here" if zeroed else "gradients are dropped already"
    return from_finding("zero_grad_in_place", otherwise=otherwise, prior=lambda _: likely)(situation)


def _no_grad_validation(situation: Situation) -> list[Proposal] | NotProposed | str:
    recorded = situation.case.facts.validation_grad
    likely = 0.2 * situation.case.phase("validation") if recorded else None
    otherwise = "recording them takes next to nothing here" if recorded else "validation records no gradients"
    return from_finding("validation_gradients", otherwise=otherwise, prior=lambda _: likely)(situation)


FIXES = (
    Fix(
        name="channels_last",
        title="convolutions' weights and inputs lie channel by channel within each pixel",
        guarantee="rounding",
        answers=("channels_first",),
        propose=from_finding(
            "channels_first",
            otherwise="there is no convolution that is not channels-last already",
            prior=_saved_by_channels_last,
        ),
        installer=f"{INSIDE}:channels_last",
    ),
    Fix(
        name="compile",
        title="the model's forward compiled by torch.compile, in place",
        guarantee="rounding",
        answers=("launch_bound",),
        propose=_compile,
        kind="word",
        words=("default", "reduce-overhead", "max-autotune-no-cudagraphs"),
        start_seconds=300.0,
        keeps_in="TORCHINDUCTOR_CACHE_DIR",
        installer=f"{INSIDE}:compile",
    ),
    Fix(
        name="fused_optimizer",
        title="one kernel updates all parameters",
        guarantee="rounding",
        answers=("unfused_optimizer",),
        propose=from_finding(
            "unfused_optimizer",
            otherwise="the optimizer takes no time worth saving, or is fused",
            prior=_saved_by_fusing,
        ),
        installer=f"{INSIDE}:fused_optimizer",
    ),
    Fix(
        name="set_to_none",
        title="gradients are dropped between steps, not filled with zeros",
        guarantee="identical",
        answers=("zero_grad_in_place",),
        propose=_set_to_none,
        installer=f"{INSIDE}:set_to_none",
    ),
    Fix(
        name="no_debug",
        title="anomaly detection and profilers stay off",
        guarantee="rounding",  # a script may catch what anomaly detection raises
        answers=("anomaly_detection", "profiler_on"),
        propose=from_finding(
            "anomaly_detection", "profiler_on", otherwise="no debugging aid is on", prior=_saved_without_debugging
        ),
        installer="hasten.fixes.inside.debugging:no_debug",
    ),
    Fix(
        name="no_grad_validation",
        title="validation records nothing for a backward that never comes",
        guarantee="identical",
        answers=("validation_gradients",),
        propose=_no_grad_validation,
        installer=f"{INSIDE}:no_grad_validation",
    ),
    Fix(
        name="cpu_threads",
        title="operators of the training process run on so many threads",
        guarantee="rounding",
        answers=("thread_contention",),
        propose=_cpu_threads,
        kind="number",
        installer=f"{INSIDE}:cpu_threads",
        variables=_thread_variables,
    ),
    Fix(
        name="omp_wait",
        title="OpenMP threads sleep while they wait for each other",
        guarantee="identical",
        answers=("thread_contention",),
        propose=_omp_wait,
        kind="word",
        words=("passive",),
        variables=lambda value: {"OMP_WAIT_POLICY": "PASSIVE"} if value else {},
    ),
    Fix(
        name="flush_denormal",
        title="numbers below 1e-38 count as zero",
        guarantee="rounding",
        answers=("denormals",),
        propose=from_finding(
            "denormals", otherwise="no denormal numbers slow this CPU down", prior=_saved_by_flushing
        ),
        installer=f"{INSIDE}:flush_denormal",
    ),
    Fix(
        name="allocator",
        title="memory that was freed stays with the process; or another allocator",
        guarantee="identical",
        answers=("page_faults",),
        propose=from_finding(
            "page_faults",
            value="glibc",
            otherwise="memory is not given back and faulted in again",
            prior=_saved_by_keeping_memory,
        ),
        kind="word",
        words=("glibc", "jemalloc", "tcmalloc"),
        variables=_allocator_variables,
    ),
    Fix(
        name="cudnn_benchmark",
        title="cuDNN tries its algorithms on each new shape and keeps the fastest",
        guarantee="rounding",
        answers=("cudnn_autotune",),
        propose=_cudnn,
        installer=f"{INSIDE}:cudnn_benchmark",
    ),
)
