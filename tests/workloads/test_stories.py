"""The stories' scripts train, tell what they are to tell, and say what is wrong with their data in one line."""

import os
import re
import runpy
import subprocess
import sys

import pytest
import torch

from hasten.workloads.catalog import WORKLOADS
from hasten.workloads.photographs import make_photographs, make_scenes, make_thumbnails

MAKE = {"feed": make_photographs, "classify": make_photographs, "superres": make_scenes, "efficient": make_thumbnails}
TINY = {
    "feed": ["--size", "32", "--batch-size", "8", "--grow"],
    "classify": ["--size", "32", "--batch-size", "8", "--workers", "1"],
    "superres": ["--side", "32", "--blocks", "1", "--channels", "4", "--workers", "1"],
    "efficient": ["--batch-size", "16"],
}
SAYS = {
    "feed": r"Epoch 1 took \d.*batch 8\nEpoch 2 took \d.*batch 16\nAccuracy: 0\.\d+ on 9 images",
    "classify": r"F1: 0\.\d+ on 9 images",
    "superres": r"Epoch 1 took \d.*PSNR \d+\.\d+\nEpoch 2 took",
    "efficient": r"epoch 1 accuracy 0\.\d+\nepoch 2 accuracy",
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Each story's images, a few of them."""
    folder = tmp_path_factory.mktemp("made")
    return {name: make(folder / name, num_images=80) for name, make in MAKE.items()}


def run(name, *arguments, cwd=None):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, WORKLOADS[name].script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=cwd)


@pytest.mark.parametrize("name", MAKE)
def test_a_story_is_told_by_a_plain_script(made, name, tmp_path):
    result = run(name, "--data", made[name], "--images", 64, "--epochs", 2, *TINY[name], cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert re.search(SAYS[name], result.stdout), result.stdout
    assert not [*tmp_path.iterdir()]


def test_each_story_is_told_in_a_notebooks_cell_too(made, tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    told = {name: ["--data", str(made[name]), "--images", "64", "--epochs", "2", *TINY[name]] for name in MAKE}
    cells = [f'%run "{WORKLOADS[name].script}" {" ".join(words)}' for name, words in told.items()]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    for name, cell in zip(told, notebook.cells):
        assert re.search(SAYS[name], "".join(output.get("text", "") for output in cell.outputs)), name


def test_the_storys_own_cache_trains_as_well(made):
    result = run(
        "superres", "--data", made["superres"], "--epochs", 1, "--ram-cache", "--repeats", 2, *TINY["superres"]
    )
    assert result.returncode == 0, result.stderr
    assert "Number of images: 160" in result.stdout


@pytest.fixture
def refused(monkeypatch, capsys):
    """What a script that ends with exit code 2 says; within this process, for to start another one takes seconds."""

    def ended(name, *arguments):
        script = WORKLOADS[name].script
        monkeypatch.setattr(sys, "argv", [str(script), *map(str, arguments)])
        monkeypatch.syspath_prepend(str(script.parent))
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(script), run_name="__main__")
        assert end.value.code == 2
        return capsys.readouterr().err

    yield ended
    torch.autograd.set_detect_anomaly(False)  # as `efficient` leaves it on


@pytest.mark.parametrize("name", MAKE)
def test_a_torn_photograph_is_named_in_one_line(tmp_path, name, refused):
    folder = MAKE[name](tmp_path, num_images=80)
    for path in folder.rglob("*.jpg"):
        path.write_bytes(path.read_bytes()[:400])
    said = refused(name, "--data", folder, "--epochs", 1, *TINY[name])
    last = said.strip().splitlines()[-1]
    assert last.startswith(str(tmp_path)) and "cannot be read" in last
    assert "Traceback" not in said


@pytest.mark.parametrize("name", MAKE)
def test_wrong_options_are_refused(name, tmp_path, refused):
    assert "no such folder" in refused(name, "--data", tmp_path / "nowhere")
    assert "at least" in refused(name, "--data", tmp_path, "--epochs", 0)
