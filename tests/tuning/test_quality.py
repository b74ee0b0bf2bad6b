"""The proof fails closed: what was not seen is not passed, and what ruins a model is caught."""

import base64
import random

import numpy as np
import pytest

from hasten.raw_run import RawQuality, SampledEpoch
from hasten.tuning import quality
from hasten.tuning.evaluator import Evaluator, _band, check_quality, find_culprits, rounding, verdict_of
from hasten.tuning.metric import metric_holds


def told(losses, *, batches=("a", "b"), rows=(), moved=(True, True), gradients=None):
    gradients = np.arange(1, 9, dtype=np.float32) if gradients is None else gradients
    return RawQuality(
        losses=list(losses),
        batches=list(batches),
        rows=[list(row) for row in rows],
        moved=moved,
        gradients=base64.b64encode(gradients.astype(np.float32).tobytes()).decode(),
    )


def falling(seed=0, *, level=2.0, to=1.0, noise=0.05, number=30):
    draw = random.Random(seed)
    return [level + (to - level) * n / number + draw.gauss(0, noise) for n in range(number)]


FALLING = told(falling())


@pytest.mark.parametrize(
    "plan, state",
    [
        (told([]), "unknown"),
        (told([1.0] * 5), "unknown"),
        (told([1.0] * 20 + [float("nan")]), "failed"),
        (FALLING, "passed"),
    ],
)
def test_losses_must_be_seen_enough_and_finite(plan, state):
    assert quality.losses_seen(FALLING, plan).state == state


def test_a_script_whose_own_loss_is_not_finite_proves_nothing():
    assert quality.losses_seen(told([float("inf")] * 20), FALLING).state == "unknown"


def test_frozen_weights_are_caught():
    head = quality.parameters_move(FALLING, told(falling(), moved=(True, False)))
    assert head.state == "failed" and "1 of the 2 parameters" in head.text, "a frozen head is seen, however small"
    assert quality.parameters_move(FALLING, told(falling(), moved=(True,))).state == "failed"
    assert quality.parameters_move(told(falling(), moved=(True, False)), FALLING).state == "passed"
    assert quality.parameters_move(FALLING, told(falling(), moved=None)).state == "unknown"
    assert quality.parameters_move(FALLING, FALLING).state == "passed"


def test_batches_are_equal_otherwise_drawn_or_never_the_same():
    same, other = told([1.0]), told([1.0], batches=["a", "x"])
    assert quality.batches_equal(same, same, same).state == "passed"
    assert "drawn otherwise" in quality.batches_equal(same, other, same).text
    assert "from run to run" in quality.batches_equal(same, other, told([1.0], batches=["z", "b"])).text
    assert quality.batches_equal(told([1.0], batches=[]), same, same).state == "unknown"


def asked(*epochs, own=(64, 0), trouble="", dataset=0):
    """What a launch tells of the samples it asked for; an epoch that is over is a word, one that is not a list."""
    told = [
        SampledEpoch(
            dataset=dataset,
            order=list(epoch),
            num_keys=len(epoch) if isinstance(epoch, str) else None,
            repeats=len({*epoch}) < len(epoch),
        )
        for epoch in epochs
    ]
    return RawQuality(epochs=told, num_equal=own[0], num_other=own[1], samples_trouble=trouble)


@pytest.mark.parametrize(
    "script, drawn, state",
    [
        (asked("abc", "bca", list("ca")), asked("abc", "bca", list("c")), "passed"),
        (asked("abc", "bca"), asked("abc", "cab"), "passed"),  # one generator for order and samples
        (asked("abc", list("bc")), asked("abc", list("ca")), "passed"),
        (asked(list("ab")), asked(list("abc")), "passed"),
        (asked("abc", "bca"), asked("abc", "bda"), "passed"),  # the last batch is dropped, whatever was in it
        (asked("abc", "bca"), asked("abc", "bcb"), "unknown"),
        (asked("abc", "bca"), asked("abc", "bc"), "passed"),
        (asked("abc", "bca"), asked("abc", "cb"), "unknown"),
        (asked("abc"), asked("acb"), "unknown"),
        (asked("abc", "bca"), asked("abc", "abc"), "unknown"),  # never shuffled again
        (asked(), asked(), "unknown"),
        (asked("abc"), asked("abc", own=(60, 4)), "unknown"),
        (asked("abc"), asked("abc", own=(0, 0)), "unknown"),
        (asked("abc"), asked("abc", trouble="no files here"), "unknown"),
        (asked("abc"), RawQuality(), "unknown"),
    ],
)
def test_the_scripts_own_samples_are_told_from_others(script, drawn, state):
    assert quality.own_samples(script, drawn, remade=drawn).state == state


def test_the_first_epoch_of_each_dataset_must_be_in_the_scripts_order():
    script, moved = asked("abc", "bca", dataset=1), asked("acb", "bca", dataset=1)
    for told in (script, moved):
        told.epochs = asked("xy").epochs + told.epochs
    assert quality.own_samples(script, script, remade=script).state == "passed"
    assert quality.own_samples(script, moved, remade=moved).state == "unknown"


def test_epochs_of_another_dataset_are_other_samples():
    other = asked("abc", dataset=1)
    assert quality.own_samples(asked("abc"), other, remade=other).state == "unknown"


def test_samples_of_other_workers_are_the_scripts_own_where_those_of_our_loader_are():
    script, drawn = asked("abc"), asked("abc", own=(0, 0))
    assert quality.own_samples(script, drawn, remade=asked("acb")).state == "passed"
    assert quality.own_samples(script, drawn, remade=asked("abc", own=(0, 64))).state == "unknown"


def test_a_cached_random_crop_is_caught():
    fresh = told([1.0], rows=[["a", "b"], ["c", "d"]])
    cached = told([1.0], rows=[["a", "b"], ["a", "b"]])
    assert quality.samples_vary(fresh, cached, comes_again=True).state == "failed"
    assert quality.samples_vary(cached, cached, comes_again=True).state == "passed"
    assert quality.samples_vary(fresh, told([1.0]), comes_again=True).state == "unknown"
    assert quality.samples_vary(fresh, fresh, comes_again=False).state == "unknown", "no second epoch was seen"


def test_a_side_that_was_seen_for_longer_has_no_more_copies_for_it():
    short, long = (told([1.0], rows=[["a", "b"]] * number) for number in (2, 5))
    assert quality.samples_vary(short, long, comes_again=True).state == "passed"


def test_identical_losses_are_identical():
    assert quality.losses_identical(FALLING, FALLING, FALLING).state == "passed"
    other = told([*falling()[:-1], 0.0])
    assert "from step 30 on" in quality.losses_identical(FALLING, other, FALLING).text
    assert quality.losses_identical(FALLING, other, other).state == "unknown"


def test_rounding_is_within_the_scripts_own_noise():
    noise = told([x * (1 + 1e-7) for x in falling()], gradients=np.arange(1, 9) * (1 + 1e-6))
    near = told([x * (1 - 1e-7) for x in falling()], gradients=np.arange(1, 9) * (1 - 1e-6))
    assert quality.rounding_only(FALLING, near, [noise]).state == "passed"


@pytest.mark.parametrize(("gradients_apart", "state"), [(4e-7, "passed"), (1e-7, "failed"), (0.0, "failed")])
def test_in_chaos_a_larger_first_step_of_rounding_may_lead_further(gradients_apart, state):
    ones = np.ones(8, dtype=np.float32)

    def parted(by, gradient):
        course = [loss * (1 + by * n / 30 * (-1) ** n) for n, loss in enumerate(falling())]
        return told(course, gradients=ones * (1 + gradient * np.array([1, -1] * 4)))

    asked = []

    def perturbed(bits):
        asked.append(bits)
        return parted(1e-3 * bits, 1.2e-7 * bits)

    own = told(falling(), gradients=ones)
    assert rounding(own, parted(8e-3, gradients_apart), own, perturbed).state == state
    assert asked[0] == 1 and (len(asked) == 2) == (state == "passed")


@pytest.mark.parametrize(
    "plan, words",
    [
        (told([2.1, *falling()[1:]]), "first loss"),
        (told(falling(), gradients=np.zeros(8)), "first gradients"),
        (told([falling()[0], *falling(1)[1:]]), "losses part"),
    ],
)
def test_what_is_more_than_rounding_is_caught(plan, words):
    check = quality.rounding_only(FALLING, plan, [FALLING])
    assert check.state == "failed" and words in check.text


def seeds(number=5, **settings):
    return [told(falling(seed, **settings)) for seed in range(number)]


def test_a_loss_within_the_band_is_passed():
    plans = [told([x + 0.0005 * (-1) ** seed for x in falling(seed)]) for seed in range(5)]
    assert quality.within_band(seeds(), plans).state == "passed"


@pytest.mark.parametrize(("more", "state"), [(1.01, "failed"), (1.005, "failed"), (1.001, "unknown")])
def test_a_loss_that_is_higher_at_every_seed_never_passes(more, state):
    plans = [told([more * x for x in falling(seed)]) for seed in range(5)]
    check = quality.within_band(seeds(), plans)
    assert check.state == state and verdict_of([check]) != "proven"


def test_a_loss_that_is_higher_in_its_last_digits_is_passed():
    plans = [told([1.0001 * x for x in falling(seed)]) for seed in range(5)]
    assert quality.within_band(seeds(), plans).state == "passed"


def test_the_script_with_other_random_numbers_may_end_a_little_higher_by_chance():
    plans = [told([1.005 * x for x in falling(seed)]) for seed in range(5)]
    assert quality.within_band(seeds(), plans, is_script=True).state == "unknown"
    plans = [told([1.1 * x for x in falling(seed)]) for seed in range(5)]
    assert quality.within_band(seeds(), plans, is_script=True).state == "failed"


def test_harmless_noise_passes_at_nine_of_ten():
    passed, draw = 0, random.Random(0).gauss
    for _ in range(200):
        plans = [told([x * (1 + noise) for x in falling(seed)]) for seed in range(5) for noise in [draw(0, 0.003)]]
        passed += quality.within_band(seeds(), plans).state == "passed"
    assert passed > 0.9 * 200


@pytest.mark.parametrize("spread", [0.001, 0.02, 0.1])
def test_an_accuracy_that_is_a_point_lower_at_every_seed_never_passes(spread):
    draw = random.Random(0).gauss
    script = [draw(0.8, spread) for _ in range(5)]
    check = metric_holds(script, [v - 0.01 for v in script], higher_is_better=True)
    assert check.state == "failed"


def test_no_margin_is_wider_than_two_percent():
    assert quality.margin_of(1.0, 0.3) == 0.02 and quality.margin_of(1.0, 0.01) == 0.01
    assert quality.margin_of(1.0, 0.0) == quality.FLOOR


def test_a_loss_above_the_band_is_failed():
    assert quality.within_band(seeds(), seeds(to=1.6)).state == "failed"


def test_a_loss_that_is_not_finite_at_a_later_seed_is_failed():
    plans = [*seeds(4), told([float("nan")] * 30)]
    check = quality.within_band(seeds(), plans)
    assert check.state == "failed" and "not finite" in check.text


def test_a_script_that_starts_elsewhere_each_time_differs_from_itself():
    assert quality.differs_from_itself(FALLING, told([2.2, *falling()[1:]]))
    assert not quality.differs_from_itself(FALLING, FALLING)


def test_a_lower_loss_is_no_fault():
    assert quality.within_band(seeds(), seeds(to=0.7)).state == "passed"


@pytest.mark.parametrize(("more", "state"), [(1.0001, "passed"), (1.005, "failed")])
def test_where_seeds_end_far_apart_each_is_held_against_its_own(more, state):
    ends = [0.01 + 5.0 * seed for seed in range(5)]
    assert quality.within_band([told([x] * 30) for x in ends], [told([more * x] * 30) for x in ends]).state == state


def test_a_harm_at_the_seed_that_learned_most_does_not_pass():
    ends = [0.01, 5.0, 10.0, 15.0, 20.0]
    plans = [told([x] * 30) for x in (0.1, *ends[1:])]
    assert quality.within_band([told([x] * 30) for x in ends], plans).state != "passed"


def test_a_loss_on_both_sides_of_zero_has_no_share_to_compare():
    around = [told([x] * 30) for x in (-0.2, 0.1, 0.3)]
    check = quality.within_band(around, around)
    assert check.state == "unknown" and "zero" in check.text
    assert quality.seeds_wanted(around, around, fewest=5, most=8) == 0, "more seeds would not tell either"


def test_a_loss_of_nothing_but_zeros_proves_nothing(monkeypatch):
    monkeypatch.setattr(Evaluator, "evaluate", lambda *_, **__: told([0.0] * 30))
    check = _band(Evaluator(bench=None, step_seconds=0.1, steps_per_epoch=None), {"bf16": True}, {})
    assert check.state == "unknown" and "zero" in check.text


def test_a_difference_that_varies_too_much_proves_nothing():
    plans = [told([x + (0.3 if seed % 2 else -0.3) for x in falling(seed)]) for seed in range(5)]
    assert quality.within_band(seeds(), plans).state == "unknown"


@pytest.mark.parametrize(
    "seconds, looks_again, number, why",
    [(100.0, True, 8, ""), (0.0, True, 3, "there was no time"), (100.0, False, 3, "whole runs to the target decide")],
)
def test_more_seeds_are_run_where_the_first_do_not_tell_and_nothing_else_will(
    monkeypatch, seconds, looks_again, number, why
):
    ran = set()

    def by_chance(_evaluator, settings, *, shift=0, **_):
        ran.add(shift)
        return told(falling(shift + len(settings), noise=0.5))

    monkeypatch.setattr(Evaluator, "evaluate", by_chance)
    evaluator = Evaluator(bench=None, step_seconds=0.1, steps_per_epoch=None, time_left=lambda: seconds)
    check = _band(evaluator, {"bf16": True}, {}, looks_again=looks_again)
    assert len(ran) == number and f"{number} seeds" in check.text and why in check.text


def test_the_script_is_not_run_once_more_where_there_are_no_batches_to_compare(monkeypatch):
    launches = []

    def without_batches(_evaluator, settings, *, shift=0, number=0, **_):
        launches.append((len(settings), shift, number))
        return told(falling(shift + len(settings), noise=0.01), batches=())

    monkeypatch.setattr(Evaluator, "evaluate", without_batches)
    check_quality(Evaluator(bench=None, step_seconds=0.1, steps_per_epoch=None), {"bf16": True})
    assert all(number == 0 for _, _, number in launches)


def test_seeds_that_make_no_difference_prove_nothing():
    check = quality.within_band(seeds()[:1] * 3, seeds()[:1] * 3)
    assert check.state == "unknown" and "one and the same course" in check.text


def test_two_seeds_prove_nothing():
    assert quality.within_band(seeds(2), seeds(2)).state == "unknown"


def test_seeds_that_the_budget_does_not_hold_are_not_begun(monkeypatch):
    monkeypatch.setattr(Evaluator, "evaluate", lambda *_, **__: pytest.fail("a launch was made"))
    evaluator = Evaluator(bench=None, step_seconds=5.0, steps_per_epoch=None, time_left=lambda: 100.0)
    evaluator.launch_seconds = 90.0
    check = _band(evaluator, {"bf16": True}, {})
    assert check.state == "unknown" and "no time for 3 seeds: --budget gives more" in check.text


def test_where_no_time_is_left_the_weakest_guarantee_is_blamed_unasked(monkeypatch):
    monkeypatch.setattr(Evaluator, "evaluate", lambda *_, **__: pytest.fail("a launch was made"))
    evaluator = Evaluator(bench=None, step_seconds=5.0, steps_per_epoch=None, time_left=lambda: 0.0)
    assert find_culprits(evaluator, {"fused_optimizer": True, "bf16": True}) == ["bf16"]
