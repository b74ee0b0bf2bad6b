"""Nothing against the whole plan: is it faster, and does it train as well?

In: settings, and a judge. Out: a Proof, and the settings without what broke it. Refuses to leave a plan on that was
seen to be worse.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hasten.fixes.catalog import CATALOG, variables_of, weakest
from hasten.measurement.side import Bench, Frequencies, SideError
from hasten.records import Check, Proof, Settings, Trial
from hasten.tuning import quality
from hasten.tuning.judge import FAR, Judge, check_quality, find_culprits, verdict_of
from hasten.tuning.manner import Manner, spec_of
from hasten.tuning.trial import compare


def prove(
    judge: Judge,
    settings: Settings,
    *,
    frequencies: Frequencies,
    manner: Manner,
    time_left: Callable[[], float],
    metric: Metric | None = None,
    on_pair: Callable[[int, Any], object] = lambda _n, _e: None,
) -> tuple[Proof, Settings, Trial | None]:
    """The proof of what is left of the settings once everything that breaks quality is out."""
    broken: list[str] = []
    while True:
        checks = check_quality(judge, settings)
        culprits: list[str] = []
        if verdict_of(checks) == "broken":
            culprits = [name for name in find_culprits(judge, settings) if name in settings]
        elif metric is not None:
            checks.append(metric.check(judge, settings))
            if checks[-1].state == "failed":  # what promises least is to blame: whole runs of each would take days
                culprits = [name for name in settings if CATALOG[name].guarantee == weakest(settings)]
        if not culprits:
            break
        broken += culprits
        settings = _without(settings, culprits)
        if not settings:
            proof = Proof(verdict="broken", guarantee="identical", checks=tuple(checks), broken_by=tuple(broken))
            return proof, {}, None
    trial = compare(
        judge.bench,
        {},
        settings,
        frequencies=frequencies,
        manner=manner,
        gives_up=False,
        time_left=time_left,
        on_pair=on_pair,
    )
    checks.append(_speed(trial))
    proof = Proof(
        verdict="not proven" if checks[-1].state == "failed" else verdict_of(checks),
        guarantee=weakest(settings),
        speedup=trial.speedup,
        checks=tuple(checks),
        broken_by=tuple(broken),
    )
    return proof, {} if checks[-1].state == "failed" else settings, trial


def _speed(trial: Trial) -> Check:
    """Whether the plan as a whole is faster."""
    if trial.verdict == "faster":
        return quality.passed("speed", f"faster in {len(trial.baseline_seconds)} pairs")
    if trial.verdict == "unclear":
        return quality.unknown(
            "speed", f"whether it is faster is not clear after {len(trial.baseline_seconds)} pairs"
        )
    return quality.failed(
        "speed", f"the plan as a whole: {trial.verdict}" + (f" ({trial.note})" if trial.note else "")
    )


def _without(settings: Settings, names: Sequence[str]) -> Settings:
    left = {name: value for name, value in settings.items() if name not in names}
    return {name: value for name, value in left.items() if CATALOG[name].finds(left)}


@dataclass(frozen=True)
class Metric:
    """A number in the script's own output, to be judged at the end of whole runs."""

    pattern: re.Pattern[str]
    higher_is_better: bool = True
    seeds: int = 3

    def check(self, judge: Judge, settings: Settings) -> Check:
        """The metric of whole runs with the plan and without, at several seeds."""
        sides: list[list[float]] = [[], []]
        try:
            for seed in range(self.seeds):
                for side, chosen in zip(sides, ({}, settings)):
                    judge.on_launch("whole runs for the metric")
                    side.append(self.read(judge.bench, chosen, shift=FAR * seed))
        except SideError as error:
            return quality.unknown("metric", str(error))
        return quality.metric_holds(*sides, higher_is_better=self.higher_is_better)

    def read(self, bench: Bench, settings: Settings, *, shift: int) -> float:
        """The metric of one whole run. Raises SideError."""
        spec = {**spec_of(settings, Manner(), shift=shift), "mode": "hold", "full": False, "seconds": 1e7}
        output = bench.run(spec=spec, environment=variables_of(settings, scratch=bench.folder)).output
        found = self.pattern.findall(output)
        if not found:
            raise SideError(f"{self.pattern.pattern!r} is nowhere in the script's output")
        try:
            return float(found[-1])
        except ValueError:
            raise SideError(f"{found[-1]!r}, found by {self.pattern.pattern!r}, is no number") from None
