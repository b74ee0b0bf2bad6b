"""Nothing that a launch started outlives it."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from hasten.launch import processes as ending
from hasten.launch.processes import end_everything

NOBODY = ("HASTEN_TEST_MARK", "nobody")


@pytest.fixture
def started():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process, (process.pid, psutil.Process(process.pid).create_time())
    process.kill()
    process.wait()


def test_what_was_seen_is_ended(started):
    process, seen = started
    end_everything(process, {seen}, mark=NOBODY)
    assert process.poll() is not None


def test_a_stranger_with_the_same_number_is_left_alone(started):
    process, (pid, born) = started
    other = subprocess.Popen([sys.executable, "-c", ""])
    end_everything(other, {(pid, born - 100.0)}, mark=NOBODY)
    assert process.poll() is None


def test_shared_memory_of_an_ended_worker_goes_and_everybody_elses_stays(started, tmp_path, monkeypatch):
    monkeypatch.setattr(ending, "SHARED_MEMORY", tmp_path)
    process, seen = started
    (tmp_path / f"torch_{process.pid}_17_0").write_bytes(b"a batch")
    for name in (f"torch_{os.getpid()}_17_0", "torch_x_17_0", f"psm_{process.pid}"):
        (tmp_path / name).write_bytes(b"somebody else's")
    end_everything(process, {seen}, mark=NOBODY)
    assert not (tmp_path / f"torch_{process.pid}_17_0").exists()
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
def test_an_interrupt_meanwhile_leaves_nothing_running_and_is_not_lost(monkeypatch, started):
    process, seen = started
    wait = psutil.wait_procs

    def interrupted(*arguments, **settings):
        os.kill(os.getpid(), signal.SIGINT)
        return wait(*arguments, **settings)

    monkeypatch.setattr(psutil, "wait_procs", interrupted)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        end_everything(process, {seen}, mark=NOBODY)
    assert process.poll() is not None
    assert signal.getsignal(signal.SIGINT) is handler
