"""One fix against none: both sides in fresh processes, in turn, until it is clear which is faster.

In: two sets of settings. Out: a Trial. Refuses to choose what to try.

The order is A B B A A B B A ..., each A with the B next to it a pair, so that a machine that grows slower or faster does
so for both. After 3, 4, 6, 8, 12 and 16 pairs the speedup's interval is looked at; it allows for the looks (see
`stats.paired_speedup`), and the trial ends at the first that is clear.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from hasten.fixes.catalog import variables_of
from hasten.measurement.side import Bench, Frequencies, Seen, SideError
from hasten.records import Interval, Settings, Trial, Value
from hasten.stats import LOOKS, Estimate, paired_speedup
from hasten.tuning.manner import Manner, spec_of

WORTH = 1.01  # a speedup below this is not worth a line in a plan, however sure
TEMPTING = {6: 1.02, 8: 1.03, 12: 1.04}  # what must be seen after so many pairs to go on


@dataclass
class Sides:
    """What both sides' launches have told so far, in their order."""

    baseline: list[Seen] = field(default_factory=list)
    candidate: list[Seen] = field(default_factory=list)

    def seconds(self, frequencies: Frequencies) -> tuple[list[float], list[float]]:
        """Seconds a step of each launch; a rare phase counts where every launch has met it."""
        launches = [*self.baseline, *self.candidate]
        phases = [p for p in frequencies.by_phase if launches and all(p in seen.parts for seen in launches)]
        return (
            [frequencies.step_seconds(seen, phases=phases) for seen in self.baseline],
            [frequencies.step_seconds(seen, phases=phases) for seen in self.candidate],
        )


def side(bench: Bench, settings: Settings, manner: Manner, *, check: str | None = None) -> Seen:
    """One launch under these settings. Raises SideError; also where the fix to `check` is not on, or a loss is not finite."""
    seen = bench.run(spec=spec_of(settings, manner), environment=variables_of(settings))
    state = seen.fixes.get(check, "on") if check is not None else "on"
    if state != "on":
        raise SideError(f"it is not on: {state}")
    return seen


def try_fix(
    bench: Bench,
    settings: Settings,
    fix: str,
    value: Value,
    *,
    frequencies: Frequencies,
    manner: Manner,
    time_left: Callable[[], float] = lambda: float("inf"),
    on_pair: Callable[[int, Estimate], object] = lambda _n, _e: None,
) -> Trial:
    """The settings with a fix against those without."""
    candidate = {**settings, fix: value}
    trial = compare(
        bench,
        settings,
        candidate,
        fix=fix,
        frequencies=frequencies,
        manner=manner,
        time_left=time_left,
        on_pair=on_pair,
    )
    return msgspec.structs.replace(trial, value=value)


def compare(
    bench: Bench,
    settings: Settings,
    candidate: Settings,
    *,
    fix: str = "plan",
    frequencies: Frequencies,
    manner: Manner,
    time_left: Callable[[], float] = lambda: float("inf"),
    on_pair: Callable[[int, Estimate], object] = lambda _n, _e: None,
) -> Trial:
    """One set of settings against another, until it is clear or time is over."""
    began = time.monotonic()
    sides = Sides()
    trial = Trial(fix=fix, value=True, settings=settings, verdict="failed")
    try:
        for number in range(1, manner.most_pairs + 1):
            _pair(bench, settings, candidate, sides, manner, fix, first=number % 2 == 1)
            estimate = paired_speedup(*sides.seconds(frequencies))
            on_pair(number, estimate)
            over = number >= min(LOOKS) and time_left() <= 0  # what has begun gets its first look
            if over or decide(estimate, number) is not None:
                break
    except SideError as error:
        return msgspec.structs.replace(trial, note=str(error), seconds=time.monotonic() - began)
    return msgspec.structs.replace(_told(trial, sides, frequencies), seconds=time.monotonic() - began)


def _pair(
    bench: Bench, settings: Settings, candidate: Settings, sides: Sides, manner: Manner, fix: str, *, first: bool
) -> None:
    """One launch of each side; the order turns round from pair to pair."""
    launches: list[tuple[Settings, list[Seen], str | None]] = [
        (settings, sides.baseline, None),
        (candidate, sides.candidate, fix),
    ]
    for chosen, into, check in launches if first else reversed(launches):
        into.append(side(bench, chosen, manner, check=check))


def decide(estimate: Estimate, num_pairs: int) -> str | None:
    """What a look says; None: look again after more pairs."""
    if num_pairs not in LOOKS:
        return None
    if estimate.low > 1.0:
        return "faster" if estimate.value >= WORTH else "no difference"
    if estimate.high < 1.0:
        return "slower"
    # To drop a fix that seems to gain next to nothing takes no proof.
    if estimate.value < TEMPTING.get(num_pairs, WORTH):
        return "no difference"
    return "unclear" if num_pairs >= max(LOOKS) else None


def _told(trial: Trial, sides: Sides, frequencies: Frequencies) -> Trial:
    baseline, candidate = sides.seconds(frequencies)
    estimate = paired_speedup(baseline, candidate)
    looked = max((number for number in LOOKS if number <= len(baseline)), default=0)
    return msgspec.structs.replace(
        trial,
        verdict=decide(estimate, looked) or "unclear",
        speedup=Interval(*estimate),
        baseline_seconds=tuple(baseline),
        candidate_seconds=tuple(candidate),
        startup_seconds=_difference(sides, lambda seen: seen.startup_seconds),
        memory_bytes=_difference(sides, lambda seen: seen.peak_bytes),
    )


def _difference(sides: Sides, of: Callable[[Seen], float]) -> float:
    return statistics.median(map(of, sides.candidate)) - statistics.median(map(of, sides.baseline))
