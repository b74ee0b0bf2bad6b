"""On a CUDA device: what only a GPU can show."""

import sys

import pytest
import torch

from hasten.measurement.diagnose import diagnose
from hasten.measurement.measure import MeasureOptions, measure

SCRIPT = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(8192, 4096), torch.randint(0, 10, (8192,)))
for epoch in range(1000):
    for x, y in torch.utils.data.DataLoader(data, batch_size=512):
        loss = torch.nn.functional.cross_entropy(model(x.to("cuda")), y.to("cuda"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item(), file=open("/dev/null", "w"))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu")
    script = folder / "train.py"
    small = torch.cuda.mem_get_info()[1] < 2 << 30
    script.write_text(SCRIPT.replace("4096", "256") if small else SCRIPT)
    return measure([str(script)], root=folder / "results", options=MeasureOptions(seconds=10.0))[0]


@pytest.mark.gpu
@pytest.mark.slow
def test_the_device_time_of_a_step_is_known_and_not_longer_than_the_step(run):
    breakdown = diagnose(run).breakdown
    assert breakdown.device_seconds is not None
    assert 0.0 < breakdown.device_seconds <= 1.05 * breakdown.step_seconds


@pytest.mark.gpu
@pytest.mark.slow
def test_copies_from_pageable_memory_are_seen(run):
    copies = run.facts.copies
    assert copies is not None
    assert copies.pinned == 0.0
    assert copies.blocking == 1.0
    assert copies.num_bytes % (512 * 8) == 0


@pytest.mark.gpu
@pytest.mark.slow
def test_waiting_for_the_gpu_is_a_sync_point_with_its_line(run):
    assert any(p.kind == ".item()" and "loss.item()" in p.where.source for p in run.sync_points)


@pytest.mark.gpu
@pytest.mark.slow
def test_the_gpu_is_sampled_over_time(run):
    assert any(sample.devices for sample in run.resources)
    assert sys.platform != "linux" or run.facts.device == "cuda"
