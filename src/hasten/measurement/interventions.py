"""Which further short runs would confirm a cause.

In: the first run's facts and steps. Out: launches to make. Refuses to conclude: an intervention is tried when the
run gives it a chance.

Two kinds. Switches alternate with the plain step inside one process (A B B A), so that the machine's drift falls on
both. What must be in place before the script begins is a launch of its own, beside a plain one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hasten.measurement.folding import epoch_starts
from hasten.measurement.recorder import Recorded
from hasten.protocol import FixSpec, Interventions, SwitchSpec
from hasten.raw_run import DEVICE_REPLAY, JOIN, REPLAY
from hasten.records import RARE, Facts, Intervention, LoaderFacts, Machine, Phase, ResourceSample, Value

LEAST_SECONDS = 4.0  # window of a further launch, and of each switch in the alternating one
UNEVEN_SECONDS = 12.0  # the same, where one sample of many is slow
MOST_SECONDS = 20.0  # the same, where an epoch's start must be among its steps
SHORT_EPOCH = 8  # steps
LEAST_PREFETCH, MOST_PREFETCH = 8, 64  # batches a worker
PREFETCH_MEMORY = 0.1  # share of the available memory that batches made ahead may take
COMPUTING = ("forward", "loss", "backward", "optimizer", "zero_grad")
WORTH = 0.05  # share of the step below which a cause is not pursued
FAULT_SECONDS = 0.25e-6  # least host cost of a minor page fault that zeroes a page
FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
INSIDE = "hasten.fixes.inside"
INSTALLERS = {  # of fixes that need a launch of their own
    "num_workers": f"{INSIDE}.loaders:num_workers",
    "prefetch_factor": f"{INSIDE}.loaders:prefetch_factor",
    "persistent_workers": f"{INSIDE}.loaders:persistent_workers",
    "no_debug": f"{INSIDE}.debugging:no_profiler",
    "no_grad_validation": f"{INSIDE}.execution:no_grad_validation",
}
# Of fixes that can be turned on and off between two steps: by the cause they confirm, name and installer; those that
# may gain most come first, for a script may end before all are tried.
TOGGLED = {
    "anomaly_detection": ("no_debug", f"{INSIDE}.debugging:no_anomaly_detection"),
    "full_precision": ("bf16", f"{INSIDE}.precision:bf16"),
    "tf32": ("tf32", f"{INSIDE}.precision:tf32"),
    "channels_first": ("channels_last", f"{INSIDE}.execution:channels_last"),
    "thread_contention": ("cpu_threads", f"{INSIDE}.execution:cpu_threads"),
    "cudnn_autotune": ("cudnn_benchmark", f"{INSIDE}.execution:cudnn_benchmark"),
    "allocator_thrash": ("keep_device_memory", f"{INSIDE}.memory:keep_device_memory"),
    "unfused_optimizer": ("fused_optimizer", f"{INSIDE}.execution:fused_optimizer"),
    "checkpoint_often": ("save_nothing", f"{INSIDE}.switches:save_nothing"),
    "zero_grad_in_place": ("set_to_none", f"{INSIDE}.execution:set_to_none"),
    "denormals": ("flush_denormal", f"{INSIDE}.execution:flush_denormal"),
}
# Steps after a change that are not counted: subnormal values stay so until they are computed again, and cuDNN spends
# the first steps of a shape on choosing an algorithm.
SETTLE = {"denormals": 2, "zero_grad_in_place": 2, "thread_contention": 2, "checkpoint_often": 2, "cudnn_autotune": 5}
KEEP_MEMORY = {  # glibc: never give memory back to the system
    "MALLOC_MMAP_THRESHOLD_": "17179869184",
    "MALLOC_TRIM_THRESHOLD_": "17179869184",
    "MALLOC_TOP_PAD_": "268435456",
}


@dataclass(kw_only=True)
class Further:
    """One further launch."""

    name: str
    interventions: Interventions | None = None  # None: a plain launch
    fixes: tuple[FixSpec, ...] = ()
    seconds: float = LEAST_SECONDS
    environment: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def causes(self) -> list[str]:
        """The causes that it would confirm."""
        return [self.name] if self.interventions is None else [one.cause for one in self.interventions.switches]

    def beside(self) -> Further:
        """The plain launch to hold this one against."""
        return Further(name=self.name, seconds=self.seconds)

    def rest(self, recorded: Recorded) -> Further | None:
        """The same launch with what this one did not come to; None where there is nothing, or it would not either."""
        asked = self.interventions
        assert asked is not None
        names = {s.name for s in recorded.steps}
        failed = recorded.exit_code not in (0, None)
        begun = [one for one in asked.switches if one.cause in names]
        if len(begun) > 1 and not failed and recorded.raw.ended_by == "script":
            begun.pop()  # the script ended while it was tried
        used = {*names, recorded.raw.segments[-1].name}
        left = replace(
            asked,
            switches=tuple(one for one in asked.switches if one not in begun),
            replay=asked.replay and not failed and REPLAY not in used,
            device_replay=None if failed or DEVICE_REPLAY in used else asked.device_replay,
            join=asked.join and not failed and JOIN not in used,
        )
        return None if not left.switches or left == asked else replace(self, interventions=left)


@dataclass(kw_only=True)
class Shares:
    """Mean seconds of the measured steps by phase, as far as choosing needs them."""

    step: float
    regular: float
    phases: Mapping[str, float]
    faults: float | None  # minor page faults a step of the whole tree
    others_cpu: float

    def of(self, *phases: str) -> float:
        """Share of these phases in the step."""
        return sum(self.phases.get(p, 0.0) for p in phases) / self.step if self.step else 0.0


def shares_of(recorded: Recorded, samples: Sequence[ResourceSample], zero: float) -> Shares:
    """What choosing further runs has to know of the first."""
    steps = recorded.measured
    phases: dict[str, float] = {}
    seen: set[Phase] = {p for s in steps for p in s.phases}
    for phase in seen:
        rare = phase in (*RARE, "data_wait")
        among = steps if rare else recorded.marked
        phases[phase] = sum(s.phases.get(phase, 0.0) for s in among) / max(1, len(among))
    for phase in COMPUTING:  # a host that only asks for it is done sooner than the device
        device = sum(s.device.get(phase, 0.0) for s in recorded.marked) / max(1, len(recorded.marked))
        phases[phase] = max(phases.get(phase, 0.0), device)
    if "epoch_start" in phases:
        phases["epoch_start"] = sum(epoch_starts(steps)) / len(steps)
    start, end = recorded.window
    inside = [s for s in samples if start <= s.at + zero <= end]
    faults = None
    if len(inside) >= 2 and inside[0].minor_faults is not None and inside[-1].minor_faults is not None:
        seconds = inside[-1].at - inside[0].at
        mean = (end - start) / len(steps)
        faults = (inside[-1].minor_faults - inside[0].minor_faults) / max(seconds, 1e-9) * mean
    return Shares(
        step=statistics.fmean(s.seconds for s in steps),
        regular=statistics.fmean([s.regular for s in steps if not s.starts_epoch] or [0.0]),
        phases=phases,
        faults=faults,
        others_cpu=statistics.fmean([s.others_cpu for s in inside] or [0.0]),
    )


def choose(facts: Facts, shares: Shares, machine: Machine, *, on: Collection[str] = ()) -> list[Further]:
    """The further launches that this run gives a chance of telling something; `on` are fixes that are on already."""
    train = next((x for x in facts.loaders if x.role == "train"), None)
    switches = tuple(
        SwitchSpec(cause=cause, fix=_fix(*TOGGLED[cause], value), settle=SETTLE.get(cause, 1))
        for cause, value in _switches(facts, shares, machine, train)
        if TOGGLED[cause][0] not in on
    )
    waits = shares.of("data_wait") >= WORTH
    chosen: list[Further] = []
    if switches or train is not None:
        # Where epochs are short, a segment holds a whole one: their first steps are unlike the others.
        epoch = math.ceil(facts.steps_per_epoch) if facts.steps_per_epoch else SHORT_EPOCH + 1
        inside = Interventions(
            switches=switches,
            switches_first=not waits,
            min_steps=epoch if epoch <= SHORT_EPOCH else 1,
            replay=train is not None,
            device_replay=facts.device if train is not None and facts.device != "cpu" else None,
            join=train is not None and shares.regular < 0.25,
            drain=train is not None and waits,
        )
        chosen.append(Further(name="interventions", interventions=inside))
    if train is not None:
        chosen += _loader_launches(train, shares, machine, facts.steps_per_epoch)
    if facts.profiler:
        chosen.append(_under("profiler_on", "no_debug", True))
    if facts.validation_grad and shares.of("validation") >= WORTH:
        chosen.append(_under("validation_gradients", "no_grad_validation", True))
    if facts.device == "cpu" and machine.system.startswith("Linux"):
        if shares.faults is not None and shares.faults * FAULT_SECONDS >= WORTH * shares.regular:
            chosen.append(Further(name="page_faults", environment=KEEP_MEMORY, settings=KEEP_MEMORY))
        if facts.num_threads > 1 and (shares.others_cpu > 0.3 or (train is not None and train.num_workers)):
            passive = {"OMP_WAIT_POLICY": "PASSIVE"}
            chosen.append(Further(name="passive_waiting", environment=passive, settings=passive))
    return chosen


def _under(name: str, fix: str, value: Value, *, seconds: float = LEAST_SECONDS) -> Further:
    """The script with one fix on, of which the cause would be mended."""
    fixes = (_fix(fix, INSTALLERS[fix], value),)
    return Further(name=name, fixes=fixes, seconds=seconds, settings={fix: str(value)})


def _fix(name: str, installer: str, value: Value) -> FixSpec:
    return FixSpec(name=name, installer=installer, value=value)


def _switches(facts: Facts, shares: Shares, machine: Machine, train: LoaderFacts | None) -> list[tuple[str, Value]]:
    on_cpu = facts.device == "cpu"
    compiled = any(m.compiled for m in facts.models)
    compute = shares.of("forward", "loss", "backward")
    found: list[tuple[str, Value]] = []
    if facts.anomaly_detection:
        found.append(("anomaly_detection", True))
    if shares.of("checkpoint") >= WORTH:
        found.append(("checkpoint_often", True))
    if facts.zero_grad_in_place:
        found.append(("zero_grad_in_place", True))
    if shares.of("optimizer") >= WORTH and any(o.name in FUSED and not o.fused for o in facts.optimizers):
        found.append(("unfused_optimizer", True))
    if on_cpu and compute >= 0.2:
        found.append(("denormals", True))
    float32 = any("float32" in m.dtypes for m in facts.models)
    double = any("float64" in m.dtypes for m in facts.models)
    if compute >= 0.2 and float32 and not double and not facts.autocast and not compiled:
        if on_cpu and {"amx_bf16", "avx512_bf16"} & set(machine.cpu_features):
            found.append(("full_precision", True))
        if not on_cpu:
            found += [("full_precision", True), *([("tf32", True)] if facts.tf32 is False else [])]
    convolutions = any(m.num_convolutions and not m.channels_last for m in facts.models)
    if compute >= 0.2 and convolutions and not compiled:
        found.append(("channels_first", True))
    if facts.device == "cuda" and any(m.num_convolutions for m in facts.models):
        varying = (facts.num_input_shapes or 1) > 8
        if bool(facts.cudnn_benchmark) == varying:
            found.append(("cudnn_autotune", not varying))
    if (facts.memory_requests or 0.0) >= 1.0:
        found.append(("allocator_thrash", True))
    busy = train.num_workers if train is not None else 0
    if on_cpu and facts.num_threads > 1 and (busy or shares.others_cpu > 0.5):
        free = machine.num_cores - min(busy, machine.num_cores - 1)
        found.append(("thread_contention", max(1, int(free))))
    return sorted(found, key=lambda one: [*TOGGLED].index(one[0]))


def _loader_launches(
    train: LoaderFacts, shares: Shares, machine: Machine, steps_per_epoch: float | None
) -> list[Further]:
    cores = max(1, int(machine.num_cores))
    chosen: list[Further] = []
    waits = shares.of("data_wait") >= WORTH
    forks = train.num_workers > 0 or train.start_method == "fork"
    if train.num_workers > cores:
        chosen.append(_under("too_many_workers", "num_workers", cores))
    elif waits and forks and not train.in_memory:
        number = _more_workers(train, shares, cores)
        if number > train.num_workers:
            chosen.append(_under("too_few_workers", "num_workers", number))
    if waits and train.num_workers and _uneven(train):
        number = _deeper_prefetch(train, shares, machine)
        if number > (train.prefetch_factor or 2):
            chosen.append(_under("shallow_prefetch", "prefetch_factor", number, seconds=UNEVEN_SECONDS))
    # A loader that is made anew takes its workers with it, persistent or not.
    could_stay = not train.persistent_workers and not train.made_anew
    if train.num_workers and could_stay and shares.of("epoch_start") >= WORTH:
        # Two epochs' starts are the least to compare.
        epochs = 3.2 * steps_per_epoch * shares.step if steps_per_epoch is not None else 0.0
        seconds = min(MOST_SECONDS, max(LEAST_SECONDS, epochs))
        chosen.append(_under("worker_startup", "persistent_workers", True, seconds=seconds))
    return chosen


def _more_workers(train: LoaderFacts, shares: Shares, cores: int) -> int:
    """As many workers as hide the loader's work behind the rest of the step; beyond the cores only if they wait."""
    wall = sum(s.seconds for s in train.stages)
    cpu = sum(s.cpu_seconds for s in train.stages)
    work = statistics.fmean(train.batch_work_seconds) if train.batch_work_seconds else 0.0
    rest = max(1e-4, shares.regular - shares.phases.get("data_wait", 0.0))
    needed = max(1, round(work / rest + 0.5))
    # A worker that is ready and has no core does not wait for a disk.
    wall -= (train.batch_delay or 0.0) * train.num_measured_batches
    waiting = wall > 0 and cpu < 0.5 * wall
    return min(needed, 8 * cores) if waiting else min(max(needed, 2), cores)


def _deeper_prefetch(train: LoaderFacts, shares: Shares, machine: Machine) -> int:
    """Batches a worker, in powers of two, that last the step while one worker makes the slowest; within memory."""
    rest = max(1e-4, shares.regular - shares.phases.get("data_wait", 0.0))
    bridged = max(train.batch_work_seconds, default=0.0) / rest / train.num_workers
    room = PREFETCH_MEMORY * machine.memory_available_bytes / max(1, train.bytes_per_batch or 1) / train.num_workers
    depth = 1 << math.ceil(math.log2(max(LEAST_PREFETCH, bridged + 1)))
    return int(min(depth, MOST_PREFETCH, room))


def _uneven(train: LoaderFacts) -> bool:
    samples = train.sample_seconds
    if len(samples) < 20:
        return False
    work = train.batch_work_seconds
    spread = statistics.stdev(work) / statistics.fmean(work) if len(work) > 4 else 0.0
    return spread > 0.3 or max(samples) > 5 * statistics.median(samples)


def broken_segment(recorded: Recorded) -> str | None:
    """The switch or instrument that was being tried when the script failed; None where it did not fail."""
    if recorded.exit_code in (0, None):
        return None
    return recorded.raw.segments[-1].name


def promising(tried: Intervention) -> bool:
    """Whether a launch may gain so much that it deserves a plain launch beside it."""
    return tried.ratio is not None and tried.ratio.low < 1 - WORTH
