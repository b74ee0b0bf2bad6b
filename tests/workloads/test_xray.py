import importlib
import math
import os
import re
import subprocess
import sys

import pytest
import torch

from hasten.workloads.catalog import WORKLOADS
from hasten.workloads.films import make_films

SCRIPT = WORKLOADS["xray"].script
TINY = ["--images", "12", "--size", "32", "--batch-size", "4"]


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    return make_films(tmp_path_factory.mktemp("films"), num_images=16, size=64)


@pytest.fixture
def xray(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    yield importlib.import_module("xray")
    for name in ("xray", "folders", "options"):
        sys.modules.pop(name, None)


def run_python(*arguments):
    # One thread: tiny convolutions on many threads mostly wait, and for seconds on a busy machine.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def run_script(*arguments):
    return run_python(SCRIPT, *arguments)


@pytest.mark.slow
def test_the_script_trains_and_prints_its_story(films):
    result = run_script("--data", films, *TINY, "--workers", "1")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(("Device: cpu\n", "Device: cuda\n"))
    assert "Number of images: 16\nNumber of labels: 15\n" in result.stdout
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", result.stdout)]
    assert len(losses) == 2
    assert all(math.isfinite(loss) for loss in losses)
    assert "Mean AUROC: " in result.stdout


@pytest.mark.slow
def test_the_script_never_imports_hasten_nor_torchvision(films):
    code = (
        "import runpy, sys; sys.argv = sys.argv[1:]; sys.path.insert(0, sys.argv.pop(0)); "
        "runpy.run_path(sys.argv[0], run_name='__main__'); "
        "print(sorted({'hasten', 'torchvision'} & {name.split('.')[0] for name in sys.modules}))"
    )
    arguments = [SCRIPT.parent, SCRIPT, "--data", films, "--images", "8", "--size", "32", "--workers", "0"]
    result = run_python("-c", code, *arguments)
    assert result.stdout.endswith("[]\n"), result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_torn_film_ends_the_run_with_one_line_that_names_it(tmp_path, workers):
    folder = make_films(tmp_path, num_images=8, size=64)
    for film in (folder / "images").iterdir():
        film.write_bytes(film.read_bytes()[:-60])
    result = run_script("--data", folder, *TINY, "--workers", workers)
    assert result.returncode == 2
    assert re.fullmatch(r"\S+film_\d+\.png: cannot be read \(.+\)\n", result.stderr), result.stderr


@pytest.mark.slow
def test_a_folder_that_is_not_there_is_one_line_and_exit_code_2(tmp_path):
    result = run_script("--data", tmp_path / "nowhere")
    assert (result.returncode, result.stderr) == (2, f"{tmp_path / 'nowhere'}: no such folder\n")


def test_the_network_is_densenet121(xray):
    model = xray.densenet121(15)
    assert sum(p.numel() for p in model.parameters()) == 6_953_856 + 1024 * 15 + 15
    assert sum(isinstance(m, torch.nn.Conv2d) for m in model.modules()) == 120
    with torch.no_grad():
        assert model.eval()(torch.zeros(2, 3, 64, 64)).shape == (2, 15)


def test_the_network_computes_what_torchvisions_computes(xray):
    try:
        from torchvision.models import densenet121
    except (ImportError, RuntimeError, OSError):
        pytest.skip("torchvision is absent")
    theirs, ours = densenet121(num_classes=15).eval(), xray.densenet121(15).eval()
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


def test_a_sample_is_normalised_and_mirrored_half_the_time(xray, films):
    paths = sorted((films / "images").iterdir())
    targets = torch.ones(len(paths), 2).numpy()
    torch.manual_seed(0)
    plain = xray.FilmDataset(paths, targets, size=32, transform=xray.to_tensor)[0][0]
    seen = [xray.FilmDataset(paths, targets, size=32, transform=xray.mirrored_at_random)[0][0] for _ in range(20)]
    assert (plain.shape, plain.dtype) == ((3, 32, 32), torch.float32)
    mirrored = sum(torch.equal(image, plain.flip(-1)) for image in seen)
    assert mirrored + sum(torch.equal(image, plain) for image in seen) == 20
    assert 4 <= mirrored <= 16


@pytest.mark.slow
def test_an_epoch_can_be_longer_than_the_films(films):
    result = run_script("--data", films, *TINY, "--workers", "0", "--draws", "100")
    assert result.returncode == 0, result.stderr
    assert "epoch 1 step 25 loss" in result.stdout
