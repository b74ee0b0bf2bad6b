"""What does not need Linux runs elsewhere, on simulated platforms: no /proc, no fork, no Unix sockets."""

import subprocess
import sys
from pathlib import Path

import pytest
from command import environment, train, write

SIMULATED = Path(__file__).with_name("simulated_platform.py")
pytestmark = [pytest.mark.slow, pytest.mark.contract]


def on(platform, *words, cwd):
    command = [sys.executable, SIMULATED, platform, *words]
    answer = subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=300)
    assert "Traceback" not in answer.stderr, answer.stderr
    return answer


@pytest.mark.parametrize("platform", ["mac", "windows"])
def test_the_machine_is_checked_and_what_is_unknown_is_named(tmp_path, platform):
    answer = on(platform, "hasten", "check", cwd=tmp_path)
    assert answer.returncode == 0 and "good" in answer.stdout and "unknown" in answer.stdout


@pytest.mark.parametrize("platform", ["mac", "windows"])
def test_findings_are_explained(tmp_path, platform):
    assert "decode" in on(platform, "hasten", "explain", "slow_decode", cwd=tmp_path).stdout


@pytest.mark.parametrize("platform", ["mac", "windows"])
def test_a_loader_without_workers_and_with_threads_gives_the_same_batches(tmp_path, platform):
    assert "the same batches" in on(platform, "loader", cwd=tmp_path).stdout


@pytest.mark.xdist_group("timing")
@pytest.mark.parametrize("platform", ["mac", "windows"])
def test_a_block_is_measured(tmp_path, platform):
    answer = on(platform, "measure", cwd=tmp_path)
    assert "Step " in answer.stdout and "forward" in answer.stdout


@pytest.mark.xdist_group("timing")
def test_a_script_is_diagnosed_on_a_mac(tmp_path):
    script = write(tmp_path / "train.py", train())
    answer = on("mac", "hasten", "diagnose", "--quick", "--seconds", "4", script, cwd=tmp_path)
    assert answer.returncode == 0 and "Step " in answer.stdout, answer.stderr
    assert on("mac", "hasten", "report", "--list", cwd=tmp_path).returncode == 0
