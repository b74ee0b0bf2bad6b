"""The proof catches fixes that break what is learnt, and passes nothing that it has not seen. With real training."""

import shutil
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from hasten.data.memo.keys import QUIET_SECONDS
from hasten.launch.side import Bench, Frequencies
from hasten.optimizations.catalog import CATALOG
from hasten.optimizations.optimization import Optimization
from hasten.records import Interval, Trial
from hasten.sandbox.workspace import Workspace
from hasten.tuning import prove
from hasten.tuning.evaluator import Evaluator, _base, check_quality, find_culprits, verdict_of
from hasten.tuning.trial_config import TrialConfig

CROPS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Crops(Dataset):
    images = torch.randn(64, 1, 20, 20, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return 64

    def __getitem__(self, index):
        top, left = torch.randint(0, 4, (2,)).tolist()
        return self.images[index, :, top : top + 16, left : left + 16], index % 4

if __name__ == "__main__":
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(Crops(), batch_size=8, shuffle=True)
    while True:
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            {backward}
            optimizer.step()
        {after}
"""
HIDDEN = """for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
                p.grad = g"""
VALIDATION = """with torch.no_grad():
            for images, labels in DataLoader(Crops(), batch_size=16):
                model(images)"""
PLANTED = {
    "dropped_gradients": "identical",
    "coarse_sums": "rounding",
    "other_gradients": "rounding",
    "remembered_samples": "identical",
    "nothing": "identical",
    "higher_loss": "precision",
    "frozen_head": "precision",
    "other_validation": "identical",
    "later_zeros": "identical",
}

pytestmark = pytest.mark.slow


def there(name):
    """A function of planted.py, as the training process finds it: by its name."""

    def enable(_handle, _value):
        raise AssertionError("it is called in the training process")

    enable.__module__, enable.__name__ = "planted", name
    return enable


@pytest.fixture(scope="module", autouse=True)
def planted_in_the_catalog():
    """Planted fixes in the catalog."""
    for name, guarantee in PLANTED.items():
        CATALOG[name] = Optimization(
            name=name,
            title="",
            guarantee=guarantee,
            answers=(),
            propose=lambda _: "",
            enable=there(name),
        )
    yield
    for name in PLANTED:
        del CATALOG[name]


def evaluator_in(folder, workspace, *, backward="loss.backward()", after="pass"):
    script = folder / "train.py"
    script.write_text(CROPS.format(backward=backward, after=after))
    shutil.copy(Path(__file__).with_name("planted.py"), folder)  # beside the script, where it is found by name
    bench = Bench([sys.executable, str(script)], workspace, patience=60.0)
    return Evaluator(bench=bench, step_seconds=0.002, steps_per_epoch=8)


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory):
    """One evaluator, whose launches of the script by itself serve every test."""
    with Workspace() as workspace:
        yield evaluator_in(tmp_path_factory.mktemp("crops"), workspace)


@pytest.fixture(scope="module")
def validating(tmp_path_factory):
    """The same, of a script that validates after each epoch."""
    with Workspace() as workspace:
        yield evaluator_in(tmp_path_factory.mktemp("validating"), workspace, after=VALIDATION)


@pytest.mark.parametrize("harm", ["higher_loss", "frozen_head", "other_validation", "later_zeros"])
def test_no_planted_harm_is_proven(validating, harm):
    checks = check_quality(validating, {harm: True})
    assert verdict_of(checks) == "broken", [(check.what, check.state, check.text) for check in checks]


def test_beside_a_validation_what_changes_nothing_is_proven(validating):
    checks = check_quality(validating, {"nothing": True})
    assert verdict_of(checks) == "proven" and states(checks)["validation"] == "passed"


@pytest.mark.parametrize("left, measured_anew", [(0.0, False), (1000.0, True)])
def test_the_trial_of_just_the_plan_counts_where_no_time_is_left(monkeypatch, evaluator, left, measured_anew):
    trial = Trial(
        fix="nothing",
        value=True,
        settings={},
        verdict="faster",
        speedup=Interval(value=1.5, low=1.4, high=1.6),
        baseline_seconds=(3.0, 3.0, 3.0),
        candidate_seconds=(2.0, 2.0, 2.0),
        seconds=30.0,
    )
    anew = msgspec.structs.replace(trial, verdict="no difference")
    monkeypatch.setattr(prove, "compare", lambda *_, **__: anew)
    proof, kept, told = prove.prove(
        evaluator,
        {"nothing": True},
        frequencies=Frequencies(by_phase={}),
        config=TrialConfig(),
        time_left=lambda: left,
        known=trial,
    )
    assert told.verdict == (anew if measured_anew else trial).verdict
    assert measured_anew or "for lack of time" in proof.checks[-1].text
    assert (proof.verdict, kept) == (("not proven", {}) if measured_anew else ("proven", {"nothing": True}))


def states(checks):
    return {check.what: check.state for check in checks}


def test_a_fix_that_changes_nothing_is_proven_to_the_bit(evaluator):
    checks = check_quality(evaluator, {"nothing": True})
    assert verdict_of(checks) == "proven", checks
    assert states(checks)["losses equal"] == "passed"
    assert states(checks)["variety"] == "passed"


def test_sums_that_are_off_by_more_than_the_last_bits_are_proven_over_seeds(evaluator):
    checks = check_quality(evaluator, {"coarse_sums": True})
    assert verdict_of(checks) == "proven", checks
    assert states(checks)["start"] == states(checks)["band"] == "passed"


def test_gradients_that_are_others_are_more_than_rounding(evaluator):
    checks = check_quality(evaluator, {"other_gradients": True})
    assert verdict_of(checks) == "broken"
    assert states(checks)["start"] == "failed"


def test_dropped_gradients_are_caught_and_the_fix_is_named(evaluator):
    settings = {"nothing": True, "dropped_gradients": True}
    checks = check_quality(evaluator, settings)
    assert verdict_of(checks) == "broken"
    assert states(checks)["losses equal"] == "failed"
    assert find_culprits(evaluator, settings) == ["dropped_gradients"]


def test_a_random_crop_that_was_kept_is_caught(evaluator):
    checks = check_quality(evaluator, {"remembered_samples": True})
    assert verdict_of(checks) == "broken"
    assert states(checks)["variety"] == "failed"


def prepared_in(folder, workspace, *, num_workers=0):
    evaluator = evaluator_in(folder, workspace)
    script = folder / "train.py"
    text = script.read_text().replace(
        "class Crops(Dataset):",
        """def crop(image):
    top, left = torch.randint(0, 4, (2,)).tolist()
    return image[:, top : top + 16, left : left + 16]

class Crops(Dataset):
    def __init__(self):
        self.transform = crop
""",
    )
    body = "        top, left = torch.randint(0, 4, (2,)).tolist()\n        return self.images[index, :, top : top + 16, left : left + 16], index % 4"
    assert body in text
    for index, image in enumerate(torch.randn(64, 1, 20, 20)):
        np.save(folder / f"{index}.npy", image.numpy())
    loaded = f"torch.from_numpy(np.load(f'{folder}/{{index}}.npy'))"
    text = text.replace(body, f"        return self.transform({loaded} * 2.0), index % 4").replace(
        "import torch\n", "import numpy as np\nimport torch\n", 1
    )
    script.write_text(text.replace("shuffle=True", f"shuffle=True, num_workers={num_workers}"))
    return evaluator


def test_a_cache_is_proven_to_the_bit(tmp_path, workspace):
    evaluator = prepared_in(tmp_path, workspace, num_workers=1)
    time.sleep(QUIET_SECONDS)  # files that have just changed are not cached
    settings = {"cache": "auto", "persistent_workers": True}
    checks = check_quality(evaluator, settings)
    assert verdict_of(checks) == "proven", checks
    assert states(checks)["losses equal"] == states(checks)["variety"] == "passed"
    assert evaluator.base(settings) == {}


def test_other_workers_are_proven_to_the_bit_though_samples_draw_otherwise(tmp_path, workspace):
    settings = {"num_workers": 2, "nothing": True}
    evaluator = prepared_in(tmp_path, workspace, num_workers=1)
    checks = check_quality(evaluator, settings)
    assert verdict_of(checks) == "proven" and evaluator.base(settings) == {"num_workers": 2}, checks


def test_samples_that_the_dataset_does_not_make_again_are_held_against_the_script_as_it_is(tmp_path, workspace):
    evaluator = evaluator_in(tmp_path, workspace)
    script = tmp_path / "train.py"
    text = script.read_text().replace(
        "    def __len__", "    own = torch.Generator().manual_seed(0)\n\n    def __len__", 1
    )
    script.write_text(text.replace("torch.randint(0, 4, (2,))", "torch.randint(0, 4, (2,), generator=self.own)"))
    checks = []
    assert _base(evaluator, {"loader": True, "nothing": True}, checks) == {} and checks == []


def test_kept_samples_are_not_proven_before_a_second_epoch_was_seen(tmp_path, workspace):
    evaluator = evaluator_in(tmp_path, workspace)
    evaluator.steps_per_epoch = 5000
    assert not evaluator.comes_again and evaluator.epoch_batches is None
    evaluator.keeps = True
    assert evaluator.comes_again and 2 <= evaluator.epoch_batches < evaluator.num_steps / 2
    evaluator.steps_per_epoch = 8
    assert evaluator.epoch_batches is None, "whole epochs are short enough"


def test_a_launch_of_the_script_by_itself_that_fails_says_nothing_of_the_plan(tmp_path, workspace):
    evaluator = evaluator_in(tmp_path, workspace)
    (tmp_path / "train.py").write_text("import torch\nraise SystemExit(3)")
    checks = check_quality(evaluator, {"nothing": True})
    assert verdict_of(checks) == "not proven" and "the baseline did not train" in checks[0].text


def test_a_script_whose_loss_is_never_seen_is_not_proven(tmp_path, workspace):
    checks = check_quality(evaluator_in(tmp_path, workspace, backward=HIDDEN), {"nothing": True})
    assert verdict_of(checks) == "not proven"
    assert "no loss was seen" in next(check.text for check in checks if check.what == "losses")
