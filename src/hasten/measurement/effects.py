"""What each further run did to the step, as Interventions.

In: records of alternating runs, or of a launch and a plain one. Out: ratios with their intervals, whatever they are.
Refuses to judge them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from hasten.measurement.folding import epoch_starts, segment_means, validation_cycles
from hasten.measurement.inside.programs import JOINED, PLAIN
from hasten.measurement.interventions import Further
from hasten.measurement.recorder import Recorded
from hasten.records import Interval, Intervention
from hasten.stats import ratio_interval, scaled


def read_switches(recorded: Recorded) -> list[Intervention]:
    """What the alternating run said of each switch, of replay and of the loader alone."""
    labels = dict.fromkeys(s.label for s in recorded.steps)
    not_applied: dict[str, str] = recorded.raw.get("not_applied", {})
    found = [
        _compared(name, recorded, candidate=name, baseline=f"without {name}")
        for name in labels
        if f"without {name}" in labels and name not in not_applied
    ]
    found += [Intervention(name=name, note=f"not applied: {why}") for name, why in not_applied.items()]
    if "device replay" in labels and "device replay" not in not_applied:
        found.append(_compared("device replay", recorded, candidate="device replay", baseline="replay"))
    if {"join", "replay"} <= {*labels} and "join" not in not_applied:
        joined = _compared("join", recorded, candidate="join", baseline="replay")
        ratio = joined.ratio
        if ratio is not None:
            # A sample's share: the joined step makes JOINED times as many.
            per_sample = Interval(*scaled((ratio.value, ratio.low, ratio.high), lambda r: r / JOINED))
            found.append(_with(joined, name="small_batch", ratio=per_sample, joined=str(JOINED)))
    drained = recorded.raw.get("extra", {}).get("drain")
    if drained is not None:
        times: list[float] = drained.get("seconds", [])
        found.append(
            Intervention(
                name="drain",
                candidate_seconds=statistics.fmean(times) if times else None,
                num_steps=len(times),
                note=drained.get("note", ""),
            )
        )
    return found


def _with(of: Intervention, *, name: str, ratio: Interval, **settings: str) -> Intervention:
    return Intervention(
        name=name,
        ratio=ratio,
        baseline_seconds=of.baseline_seconds,
        candidate_seconds=of.candidate_seconds,
        num_steps=of.num_steps,
        settings=settings,
    )


def _compared(name: str, recorded: Recorded, *, candidate: str, baseline: str) -> Intervention:
    sides = [segment_means(recorded.steps, label) for label in (candidate, baseline)]
    return compare(name, *sides, num_steps=sum(s.label == candidate and s.counted for s in recorded.steps))


TOO_FEW = "too few steps were measured"


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


def against(further: Further, recorded: Recorded, base: Recorded) -> Intervention:
    """A launch of its own against a plain one, by what it is about."""
    settings, number = further.settings, len(recorded.measured)
    if further.name == "validation_gradients":
        sides = validation_cycles(recorded.measured), validation_cycles(base.measured)
    elif further.name == "worker_startup":
        sides = epoch_starts(recorded.measured), epoch_starts(base.measured)
    else:
        sides = segment_means(recorded.steps, PLAIN), segment_means(base.steps, PLAIN)
    return compare(further.name, *sides, num_steps=number, settings=settings)
