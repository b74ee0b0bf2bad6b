"""Data-parallel training on the CPU, healthy or with one fault.

torchrun --nproc-per-node 3 train.py [FAULT] [--fsdp]
"""

import argparse
import itertools
import random
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("fault", nargs="?", default="healthy")
parser.add_argument("--fsdp", action="store_true")
parser.add_argument("--steps", type=int, default=0, help="end after so many, and print the median step")
parser.add_argument("--delay", type=float, default=0.03, help="seconds that a late rank is late")
parser.add_argument("--scale", type=float, default=1.0, help="how many times as large a fault is, on slower machines")
arguments = parser.parse_args()
SCALE = arguments.scale
DELAY = SCALE * arguments.delay
fault = arguments.fault

alone = fault == "data_parallel"  # one process
if not alone:
    dist.init_process_group("gloo")
rank, world = (0, 1) if alone else (dist.get_rank(), dist.get_world_size())
is_late = rank == 1
torch.manual_seed(0)
torch.set_num_threads(1)


class Images(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.images = torch.randn(1536, 3, 48, 48, generator=generator)
        self.labels = torch.randint(10, (1536,), generator=generator)
        self.taken = 0

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        self.taken += 1
        if fault == "late_in_data" and is_late and self.taken % batch == 0:
            time.sleep(DELAY)
        return self.images[index] + 0.01 * torch.randn(3, 48, 48), self.labels[index]


class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, gradients):
        time.sleep(DELAY)
        return gradients


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Conv2d(3, 16, 3, padding=1, stride=8 if fault in ("unused_parameters", "small") else 1)
        self.middle = nn.Sequential(*(nn.Conv2d(16, 16, 3, padding=1) for _ in range(4)))
        width = {"communication": int(3000 * SCALE**0.5), "slow_network": 1500}.get(fault, 16)
        self.wide = nn.Linear(16, width)
        self.deep = nn.Linear(width, width)
        self.end = nn.Linear(self.deep.out_features, 10)

    def forward(self, images):
        values = self.start(images)
        if fault == "late_in_forward" and is_late:
            time.sleep(DELAY)
        if fault == "late_in_backward" and is_late:
            values = SlowBackward.apply(values)
        values = self.middle(values.relu()).mean((2, 3))
        values = self.wide(values).relu()
        if fault == "communication":  # many gradients for little computing, on any machine
            return self.end(values + self.deep(values.mean(0, keepdim=True)))
        return self.end(self.deep(values))


batch = 32 if fault == "uneven_shards" and is_late else 16
images = Images()
sampler = None
if alone:
    loader = DataLoader(images, batch)
elif fault == "same_samples":
    loader = DataLoader(images, batch, shuffle=True)
elif fault == "whole_dataset":
    loader = DataLoader(images, batch, shuffle=True, generator=torch.Generator().manual_seed(rank))
else:
    sampler = DistributedSampler(images, seed=rank if fault == "unequal_seeds" else 0)
    loader = DataLoader(images, batch, sampler=sampler)
held_out = DataLoader(images, 64)

network = Network()
if arguments.fsdp:
    model = fully_shard(network, mesh=dist.device_mesh.init_device_mesh("cpu", (world,)))
elif alone:
    model = nn.DataParallel(network)
else:
    model = DistributedDataParallel(network, find_unused_parameters=fault == "unused_parameters")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
pace = random.Random(rank)
ends = [time.perf_counter()]
held = torch.zeros(60_000_000) if fault == "checkpoint" else None
num_steps = 0
for epoch in range(1000):
    if sampler is not None and fault != "same_order":
        sampler.set_epoch(epoch)
    for samples, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(samples), labels)
        if fault == "uneven_steps":
            time.sleep(pace.choice([0.0, 0.0, 5 * DELAY]))
        loss.backward()
        optimizer.step()
        num_steps += 1
        ends.append(time.perf_counter())
        if num_steps == arguments.steps:
            if rank == 0:
                print("seconds per step:", statistics.median(b - a for a, b in itertools.pairwise(ends[2:])))
            if not alone:
                dist.destroy_process_group()
            sys.exit()
        if fault == "late_in_script" and is_late:
            time.sleep(DELAY)
        if fault == "exchange":
            for _ in range(int(40 * SCALE)):
                value = loss.detach().clone()
                dist.all_reduce(value)
        if fault == "barrier":
            for _ in range(int(20 * SCALE)):
                dist.barrier()
        if fault == "validation" and rank == 0 and num_steps % 10 == 0:
            network.eval()
            with torch.no_grad():
                for number, (samples, labels) in enumerate(held_out):
                    criterion(network(samples), labels)
                    if number == 8:
                        break
            network.train()
        if fault == "checkpoint" and rank == 0 and num_steps % 10 == 0:
            with tempfile.TemporaryFile() as file:
                torch.save({"model": network.state_dict(), "more": held}, file)
