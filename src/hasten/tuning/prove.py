"""The proof: is the whole plan faster than the baseline, and does the model train as well?

Settings that break the quality check are dropped. A plan that was seen to be worse is never kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import msgspec

from hasten.launch.side import Frequencies
from hasten.optimizations.catalog import CATALOG, weakest
from hasten.raw_run import RawQuality
from hasten.records import BothSides, Check, Interval, Proof, Settings, Trial
from hasten.stats import mean_interval, paired_speedup
from hasten.tuning import quality
from hasten.tuning.evaluator import FAR, SEEDS, Evaluator, check_quality, find_culprits, verdict_of
from hasten.tuning.metric import Metric, WholeRuns, check_whole_runs
from hasten.tuning.trial import compare
from hasten.tuning.trial_config import TrialConfig

NOT_CHECKED = "not checked in a short test; `hasten speedtest --full` and `hasten tune` check it"

Pair: TypeAlias = tuple[float, float]  # without the plan, and with it


def prove(
    evaluator: Evaluator,
    settings: Settings,
    *,
    frequencies: Frequencies,
    config: TrialConfig,
    time_left: Callable[[], float],
    metric: Metric | None = None,
    check: Callable[..., list[Check]] = check_quality,
    known: Trial | None = None,
    on_pair: Callable[[int, Any], object] = lambda _n, _e: None,
) -> tuple[Proof, Settings, Trial | None]:
    """The proof of what is left of the settings once everything that breaks quality is out.

    `known`: the trial of just these settings against the baseline, if there was one; it counts where no time is left to
    measure their speed anew.
    """
    broken: dict[str, str] = {}  # fixes that were taken out, and why
    while True:
        # A recipe is there to train otherwise: what each step learns is not compared, only what whole runs come to.
        kept = {name: value for name, value in settings.items() if CATALOG[name].guarantee != "recipe"}
        culprits: dict[str, str] = {}
        if metric is not None and kept == settings:  # a target is what recipes are for
            metric = replace(metric, target=None)
        has_target = metric is not None and metric.target is not None
        checks = check(evaluator, kept, looks_again=not has_target) if kept else []
        runs = WholeRuns(metric) if metric is not None else None
        if verdict_of(checks) == "broken":
            culprits = dict.fromkeys(find_culprits(evaluator, kept), _first_failed(checks))
        elif not has_target and time_left() > 0 and (doubtful := _in_doubt(checks, kept)):
            culprits = doubtful  # the proof starts over without them, which takes time
        elif metric is not None:
            # Time to a target is compared with the unmodified script.
            script = _reference_settings(evaluator, kept) if metric.target is None else {}
            whole, runs = check_whole_runs(evaluator, settings, metric, reference_settings=script)
            checks += whole
            culprits = _to_blame(whole, settings)
        elif kept != settings:
            checks.append(quality.unknown("metric", "a recipe is proven by a metric, and none was given"))
        if not culprits:
            break
        broken |= culprits
        settings = _without(settings, [*culprits])
        if not settings:
            proof = Proof(
                verdict="broken",
                guarantee="identical",
                checks=tuple(checks),
                broken_by=tuple(broken),
                broken_because=tuple(broken.values()),
            )
            return proof, {}, None
    if known is not None and known.added == settings and time_left() < known.seconds:
        trial = msgspec.structs.replace(known, note="taken from the search, for lack of time")
    else:
        trial = compare(
            (evaluator.bench, {}),
            (evaluator.bench, settings),
            frequencies=frequencies,
            config=config,
            gives_up=False,
            time_left=time_left,
            on_pair=on_pair,
        )
    checks.append(_speed(trial, reached_sooner=any(c.what == "target" and c.state == "passed" for c in checks)))
    reference_settings = _reference_settings(evaluator, kept)
    before, now = runs.seconds_to_target() if runs is not None else ([], [])
    reached = [seconds for seconds in now if seconds is not None]
    proof = Proof(
        verdict="not proven" if checks[-1].state == "failed" else verdict_of(checks),
        guarantee=weakest(settings),
        speedup=trial.speedup,
        target_speedup=Interval(*paired_speedup(before, reached, looks=False))
        if 1 < len(reached) == len(before)
        else None,
        measured=_measured(
            trial, _ends(evaluator, reference_settings, kept), runs, reference_settings=reference_settings
        ),
        baseline_losses=_losses(evaluator, reference_settings),
        reference_settings=reference_settings,
        plan_losses=_losses(evaluator, kept),
        plan_batches=_means(evaluator, kept),
        checks=tuple(checks),
        broken_by=tuple(broken),
        broken_because=tuple(broken.values()),
    )
    return proof, {} if checks[-1].state == "failed" else settings, trial


def not_checked(_evaluator: Evaluator, _settings: Settings, *, looks_again: bool) -> list[Check]:
    """The checks of a demonstration: none."""
    return [quality.unknown("quality", NOT_CHECKED)]


def _in_doubt(checks: Sequence[Check], settings: Settings) -> dict[str, str]:
    """Fixes of fewer bits that alone keep a plan from being proven, and why: a proven rest is worth more.

    Only if batches are bit-equal, so that fewer bits are all that is inconclusive.
    """
    states = {check.what: check for check in checks}
    band, batches = states.get("band"), states.get("batches")
    if band is None or band.state != "unknown" or batches is None or batches.state != "passed":
        return {}
    doubtful = [name for name in settings if CATALOG[name].guarantee == "precision"]
    if not doubtful or not _without(settings, doubtful):
        return {}
    return dict.fromkeys(doubtful, f"that it trains as well was not shown: {band.text}")


def _to_blame(checks: Sequence[Check], settings: Settings) -> dict[str, str]:
    """Fixes that whole runs speak against, and what they say: whole runs of each by itself would take days."""
    target = next((check for check in checks if check.what == "target"), None)
    if target is not None and target.state != "passed":
        # A recipe has no other merit than its target: it stays only where that was shown.
        return {name: target.text for name in settings if CATALOG[name].guarantee == "recipe"}
    reason = _first_failed(checks)
    blamed = weakest(settings) if reason else None
    return {name: reason for name in settings if CATALOG[name].guarantee == blamed}


def _first_failed(checks: Sequence[Check]) -> str:
    return next((check.text for check in checks if check.state == "failed"), "")


def _measured(
    trial: Trial, ends: Sequence[Pair], runs: WholeRuns | None, *, reference_settings: Settings
) -> tuple[BothSides, ...]:
    """What both sides were measured by."""
    found = [
        _both("seconds a step", list(zip(trial.baseline_seconds, trial.candidate_seconds)), {}),
        _both("loss", ends, reference_settings),
    ]
    if runs is not None:
        values = [(before.value, now.value) for before, now in zip(runs.baseline, runs.plan)]
        what = "seconds to target, or to the end" if runs.num_never else "seconds to target"
        reached = [(before, now) for before, now in zip(*runs.seconds_to_target()) if now is not None]
        found += [_both("metric", values, runs.reference_settings), _both(what, reached, {})]
    return tuple(sides for sides in found if sides.plan)


def _both(what: str, pairs: Sequence[Pair], reference_settings: Settings) -> BothSides:
    pairs = [pair for pair in pairs if all(map(math.isfinite, pair))]
    differences = [now - before for before, now in pairs]
    return BothSides(
        what=what,
        baseline=tuple(before for before, _ in pairs),
        plan=tuple(now for _, now in pairs),
        reference_settings=reference_settings,
        difference=Interval(*mean_interval(differences)) if len(differences) > 1 else None,
    )


def _ends(evaluator: Evaluator, reference_settings: Settings, settings: Settings) -> list[Pair]:
    """The loss at the end of each seed that was launched on both sides."""
    found: list[Pair] = []
    for seed in range(max(SEEDS)):
        before, now = (evaluator.evaluated_before(side, shift=FAR * seed) for side in (reference_settings, settings))
        if before is not None and now is not None and quality.losses_seen(before, now).state == "passed":
            found.append(quality.ends_of(before, now))
    return found


def _reference_settings(evaluator: Evaluator, settings: Settings) -> Settings:
    """The settings of the losses that the plan's are compared with: none, or those with the plan's random numbers."""
    base = evaluator.base(settings)
    return base if base != settings else {}


def _losses(evaluator: Evaluator, settings: Settings) -> tuple[float | None, ...]:
    """The losses of a launch that was made already; none where it was not."""
    result = evaluator.evaluated_before(settings) or RawQuality()
    return quality.finite(result.losses)


def _means(evaluator: Evaluator, settings: Settings) -> tuple[float, ...]:
    """The mean of each batch of a launch that was made already; none where one has none."""
    means = (evaluator.evaluated_before(settings) or RawQuality()).means
    known = tuple(mean for mean in means if mean is not None and math.isfinite(mean))
    return known if len(known) == len(means) else ()


def _speed(trial: Trial, *, reached_sooner: bool) -> Check:
    """Whether the plan as a whole is faster; where the plan `reached_sooner` its target, a step may take longer."""
    if reached_sooner and trial.speedup is not None:
        return quality.passed("speed", f"a step: {trial.verdict} in {len(trial.baseline_seconds)} pairs")
    if trial.verdict == "faster":
        why = f", {trial.note}" if trial.note else ""
        return quality.passed("speed", f"faster in {len(trial.baseline_seconds)} pairs{why}")
    if trial.verdict == "inconclusive":
        return quality.unknown(
            "speed", f"whether it is faster is not clear after {len(trial.baseline_seconds)} pairs"
        )
    return quality.failed(
        "speed", f"the plan as a whole: {trial.verdict}" + (f" ({trial.note})" if trial.note else "")
    )


def _without(settings: Settings, names: Sequence[str]) -> Settings:
    left = {name: value for name, value in settings.items() if name not in names}
    return {name: value for name, value in left.items() if CATALOG[name].is_supported(left)}
