"""The rate of a run that nobody measures closely."""

import pytest

from hasten.agent.following import Pace
from hasten.patches import Patches
from hasten.protocol import Following

AHEAD = [*([0.002] * 45), 0.5, *([0.04] * 4)]  # the host asks for 45 steps, then waits for the device to do them


@pytest.fixture
def pace(monkeypatch):
    patches = Patches()
    made = Pace(patches, Following(script="train.py", settings={}))
    made._process = -1  # says nothing at the end
    yield made
    patches.undo()


def seen(pace, seconds):
    pace._seconds.extend(seconds)
    pace._samples.extend([10] * len(seconds))


@pytest.mark.parametrize("on_device", [True, False])
def test_on_a_device_the_rate_is_that_of_whole_stretches(pace, monkeypatch, on_device):
    monkeypatch.setattr("hasten.devices.accelerator.is_in_use", lambda: on_device)
    seen(pace, AHEAD * 40)
    true = 10 * len(AHEAD) / sum(AHEAD)
    assert (pace.rate() == pytest.approx(true, rel=0.05)) is on_device


def test_a_validation_is_no_regular_stretch(pace, monkeypatch):
    monkeypatch.setattr("hasten.devices.accelerator.is_in_use", lambda: True)
    seen(pace, [*([0.1] * 95), 30.0, *([0.1] * 95)])
    assert pace.rate() == pytest.approx(100, rel=0.02)
