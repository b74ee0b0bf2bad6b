"""Which follow-up launches would confirm a cause, and what each of them showed.

Experiments that can be enabled and disabled between two steps share one launch, in which they alternate with the plain
step (A B B A), so that the machine's drift falls on both. What must be in place before the script begins gets a launch of
its own, next to a plain one, and where it gains less than `LUCK`, a second such pair in the reverse order, if there is
time. Replay and join (batches without a loader's work) are instruments of the first kind.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from hasten.agent.segments import JOINED
from hasten.diagnosis.compute_rules import SMALL_BATCH
from hasten.launch.folding import epoch_starts, phase_means, segment_means, validation_cycles
from hasten.launch.recorder import Recorded
from hasten.launch.shares import Shares
from hasten.optimizations.catalog import EXPERIMENTS
from hasten.optimizations.optimization import LEAST_SECONDS, WORTH, Experiment, Optimization, Symptoms, spec_of
from hasten.protocol import FixSpec, Interventions, SwitchSpec, Value
from hasten.raw_run import DEVICE_REPLAY, INSTANT, JOIN, PLAIN, REPLAY
from hasten.records import Facts, Interval, Intervention, LoaderFacts, Machine
from hasten.stats import ratio_interval, scaled

SHORT_EPOCH = 8  # steps
MOSTLY = 0.5  # share of the step from which training is waiting more than anything else
JOINS_BELOW = 0.25  # seconds per step: slower ones are no batch too small
TOO_FEW = "too few steps were measured"
MOST_FILES = 12  # that decoders are compared on
ROUNDS = 4
BRIEF = 3  # experiments that a launch must have time for, or they get less than theirs
LUCK = 0.25  # share of the step by which two equal launches may differ


@dataclass(kw_only=True)
class FollowUpRun:
    """One follow-up launch."""

    name: str
    interventions: Interventions | None = None  # None: a plain launch
    fixes: tuple[FixSpec, ...] = ()
    seconds: float = LEAST_SECONDS
    environment: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    expected: float = 1.0  # share of the step that it may save
    spares_loading: bool = False  # it saves no more than instant data loading does
    spares_computing: bool = False  # it saves nothing of what instant data loading does
    brief: bool = False  # the script ends soon

    def most(self, found: Sequence[Intervention]) -> float:
        """The largest share of the step that it may save, by what is known already."""
        ratios = {one.name: one.ratio for one in found if one.ratio is not None}
        if self.spares_computing and REPLAY in ratios:
            return ratios[REPLAY].high
        known = [ratios[name].low for name in (REPLAY, INSTANT) if name in ratios] if self.spares_loading else []
        return 1 - max(known, default=0.0)

    @property
    def causes(self) -> list[str]:
        """The causes that it would confirm."""
        return [self.name] if self.interventions is None else [one.cause for one in self.interventions.switches]

    def baseline(self) -> FollowUpRun:
        """The plain launch to hold this one against."""
        return FollowUpRun(name=self.name, seconds=self.seconds, brief=self.brief)

    def remaining_after(self, recorded: Recorded) -> FollowUpRun | None:
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
            instant=asked.instant and not failed and INSTANT not in used,
            device_replay=None if failed or DEVICE_REPLAY in used else asked.device_replay,
            join=asked.join and not failed and JOIN not in used,
        )
        return None if not left.switches or left == asked else replace(self, interventions=left)


def choose(
    facts: Facts, shares: Shares, machine: Machine, *, on: Collection[str] = (), length: float = math.inf
) -> list[FollowUpRun]:
    """The follow-up launches that may confirm a cause.

    Args:
        facts: what the script is.
        shares: where the time of the first launch went.
        machine: where it ran.
        on: optimizations that are enabled already.
        length: seconds of steps that the script makes, if it is known to end.
    """
    brief = length < BRIEF * LEAST_SECONDS
    symptoms = Symptoms(facts=facts, shares=shares, machine=machine)
    suspected = [
        (experiment, optimization, value)
        for experiment, optimization in sorted(EXPERIMENTS.values(), key=lambda pair: -pair[0].expected(symptoms))
        if (value := experiment.suspect(symptoms)) is not None
    ]
    switches = tuple(
        SwitchSpec(cause=experiment.cause, fix=spec_for(experiment, optimization, value), settle=experiment.settle)
        for experiment, optimization, value in suspected
        if experiment.toggled and (optimization is None or optimization.name not in on)
    )
    train = symptoms.train
    chosen: list[FollowUpRun] = []
    # Where epochs are short, a segment holds a whole one: their first steps are unlike the others.
    epoch = math.ceil(facts.steps_per_epoch) if facts.steps_per_epoch else SHORT_EPOCH + 1
    inside = Interventions(
        switches=switches,
        switches_first=not (symptoms.waits or symptoms.crowds),
        min_steps=epoch if epoch <= SHORT_EPOCH else 1,
    )
    seconds = length / BRIEF if brief else LEAST_SECONDS
    if train is not None:
        instruments = replace(
            inside,
            replay=True,
            instant=bool(train.num_workers) and symptoms.waits,
            device_replay=facts.device if facts.device != "cpu" else None,
            join=shares.regular < JOINS_BELOW and (train.batch_size or 1) <= SMALL_BATCH,
            drain=symptoms.waits,
        )
        if shares.of("data_wait", "epoch_start") >= MOSTLY:
            # Launches about the loader come before what can only make the rest faster.
            instruments = replace(instruments, switches=())
        else:
            inside = replace(inside, switches=())
        chosen.append(FollowUpRun(name="interventions", interventions=instruments, seconds=seconds, brief=brief))
    if inside.switches:
        expected = max(EXPERIMENTS[one.cause][0].expected(symptoms) for one in switches)
        chosen.append(
            FollowUpRun(
                name="interventions",
                interventions=inside,
                seconds=seconds,
                brief=brief,
                expected=1.0 if train is None else expected,
                spares_computing=True,
            )
        )
    chosen += [
        _launch(experiment, optimization, value, symptoms, length=length)
        for experiment, optimization, value in suspected
        if not experiment.toggled
    ]
    return chosen


def _launch(
    experiment: Experiment, optimization: Optimization | None, value: Value, symptoms: Symptoms, *, length: float
) -> FollowUpRun:
    """The script with one thing different."""
    enables = experiment.enable is not None or (optimization is not None and optimization.enable is not None)
    return FollowUpRun(
        name=experiment.cause,
        fixes=(spec_for(experiment, optimization, value),) if enables else (),
        seconds=min(experiment.seconds(symptoms), length),
        brief=length < BRIEF * LEAST_SECONDS,
        environment=dict(optimization.environment(value)) if optimization is not None else {},
        settings={optimization.name: str(value)} if optimization is not None else {},
        expected=experiment.expected(symptoms),
        spares_loading=experiment.spares_loading,
    )


def spec_for(experiment: Experiment, optimization: Optimization | None, value: Value) -> FixSpec:
    """What an experiment enables."""
    enable = experiment.enable or (optimization.enable if optimization is not None else None)
    assert enable is not None
    return spec_of(optimization.name if optimization is not None else experiment.cause, enable, value)


def broken_segment(recorded: Recorded) -> str | None:
    """The switch or instrument that was being tried when the script failed; None where it did not fail."""
    if recorded.exit_code in (0, None):
        return None
    return recorded.raw.segments[-1].name


def promising(tried: Intervention) -> bool:
    """Whether a launch may gain so much that it deserves a plain launch beside it."""
    return tried.ratio.low < 1 - WORTH if tried.ratio is not None else tried.note == TOO_FEW


def may_be_luck(tried: Intervention) -> bool:
    """Whether one pair of launches says of it what a second pair may contradict."""
    return tried.ratio is not None and 1 - LUCK < tried.ratio.value <= 1 - WORTH and tried.ratio.high < 1.0


def of_two_pairs(one: Intervention, other: Intervention) -> Intervention:
    """The mean of two pairs of launches.

    Its interval is that of the mean of two independent estimates, widened to hold both: a launch may be slower by itself,
    which the steps within it do not show.
    """
    if one.ratio is None or other.ratio is None:
        return one
    first, second = one.ratio, other.ratio
    mean = (first.value + second.value) / 2
    below = math.hypot(first.value - first.low, second.value - second.low) / 2
    above = math.hypot(first.high - first.value, second.high - second.value) / 2
    ratio = Interval(
        mean,
        min(mean - below, first.value, second.value),
        max(mean + above, first.value, second.value),
    )
    return msgspec.structs.replace(one, ratio=ratio, num_steps=one.num_steps + other.num_steps)


def read_switches(recorded: Recorded) -> list[Intervention]:
    """What the alternating run said of each switch, of replay and of the loader alone."""
    raw, steps = recorded.raw, recorded.steps
    names, baselines = (dict.fromkeys(s.name for s in steps if s.is_baseline == is_one) for is_one in (False, True))
    found = [_switched(name, recorded) for name in names if name in baselines and name not in raw.not_applied]
    found += [Intervention(name=name, note=f"not applied: {why}") for name, why in raw.not_applied.items()]
    if DEVICE_REPLAY in names and DEVICE_REPLAY not in raw.not_applied:
        found.append(_compared(DEVICE_REPLAY, recorded, segment_means(steps, REPLAY)))
    if {JOIN, REPLAY} <= {*names} and JOIN not in raw.not_applied:
        joined = _compared(JOIN, recorded, segment_means(steps, REPLAY))
        ratio = joined.ratio
        if ratio is not None:
            # A sample's share: the joined step makes JOINED times as many.
            per_sample = Interval(*scaled((ratio.value, ratio.low, ratio.high), lambda r: r / JOINED))
            settings = {"joined": str(JOINED)}
            found.append(msgspec.structs.replace(joined, name="small_batch", ratio=per_sample, settings=settings))
    if raw.drained is not None:
        found.append(
            Intervention(
                name="drain",
                candidate_seconds=statistics.fmean(raw.drained) if raw.drained else None,
                num_steps=len(raw.drained),
                note=raw.drain_trouble,
            )
        )
    return found


def _switched(name: str, recorded: Recorded) -> Intervention:
    """A switch against its own baseline; by the phase alone that it acts in, where the host waits for what it calls."""
    experiment = EXPERIMENTS[name][0] if name in EXPERIMENTS else None
    if experiment is None or experiment.acts_in is None or recorded.raw.facts.device != "cpu":
        return _compared(name, recorded, segment_means(recorded.steps, name, is_baseline=True))
    sides = phase_means(recorded.steps, name, experiment.acts_in)
    return compare(name, *sides, num_steps=_counted(name, recorded))


def _counted(name: str, recorded: Recorded) -> int:
    return sum(s.name == name and not s.is_baseline and s.counted for s in recorded.steps)


def _compared(name: str, recorded: Recorded, baseline: Sequence[float]) -> Intervention:
    return compare(name, segment_means(recorded.steps, name), baseline, num_steps=_counted(name, recorded))


def compare(
    name: str,
    candidate: Sequence[float],
    baseline: Sequence[float],
    *,
    num_steps: int,
    settings: Mapping[str, str] | None = None,
) -> Intervention:
    """An Intervention from the segment means of both sides."""
    if min(len(candidate), len(baseline)) < 2:
        return Intervention(name=name, note=TOO_FEW, settings=dict(settings or {}))
    return Intervention(
        name=name,
        ratio=Interval(*ratio_interval(candidate, baseline)),
        baseline_seconds=statistics.median(baseline),
        candidate_seconds=statistics.median(candidate),
        num_steps=num_steps,
        settings=dict(settings or {}),
    )


def against(further: FollowUpRun, recorded: Recorded, base: Recorded) -> Intervention:
    """A launch of its own against a plain one, by what it is about."""
    settings, number = further.settings, len(recorded.measured)
    if further.name == "validation_gradients":
        sides = validation_cycles(recorded.measured), validation_cycles(base.measured)
    elif further.name == "worker_startup":
        sides = epoch_starts(recorded.measured), epoch_starts(base.measured)
    else:
        sides = segment_means(recorded.steps, PLAIN), segment_means(base.steps, PLAIN)
    return compare(further.name, *sides, num_steps=number, settings=settings)


def with_decoders(facts: Facts) -> Facts:
    """The same facts, with another decoder tried on the training files."""

    def asked(loader: LoaderFacts) -> LoaderFacts:
        pillow = any(s.name == "decode" and s.detail.startswith("Pillow") for s in loader.stages)
        answer = _compare_decoders(loader.files) if pillow else None
        if answer is None:
            return loader
        return msgspec.structs.replace(loader, decode_speedup=answer[0], decode_library=answer[1])

    return msgspec.structs.replace(facts, loaders=tuple(asked(x) for x in facts.loaders))


def _compare_decoders(files: Sequence[str]) -> tuple[Interval, str] | None:
    """Pillow's seconds over simplejpeg's on the JPEG files among `files`; None when there are none."""
    contents = [data for data in (_read(f) for f in files[: 4 * MOST_FILES]) if data[:3] == b"\xff\xd8\xff"]
    contents = contents[:MOST_FILES]
    if len(contents) < 4:
        return None
    import io

    import simplejpeg
    from PIL import Image

    def pillow(data: bytes) -> object:
        return Image.open(io.BytesIO(data)).convert("RGB")

    def other(data: bytes) -> object:
        return simplejpeg.decode_jpeg(data, colorspace="RGB")

    times: dict[object, list[float]] = {pillow: [], other: []}
    try:
        for _ in range(ROUNDS):
            for decode in (pillow, other, other, pillow):
                start = time.thread_time()
                for data in contents:
                    decode(data)
                times[decode].append(time.thread_time() - start)
    except (OSError, ValueError, Image.DecompressionBombError):
        return None  # a file that only one of them reads says nothing about speed
    return Interval(*ratio_interval(times[pillow], times[other])), "simplejpeg"


def _read(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError:
        return b""
