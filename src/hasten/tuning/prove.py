"""Nothing against the whole plan: is it faster, and does it train as well?

In: settings, and a bench. Out: a Proof, and the settings without what broke it. Refuses to pass what it has not seen:
no loss, too few steps, a band too wide are "not proven".

What is asked follows from the weakest fix. Identical: the same batches and losses, to the bit. Rounding: the same first
loss and gradients, and courses that part no further than the script's own, changed in the last bit, does from itself.
Precision, and everything whose batches are drawn otherwise: losses inside the band that the script's own seeds span.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hasten.fixes.catalog import CATALOG, variables_of, weakest
from hasten.fixes.fix import GUARANTEES
from hasten.measurement.side import Bench, Frequencies, SideError
from hasten.records import Check, Proof, Settings, Trial
from hasten.tuning import quality
from hasten.tuning.manner import Manner, spec_of
from hasten.tuning.trial import compare

FEWEST_STEPS, MOST_STEPS = 16, 120  # of a launch that quality is judged by
SECONDS = 10.0  # that such a launch's steps may take
SEEDS = (3, 5)  # of the band: more where the first do not tell
NUM_BATCHES = 200  # that are fingerprinted at the most
FAR = 1000  # between two seeds


@dataclass(kw_only=True)
class Judge:
    """Launches that quality is judged by; each is made once."""

    bench: Bench
    step_seconds: float
    steps_per_epoch: float | None
    on_launch: Callable[[str], object] = lambda _: None
    _told: dict[tuple[tuple[tuple[str, object], ...], int, bool, int], quality.Told] = field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        """Two epochs where they are short, so that it is seen whether samples vary; and enough for a loss to fall."""
        wanted = max(FEWEST_STEPS, min(MOST_STEPS, int(SECONDS / max(self.step_seconds, 1e-4))))
        if self.steps_per_epoch is not None and 2.2 * self.steps_per_epoch <= 2 * wanted:
            wanted = max(wanted, int(2.2 * self.steps_per_epoch))
        return wanted

    def told(self, settings: Settings, *, shift: int = 0, perturb: bool = False, number: int = 0) -> quality.Told:
        """What a launch under these settings told. Raises SideError."""
        key = tuple(sorted(settings.items())), shift, perturb, number
        if key not in self._told:
            self.on_launch("the plan's quality" if settings else "the script's own quality")
            steps = self.num_steps
            spec = spec_of(settings, Manner(), quality=min(NUM_BATCHES, 4 * steps), shift=shift)
            spec.update(mode="first steps", steps=steps, seconds=3 * SECONDS, perturb=perturb)
            self._told[key] = self.bench.run(spec=spec, environment=variables_of(settings)).quality
        return self._told[key]

    def seeds(self, settings: Settings, number: int) -> list[quality.Told]:
        """The same at several seeds."""
        return [self.told(settings, shift=FAR * seed) for seed in range(number)]


def check_quality(judge: Judge, settings: Settings) -> list[Check]:
    """Every check that the settings' guarantee asks for."""
    try:
        baseline, plan = judge.told({}), judge.told(settings)
    except SideError as error:
        return [quality.failed("training", str(error))]
    checks = [quality.losses_seen(baseline, plan), quality.parameters_move(baseline, plan)]
    if checks[0].state != "passed":
        return checks
    guarantee = weakest(settings)
    try:
        # What is the same at once needs no second look at the script by itself.
        same = quality.batches_equal(baseline, plan, plan).state == "passed"
        again = baseline if same and guarantee == "precision" else judge.told({}, number=1)
        batches = quality.batches_equal(baseline, plan, again)
        checks += [batches, quality.samples_vary(baseline, plan)]
        if batches.state == "passed" and guarantee == "identical":
            equal = quality.losses_identical(baseline, plan, again)
            if equal.state != "unknown":
                return [*checks, equal]
            guarantee = "rounding"  # the script itself is not the same twice
        if batches.state == "passed" and guarantee == "rounding":
            return [*checks, quality.rounding_only(baseline, plan, [again, judge.told({}, perturb=True)])]
        return [*checks, _band(judge, settings)]
    except SideError as error:
        return [*checks, quality.failed("training", str(error))]


def _band(judge: Judge, settings: Settings) -> Check:
    """Each look errs one-sidedly in 2.5 % of all cases, so that both together do in no more than 5 %."""
    check = quality.unknown("band", "no seed was run")
    for number in SEEDS:
        check = quality.within_band(judge.seeds({}, number), judge.seeds(settings, number))
        if check.state == "passed":
            break
    return check


def verdict_of(checks: Sequence[Check]) -> str:
    """What the checks together say. How samples come is asked only where it can be told."""
    if any(check.state == "failed" for check in checks):
        return "broken"
    decisive = [check for check in checks if check.what not in ("batches", "variety")]
    return "proven" if all(check.state == "passed" for check in decisive) else "not proven"


def find_culprits(judge: Judge, settings: Settings) -> list[str]:
    """Fixes that break quality by themselves, the weakest guarantees asked first."""
    ordered = sorted(settings, key=lambda name: -GUARANTEES.index(CATALOG[name].guarantee))
    found: list[str] = []
    for name in ordered:
        alone = {
            name: settings[name],
            **{other: settings[other] for other in CATALOG[name].needs if other in settings},
        }
        if len(alone) < len(settings) and verdict_of(check_quality(judge, alone)) == "broken":
            found.append(name)
    return found or ordered[:1]


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
        if verdict_of(checks) != "broken":
            break
        culprits = [name for name in find_culprits(judge, settings) if name in settings]
        broken += culprits
        settings = _without(settings, culprits)
        if not settings:
            proof = Proof(verdict="broken", guarantee="identical", checks=tuple(checks), broken_by=tuple(broken))
            return proof, {}, None
    if metric is not None:
        checks = [*checks, metric.check(judge, settings)]
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
    if trial.verdict != "faster":
        checks = [*checks, Check(what="speed", state="unknown", text=f"the plan's speed: {trial.verdict}")]
    proof = Proof(
        verdict=verdict_of(checks),
        guarantee=weakest(settings),
        speedup=trial.speedup,
        checks=tuple(checks),
        broken_by=tuple(broken),
    )
    return proof, settings, trial


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
                    side.append(self._read(judge.bench, chosen, shift=FAR * seed))
        except SideError as error:
            return quality.unknown("metric", str(error))
        return quality.metric_holds(*sides, higher_is_better=self.higher_is_better)

    def _read(self, bench: Bench, settings: Settings, *, shift: int) -> float:
        spec = {**spec_of(settings, Manner(), shift=shift), "mode": "hold", "full": False, "seconds": 1e7}
        output = bench.run(spec=spec, environment=variables_of(settings)).output
        found = self.pattern.findall(output)
        if not found:
            raise SideError(f"{self.pattern.pattern!r} is nowhere in the script's output")
        try:
            return float(found[-1])
        except ValueError:
            raise SideError(f"{found[-1]!r}, found by {self.pattern.pattern!r}, is no number") from None
