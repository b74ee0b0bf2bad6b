"""Whether a script has become slower, and when nobody can say."""

import random

import pytest
from runs import machine
from runs import run as healthy

from hasten.diagnosis.compare import ONE_RUN, compare
from hasten.records import Step


def run(seconds, *, wobble=0.01, num=80, **changes):
    draw = random.Random(num)
    times = [seconds * (1 + wobble * draw.uniform(-1, 1)) for n in range(num)]
    steps = tuple(Step(index=n, start=n * seconds, seconds=t, marked=False) for n, t in enumerate(times))
    return healthy(steps=steps, **changes)


def test_a_script_that_takes_much_longer_is_slower():
    found = compare([run(0.1)], [run(0.12)], max_slowdown=0.05)
    assert found.verdict == "slower" and found.ratio.value == pytest.approx(1.2, rel=0.01)


def test_the_same_is_no_difference_and_one_run_a_side_is_told():
    found = compare([run(0.1)], [run(0.1)], max_slowdown=0.05)
    assert found.verdict == "no difference" and ONE_RUN.format(side="each") in found.notes


def test_what_lies_within_the_noise_is_inconclusive():
    assert compare([run(0.1, wobble=0.4)], [run(0.107, wobble=0.4)], max_slowdown=0.05).verdict == "inconclusive"


def test_several_runs_a_side_count_what_differs_from_run_to_run():
    old, new = [run(s) for s in (0.1, 0.11, 0.105, 0.098)], [run(s) for s in (0.108, 0.112, 0.101, 0.115)]
    found = compare(old, new, max_slowdown=0.02)
    assert found.verdict == "inconclusive" and not found.notes and len(found.old_seconds) == 4


def test_an_epochs_first_step_is_not_compared():
    slow = run(0.1)
    first = Step(index=99, start=9.0, seconds=50.0, marked=False, starts_epoch=True)
    found = compare([run(0.1)], [healthy(steps=(*slow.steps, first))], max_slowdown=0.05)
    assert found.ratio.value == pytest.approx(1.0, rel=0.01)


def test_another_machine_is_told():
    found = compare([run(0.1)], [run(0.1, on=machine(cpu="Another CPU"))], max_slowdown=0.05)
    assert any("different CPU: A CPU before, now Another CPU" in note for note in found.notes)


def test_of_several_runs_on_one_side_all_count():
    found = compare([run(0.1)], [run(s) for s in (0.1, 0.2, 0.21, 0.19)], max_slowdown=0.05)
    assert found.verdict != "no difference" and len(found.new_seconds) == 4
    assert found.notes == (ONE_RUN.format(side="the old"),)
