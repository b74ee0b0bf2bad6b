"""What only a GPU can show, rehearsed on a device that is not there (`tests/simulated_gpu`)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hasten

HERE = Path(__file__).parent
ROOT = Path(hasten.__file__).parent
DEVICE_CODE = (
    "devices/accelerator.py",
    "devices/cuda.py",
    "devices/nvml.py",
    "agent/device_clock.py",
    "agent/device_watch.py",
    "data/epoch/device_tier.py",
    "data/epoch/transfer.py",
)
WITHOUT = ("devices", "agent/test_device_clock.py", "data/test_transfer.py")


def simulated(**more):
    path = os.pathsep.join(filter(None, [str(HERE / "simulated_gpu"), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, **more}


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_tests_for_a_gpu_pass_on_a_simulated_one_and_run_nearly_every_line(tmp_path):
    files = [str(ROOT / one) for one in DEVICE_CODE]
    data, told = tmp_path / "coverage", tmp_path / "told.json"
    run = [sys.executable, "-m", "coverage", "run", f"--data-file={data}", f"--include={','.join(files)}", "--append"]
    pytest_ = [*run, "-m", "pytest", "-p", "no:cacheprovider"]
    for_a_gpu = [path for path in HERE.rglob("test_*.py") if "mark.gpu" in path.read_text(encoding="utf-8")]
    on_gpu = [*pytest_, "-m", "gpu", "--junitxml", tmp_path / "junit.xml", *for_a_gpu]
    done = subprocess.run(on_gpu, cwd=tmp_path, env=simulated(), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:]
    assert 'skipped="0"' in (tmp_path / "junit.xml").read_text()
    without = [*pytest_, *(HERE / one for one in WITHOUT)]  # what they do where there is no GPU, or another one
    subprocess.run(without, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    report = [sys.executable, "-m", "coverage", "json", f"--data-file={data}", "-q", "-o", told]
    subprocess.run(report, cwd=tmp_path, check=True, timeout=60)
    found = json.loads(told.read_text())["files"]
    shares = {name.partition("hasten/")[2]: one["summary"]["percent_covered"] for name, one in found.items()}
    assert len(shares) == len(DEVICE_CODE)
    assert min(shares.values()) >= 95, shares


@pytest.mark.slow
def test_a_simulated_function_takes_only_what_torchs_own_takes():
    code = "import torch\ntry:\n    torch.cuda.mem_get_info(0, unknown=1)\nexcept TypeError:\n    print('refused')"
    done = subprocess.run([sys.executable, "-c", code], env=simulated(), capture_output=True, text=True, timeout=60)
    assert done.stdout == "refused\n", done.stderr
