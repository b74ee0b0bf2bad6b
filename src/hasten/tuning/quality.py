"""Checks of the quality check: each compares one thing between the baseline and the plan.

A check passes, fails, or is unknown; what was not seen does not pass.
"""

from __future__ import annotations

import base64
import math
import statistics
from collections.abc import Sequence

from hasten import format
from hasten.raw_run import RawQuality, SampledEpoch
from hasten.records import Check
from hasten.stats import Estimate, half_width, mean_interval

FEWEST_LOSSES = 10
OWN_NOISE = 1e-3  # relative difference of first losses from which on a script is another at equal seeds
MOST_BITS = 64  # that rounding may amount to
ROUNDING = 1e-5  # relative difference of the first loss and of the first gradients
FEWER_BITS = 0.01  # relative difference of the first loss that fewer bits explain
FEWER_BITS_GRADIENTS = 0.15  # the same, of the first gradients
NARROW = 0.7  # of the margin: half of an interval that is likely to lie within it
MOST = 0.02  # of the loss: a margin above this would let a harm pass that anybody would mind
NEGLIGIBLE = 0.1  # of the floor: sure or not, it is no harm
FLOOR = 0.002  # of the loss: a margin below this asks for more than a loss can show


def passed(what: str, text: str) -> Check:
    """It is as it should be."""
    return Check(what=what, state="passed", text=text)


def failed(what: str, text: str) -> Check:
    """It is not."""
    return Check(what=what, state="failed", text=text)


def unknown(what: str, text: str) -> Check:
    """It is inconclusive."""
    return Check(what=what, state="unknown", text=text)


def finite(losses: Sequence[float]) -> tuple[float | None, ...]:
    """Losses for a record; None for those that are not finite."""
    return tuple(loss if math.isfinite(loss) else None for loss in losses)


def named(what: str, check: Check) -> Check:
    """The same under another name."""
    return Check(what=what, state=check.state, text=check.text)


def losses_seen(baseline: RawQuality, plan: RawQuality) -> Check:
    """There are losses on both sides, enough and finite."""
    for is_baseline, result in ((True, baseline), (False, plan)):
        losses = result.losses
        if not losses:
            return unknown("losses", "no loss was seen: no backward is called on one number")
        if len(losses) < FEWEST_LOSSES:
            return unknown("losses", f"only {len(losses)} losses were seen, and {FEWEST_LOSSES} are needed")
        if not all(map(math.isfinite, losses)):
            state = unknown if is_baseline else failed
            return state("losses", "the loss is not finite" + ("" if is_baseline else ", and was before"))
    return passed("losses", f"{min(len(baseline.losses), len(plan.losses))} losses seen on both sides")


def parameters_move(baseline: RawQuality, plan: RawQuality) -> Check:
    """The plan changes every parameter tensor that the script changes."""
    before, now = baseline.moved, plan.moved
    if before is None or now is None:
        return unknown("parameters", "no optimizer was seen")
    if len(before) != len(now):
        return failed("parameters", f"{len(now)} parameters are trained, {len(before)} before")
    frozen = sum(one and not other for one, other in zip(before, now))
    if frozen:
        return failed("parameters", f"{frozen} of the {sum(before)} parameters that moved before do not move")
    return passed("parameters", f"{sum(now)} of {len(now)} parameters move, as before")


def ranks_agree(baseline: RawQuality, plan: RawQuality) -> Check | None:
    """All ranks end with the same parameters, as they do without the plan. None: one process, or they never agree."""
    if not baseline.ranks_agree:
        return None
    if plan.ranks_agree:
        return passed("ranks", "all ranks end with the same parameters")
    return failed("ranks", "the ranks end with different parameters, and did not before")


def batches_equal(baseline: RawQuality, plan: RawQuality, again: RawQuality) -> Check:
    """The same batches came in the same order; `again` is the script once more."""
    first, second, third = (result.batches for result in (baseline, plan, again))
    number = min(len(first), len(second), len(third))
    if not number:
        return unknown("batches", "no batch was seen")
    if first[:number] == second[:number]:
        return passed("batches", f"{number} batches are the same to the bit")
    if first[:number] != third[:number]:
        return unknown("batches", "the script's own batches differ from run to run at equal seeds")
    return unknown("batches", "the samples' random numbers are drawn otherwise")


def held_out_equal(baseline: RawQuality, plan: RawQuality, again: RawQuality) -> Check | None:
    """Validation sees the same data; `again` is the script once more. None where it saw none, or never sees the same."""
    first, second, third = (result.held_out for result in (baseline, plan, again))
    number = min(len(first), len(second), len(third))
    if not number or first[:number] != third[:number]:
        return None
    if first[:number] == second[:number]:
        return passed("validation", f"{number} batches of validation are the same to the bit")
    return failed("validation", "validation sees other data than before")


def own_samples(baseline: RawQuality, drawn: RawQuality, *, remade: RawQuality) -> Check:
    """`drawn`, under another loader or other workers and nothing else, trains on the script's own samples.

    It asks for them in the same order, in the first epoch of each dataset; afterwards for as many, and for none twice
    where the script asks for none twice: a script without workers draws its order from the generator that its samples
    have drawn from. And what hasten's loader hands out (in `remade`) is to the bit what the dataset makes of the same
    seeds, when all is over: a sample follows from its index and the generators that every loader seeds. So it is the
    script with other random numbers, and what is compared with it has the same ones.
    """
    if remade.samples_trouble:
        return unknown("samples", f"the dataset makes none in the training process: {remade.samples_trouble}")
    equal, other = remade.num_equal, remade.num_other
    if other or not equal:
        text = f"{other} of {equal + other} samples differ from what the dataset makes of their seeds"
        return unknown("samples", text if other else "none was made once more")
    pairs = list(zip(baseline.epochs, drawn.epochs))
    firsts: dict[int, tuple[SampledEpoch, SampledEpoch]] = {}  # epochs of a dataset
    if not pairs or not all(_asks_alike(pair, firsts.setdefault(pair[0].dataset, pair)) for pair in pairs):
        return unknown("samples", "others are asked for than by the script itself")
    under, than = ("", "the same loader") if remade is drawn else (" under hasten's loader", "the same workers")
    return passed(
        "samples",
        f"the script's own, in its order: {equal} were made once more{under}, and are the same to the bit; their random "
        f"numbers are others, so what follows is held against {than} without the rest of the plan",
    )


def _asks_alike(pair: tuple[SampledEpoch, SampledEpoch], first: tuple[SampledEpoch, SampledEpoch]) -> bool:
    before, now = pair
    if before.dataset != now.dataset:
        return False
    seen = min(len(before.order), len(now.order))
    if seen and before.order[:seen] == now.order[:seen]:
        return True
    if pair is first:
        return False
    # An order drawn once for all epochs is not the same as one drawn in each epoch.
    stays = [epoch.order == begun.order for epoch, begun in zip(pair, first)]
    lengths = {epoch.num_keys for epoch in pair} - {None}
    return len(lengths) < 2 and before.repeats == now.repeats and stays[0] == stays[1]


def samples_vary(baseline: RawQuality, plan: RawQuality, *, comes_again: bool) -> Check:
    """What the script draws in each epoch, the plan draws in each epoch, too. `comes_again`: a second epoch has begun."""
    rows = [[row for batch in result.rows for row in batch] for result in (baseline, plan)]
    number = min(map(len, rows))  # the longer a side was seen, the more of its samples came again
    if not number or not comes_again:
        return unknown("variety", "no sample came twice")
    before, now = (1 - len({*seen[:number]}) / number for seen in rows)
    if now > before + 0.05:
        text = f"{format.share(now)} of the samples are copies of earlier ones, {format.share(before)} before"
        return failed("variety", text)
    return passed("variety", "samples vary from epoch to epoch as before")


def losses_identical(baseline: RawQuality, plan: RawQuality, again: RawQuality) -> Check:
    """Every loss is the same to the bit."""
    first, second, third = (result.losses for result in (baseline, plan, again))
    number = min(len(first), len(second), len(third))
    if first[:number] == second[:number]:
        return passed("losses equal", f"{number} losses are the same to the bit")
    if first[:number] != third[:number]:
        return unknown("losses equal", "the script's own losses differ from run to run at equal seeds")
    step = next(n for n, (a, b) in enumerate(zip(first, second)) if a != b)
    return failed("losses equal", f"losses differ from step {step + 1} on: {second[step]:.7g} for {first[step]:.7g}")


def rounding_only(baseline: RawQuality, plan: RawQuality, noise: Sequence[RawQuality]) -> Check:
    """First loss and gradients agree; afterwards they part no further than the script does from itself.

    `noise`: the script once more, and with its parameters changed in the last bit.
    """
    first, second = baseline.losses, plan.losses
    apart = _first_apart(baseline, plan)
    floor = max([ROUNDING, *(_first_apart(baseline, result) for result in noise)])
    if apart > floor:
        return failed("rounding", f"the first loss differs by {apart:.1e} of itself")
    gradients = gradient_distance(baseline, plan)
    if gradients is None:
        return unknown("rounding", "no gradient was seen")
    own = [d for d in (gradient_distance(baseline, result) for result in noise) if d is not None]
    if gradients > max([10 * ROUNDING, *(3 * d for d in own)]):
        return failed("rounding", f"the first gradients differ by {gradients:.1e} of themselves")
    parted, alone = _apart(first, second), max((_apart(first, result.losses) for result in noise), default=0.0)
    if parted > max(3 * alone, 1e-4):
        text = f"the losses part by {parted:.1e}, those of the script from themselves by {alone:.1e}"
        return failed("rounding", text)
    return passed(
        "rounding", f"first loss and gradients within {max(apart, gradients):.0e}, later losses as its own noise"
    )


def same_start(baseline: RawQuality, plan: RawQuality) -> Check:
    """The first loss and gradients, of the same batch and the same model, differ by no more than fewer bits explain."""
    old, new = baseline.losses[0], plan.losses[0]
    apart, gradients = _first_apart(baseline, plan), gradient_distance(baseline, plan)
    if apart > FEWER_BITS:
        return failed("start", f"the first loss is {new:.6g}, and was {old:.6g}: the model or the loss is another")
    if gradients is not None and gradients > FEWER_BITS_GRADIENTS:
        text = f"the first gradients differ by {format.share(gradients)} of themselves: something else is learned"
        return failed("start", text)
    return passed("start", f"the first loss agrees within {apart:.0e}")


def bits_apart(baseline: RawQuality, plan: RawQuality, by_one_bit: RawQuality) -> int:
    """By how many last bits of its parameters the script must be changed for gradients as far apart as the plan's."""
    apart, own = gradient_distance(baseline, plan), gradient_distance(baseline, by_one_bit)
    return min(MOST_BITS, math.ceil(apart / own)) if apart and own else 1


def differs_from_itself(baseline: RawQuality, again: RawQuality) -> bool:
    """Whether the script's own first loss is another from run to run, by more than rounding could make it."""
    return _first_apart(baseline, again) > OWN_NOISE


def _first_apart(one: RawQuality, other: RawQuality) -> float:
    first, second = one.losses[0], other.losses[0]
    return abs(first - second) / max(abs(first), 1e-12)


def _apart(first: Sequence[float], second: Sequence[float]) -> float:
    """Mean distance of two courses, relative to the first."""
    pairs = list(zip(first, second))
    return statistics.fmean(abs(a - b) for a, b in pairs) / max(statistics.fmean(abs(a) for a, _ in pairs), 1e-12)


def gradient_distance(baseline: RawQuality, other: RawQuality) -> float | None:
    """Distance of the sampled first gradients, relative to their length."""
    import numpy as np

    texts = [result.gradients for result in (baseline, other)]
    if not all(texts):
        return None
    first, second = (np.frombuffer(base64.b64decode(str(text)), dtype=np.float32).astype(float) for text in texts)
    if len(first) != len(second) or not len(first):
        return None
    return float(np.linalg.norm(first - second) / max(float(np.linalg.norm(first)), 1e-12))


def within_band(baselines: Sequence[RawQuality], plans: Sequence[RawQuality], *, is_script: bool = False) -> Check:
    """The losses at the end are no higher than the script's own seeds let them be.

    For each seed, the difference of both losses as a share of the script's own, by the test of `no_worse`: seeds may end
    far apart, as where a loss has just begun to fall. See Walker and Nowacki, Understanding Equivalence and
    Noninferiority Testing, Journal of General Internal Medicine 26, 2011. `is_script`: what is compared is the script
    itself with other random numbers, which chance may put on the worse side; it fails beyond the margin alone.
    """
    pairs = list(zip(baselines, plans))
    if len(pairs) < 3:
        return unknown("band", "fewer than three seeds were run")
    for pair in pairs:
        seen = losses_seen(*pair)
        if seen.state != "passed":
            return seen
    band = _band_of(pairs)
    if band is None:
        return unknown("band", "the loss ends on both sides of zero: it has no relative difference")
    worse, spread = band
    if not spread:
        return unknown(
            "band", f"the script's {len(pairs)} seeds gave one and the same course: they are not seeds to it"
        )
    margin, mean = margin_of(1.0, spread), mean_interval(worse)
    value, low, high = (f"{100 * share:+.2g}%" for share in (mean.value, mean.low, mean.high))
    text = f"loss {value} ({low} to {high}) at {len(pairs)} seeds; margin {100 * margin:.2g}%"
    return no_worse("band", text, mean, margin=margin, floor=margin if is_script else FLOOR)


def margin_of(level: float, spread: float) -> float:
    """What is no worse: one standard deviation of the script's own seeds, but no more than MOST of the level."""
    return max(min(spread, MOST * level), FLOOR * level)


def no_worse(what: str, text: str, worse: Estimate, *, margin: float, floor: float) -> Check:
    """A one-sided test of non-inferiority: the upper end of the mean difference's 95% interval lies within the margin.

    An interval that lies wholly on the worse side does not pass, whatever the margin: a small harm that is sure is one,
    unless it is less than a tenth of the `floor`, as the last digits of another precision are. It fails where it excludes
    everything up to the floor, below which nobody would mind.
    """
    if worse.low > floor:
        return failed(what, text)
    most = margin if worse.low <= 0 else min(margin, NEGLIGIBLE * floor)
    return (passed if worse.high <= most else unknown)(what, text)


def seeds_wanted(baselines: Sequence[RawQuality], plans: Sequence[RawQuality], *, fewest: int, most: int) -> int:
    """At how many seeds the interval should be narrow enough, judging by the spread of these alone, not by their sign.

    0: these cannot be compared, and neither could more of them.
    """
    band = _band_of(list(zip(baselines, plans)))
    if band is None:
        return 0
    worse, spread = band
    margin = margin_of(1.0, spread)
    enough = (n for n in range(fewest, most) if half_width(worse, at=n) <= NARROW * margin)
    return next(enough, most)


def _band_of(pairs: Sequence[tuple[RawQuality, RawQuality]]) -> tuple[list[float], float] | None:
    """Of the losses at the end, in shares of them: what the plan's are higher by, and the spread of the script's own.

    None: the script's own lie on both sides of zero.
    """
    ends = [ends_of(*pair) for pair in pairs]
    own = [before for before, _ in ends]
    if min(own) <= 0 <= max(own):
        return None
    worse = [(now - before) / abs(before) for before, now in ends]
    return worse, statistics.stdev(own) / statistics.fmean(map(abs, own))


def ends_of(baseline: RawQuality, plan: RawQuality) -> tuple[float, float]:
    """The loss of both at the end of the steps that both have; they have some."""
    one, other = baseline.losses, plan.losses
    return _end(one, other), _end(other, one)


def _end(losses: Sequence[float], others: Sequence[float]) -> float:
    """Mean of the last third of the steps that both have."""
    number = min(len(losses), len(others))
    return statistics.fmean(losses[number - max(1, number // 3) : number])
