"""A trial says what is so, and no more: honest about nothing, quick about much."""

import pytest

from hasten.launch.side import Frequencies, SideError, SideResult
from hasten.protocol import LaunchSpec
from hasten.records import Trial, from_json, to_json
from hasten.stats import Estimate
from hasten.tuning import trial as trials
from hasten.tuning.trial import Sides, compare, decide, may_continue, try_fix
from hasten.tuning.trial_config import TrialConfig

CONFIG = TrialConfig()
OTHERS = {"num_steps": 30, "startup_seconds": 2.0, "peak_bytes": 1e9}


def trial_of(bench, frequencies, fix="bf16", **settings):
    return try_fix(bench, {}, {fix: True}, frequencies=frequencies, config=CONFIG, **settings)


def test_a_clear_gain_is_seen_after_few_pairs(bench, frequencies):
    trial = trial_of(bench({"bf16": 1.5}), frequencies)
    assert trial.verdict == "faster"
    assert trial.speedup.low <= 1.5 <= trial.speedup.high
    assert len(trial.baseline_seconds) <= 4


def test_sides_alternate_a_b_b_a(bench, frequencies):
    fake = bench(noise=0.05)
    trial_of(fake, frequencies)
    assert ["bf16" in settings for settings in fake.launches[:6]] == [False, True, True, False, False, True]


def test_a_machine_that_slows_down_is_no_difference(bench, frequencies):
    trial = trial_of(bench(drift=0.01, noise=0.002), frequencies)
    assert trial.verdict == "no difference"


def test_the_same_against_itself_is_called_different_in_at_most_one_of_twenty(bench, frequencies):
    called = [trial_of(bench(noise=0.03, seed=seed), frequencies).verdict for seed in range(400)]
    assert sum(verdict in ("faster", "slower") for verdict in called) <= 20


def test_a_slow_down_of_three_per_cent_is_dropped_at_once_and_called_slower_where_nobody_gives_up(bench, frequencies):
    slower = {"bf16": 1 / 1.03}
    called = [trial_of(bench(slower, noise=0.008, seed=seed), frequencies) for seed in range(40)]
    assert all(trial.verdict in ("slower", "no difference") for trial in called)
    benches = [bench(slower, noise=0.008, seed=seed) for seed in range(40)]
    patient = [
        compare((fake, {}), (fake, {"bf16": True}), frequencies=frequencies, config=CONFIG, gives_up=False).verdict
        for fake in benches
    ]
    assert patient.count("slower") >= 38


def test_a_gain_that_the_noise_would_hide_to_the_end_is_given_up(bench, frequencies):
    called = [trial_of(bench({"bf16": 1.03}, noise=0.1, seed=seed), frequencies) for seed in range(40)]
    assert sum(len(trial.baseline_seconds) for trial in called) / 40 < 8
    assert not any(trial.verdict in ("faster", "slower") for trial in called[:20])


def test_a_gain_of_three_per_cent_is_found_where_the_machine_is_quiet(bench, frequencies):
    called = [trial_of(bench({"bf16": 1.03}, noise=0.005, seed=seed), frequencies).verdict for seed in range(40)]
    assert called.count("faster") >= 38


def test_a_fix_that_makes_things_worse_is_dropped_early(bench, frequencies):
    trial = trial_of(bench({"bf16": 0.6}), frequencies)
    assert trial.verdict != "faster" and len(trial.baseline_seconds) == 2, "nobody waits for the first look"
    assert trial.note == "given up: 0.60x in 2 pairs" and not may_continue(trial)
    assert from_json(Trial, to_json(trial)) == trial, "a saved search can be read again"


def test_a_script_that_fails_under_a_fix_fails_the_trial_and_nothing_else(bench, frequencies):
    trial = trial_of(bench(failing=["bf16"]), frequencies)
    assert trial.verdict == "failed" and "RuntimeError: no" in trial.note


def test_a_fix_that_was_not_on_is_no_gain(bench, frequencies):
    trial = trial_of(bench({"bf16": 2.0}, refused={"bf16": "the script uses autocast itself"}), frequencies)
    assert trial.verdict == "failed" and "uses autocast itself" in trial.note


def test_a_script_that_cannot_be_there_twice_is_tried_one_side_after_the_other(bench, frequencies, monkeypatch):
    def in_vain(_sides):
        raise SideError("address already in use")

    monkeypatch.setattr("hasten.tuning.trial.run_in_turns", in_vain)
    trial = try_fix(bench({"bf16": 1.5}), {}, {"bf16": True}, frequencies=frequencies, config=TrialConfig(turns=True))
    assert trial.verdict == "faster"


def test_compiling_is_charged_as_it_was_the_first_time(bench, frequencies):
    trial = try_fix(bench({"compile": 2.0}), {}, {"compile": "default"}, frequencies=frequencies, config=CONFIG)
    assert trial.startup_seconds == pytest.approx(30.0)


def test_a_trial_ends_when_time_is_over(bench, frequencies):
    trial = trial_of(bench(noise=0.3), frequencies, time_left=lambda: 0.0)
    assert len(trial.baseline_seconds) == 3, "what has begun gets its first look"


@pytest.mark.parametrize(
    "estimate, pairs, verdict",
    [
        (Estimate(1.2, 1.1, 1.3), 3, "faster"),
        (Estimate(1.2, 1.1, 1.3), 5, None),  # no look at five
        (Estimate(1.004, 1.001, 1.007), 4, "no difference"),  # sure, and not worth a line
        (Estimate(1.05, 0.9, 1.2), 4, None),
        (Estimate(0.99, 0.9, 1.09), 3, "no difference"),
        (Estimate(0.99, 0.31, 3.18), 3, None),  # a single disturbed pair hides a gain of a sixth
        (Estimate(0.99, 0.6, 1.63), 6, "no difference"),  # enough of it
        (Estimate(1.05, 0.99, 1.1), 16, "inconclusive"),
        (Estimate(1.02, 0.93, 1.12), 8, "inconclusive"),  # 16 pairs would not do either
        (Estimate(1.05, 0.99, 1.11), 8, None),
        (Estimate(0.9, 0.85, 0.95), 3, "slower"),
    ],
)
def test_what_a_look_says(estimate, pairs, verdict):
    assert decide(estimate, pairs) == verdict


def test_a_rare_phase_counts_with_its_share_where_both_sides_have_met_it(bench):
    fake = bench(noise=0.0)
    frequencies = Frequencies(by_phase={"epoch_start": 1 / 10})
    seen = fake.run(spec=LaunchSpec(), environment={})
    slow = type(seen)(**{**vars(seen), "parts": {"regular": 0.1, "epoch_start": 2.0}})
    quick = type(seen)(**{**vars(seen), "parts": {"regular": 0.1, "epoch_start": 0.5}})
    baseline, candidate = Sides([slow], [quick]).seconds(frequencies)
    assert baseline == pytest.approx([0.3]) and candidate == pytest.approx([0.15])
    baseline, _ = Sides([slow], [seen]).seconds(frequencies)
    assert baseline == pytest.approx([0.1])


def test_a_whole_plan_is_compared_in_the_same_way(bench, frequencies):
    fake = bench({"bf16": 1.5, "channels_last": 1.2})
    both = {"bf16": True, "channels_last": True}
    trial = compare((fake, {}), (fake, both), frequencies=frequencies, config=CONFIG)
    assert trial.verdict == "faster" and trial.speedup.value == pytest.approx(1.8, rel=0.05)


def test_a_trial_whose_time_was_over_continues_as_if_it_had_not_been(bench, frequencies):
    noisy = {"gains": {"bf16": 1.2}, "noise": 0.1, "seed": 3}
    whole = trial_of(bench(**noisy), frequencies)
    fake, sides = bench(**noisy), Sides()
    first = trial_of(fake, frequencies, sides=sides, time_left=lambda: 0.0)
    assert first.verdict == "inconclusive" and may_continue(first)
    continued = trial_of(fake, frequencies, sides=sides)
    assert continued.baseline_seconds == whole.baseline_seconds and continued.verdict == whole.verdict
    assert continued.baseline_seconds[:3] == first.baseline_seconds and continued.seconds >= first.seconds


def test_a_trial_that_was_given_up_does_not_continue(bench, frequencies):
    given_up = trial_of(bench({"bf16": 1.03}, noise=0.1, seed=1), frequencies)
    assert given_up.verdict in ("inconclusive", "no difference") and not may_continue(given_up)


def test_a_larger_batch_gains_by_its_samples_and_not_by_rarer_epochs():
    """A step of 4 times the samples that takes 4 times as long gains nothing; an epoch's start comes as often as before."""
    sides = Sides(
        baseline=[SideResult(parts={"regular": 0.1, "epoch_start": 2.0}, samples_per_step=16.0, **OTHERS)] * 3,
        candidate=[SideResult(parts={"regular": 0.4, "epoch_start": 2.0}, samples_per_step=64.0, **OTHERS)] * 3,
    )
    before, after = sides.seconds(Frequencies(by_phase={"epoch_start": 1 / 10}))
    assert after == pytest.approx(before)


def test_a_script_that_cannot_be_there_twice_is_launched_twice_only_once(bench, frequencies, monkeypatch):
    def refuse(launches):
        tried.append(launches)
        raise SideError("the port is taken")

    tried = []
    monkeypatch.setattr(trials, "run_in_turns", refuse)
    fake = bench({"bf16": 1.5})
    for _ in range(2):
        found = try_fix(fake, {}, {"bf16": True}, frequencies=frequencies, config=TrialConfig(turns=True))
        assert found.verdict == "faster"
    assert len(tried) == 1


def test_a_baseline_that_fails_says_nothing_about_the_fix(bench, frequencies):
    fake = bench({"bf16": 1.5}, failing=["channels_last"])
    trial = try_fix(fake, {"channels_last": True}, {"bf16": True}, frequencies=frequencies, config=CONFIG)
    assert trial.verdict == "inconclusive" and trial.note.startswith("the baseline failed: the script failed")
    assert from_json(Trial, to_json(trial)) == trial and not may_continue(trial)


def test_pairs_made_before_the_baseline_failed_count(bench, frequencies, monkeypatch):
    fake = bench({"bf16": 1.3}, noise=0.3, seed=5)

    def fail_later(*, spec, environment):
        if len(fake.launches) == 8:  # the baseline of the fifth pair
            raise SideError("out of memory")
        return run(spec=spec, environment=environment)

    run = fake.run
    monkeypatch.setattr(fake, "run", fail_later)
    trial = trial_of(fake, frequencies)
    assert trial.verdict == "inconclusive" and len(trial.baseline_seconds) == 4
    assert trial.speedup is not None and trial.note == "the baseline failed: out of memory"


def test_a_fix_that_fails_alone_too_leaves_the_others_their_turns(bench, frequencies, monkeypatch):
    def in_vain(_sides):
        raise SideError("the script failed")

    monkeypatch.setattr(trials, "run_in_turns", in_vain)
    fake = bench(failing=["bf16"])
    trial = try_fix(fake, {}, {"bf16": True}, frequencies=frequencies, config=TrialConfig(turns=True))
    assert trial.verdict == "failed" and fake.takes_turns
