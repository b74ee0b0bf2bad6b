"""One optimization against the baseline: both sides in fresh processes that alternate, until the result is clear.

Both processes of a pair run at the same time and take turns of a tenth of a second, so that a shared machine's ups and downs
affect both (see `launch.turns`). Where they cannot, the order is A B B A A B B A ..., and neighbors form a pair. After 3, 4,
6, 8, 12 and 16 pairs the interval of the speedup is looked at; it allows for repeated looks (see `stats.paired_speedup`), and
the trial ends at the first look that is clear. A trial that shows next to no gain, or whose last look will hardly be clear
either, is given up early (stopping for futility by conditional power: Lachin, Statistics in Medicine 24, 2005); that needs no
proof, because nothing is claimed. The comparison of a whole plan is not given up.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from hasten import format
from hasten.launch.side import (
    BaselineError,
    Bench,
    Frequencies,
    NotAppliedError,
    SideError,
    SideResult,
    run_in_turns,
)
from hasten.optimizations.catalog import CATALOG, variables_of
from hasten.records import Interval, Settings, Trial, Verdict
from hasten.stats import LOOKS, Estimate, paired_speedup
from hasten.tuning.trial_config import TrialConfig, spec_of

WORTH = 1.01  # a speedup below this is not worth a line in a plan, however sure
LAST_BATCH = 0.1  # by so much a step's samples may differ without another batch size
EARLY, HOPELESS = 2, 0.8  # pairs, and a speedup below which nobody waits for the first look
NOISY = 0.1  # relative standard error of a gain, from which fewer pairs say nothing of it
FUTILE_FROM = 6  # pairs; of fewer the spread is too uncertain to give a trial up by
FUTILE = 0.8  # of the gain that the last look would call clear: with less in sight a trial is given up


Chosen = tuple[Bench, Settings]


@dataclass
class Sides:
    """The results of both sides' launches so far, in their order."""

    baseline: list[SideResult] = field(default_factory=list)
    candidate: list[SideResult] = field(default_factory=list)
    elapsed: float = 0.0  # seconds that they took

    def add_pair(self, baseline: Chosen, candidate: Chosen, config: TrialConfig) -> None:
        """One more launch of each; which comes first changes from pair to pair.

        Raises SideError; BaselineError where it is known to be the baseline that failed.
        """
        both = [(baseline, self.baseline), (candidate, self.candidate)]
        at = len(self.baseline) % 2  # where the baseline is
        if at:
            both.reverse()
        results = side_by_side([chosen for chosen, _ in both], config, baseline=at)
        for seen, (_, into) in zip(results, both):
            into.append(seen)

    def seconds(
        self, frequencies: Frequencies, candidates: Frequencies | None = None
    ) -> tuple[list[float], list[float]]:
        """Seconds a step of each launch; a rare phase counts where every launch has met it.

        `candidates`: the candidate's own frequencies, where it is another script.
        """
        candidates = candidates or frequencies
        launches = [*self.baseline, *self.candidate]
        phases = [p for p in frequencies.by_phase if launches and all(p in seen.parts for seen in launches)]
        return (
            [frequencies.step_seconds(seen, phases=phases) for seen in self.baseline],
            [candidates.step_seconds(seen, phases=phases, growth=self._growth(seen)) for seen in self.candidate],
        )

    def _growth(self, seen: SideResult) -> float:
        """How many of the baseline's steps a step of the candidate does the work of."""
        known = [s.samples_per_step for s in self.baseline if s.samples_per_step is not None]
        if not known or seen.samples_per_step is None:
            return 1.0
        growth = seen.samples_per_step / statistics.fmean(known)
        return growth if abs(growth - 1) > LAST_BATCH else 1.0


def side(bench: Bench, settings: Settings, config: TrialConfig, *, is_baseline: bool = False) -> SideResult:
    """One launch with these settings.

    Raises SideError; NotAppliedError if one of them was not applied; of the baseline always BaselineError.
    """
    try:
        return bench.run(spec=spec_of(settings, config), environment=variables_of(settings, scratch=bench.folder))
    except SideError as error:
        raise BaselineError(str(error)) if is_baseline else error from None


def try_fix(
    bench: Bench,
    settings: Settings,
    added: Settings,
    *,
    frequencies: Frequencies,
    config: TrialConfig,
    sides: Sides | None = None,
    time_left: Callable[[], float] = lambda: float("inf"),
    on_pair: Callable[[int, Estimate], object] = lambda _n, _e: None,
) -> Trial:
    """The settings with a fix, or several, against those without; `sides` are of the same trial, to be continued."""
    (fix, value), *others = added.items()
    trial = compare(
        (bench, settings),
        (bench, {**settings, **added}),
        fix=fix,
        frequencies=frequencies,
        config=config,
        sides=sides,
        time_left=time_left,
        on_pair=on_pair,
    )
    return msgspec.structs.replace(trial, value=value, together=added if others else {})


def compare(
    baseline: Chosen,
    candidate: Chosen,
    *,
    fix: str = "plan",
    frequencies: Frequencies,
    candidates: Frequencies | None = None,
    config: TrialConfig,
    gives_up: bool = True,
    sides: Sides | None = None,
    time_left: Callable[[], float] = lambda: float("inf"),
    on_pair: Callable[[int, Estimate], object] = lambda _n, _e: None,
) -> Trial:
    """One side against another, until it is clear or time is over; if it `gives_up`, also until it is hopeless."""
    (bench, settings), (_, changed) = baseline, candidate
    sides = sides if sides is not None else Sides()
    began = time.monotonic() - sides.elapsed
    trial, note = Trial(fix=fix, value=True, settings=settings, verdict="failed"), ""
    try:
        for number in range(len(sides.baseline) + 1, config.most_pairs + 1):
            try:
                sides.add_pair(baseline, candidate, config)
            except SideError as error:
                if not config.turns or not bench.takes_turns or isinstance(error, NotAppliedError):
                    raise
                # Perhaps the script cannot be there twice: it has a port, a lock or a file of its own.
                bench.takes_turns = False
                try:
                    sides.add_pair(baseline, candidate, config)
                except SideError:
                    bench.takes_turns = True  # it fails alone, too
                    raise
            estimate = paired_speedup(*sides.seconds(frequencies, candidates))
            on_pair(number, estimate)
            over = number >= min(LOOKS) and time_left() <= 0  # what has begun gets its first look
            if gives_up and number == EARLY and estimate.value < HOPELESS:
                break
            if over or decide(estimate, number, gives_up=gives_up) is not None:
                break
    except BaselineError as error:
        note = f"the baseline failed: {error}"
        if not sides.baseline:
            return msgspec.structs.replace(trial, verdict="inconclusive", note=note, seconds=time.monotonic() - began)
    except SideError as error:
        return msgspec.structs.replace(trial, note=str(error), seconds=time.monotonic() - began)
    sides.elapsed = time.monotonic() - began
    result = _result(trial, sides, sides.seconds(frequencies, candidates), gives_up=gives_up)
    makes = any(CATALOG[name].keeps_in for name in changed if name not in settings)
    result = msgspec.structs.replace(result, note=note or result.note)
    return msgspec.structs.replace(result, startup_seconds=_later_start(sides, first=makes), seconds=sides.elapsed)


def may_continue(trial: Trial) -> bool:
    """Whether only its time was over: more pairs may make it clear."""
    num_pairs = len(trial.baseline_seconds)
    if trial.verdict != "inconclusive" or trial.speedup is None or num_pairs >= max(LOOKS):
        return False
    estimate = Estimate(trial.speedup.value, trial.speedup.low, trial.speedup.high)
    return decide(estimate, _last_look(num_pairs), num_pairs=num_pairs) is None


def side_by_side(launches: Sequence[Chosen], config: TrialConfig, *, baseline: int | None = None) -> list[SideResult]:
    """Two launches in turns, or one after the other where the config says so.

    Raises SideError; BaselineError if, one after the other, it is the launch at `baseline`.
    """
    if not config.turns or not all(bench.takes_turns for bench, _ in launches):
        return [side(*chosen, config, is_baseline=at == baseline) for at, chosen in enumerate(launches)]
    return run_in_turns([(bench, spec_of(s, config), variables_of(s, scratch=bench.folder)) for bench, s in launches])


def decide(estimate: Estimate, look: int, *, gives_up: bool = True, num_pairs: int | None = None) -> Verdict | None:
    """What a look says; None: look again after more pairs.

    `num_pairs`: that there were, if time was over between two looks.
    """
    if look not in LOOKS:
        return None
    num_pairs = num_pairs or look
    if estimate.low > 1.0:
        return "faster" if estimate.value >= WORTH else "no difference"
    if estimate.high < 1.0:
        return "slower"
    if gives_up and estimate.value < WORTH and (num_pairs >= FUTILE_FROM or _error(estimate, num_pairs) < NOISY):
        return "no difference"
    last = look >= max(LOOKS)
    hopeless = num_pairs >= FUTILE_FROM and estimate.value < 1 + FUTILE * (_at_last_look(estimate, num_pairs) - 1)
    return "inconclusive" if last or (gives_up and hopeless) else None


def _last_look(num_pairs: int) -> int:
    """The last look that so many pairs came to."""
    return max(number for number in LOOKS if number <= num_pairs)


def _error(estimate: Estimate, num_pairs: int) -> float:
    """The relative standard error of a speedup."""
    return math.log(estimate.high / estimate.value) / LOOKS[_last_look(num_pairs)]


def _at_last_look(estimate: Estimate, num_pairs: int) -> float:
    """The least gain that the last look would call clear, if the spread of pairs stays the same."""
    spread = _error(estimate, num_pairs) * math.sqrt(num_pairs)
    last = max(LOOKS)
    return math.exp(LOOKS[last] * spread / math.sqrt(last))


def _result(trial: Trial, sides: Sides, seconds: tuple[list[float], list[float]], *, gives_up: bool) -> Trial:
    baseline, candidate = seconds
    estimate = paired_speedup(baseline, candidate)
    seen = msgspec.structs.replace(
        trial,
        verdict="inconclusive",
        baseline_seconds=tuple(baseline),
        candidate_seconds=tuple(candidate),
        memory_bytes=_difference(sides, lambda seen: seen.peak_bytes),
    )
    if len(baseline) < min(LOOKS):  # too few for an interval
        note = f"given up: {format.ratio(estimate.value)} in {format.count(len(baseline), noun='pair')}"
        return msgspec.structs.replace(seen, note=note)
    verdict = (
        decide(estimate, _last_look(len(baseline)), gives_up=gives_up, num_pairs=len(baseline)) or "inconclusive"
    )
    return msgspec.structs.replace(seen, verdict=verdict, speedup=Interval(*estimate))


def _later_start(sides: Sides, *, first: bool) -> float:
    """Seconds until the candidate's steps begin, beyond the baseline's; `first`: that made what later ones find."""
    if not first:
        return _difference(sides, lambda seen: seen.startup_seconds)
    return max(s.startup_seconds for s in sides.candidate) - statistics.median(
        s.startup_seconds for s in sides.baseline
    )


def _difference(sides: Sides, of: Callable[[SideResult], float]) -> float:
    return statistics.median(map(of, sides.candidate)) - statistics.median(map(of, sides.baseline))
