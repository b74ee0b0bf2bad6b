"""Where the time of a whole script is known, it is told."""

import json
import re
import statistics

import pytest
from command import run, write

SLEEPS = {"data_wait": 0.03, "forward": 0.02, "backward": 0.04, "optimizer": 0.025, "validation": 0.06}
CALLS = {"data_wait": 2, "validation": 2}  # sleeps a step; one in each of the others
TRUTH = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

def sleep(phase, seconds):
    start = time.perf_counter()
    time.sleep(seconds)
    print("SLEPT", phase, time.perf_counter() - start, flush=True)

class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        sleep("backward", {backward})
        return grad

class Samples(Dataset):
    def __init__(self, phase, seconds, count):
        self.phase, self.seconds, self.count = phase, seconds, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        sleep(self.phase, self.seconds / 2)
        return torch.ones(3), torch.ones(1)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 1)

    def forward(self, x):
        if self.training:
            sleep("forward", {forward})
        return Slow.apply(self.inner(x))

class SlowSGD(torch.optim.SGD):
    def step(self, closure=None):
        sleep("optimizer", {optimizer})
        return super().step(closure)

model = Model()
optimizer = SlowSGD(model.parameters(), lr=0.01)
train = DataLoader(Samples("data_wait", {data_wait}, 8), batch_size=2)
held_out = DataLoader(Samples("validation", {validation}, 8), batch_size=2)
while True:
    model.train()
    for x, y in train:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for x, y in held_out:
            model(x)
"""

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("timing")]


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    folder = tmp_path_factory.mktemp("truth")
    script = write(folder / "train.py", TRUTH.format(**SLEEPS))
    answer = run("diagnose", "--json", "--seconds", "8", "--quick", script, cwd=folder)
    assert answer.returncode == 0, answer.stderr
    # Lines of two processes may meet; the script's output is on standard error beside JSON.
    rows = re.findall(r"SLEPT (\w+) ([\d.]+)$", answer.stderr, re.MULTILINE)
    slept = {p: statistics.fmean(float(s) for q, s in rows if q == p) * CALLS.get(p, 1) for p in SLEEPS}
    return json.loads(answer.stdout)["diagnosis"]["breakdown"], slept


@pytest.mark.parametrize("phase", SLEEPS)
def test_a_phase_that_sleeps_takes_as_long_as_its_sleep(truth, phase):
    # Four training batches and four validation batches an epoch: one of each a step. A busy machine wakes late,
    # so the script says how long it really slept.
    breakdown, slept = truth
    assert abs(breakdown["phases"][phase] - slept[phase]) <= 0.1 * slept[phase] + 0.002


def test_phases_and_what_is_left_over_sum_to_the_step(truth):
    breakdown, _ = truth
    known = sum(seconds for seconds in breakdown["phases"].values() if seconds is not None)
    assert abs(known + breakdown["unaccounted"] - breakdown["step_seconds"]) <= 0.02 * breakdown["step_seconds"]
    assert breakdown["unaccounted"] <= 0.05 * breakdown["step_seconds"]


SAVING = """
import copy
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(16 * 144, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)
torch.autograd.set_detect_anomaly(True)
x, y = torch.randn(32, 3, 16, 16), torch.randint(0, 10, (32,))
for step in range(10**6):
    optimizer.zero_grad(set_to_none=False)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if {saves} and step % 20 == 0:
        torch.save(model, "model.pt")
        torch.save(optimizer, "optimizer.pt")
        torch.compile(copy.deepcopy(model), backend="eager")(x)
"""


def test_a_script_that_pickles_copies_and_compiles_its_model_is_tried_as_any_other(tmp_path):
    """What is measured of it is what is measured without that, and no optimization fails."""
    tried = {}
    for saves in (True, False):
        script = write(tmp_path / f"saves_{saves}.py", SAVING.format(saves=saves))
        found = run("diagnose", "--json", "--seconds", "5", script, cwd=tmp_path)
        record = json.loads(found.stdout[found.stdout.index('{"') :])["run"]
        tried[saves] = {one["name"] for one in record["interventions"] if "ratio" in one}
        assert not [one for one in record["interventions"] if "failed" in one.get("note", "")]
        assert not [note for note in record.get("notes", ()) if "failed" in note]
    assert tried[True] - {"checkpoint_often"} == tried[False]
    assert {"anomaly_detection", "channels_first", "zero_grad_in_place"} <= tried[True]
