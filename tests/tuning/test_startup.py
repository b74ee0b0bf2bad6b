"""A late start is charged against the length of training."""

import pytest

from hasten.records import Facts, Trial
from hasten.tuning.budget import charged, num_steps_of


class FakeRun:
    def __init__(self, *, steps_per_epoch=None, ended_by="hasten", num_steps=100, first_step_seconds=2.0):
        self.facts = Facts(boundary="optimizer", num_threads=1, steps_per_epoch=steps_per_epoch)
        self.ended_by, self.first_step_seconds = ended_by, first_step_seconds
        self.steps = [FakeStep(7.0 + 0.1 * number) for number in range(num_steps)]


class FakeStep:
    seconds = 0.1

    def __init__(self, start):
        self.start = start


def trial(*, late, verdict="faster"):
    return Trial(
        fix="compile",
        value="default",
        verdict=verdict,
        baseline_seconds=(0.1, 0.1),
        candidate_seconds=(0.05, 0.05),
        startup_seconds=late,
    )


def test_a_start_that_is_earned_back_is_told_with_its_step():
    found = charged(trial(late=10.0), num_steps=1000)
    assert found.verdict == "faster" and "10 s more, earned back after 200 steps" in found.note


def test_a_start_that_training_never_earns_back_is_no_gain():
    found = charged(trial(late=10.0), num_steps=100)
    assert found.verdict == "no difference" and "after 200 steps, and training takes 100" in found.note


def test_where_the_length_is_not_known_only_the_step_is_told():
    found = charged(trial(late=10.0), num_steps=None)
    assert found.verdict == "faster" and "200 steps" in found.note


@pytest.mark.parametrize("given", [trial(late=0.5), trial(late=10.0, verdict="slower")])
def test_a_start_that_is_not_later_or_a_fix_that_is_not_kept_is_left_as_it_is(given):
    assert charged(given, num_steps=1) is given


def test_the_length_is_what_is_said_or_what_was_seen():
    assert num_steps_of(FakeRun(steps_per_epoch=50), 4) == 200
    assert num_steps_of(FakeRun(), 4) is None, "an epoch's length was not seen"
    assert num_steps_of(FakeRun(), None) is None, "it would have gone on"
    seen_whole = FakeRun(ended_by="script")  # ten seconds of steps, and five of warm-up before
    assert num_steps_of(seen_whole, None) == pytest.approx(151)
