"""`make gpu-day` can be cut anywhere: what is there is skipped, what failed is told and tried again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

DRIVER = Path(__file__).parent.parent / "benchmarks" / "gpu_day.py"


def gpu_day(*words, timeout=200):
    return subprocess.run(
        [sys.executable, str(DRIVER), *map(str, words)], capture_output=True, text=True, timeout=timeout
    )


@pytest.mark.slow
def test_the_sections_are_named():
    told = gpu_day("--list").stdout
    wanted = (
        "tests check speedtest diagnose tuned loader overhead fixed case_studies by_hand compile augmentation sharing"
    )
    assert [line.split()[0] for line in told.splitlines()[::2]] == wanted.split()
    assert "pageable_copy" in told and "healthy_resnet" in told


@pytest.mark.slow
def test_what_is_there_is_not_made_again(tmp_path):
    first = gpu_day("--dry", "--only", "check", "--results", tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    told = json.loads((tmp_path / "check" / "check.json").read_text())
    assert told["check"] and told["seconds"] > 0
    assert json.loads((tmp_path / "device.json").read_text())["device"] == "Simulated GPU"
    again = gpu_day("--dry", "--only", "check", "--results", tmp_path)
    assert "check/check: is there" in again.stdout


@pytest.mark.slow
def test_an_item_that_fails_leaves_what_it_said(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(DRIVER.parent))
    import gpu_day as driver

    monkeypatch.setattr(driver, "surroundings", lambda dry: None)
    assert not driver.run_item("nowhere/nothing", tmp_path / "nowhere" / "nothing.json", None, True, 1e18)
    told = json.loads((tmp_path / "nowhere" / "nothing.failed.json").read_text())
    assert told["failed"] == "exit code 1" and "KeyError" in told["stderr"]
    assert not (tmp_path / "nowhere" / "nothing.json").exists()


@pytest.mark.slow
def test_a_budget_without_a_unit_is_refused(tmp_path):
    told = gpu_day("--dry", "--only", "check", "--budget", "10", "--results", tmp_path)
    assert told.returncode != 0 and "10m" not in told.stderr and "no unit" in told.stderr


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_what_to_do():
    told = gpu_day("--only", "check")
    assert told.returncode == 2 and "--dry" in told.stderr and told.stdout == ""
