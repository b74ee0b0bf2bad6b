"""Waiting for a started command."""

import os
import signal
import subprocess
import sys
import time

import pytest

from hasten.errors import NoStepError
from hasten.launch.launch import Launch
from hasten.launch.processes import Watch
from hasten.protocol import LaunchSpec, Status, to_json

MEASURING = to_json(Status(state="measuring", num_steps=3, seconds=1.0, num_backwards=3))


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.7)"])
    yield process
    process.kill()
    process.wait()


def wait(process, folder, patience, longest, on_status):
    watch = Watch(process, folder, patience=patience, longest=longest, on_status=on_status)
    while not watch.over():
        time.sleep(0.05)
    return watch.exit_code


def test_once_a_step_was_seen_a_status_that_is_gone_is_no_lack_of_steps(tmp_path, sleeper):
    status = tmp_path / "status-7.json"
    status.write_text(MEASURING)
    assert wait(sleeper, tmp_path, 0.2, 60.0, lambda _: status.write_text("")) == 0


def test_without_a_step_patience_ends(tmp_path, sleeper):
    with pytest.raises(NoStepError, match=r"no optimizer step in 0 s"):
        wait(sleeper, tmp_path, 0.2, 60.0, print)


def test_a_window_that_never_fills_is_given_up(sleeper, tmp_path):
    (tmp_path / "status-1.json").write_text(MEASURING)
    with pytest.raises(NoStepError, match="it may hang"):
        wait(sleeper, tmp_path, 60.0, 0.2, print)


def test_a_script_that_makes_no_further_step_is_given_up(sleeper, tmp_path, monkeypatch):
    monkeypatch.setattr("hasten.launch.processes.STALLS", 1)
    (tmp_path / "status-1.json").write_text(MEASURING)
    with pytest.raises(NoStepError, match="no further step"):
        wait(sleeper, tmp_path, 0.2, 60.0, print)


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
def test_an_interrupt_while_a_script_is_being_started_ends_it(workspace, monkeypatch):
    started = []
    real = subprocess.Popen

    def interrupted(*words, **settings):
        started.append(real(*words, **settings))
        os.kill(os.getpid(), signal.SIGINT)
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        command = [sys.executable, "-c", "import time; time.sleep(60)"]
        Launch(command=command, spec=LaunchSpec(), folder=workspace.new_folder(), workspace=workspace).run()
    assert started[0].poll() is not None, "it is left running"
    assert signal.getsignal(signal.SIGINT) is handler
