"""Launches that quality is judged by, and what they say of a set of fixes.

In: settings, and a bench. Out: Checks, a verdict, and the fixes that break quality by themselves. Refuses to pass what
it has not seen: no loss, too few steps, a band too wide are "not proven".

What is asked follows from the weakest fix. Identical: the same batches and losses, to the bit. Rounding: the same first
loss and gradients, and courses that part no further than the script's own, changed in the last bit, does from itself.
Precision: losses inside the band that the script's own seeds span. Where hasten's loader draws a sample's random numbers
otherwise, it is seen to hand out the script's own samples first; then all this is asked against that loader alone, which
draws the same. So it is with other workers of torch's own loader. Whatever else is drawn otherwise is held against the band.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hasten.launch.side import Bench, SideError
from hasten.optimizations.catalog import CATALOG, GUARANTEES, variables_of, weakest
from hasten.raw_run import RawQuality
from hasten.records import Check, ProofVerdict, Settings
from hasten.tuning import quality
from hasten.tuning.manner import KEEPING, Manner, spec_of

FEWEST_STEPS, MOST_STEPS = 16, 120  # of a launch that quality is judged by
SECONDS = 10.0  # that such a launch's steps may take
SLOWER = 3.0  # times that, where others take the machine
SEEDS = (3, 8)  # of the band: more where the first do not tell, as many as there is time for
FEWEST = 5  # that are worth a second look
NUM_BATCHES = 200  # that are fingerprinted at the most
FAR = 1000  # between two seeds
OURS = {"loader", "pixels"}  # fixes under which hasten's loader makes the batches
DRAWN_ANEW: Settings = {"loader": True}  # that alone: what a sample draws follows from its index then
TORCHS = ("num_workers",)  # fixes of any loader, under which samples draw otherwise
LONGER = 1.3  # times what was wanted, a launch may take for whole epochs; else they are cut
LASTING = KEEPING | {"persistent_workers"}  # fixes whose second epoch differs from the first
EPOCHS = 4.2  # that must be seen: samples come again, and what a script changes after a few epochs has changed


class BaselineError(SideError):
    """The script by itself did not train in this launch; that says nothing of a plan."""


def draws_anew(name: str) -> bool:
    """Whether samples may draw other random numbers under this fix."""
    return name in OURS or name in TORCHS


@dataclass(kw_only=True)
class Judge:
    """Launches that quality is judged by; each is made once."""

    bench: Bench
    step_seconds: float
    steps_per_epoch: float | None
    batches_per_step: float = 1.0
    keeps: bool = False  # samples or workers are kept from one epoch to the next: a second one must be seen
    on_launch: Callable[[str], object] = lambda _: None
    time_left: Callable[[], float] = lambda: float("inf")  # without it no more than the first seeds are run
    whole_runs: dict[tuple[tuple[tuple[str, object], ...], int], Any] = field(default_factory=dict)  # see `metric`
    launch_seconds: float = 0.0  # that the last launch took
    beside: dict[tuple[tuple[str, object], ...], Settings] = field(default_factory=dict)  # see `base`
    _told: dict[tuple[tuple[tuple[str, object], ...], int, bool, int], RawQuality] = field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        """A few epochs where they are short, so that it is seen whether samples vary; and enough for a loss to fall."""
        wanted = max(FEWEST_STEPS, min(MOST_STEPS, int(SECONDS / max(self.step_seconds, 1e-4))))
        if self.steps_per_epoch is not None and EPOCHS * self.steps_per_epoch <= LONGER * wanted:
            wanted = max(wanted, int(EPOCHS * self.steps_per_epoch))
        return wanted

    @property
    def epoch_batches(self) -> int | None:
        """To how many batches epochs are cut, so that a second one is seen where it must be."""
        if not self.keeps or self._sees_whole_epochs:
            return None
        return max(2, int(self.num_steps * max(1.0, self.batches_per_step) / EPOCHS))

    @property
    def comes_again(self) -> bool:
        """Whether samples come a second time in a launch."""
        return self._sees_whole_epochs or self.epoch_batches is not None

    @property
    def _sees_whole_epochs(self) -> bool:
        return self.steps_per_epoch is not None and EPOCHS * self.steps_per_epoch <= self.num_steps + 1

    def seconds(self, start_seconds: float) -> float:
        """What launches for a look at the band will take, each with such a start."""
        return 2 * FEWEST * (start_seconds + self.num_steps * self.step_seconds)

    def told(self, settings: Settings, *, shift: int = 0, perturb: bool = False, number: int = 0) -> RawQuality:
        """What a launch under these settings told. Raises SideError, and BaselineError of the script by itself."""
        key = _key(settings), shift, perturb, number
        if key not in self._told:
            self.on_launch("the plan's quality" if settings else "the script's own quality")
            steps = self.num_steps
            drawn = {*settings} <= {*DRAWN_ANEW, *TORCHS, "persistent_workers"}
            spec = replace(
                spec_of(settings, Manner(), quality=min(NUM_BATCHES, 4 * steps), shift=shift),
                mode="first steps",
                num_steps=steps,
                seconds=SLOWER * max(SECONDS, steps * self.step_seconds),
                perturb=perturb,
                epoch_batches=self.epoch_batches,
                own_samples=drawn and not (shift or number or perturb),
            )
            began = time.monotonic()
            try:
                self._told[key] = self.bench.run(
                    spec=spec, environment=variables_of(settings, scratch=self.bench.folder)
                ).quality
            except SideError as error:
                raise error if settings else BaselineError(str(error)) from None
            self.launch_seconds = time.monotonic() - began
        return self._told[key]

    def told_by_base(self, base: Settings, *, shift: int = 0, perturb: bool = False, number: int = 0) -> RawQuality:
        """The same of what a plan is held against: that it fails says nothing of the plan. Raises BaselineError."""
        try:
            return self.told(base, shift=shift, perturb=perturb, number=number)
        except SideError as error:
            raise BaselineError(str(error)) from None

    def told_before(self, settings: Settings, *, shift: int = 0) -> RawQuality | None:
        """What the first launch under these settings told, if there was one."""
        return self._told.get((_key(settings), shift, False, 0))

    def base(self, settings: Settings) -> Settings:
        """What these settings were held against: the script as it is, or with other random numbers."""
        return self.beside.get(_key(settings), {})

    def seeds(self, base: Settings, settings: Settings, number: int) -> tuple[list[RawQuality], list[RawQuality]]:
        """What launches of both at several seeds told."""
        shifts = [FAR * seed for seed in range(number)]
        return [self.told_by_base(base, shift=s) for s in shifts], [self.told(settings, shift=s) for s in shifts]


def _key(settings: Settings) -> tuple[tuple[str, object], ...]:
    return tuple(sorted(settings.items()))


def check_quality(judge: Judge, settings: Settings, *, looks_again: bool = True) -> list[Check]:
    """Every check that the settings' guarantee asks for.

    `looks_again`: at further seeds, where the first do not tell; not where whole runs to a target follow, which tell more.
    """
    checks: list[Check] = []
    try:
        _check(judge, settings, checks, looks_again=looks_again)
    except BaselineError as error:
        checks.append(quality.unknown("training", f"the script by itself did not train: {error}"))
    except SideError as error:
        checks.append(quality.failed("training", str(error)))
    return checks


def _check(judge: Judge, settings: Settings, checks: list[Check], *, looks_again: bool) -> None:
    baseline, plan = judge.told({}), judge.told(settings)
    checks += [quality.losses_seen(baseline, plan), quality.parameters_move(baseline, plan)]
    if checks[0].state != "passed" or checks[1].state == "failed":
        return
    guarantee = weakest(settings)
    checks.append(_variety(judge, settings, baseline, plan))
    base = judge.beside[_key(settings)] = _base(judge, settings, checks)
    if base == settings:
        return  # nothing but other random numbers
    baseline = judge.told_by_base(base)
    # What is the same at once needs no second look at the script by itself.
    same_batches = quality.batches_equal(baseline, plan, plan).state == "passed"
    same_losses = quality.losses_identical(baseline, plan, plan).state == "passed"
    at_once = same_batches and (guarantee == "precision" or (guarantee == "identical" and same_losses))
    again = baseline if at_once else judge.told_by_base(base, number=1)
    batches = quality.batches_equal(baseline, plan, again)
    checks.append(batches)
    held_out = quality.held_out_equal(baseline, plan, again)
    if held_out is not None and held_out.state == "failed" and again is baseline:
        held_out = quality.held_out_equal(baseline, plan, judge.told_by_base(base, number=1))
    if held_out is not None:
        checks.append(held_out)
    if batches.state == "passed" and guarantee == "identical":
        equal = quality.losses_identical(baseline, plan, again)
        if equal.state != "unknown":
            checks.append(equal)
            return
        guarantee = "rounding"  # the script itself is not the same twice
    if batches.state == "passed" and guarantee == "rounding" and not quality.differs_from_itself(baseline, again):
        checks.append(quality.rounding_only(baseline, plan, [again, judge.told_by_base(base, perturb=True)]))
        return
    checks.append(_band(judge, settings, base, looks_again=looks_again))


def _base(judge: Judge, settings: Settings, checks: list[Check]) -> Settings:
    """What the settings are held against: the script as it is, or with other random numbers where they draw those.

    Those are the script's own samples, which is seen; and where there is time, that it learns from them at a few seeds.
    """
    baseline, plan = judge.told({}), judge.told(settings)
    ours = bool(OURS & {*settings})
    # Workers that stay are seeded anew for each epoch where they are torch's own; ours draw one seed for all of them.
    others = (*TORCHS, "persistent_workers") if ours else TORCHS
    drawn = {**(DRAWN_ANEW if ours else {}), **{name: settings[name] for name in others if name in settings}}
    if not drawn or quality.batches_equal(baseline, plan, plan).state == "passed":
        return {}
    try:
        # No sample of torch's own workers can be made once more; what follows from its index and the generators that they
        # seed is seen under ours.
        found = [quality.own_samples(baseline, judge.told(drawn), remade=judge.told(drawn if ours else DRAWN_ANEW))]
        if found[0].state != "passed":
            return {}
        if judge.time_left() > 4 * SEEDS[0] * judge.launch_seconds:  # what decides follows, and takes as long
            found.append(
                quality.named("drawn anew", quality.within_band(*judge.seeds({}, drawn, SEEDS[0]), is_script=True))
            )
    except SideError:
        return {}
    checks += found
    return drawn


def _variety(judge: Judge, settings: Settings, baseline: RawQuality, plan: RawQuality) -> Check:
    check = quality.samples_vary(baseline, plan, comes_again=judge.comes_again)
    if check.state == "unknown" and LASTING & {*settings}:
        return quality.unknown("second epoch", "no second epoch was seen, in which what was kept is used")
    return check


def _band(judge: Judge, settings: Settings, base: Settings, *, looks_again: bool = True) -> Check:
    """Each look errs one-sidedly in 2.5% of all cases, so that both together do in no more than 5%."""
    first, most = SEEDS
    sides = judge.seeds(base, settings, first)
    check = quality.within_band(*sides)
    if check.state != "unknown" or any(quality.losses_seen(*pair).state != "passed" for pair in zip(*sides)):
        return check
    if not looks_again:
        return quality.unknown("band", f"{check.text}; whole runs to the target tell")
    wanted = quality.seeds_wanted(*sides, fewest=FEWEST, most=most)
    in_time = judge.time_left() / max(2 * judge.launch_seconds, 1e-3)
    number = min(wanted, first + int(min(in_time, most)))
    if number < FEWEST:
        return quality.unknown("band", f"{check.text}; there was no time for {wanted} seeds")
    return quality.within_band(*judge.seeds(base, settings, number))


def verdict_of(checks: Sequence[Check]) -> ProofVerdict:
    """What the checks together say. How samples come is asked only where it can be told.

    A target that whole runs reach tells what the losses of the first steps could not.
    """
    if any(check.state == "failed" for check in checks):
        return "broken"
    is_reached = any(check.what == "target" and check.state == "passed" for check in checks)
    decisive = [check for check in checks if not (check.is_optional or (is_reached and check.what == "band"))]
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
