"""The quality check of a set of optimizations: launches, checks of what they showed, a verdict, and which ones to blame.

Which checks are made follows from the weakest guarantee. Identical: batches and losses are bit-equal. Rounding: the first
loss and gradients agree, and losses diverge no further than the script's own after a change of its parameters in the last
bit. Precision: losses lie inside the band that the script's own seeds span. Where hasten's loader draws other random numbers
for a sample, it must first be seen to hand out the script's own samples; then the plan is compared with that loader alone,
which draws the same numbers. The same holds for another number of torch's own workers. Other random numbers of any kind are
compared with the band. What was not seen does not pass: no loss, too few steps, or an interval too wide are "not proven".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hasten.launch.side import BaselineError, Bench, SideError
from hasten.optimizations.catalog import CATALOG, GUARANTEES, variables_of, weakest
from hasten.raw_run import RawQuality
from hasten.records import Check, ProofVerdict, Settings
from hasten.tuning import quality
from hasten.tuning.trial_config import KEEPING, TrialConfig, spec_of

FEWEST_STEPS, MOST_STEPS = 16, 120  # of one launch
SECONDS = 10.0  # that such a launch's steps may take
SLOWER = 3.0  # times that, where others take the machine
SEEDS = (3, 8)  # of the band: more if the first are inconclusive and there is time
FEWEST = 5  # seeds that are worth a second look
TOLERATED = 60.0  # seconds by which a budget may be overdrawn for the first seeds, without which there is no proof
NUM_BATCHES = 200  # that are fingerprinted at the most
FAR = 1000  # between two seeds
OURS = {"loader", "pixels"}  # settings under which hasten's loader makes the batches
RANDOM_BY_INDEX: Settings = {"loader": True}  # that alone: what a sample draws follows from its index then
TORCHS = ("num_workers",)  # settings of any loader, under which samples draw other numbers
LONGER = 1.3  # times what was wanted, a launch may take for whole epochs; else they are cut
LASTING = KEEPING | {"persistent_workers"}  # settings whose second epoch differs from the first
EPOCHS = 4.2  # that must be seen: samples come again, and what a script changes after a few epochs has changed


def draws_other_numbers(name: str) -> bool:
    """Whether samples may draw other random numbers with this setting."""
    return name in OURS or name in TORCHS


@dataclass(kw_only=True)
class Evaluator:
    """Makes the launches of the quality check, each of them once."""

    bench: Bench
    step_seconds: float
    steps_per_epoch: float | None
    batches_per_step: float = 1.0
    keeps: bool = False  # samples or workers are kept across epochs: a second epoch must be seen
    on_launch: Callable[[str], object] = lambda _: None
    time_left: Callable[[], float] = lambda: float("inf")  # without it no more than the first seeds are run
    # What waits for a run that was begun, by its settings and seed; see `metric`.
    whole_runs: dict[tuple[tuple[tuple[str, object], ...], int], Callable[[], Any]] = field(default_factory=dict)
    launch_seconds: float = 0.0  # that the last launch took
    reference_settings: dict[tuple[tuple[str, object], ...], Settings] = field(default_factory=dict)  # see `base`
    is_reference: bool | None = None  # of two versions: the old one; None: where there are no settings
    _results: dict[tuple[tuple[tuple[str, object], ...], int, int, int], RawQuality] = field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        """A few epochs where they are short, so that it is seen whether samples vary; and enough for a loss to fall."""
        number = max(FEWEST_STEPS, min(MOST_STEPS, int(SECONDS / max(self.step_seconds, 1e-4))))
        if self.steps_per_epoch is not None and EPOCHS * self.steps_per_epoch <= LONGER * number:
            number = max(number, int(EPOCHS * self.steps_per_epoch))
        return number

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
        """Expected duration of the launches that the band needs, each with such a start."""
        return 2 * FEWEST * (start_seconds + self.num_steps * self.step_seconds)

    def evaluate(self, settings: Settings, *, shift: int = 0, perturb: int = 0, number: int = 0) -> RawQuality:
        """Launch the script with these settings. Raises SideError; BaselineError if it is what others are held against."""
        key = _key(settings), shift, perturb, number
        if key not in self._results:
            self.on_launch("the plan's quality" if settings else "the script's own quality")
            steps = self.num_steps
            drawn = {*settings} <= {*RANDOM_BY_INDEX, *TORCHS, "persistent_workers"}
            spec = replace(
                spec_of(settings, TrialConfig(), quality=min(NUM_BATCHES, 4 * steps), shift=shift),
                mode="first steps",
                num_steps=steps,
                seconds=SLOWER * max(SECONDS, steps * self.step_seconds),
                perturb=perturb,
                epoch_batches=self.epoch_batches,
                own_samples=drawn and not (shift or number or perturb),
            )
            began = time.monotonic()
            try:
                self._results[key] = self.bench.run(
                    spec=spec, environment=variables_of(settings, scratch=self.bench.folder)
                ).quality
            except SideError as error:
                is_reference = self.is_reference if self.is_reference is not None else not settings
                raise BaselineError(str(error)) if is_reference else error from None
            self.launch_seconds = time.monotonic() - began
        return self._results[key]

    def evaluate_reference(self, base: Settings, *, shift: int = 0, perturb: int = 0, number: int = 0) -> RawQuality:
        """Launch what a plan is compared with. Raises BaselineError: a failure here says nothing about the plan."""
        try:
            return self.evaluate(base, shift=shift, perturb=perturb, number=number)
        except SideError as error:
            raise BaselineError(str(error)) from None

    def evaluated_before(self, settings: Settings, *, shift: int = 0) -> RawQuality | None:
        """The result of the first launch with these settings, if there was one."""
        return self._results.get((_key(settings), shift, 0, 0))

    def base(self, settings: Settings) -> Settings:
        """What these settings were compared with: the baseline, or the baseline with other random numbers."""
        return self.reference_settings.get(_key(settings), {})

    def num_missing(self, base: Settings, settings: Settings, number: int) -> int:
        """How many launches both would need at so many seeds."""
        shifts = [FAR * seed for seed in range(number)]
        return sum(self.evaluated_before(side, shift=s) is None for side in (base, settings) for s in shifts)

    def seeds(self, base: Settings, settings: Settings, number: int) -> tuple[list[RawQuality], list[RawQuality]]:
        """Launch both at several seeds."""
        shifts = [FAR * seed for seed in range(number)]
        return [self.evaluate_reference(base, shift=s) for s in shifts], [
            self.evaluate(settings, shift=s) for s in shifts
        ]


def _key(settings: Settings) -> tuple[tuple[str, object], ...]:
    return tuple(sorted(settings.items()))


def check_quality(evaluator: Evaluator, settings: Settings, *, looks_again: bool = True) -> list[Check]:
    """Make every check that the guarantee of the settings requires.

    Args:
        evaluator: makes the launches.
        settings: of the plan.
        looks_again: whether further seeds are run where the first are inconclusive; not needed where whole runs to a
            target follow, which show more.
    """
    checks: list[Check] = []
    try:
        _check(evaluator, settings, checks, looks_again=looks_again)
    except BaselineError as error:
        checks.append(quality.unknown("training", f"the baseline did not train: {error}"))
    except SideError as error:
        checks.append(quality.failed("training", str(error)))
    return checks


def _check(evaluator: Evaluator, settings: Settings, checks: list[Check], *, looks_again: bool) -> None:
    baseline, plan = evaluator.evaluate({}), evaluator.evaluate(settings)
    checks += [quality.losses_seen(baseline, plan), quality.parameters_move(baseline, plan)]
    agreement = quality.ranks_agree(baseline, plan)
    checks += [agreement] if agreement is not None else []
    if checks[0].state != "passed" or any(check.state == "failed" for check in checks[1:]):
        return
    guarantee = weakest(settings)
    checks.append(_variety(evaluator, settings, baseline, plan))
    base = evaluator.reference_settings[_key(settings)] = _base(evaluator, settings, checks)
    if base == settings:
        return  # nothing but other random numbers
    baseline = evaluator.evaluate_reference(base)
    # If both are equal at once, or there is nothing to compare, the baseline need not be repeated.
    same_batches = quality.batches_equal(baseline, plan, plan).state == "passed" or not baseline.batches
    same_losses = quality.losses_identical(baseline, plan, plan).state == "passed"
    at_once = same_batches and (guarantee == "precision" or (guarantee == "identical" and same_losses))
    again = baseline if at_once else evaluator.evaluate_reference(base, number=1)
    batches = quality.batches_equal(baseline, plan, again)
    checks.append(batches)
    held_out = quality.held_out_equal(baseline, plan, again)
    if held_out is not None and held_out.state == "failed" and again is baseline:
        held_out = quality.held_out_equal(baseline, plan, evaluator.evaluate_reference(base, number=1))
    if held_out is not None:
        checks.append(held_out)
    if batches.state == "passed" and guarantee == "identical":
        equal = quality.losses_identical(baseline, plan, again)
        if equal.state != "unknown":
            checks.append(equal)
            return
        guarantee = "rounding"  # the baseline itself is not the same twice
    if batches.state == "passed" and guarantee == "rounding" and not quality.differs_from_itself(baseline, again):
        rounded = rounding(baseline, plan, again, lambda bits: evaluator.evaluate_reference(base, perturb=bits))
        # Sums in another order can be off by more than the script's parameters are by their last bits; as with fewer
        # bits, what comes of it decides.
        check = rounded if rounded.state == "passed" else quality.same_start(baseline, plan)
        checks.append(check)
        if check is rounded or check.state == "failed":
            return
    checks.append(_band(evaluator, settings, base, looks_again=looks_again))


def rounding(
    baseline: RawQuality, plan: RawQuality, again: RawQuality, perturbed: Callable[[int], RawQuality]
) -> Check:
    """Whether the plan differs by rounding alone, held against the script with its parameters `perturbed` by some bits.

    Where training is chaotic a disturbance grows at the script's own rate, so it must begin as large as the plan's.
    """
    noise = [again, perturbed(1)]
    check = quality.rounding_only(baseline, plan, noise)
    bits = quality.bits_apart(baseline, plan, noise[1]) if check.state == "failed" else 1
    return check if bits < 2 else quality.rounding_only(baseline, plan, [*noise, perturbed(bits)])


def _base(evaluator: Evaluator, settings: Settings, checks: list[Check]) -> Settings:
    """What the settings are compared with: the baseline, with other random numbers where the settings draw those.

    It must be seen that the samples are the script's own; and, if there is time, that the script learns from them.
    """
    baseline, plan = evaluator.evaluate({}), evaluator.evaluate(settings)
    ours = bool(OURS & {*settings})
    # Persistent workers of torch get a new seed in each epoch; hasten's draw one seed for all of them.
    others = (*TORCHS, "persistent_workers") if ours else TORCHS
    drawn = {**(RANDOM_BY_INDEX if ours else {}), **{name: settings[name] for name in others if name in settings}}
    if not drawn or quality.batches_equal(baseline, plan, plan).state == "passed":
        return {}
    try:
        # A sample of torch's own workers cannot be repeated; that it follows from its index and the seeded generators is
        # seen with hasten's loader.
        found = [
            quality.own_samples(
                baseline, evaluator.evaluate(drawn), remade=evaluator.evaluate(drawn if ours else RANDOM_BY_INDEX)
            )
        ]
        if found[0].state != "passed":
            return {}
        if (
            evaluator.time_left() > 4 * SEEDS[0] * evaluator.launch_seconds
        ):  # the decisive launches follow, and take as long
            found.append(
                quality.named(
                    "random draws", quality.within_band(*evaluator.seeds({}, drawn, SEEDS[0]), is_script=True)
                )
            )
    except SideError:
        return {}
    checks += found
    return drawn


def _variety(evaluator: Evaluator, settings: Settings, baseline: RawQuality, plan: RawQuality) -> Check:
    check = quality.samples_vary(baseline, plan, comes_again=evaluator.comes_again)
    if check.state == "unknown" and LASTING & {*settings}:
        return quality.unknown("second epoch", "no second epoch was seen, in which what was cached or kept is used")
    return check


def _band(evaluator: Evaluator, settings: Settings, base: Settings, *, looks_again: bool = True) -> Check:
    """Each look has a one-sided error of 2.5%, so both together have no more than 5%."""
    first, most = SEEDS
    if evaluator.num_missing(base, settings, first) * evaluator.launch_seconds > evaluator.time_left() + TOLERATED:
        return quality.unknown("band", f"there was no time for {first} seeds: --budget gives more")
    sides = evaluator.seeds(base, settings, first)
    check = quality.within_band(*sides)
    if check.state != "unknown" or any(quality.losses_seen(*pair).state != "passed" for pair in zip(*sides)):
        return check
    if not looks_again:
        return quality.unknown("band", f"{check.text}; whole runs to the target decide")
    wanted = quality.seeds_wanted(*sides, fewest=FEWEST, most=most)
    if not wanted:
        return check
    in_time = evaluator.time_left() / max(2 * evaluator.launch_seconds, 1e-3)
    number = min(wanted, first + int(min(in_time, most)))
    if number < FEWEST:
        return quality.unknown("band", f"{check.text}; there was no time for {wanted} seeds")
    return quality.within_band(*evaluator.seeds(base, settings, number))


def verdict_of(checks: Sequence[Check]) -> ProofVerdict:
    """The verdict of all checks. Optional checks count only if they failed.

    A target that whole runs reached outweighs an inconclusive band.
    """
    if any(check.state == "failed" for check in checks):
        return "broken"
    is_reached = any(check.what == "target" and check.state == "passed" for check in checks)
    decisive = [check for check in checks if not (check.is_optional or (is_reached and check.what == "band"))]
    return "proven" if all(check.state == "passed" for check in decisive) else "not proven"


def find_culprits(evaluator: Evaluator, settings: Settings) -> list[str]:
    """Settings that break quality by themselves, those with the weakest guarantees first."""
    ordered = sorted(settings, key=lambda name: -GUARANTEES.index(CATALOG[name].guarantee))
    found: list[str] = []
    for name in ordered:
        if evaluator.time_left() <= 0:
            break
        alone = {
            name: settings[name],
            **{other: settings[other] for other in CATALOG[name].needs if other in settings},
        }
        if len(alone) < len(settings) and verdict_of(check_quality(evaluator, alone)) == "broken":
            found.append(name)
    return found or ordered[:1]
