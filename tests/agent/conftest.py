"""A tiny training loop, and somebody who listens to the hooks."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from training_process import Process

from hasten.agent import hooks, readouts
from hasten.agent.marks import Marks
from hasten.agent.models import Models
from hasten.patches import Patches


class Listener:
    """Keeps what it is told."""

    def __init__(self):
        self.marks = Marks()
        self.marks.full = True
        self.heard = []

    def loader_starts(self, loader, iterator, start):
        self.heard.append("starts")
        self.marks.add("iter", start, 0)

    def loader_ends(self, iterator, start):
        self.heard.append("ends")

    def indices_drawn(self, iterator, indices, seconds, *, starting):
        """A sampler has given a batch's indices."""

    def next_batch(self, iterator, fetch):
        self.marks.open.append("data_wait")
        start = self.marks.now()
        try:
            return fetch()
        finally:
            self.marks.open.pop()
            self.marks.add("next", start, [0, 4, None])
            self.heard.append("next")

    def backward_ends(self):
        self.heard.append("backward")

    def optimizer_made(self):
        self.heard.append("made")

    def gradients_cleared(self):
        """A script's own code, or an optimizer's, is about to use the next gradients alone."""

    def optimizer_steps(self, optimizer):
        self.heard.append(type(optimizer).__name__)

    def kinds(self):
        return [kind for kind, *_ in self.marks.spans]


class Hooked:
    """A process with hooks on."""

    def __init__(self):
        self.patches = Patches()
        self.listener = Listener()
        self.marks = self.listener.marks
        hooks.install(self.listener, self.patches)
        readouts.install(self.marks, self.patches)
        self.models = Models(self.patches)
        self.models.watcher = hooks.Forwards(self.marks)
        self.models.discover()


class Tiny:
    """A model, an optimizer and a loader of two batches."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.loader = DataLoader(TensorDataset(torch.randn(8, 3), torch.randn(8, 1)), batch_size=4)

    def step(self, batch):
        inputs, targets = batch
        self.optimizer.zero_grad()
        loss = (self.model(inputs) - targets).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss

    def epoch(self):
        return [self.step(batch).detach() for batch in self.loader]


@pytest.fixture
def tiny():
    return Tiny()


@pytest.fixture
def hooked():
    hooked = Hooked()
    yield hooked
    hooked.patches.undo()


@pytest.fixture
def process(monkeypatch):
    monkeypatch.setattr("hasten.patches._warned", set())
    process = Process()
    yield process
    process.patches.undo()


@pytest.fixture
def patches():
    patches = Patches()
    yield patches
    patches.undo()
