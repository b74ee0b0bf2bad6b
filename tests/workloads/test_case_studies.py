"""The scripts of the case studies train, and print what they promise."""

import importlib
import math
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from hasten.folders import BUNDLED
from hasten.workloads.catalog import WORKLOADS
from hasten.workloads.images import XRAYS, make_images

TINY = {
    "xray": ["--size", "32", "--batch-size", "4", "--workers", "1"],
    "feed": ["--size", "32", "--batch-size", "8"],
    "classify": ["--size", "32", "--batch-size", "8", "--workers", "1"],
    "superres": ["--side", "32", "--blocks", "1", "--channels", "4", "--workers", "1"],
    "efficient": ["--batch-size", "16"],
}
PRINTS = {
    "xray": r"Number of images: 32\nNumber of labels: 15\nepoch 1 step 1 loss \d.*\nMean AUROC: (0\.\d+|nan) on 3 images",
    "feed": r"Epoch 1 took \d.*batch 8\nEpoch 2 took \d.*batch 8\nAccuracy: 0\.\d+ on 8 images",
    "classify": r"F1: 0\.\d+ on 8 images",
    "superres": r"Epoch 1 took \d.*PSNR \d+\.\d+\nEpoch 2 took",
    "efficient": r"epoch 1 accuracy 0\.\d+\nepoch 2 accuracy",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A few images for each case study."""
    folder = tmp_path_factory.mktemp("made")
    kinds = {name: WORKLOADS[name].images for name in TINY} | {"xray": replace(XRAYS, size=(64, 64))}
    return {
        name: make_images(kind, num_images=32 if name == "xray" else 90, folder=folder / name)
        for name, kind in kinds.items()
    }


def arguments(name, data):
    return ["--data", str(data[name]), "--images", "32" if name == "xray" else "64", "--epochs", "2", *TINY[name]]


def run(name, *arguments, cwd=None):
    # One thread: tiny convolutions on many threads mostly wait, and for seconds on a busy machine.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, BUNDLED / f"{name}.py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=cwd)


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_a_script_trains_and_leaves_nothing(data, name, tmp_path):
    result = run(name, *arguments(name, data), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert re.search(PRINTS[name], result.stdout, re.DOTALL), result.stdout
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_each_script_runs_in_a_notebooks_cell_too(data, tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    cells = [f'%run "{BUNDLED / name}.py" {" ".join(arguments(name, data))}' for name in TINY if name != "xray"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    for name, cell in zip([name for name in TINY if name != "xray"], notebook.cells):
        assert re.search(PRINTS[name], "".join(output.get("text", "") for output in cell.outputs)), name


@pytest.mark.slow
def test_a_dictionary_of_samples_trains_as_well(data):
    result = run(
        "superres", "--data", data["superres"], "--epochs", 1, "--ram-cache", "--repeats", 2, *TINY["superres"]
    )
    assert result.returncode == 0, result.stderr
    assert "Number of images: 180" in result.stdout


@pytest.mark.slow
def test_an_epoch_can_be_longer_than_the_set_of_images(data):
    result = run("xray", *arguments("xray", data), "--draws", "100", "--workers", "0", "--epochs", "1")
    assert result.returncode == 0, result.stderr
    assert "epoch 1 step 25 loss" in result.stdout


@pytest.fixture
def xray(monkeypatch):
    monkeypatch.syspath_prepend(str(BUNDLED))
    yield importlib.import_module("xray")
    for name in ("xray", "image_folder"):
        sys.modules.pop(name, None)


def test_the_network_is_densenet121(xray):
    model = xray.densenet121(15)
    assert sum(p.numel() for p in model.parameters()) == 6_953_856 + 1024 * 15 + 15
    assert sum(isinstance(m, torch.nn.Conv2d) for m in model.modules()) == 120
    with torch.no_grad():
        assert model.eval()(torch.zeros(2, 3, 64, 64)).shape == (2, 15)


def test_the_network_computes_what_torchvisions_computes(xray):
    models = pytest.importorskip("torchvision.models")
    theirs, ours = models.densenet121(num_classes=15).eval(), xray.densenet121(15).eval()
    state = theirs.state_dict()
    assert [value.shape for value in state.values()] == [value.shape for value in ours.state_dict().values()]
    ours.load_state_dict(dict(zip(ours.state_dict(), state.values())))
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images))


def test_auroc_counts_ties_as_half_and_leaves_out_labels_of_one_class(xray):
    scores = torch.tensor([[0.9, 0.5, 1.0], [0.1, 0.5, 2.0], [0.8, 0.1, 3.0]]).numpy()
    targets = torch.tensor([[1, 1, 1], [0, 0, 1], [0, 0, 1]]).numpy()
    assert xray.mean_auroc(scores, targets) == pytest.approx((1.0 + 0.75) / 2)
    assert math.isnan(xray.mean_auroc(scores[:, 2:], targets[:, 2:]))


def test_an_image_is_mirrored_half_the_time_in_training_alone(xray, data):
    samples = [(next(data["xray"].glob("images/*.png")), [1.0, 0.0])]
    torch.manual_seed(0)
    plain, target = xray.XrayImages(samples, 32, training=False)[0]
    seen = [xray.XrayImages(samples, 32, training=True)[0][0] for _ in range(20)]
    assert (plain.shape, plain.dtype, target.tolist()) == ((3, 32, 32), torch.float32, [1.0, 0.0])
    mirrored = sum(torch.equal(image, plain.flip(-1)) for image in seen)
    assert mirrored + sum(torch.equal(image, plain) for image in seen) == 20
    assert 4 <= mirrored <= 16
