"""Whole runs: the script's own metric at their end, and how soon it reached a target.

Recipes are screened by one whole run each. A plan is compared with the baseline over at least three seeds.
"""

from __future__ import annotations

import functools
import math
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from hasten import format
from hasten.errors import ClusterError, PlanError
from hasten.launch.launch import ending_as_interrupt
from hasten.launch.side import BaselineError, Bench, Output, SideError
from hasten.optimizations.catalog import variables_of
from hasten.records import Check, ScreeningRun, Settings
from hasten.stats import mean_interval, paired_speedup
from hasten.tuning import quality
from hasten.tuning.elsewhere import Elsewhere, WholeTask
from hasten.tuning.evaluator import FAR, TOLERATED, Evaluator
from hasten.tuning.trial_config import TrialConfig, spec_of

# Where whole runs part from the first step on, a difference's deviation is 1.4 of the margin, and a plan that is as good
# passes with a power of 0.36 at 8 seeds, 0.76 at 16: the probability that t / 4 + a mean of deviation 1 / 4, in units of 1.4
# margins, stays below the margin.
SEEDS = (3, 16)  # a first look, and a second one if that is inconclusive
FEWEST = 6  # seeds of the second look, where there is no time for all
REST_OF_NUMBER = re.compile(r"\.?\d|[eE][+-]?\d")
FOR_SPEED = 60.0  # seconds that the comparison of speed gets after the last seed
LONGEST = 1e7  # seconds that a whole run may take: it ends by itself


def pattern_of(text: str) -> re.Pattern[str]:
    """A regular expression with one group, for the metric in a script's output. Raises PlanError."""
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise PlanError(f"the metric {text!r} is not a valid regular expression ({error})") from None
    if pattern.groups != 1:
        raise PlanError(f"the metric {text!r} needs one group around the number, as in 'F1: ([0-9.]+)'")
    return pattern


@dataclass(frozen=True, kw_only=True)
class WholeRun:
    """One run of the script to its end."""

    value: float  # of the metric, the last that was printed
    num_values: int  # that were printed
    reached: float | None  # seconds from the command's start to the first value that is as good as the target
    seconds: float


@dataclass(frozen=True)
class Metric:
    """A number in the script's own output, to be judged at the end of whole runs."""

    pattern: re.Pattern[str]
    higher_is_better: bool = True
    target: float | None = None  # that training is for: the time until it is reached is compared as well
    seeds: tuple[int, int] = SEEDS
    command: Sequence[str] | None = None  # whose runs are whole, where the one that is measured has no end
    elsewhere: Elsewhere | None = None  # where whole runs are made; None: here, one after another

    def run(self, bench: Bench, settings: Settings, *, shift: int) -> WholeRun:
        """One whole run. Raises SideError."""
        return self.start(bench, settings, shift=shift)()

    def start(self, bench: Bench, settings: Settings, *, shift: int) -> Callable[[], WholeRun]:
        """Begin one, and return what waits for it: elsewhere at once, here when it is waited for."""
        if self.command is not None:
            bench = Bench(self.command, bench.workspace, patience=bench.patience)
        spec = replace(spec_of(settings, TrialConfig(), shift=shift), mode="hold", seconds=LONGEST)
        if self.elsewhere is None:
            environment = variables_of(settings, scratch=bench.folder)
            return lambda: self._read(bench.run_whole(spec=spec, environment=environment))
        result = self.elsewhere.start(WholeTask.of(bench, spec, settings))

        def waited() -> WholeRun:
            with ending_as_interrupt():  # without a launch here, nothing else ends what runs elsewhere
                return self._read(result())

        return waited

    def _read(self, output: Output) -> WholeRun:
        found = [match for match in self.pattern.finditer(output.text) if match[1] is not None]
        if not found:
            raise SideError(f"{self.pattern.pattern!r} is nowhere in the script's output")
        for match in found:
            if REST_OF_NUMBER.match(output.text, match.end(1)):
                raise SideError(
                    f"{self.pattern.pattern!r} takes {match[1]!r} out of a longer number; widen its group"
                )
        try:
            values = [float(match[1]) for match in found]
        except ValueError:
            raise SideError(f"{found[-1][1]!r}, found by {self.pattern.pattern!r}, is not a number") from None
        times = [output.seconds_at(match.end()) for match in found]
        reached = next((at for value, at in zip(values, times) if self._is_there(value)), None)
        return WholeRun(value=values[-1], num_values=len(values), reached=reached, seconds=output.seconds)

    def _is_there(self, value: float) -> bool:
        if self.target is None:
            return False
        return value >= self.target if self.higher_is_better else value <= self.target


@dataclass
class WholeRuns:
    """Whole runs of the script and of the plan, seed by seed."""

    metric: Metric
    reference_settings: Settings = field(
        default_factory=dict
    )  # that the script has: they draw the plan's random numbers
    baseline: list[WholeRun] = field(default_factory=list)
    plan: list[WholeRun] = field(default_factory=list)

    def begin(self, evaluator: Evaluator, settings: Settings, number: int) -> None:
        """Have the runs of so many seeds made elsewhere, all at once."""
        if self.metric.elsewhere is not None:
            for seed in range(len(self.baseline), number):
                for chosen in (self.reference_settings, settings):
                    self._begun(evaluator, chosen, seed)

    def _begun(self, evaluator: Evaluator, settings: Settings, seed: int) -> Callable[[], WholeRun]:
        key = tuple(sorted(settings.items())), seed
        if key not in evaluator.whole_runs:
            start = self.metric.start(evaluator.bench, settings, shift=FAR * seed)
            evaluator.whole_runs[key] = functools.cache(start)
        return evaluator.whole_runs[key]

    def add_seed(self, evaluator: Evaluator, settings: Settings) -> None:
        """One more seed on both sides; which comes first changes from seed to seed. Raises SideError."""
        number = len(self.baseline)
        sides = [(self.reference_settings, self.baseline), (settings, self.plan)]
        for chosen, into in sides if number % 2 == 0 else sides[::-1]:
            evaluator.on_launch(f"whole runs, seed {number + 1}")
            try:
                into.append(self._begun(evaluator, chosen, number)())
            except SideError as error:
                raise error if into is self.plan else BaselineError(str(error)) from None
            except ClusterError as error:
                raise BaselineError(str(error)) from None  # it says nothing about a plan

    def checks(self) -> list[Check]:
        """What they say."""
        before, now = ([run.value for run in side] for side in (self.baseline, self.plan))
        found = [
            metric_holds(
                before,
                now,
                higher_is_better=self.metric.higher_is_better,
                reference_settings=bool(self.reference_settings),
            )
        ]
        for script, plan in zip(self.baseline, self.plan):
            if script.num_values != plan.num_values and found[0].state == "passed":
                # A value that is not a number may not look like the others: what follows it was not seen.
                times = f"{plan.num_values} times with the plan, {script.num_values} times without"
                found = [quality.unknown("metric", f"it was printed {times}: some of it may not be a number")]
        if self.metric.target is not None:
            found.append(
                target_sooner(*self.seconds_to_target(), target=self.metric.target, num_never=self.num_never)
            )
        return found

    @property
    def num_never(self) -> int:
        """The script's runs that never came as far as the target."""
        return sum(run.reached is None for run in self.baseline)

    def seconds(self, num_seeds: int) -> float:
        """What so many more seeds will take on both sides, by those that were run."""
        taken = [run.seconds for run in (*self.baseline, *self.plan)]
        at_once = 1 if self.metric.elsewhere is None else self.metric.elsewhere.at_once
        return math.ceil(2 * num_seeds / at_once) * sum(taken) / max(1, len(taken))

    def seconds_to_target(self) -> tuple[list[float], list[float | None]]:
        """Of each run of the script (where it never came so far: all of its seconds), and of each with the plan."""
        before = [run.seconds if run.reached is None else run.reached for run in self.baseline]
        return before, [run.reached for run in self.plan]


def check_whole_runs(
    evaluator: Evaluator, settings: Settings, metric: Metric, *, reference_settings: Settings | None = None
) -> tuple[list[Check], WholeRuns]:
    """Whole runs at a few seeds; if those are inconclusive, at as many more as there is time for.

    `reference_settings`: what the script runs under, where that was seen to be the script with the plan's random numbers.

    Each look errs one-sidedly in 2.5% of all cases, so that both together do in no more than 5%. The first seed is always
    run; by what it took, further ones are begun only where there is time for them, and for the comparison of speed.
    """
    runs = WholeRuns(metric, reference_settings or {})
    first, most = metric.seeds
    try:
        runs.begin(evaluator, settings, first)
        while len(runs.baseline) < first:
            if runs.baseline and runs.seconds(first - len(runs.baseline)) > evaluator.time_left() + TOLERATED:
                return [_out_of_time(check, first) for check in runs.checks()], runs
            runs.add_seed(evaluator, settings)
        if any(check.state == "unknown" for check in runs.checks()):
            left = max(0.0, evaluator.time_left() - FOR_SPEED)
            number = max((n for n in range(first, most + 1) if runs.seconds(n - first) <= left), default=first)
            if number < min(FEWEST, most):
                return [_out_of_time(check, most) for check in runs.checks()], runs
            runs.begin(evaluator, settings, number)
            while len(runs.baseline) < number and (len(runs.baseline) < FEWEST or evaluator.time_left() > 0):
                runs.add_seed(evaluator, settings)
    except (BaselineError, ClusterError) as error:
        return [quality.unknown("metric", str(error))], runs
    except SideError as error:
        return [quality.failed("metric", f"a whole run with the plan: {error}")], runs
    return runs.checks(), runs


def _out_of_time(check: Check, number: int) -> Check:
    if check.state != "unknown":
        return check
    return quality.unknown(check.what, f"{check.text}; there was no time for {number} seeds: --budget gives more")


def metric_holds(
    baselines: Sequence[float], plans: Sequence[float], *, higher_is_better: bool, reference_settings: bool = False
) -> Check:
    """The script's own metric, seed by seed, non-inferior by the test of `quality.no_worse`.

    `reference_settings`: the script drew the plan's random numbers.
    """
    if len(baselines) < 3:
        return quality.unknown("metric", "fewer than three seeds were run to the end")
    if not all(map(math.isfinite, plans)):
        return quality.failed("metric", "the metric is not a number at the end of a run with the plan")
    if not all(map(math.isfinite, baselines)):
        return quality.unknown("metric", "the metric is not a number at the end of a run of the script itself")
    sign = 1.0 if higher_is_better else -1.0
    worse = mean_interval([sign * (before - now) for before, now in zip(baselines, plans)])
    level = abs(statistics.fmean(baselines))
    margin = quality.margin_of(level, statistics.stdev(baselines))
    text = (
        f"metric {statistics.fmean(plans):.4g}, without the {'rest of the ' if reference_settings else ''}plan "
        f"{statistics.fmean(baselines):.4g}; worse by at most "
        f"{worse.high:.2g}, margin {margin:.2g}, {len(baselines)} seeds"
    )
    return quality.no_worse("metric", text, worse, margin=margin, floor=quality.FLOOR * level)


def target_sooner(
    baselines: Sequence[float], plans: Sequence[float | None], *, target: float, num_never: int = 0
) -> Check:
    """The script's metric reaches its target sooner, seed by seed: the interval of the ratio excludes 1.

    Seconds from the start of the command. Where the script never came so far, `num_never` times, all the seconds of its
    run is used instead: the true ratio is then at least the one reported.
    """
    late = sum(reached is None for reached in plans)
    if late:
        return quality.failed("target", f"{target:g} was not reached with the plan at {late} of {len(plans)} seeds")
    reached = [seconds for seconds in plans if seconds is not None]
    if len(reached) < 3:
        return quality.unknown("target", "fewer than three seeds were run to the end")
    ratio = paired_speedup(baselines, reached, looks=False)
    without = format.seconds(statistics.fmean(baselines))
    if num_never:
        without = f"not within {without} at {num_never} of {len(baselines)} seeds"
    text = (
        f"{target:g} reached after {format.seconds(statistics.fmean(reached))}, without the plan {without}: "
        f"{'at least ' if num_never else ''}{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f}) times sooner, "
        f"{len(reached)} seeds"
    )
    if ratio.low > 1.0:
        return quality.passed("target", text)
    return (quality.failed if ratio.high < 1.0 else quality.unknown)("target", text)


SHIFT = -FAR  # a seed that no proof takes


def screening_runs(
    bench: Bench,
    settings: Settings,
    recipes: Sequence[Settings],
    metric: Metric,
    *,
    time_left: Callable[[], float],
    on_launch: Callable[[str], object] = lambda _: None,
) -> Iterator[ScreeningRun]:
    """A whole run of the plan with each recipe, as long as there is time for one as long as the last."""
    longest = 0.0
    for recipe in recipes:
        if time_left() <= longest:
            return
        on_launch(f"a whole run with {format.settings(recipe, none='its own recipe')}")
        try:
            run = metric.run(bench, {**settings, **recipe}, shift=SHIFT)
            longest = max(longest, run.seconds)
        except SideError as error:
            yield ScreeningRun(settings=recipe, note=str(error))
        else:
            if not math.isfinite(run.value):
                yield ScreeningRun(settings=recipe, note="the metric is not a number at its end")
                continue
            yield ScreeningRun(settings=recipe, metric=run.value, reached=run.reached)


def soonest(ended: Sequence[ScreeningRun]) -> Settings:
    """The recipe that reached the target first; none where no recipe was sooner than none."""
    there = [screened for screened in ended if screened.reached is not None]
    return min(there, key=lambda screened: screened.reached or 0.0).settings if there else {}
