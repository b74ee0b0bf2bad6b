"""The ranks of a launch under torchrun: recorded, compared, ended together, and nothing of them is left."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from command import HASTEN, environment, running_in
from PIL import Image

from hasten.launch.side import Bench
from hasten.protocol import LaunchSpec

TRAIN = Path(__file__).parents[1] / "benchmarks" / "ranks" / "train.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]

pytestmark = [pytest.mark.slow, pytest.mark.contract]


def diagnosed(*arguments, cwd, **variables):
    words = [*HASTEN, "diagnose", "--quick", "--seconds", "6", "--json", *TORCHRUN, os.fspath(TRAIN), *arguments]
    answer = subprocess.run(
        words, cwd=cwd, env=environment() | variables, capture_output=True, text=True, timeout=240
    )
    assert answer.returncode == 0, answer.stderr
    assert "internal error" not in answer.stderr
    assert not running_in(cwd)
    return json.loads(answer.stdout)


def test_a_rank_that_is_late_in_its_backward_is_named(tmp_path):
    found = diagnosed("late_in_backward", "--delay", "0.2", cwd=tmp_path)  # far more than a busy machine's noise
    ranks = found["run"]["ranks"]
    assert len(ranks["rows"]) == ranks["world_size"] == 3
    assert (ranks["late"]["ranks"], ranks["late"]["phase"]) == ([1], "backward")
    assert found["diagnosis"]["findings"][0]["kind"] == "straggler"
    card = subprocess.run([*HASTEN, "report"], cwd=tmp_path, env=environment(), capture_output=True, text=True).stdout
    assert "The other ranks wait for rank 1" in card
    assert "what a rank waits is for later ones" in " ".join(card.split())


def test_ranks_on_the_same_samples_are_told_before_anything_else(tmp_path):
    found = diagnosed("same_samples", cwd=tmp_path)
    assert [caution["kind"] for caution in found["diagnosis"]["cautions"]] == ["same_samples"]
    assert found["diagnosis"]["verdict"].startswith("All 3 ranks train on the same samples. ")


def test_ranks_agree_where_python_redirects_what_they_write(tmp_path):
    ranks = diagnosed("healthy", cwd=tmp_path, HASTEN_SANDBOX="redirect")["run"]["ranks"]
    assert len(ranks["rows"]) == 3


def test_fsdp_is_recorded_on_every_rank(tmp_path):
    ranks = diagnosed("healthy", "--fsdp", cwd=tmp_path)["run"]["ranks"]
    assert len(ranks["rows"]) == 3
    assert all(row["phases"]["communication"] > 0 for row in ranks["rows"])


SWITCHED = """
import os, sys, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
seen = open(f"{sys.argv[1]}/{os.environ['MASTER_PORT']}-{rank}", "w")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 8))
        self.count = 0
    def forward(self, x):
        self.count += 1
        seen.write(f"{self.count} {torch.is_anomaly_enabled()}\\n")
        seen.flush()
        return self.inner(x)

net = nn.parallel.DistributedDataParallel(Net())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
torch.autograd.set_detect_anomaly(True)
for step in range(100_000):
    optimizer.zero_grad()
    net(torch.randn(64 + 100 * (rank == step % world), 512)).square().mean().backward()
    optimizer.step()
"""


def test_an_optimization_is_tried_in_all_ranks_in_the_same_steps(tmp_path):
    (tmp_path / "train.py").write_text(SWITCHED)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:  # which a sandbox does not cover
        words = [*HASTEN, "diagnose", "--seconds", "4", *TORCHRUN, "train.py", folder]
        answer = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=240)
        assert answer.returncode == 0, answer.stderr
        launches = {}
        for path in Path(folder).iterdir():
            launches.setdefault(path.name.partition("-")[0], []).append(path.read_text().split("\n"))
    steps = [set(lines) for ranks in launches.values() for lines in zip(*ranks, strict=False)]
    assert any("False" in line for lines in steps for line in lines)
    assert [lines for lines in steps if len(lines) > 1 and "" not in lines] == []


def test_what_ranks_learn_is_seen_in_the_steps_that_are_asked_for(tmp_path, workspace):
    """As for the quality check of a tuning run, or of `hasten prove`."""
    bench = Bench([*TORCHRUN, os.fspath(TRAIN), "healthy"], workspace, patience=100.0)
    spec = LaunchSpec(mode="first steps", seconds=20.0, num_steps=8, quality=8)
    learned = bench.run(spec=spec, environment={}).quality
    assert len(learned.losses) >= 8 and len(learned.batches) == 8 and learned.ranks_agree


CACHED = """
import sys
from pathlib import Path
import numpy as np
import torch.distributed as dist
from PIL import Image
from torch.utils.data import Dataset, DistributedSampler
import hasten

class Images(Dataset):
    def __init__(self, folder):
        self.paths = sorted(Path(folder).iterdir())
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, index):
        return np.asarray(Image.open(self.paths[index]).convert("RGB"))

dist.init_process_group("gloo")
images = Images(sys.argv[1])
sampler = DistributedSampler(images)
loader = hasten.Loader(images, batch_size=4, sampler=sampler, cache="64 MB", num_workers=1)
misses = []
for epoch in range(3):
    sampler.set_epoch(epoch)
    for _ in loader:
        pass
    dist.barrier()
    cache = loader.stats().cache
    misses.append(cache.num_misses)
print(f"rank {dist.get_rank()}: {misses} {cache.tiers[0].num_bytes}", flush=True)
dist.barrier()
"""


def test_the_ranks_of_a_host_fill_one_cache_in_memory(tmp_path):
    """Each image is decoded once on the host, though from epoch to epoch another rank asks for it."""
    (tmp_path / "images").mkdir()
    for number in range(60):
        Image.new("RGB", (64, 64), (number, 0, 0)).save(tmp_path / "images" / f"{number:02}.png")
    time.sleep(2.1)  # what changed a moment ago is not kept
    (tmp_path / "train.py").write_text(CACHED)
    words = [*TORCHRUN, "train.py", "images"]
    answer = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr
    seen = re.findall(r"rank \d: \[(\d+), (\d+), (\d+)\] (\d+)", answer.stdout)
    assert len(seen) == 3
    misses = [[int(number) for number in one[:3]] for one in seen]
    assert all(later == first for first, *rest in misses for later in rest), "the first epoch fills it"
    assert sum(first for first, *_ in misses) == 60 or {first for first, *_ in misses} == {60}
    assert len({one[3] for one in seen}) == 1, "it is one"


def tasks_of_slurm(*words, cwd):
    """As `srun -n 2 WORDS`, each task in a folder of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    tasks = []
    for rank in "01":
        (cwd / rank).mkdir()
        own = {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "SLURM_PROCID": rank}
        given = {"cwd": cwd / rank, "env": environment() | own, "stdout": subprocess.PIPE, "start_new_session": True}
        tasks.append(subprocess.Popen(words, **given))
    return tasks


def test_tasks_of_slurm_with_a_hasten_each_meet_through_their_own_store(tmp_path):
    words = [*HASTEN, "diagnose", "--quick", "--seconds", "4", "--json", sys.executable, os.fspath(TRAIN), "healthy"]
    tasks = tasks_of_slurm(*words, cwd=tmp_path)
    first, second = (json.loads(task.communicate(timeout=120)[0])["run"]["ranks"] for task in tasks)
    assert [row["rank"] for row in first["rows"]] == [0, 1] and [row["rank"] for row in second["rows"]] == [1]
    assert first["num_steps"] == second["num_steps"]


def test_a_host_that_dies_is_named_with_the_steps_until_then(tmp_path):
    (tmp_path / "train.py").write_text(SWITCHED)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        script = [sys.executable, os.fspath(tmp_path / "train.py"), folder]
        first, second = tasks_of_slurm(*HASTEN, "diagnose", "--seconds", "60", "--json", *script, cwd=tmp_path)
        until = time.monotonic() + 100
        while sum(len(path.read_bytes().splitlines()) for path in Path(folder).glob("*-1")) < 300:
            assert time.monotonic() < until and first.poll() is None
            time.sleep(0.2)
        os.killpg(second.pid, signal.SIGKILL)
        found = json.loads(first.communicate(timeout=120)[0])
    second.communicate(timeout=60)
    assert first.returncode not in (0, None)
    assert found["run"]["ranks"]["missing"] == [1] and len(found["run"]["steps"]) > 20
    assert any("rank 1" in note and "may have ended" in note for note in found["run"]["notes"])
