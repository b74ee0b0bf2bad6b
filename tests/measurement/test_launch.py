"""Waiting for a started command."""

import subprocess
import sys

import pytest

from hasten.errors import NoStepError
from hasten.measurement.launch import _wait

MEASURING = '["measuring", 3, 0.1, 3, ""]'


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.7)"])
    yield process
    process.kill()
    process.wait()


def test_once_a_step_was_seen_a_status_that_is_gone_is_no_lack_of_steps(tmp_path, sleeper):
    status = tmp_path / "status-7"
    status.write_text(MEASURING)
    assert _wait(sleeper, tmp_path, 0.2, 60.0, lambda _: status.write_text("")) == 0


def test_without_a_step_patience_ends(tmp_path, sleeper):
    with pytest.raises(NoStepError, match=r"no optimizer step in 0 s"):
        _wait(sleeper, tmp_path, 0.2, 60.0, print)


def test_a_window_that_never_fills_is_given_up(sleeper, tmp_path):
    (tmp_path / "status-1").write_text('["measuring", 3, 1.0, 3, "plain"]')
    with pytest.raises(NoStepError, match="it may hang"):
        _wait(sleeper, tmp_path, 60.0, 0.2, print)
