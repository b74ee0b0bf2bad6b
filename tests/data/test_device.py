"""Batches on a CUDA device: the same values, and memory that lives until its copy is done."""

import numpy as np
import pytest
import torch
from samples import Nested
from torch.utils.data import DataLoader, Dataset, TensorDataset

from hasten.data.epoch.in_memory import InMemoryIterator
from hasten.data.loader import Loader

pytestmark = pytest.mark.gpu


def work():
    """A matrix whose product keeps the device busy for longer than a copy takes."""
    side = 4096 if torch.cuda.mem_get_info()[1] > 2 << 30 else 128
    return torch.randn(side, side, device="cuda")


class Large(Dataset):
    """A megabyte of one number per sample, which reveals a slot that is reused too soon."""

    def __init__(self):
        self.side = 256 if torch.cuda.mem_get_info()[1] > 2 << 30 else 16

    def __len__(self):
        return 256

    def __getitem__(self, index):
        return np.full((self.side, 1024), index, dtype=np.float32), index


def on_cpu(batch):
    if isinstance(batch, torch.Tensor):
        assert batch.is_cuda
        return batch.cpu()
    if isinstance(batch, dict):
        return {key: on_cpu(value) for key, value in batch.items()}
    return [on_cpu(value) for value in batch] if isinstance(batch, list) else batch


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_on_the_device_are_the_same(num_workers):
    expected = [batch[0] for batch in DataLoader(Nested(), 4)]
    found = [on_cpu(batch)[0] for batch in Loader(Nested(), 4, num_workers=num_workers, device="cuda")]
    assert all(torch.equal(*pair) for pair in zip(expected, found))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_no_slot_is_reused_while_it_is_copied(num_workers):
    busy = work()
    for _ in range(3):
        for images, numbers in Loader(Large(), 8, num_workers=num_workers, device="cuda"):
            busy = (busy @ busy).clamp(-1, 1)  # keeps the consumer's stream behind
            assert torch.equal(images[:, 0, 0].long(), numbers) and torch.equal(images[:, -1, -1].long(), numbers)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_pinned_batches_may_be_copied_after_they_are_dropped(num_workers):
    busy = work()
    kept = []
    for images, numbers in Loader(Large(), 8, num_workers=num_workers, pin_memory=True):
        assert images.is_pinned()
        for _ in range(4):
            busy = (busy @ busy).clamp(-1, 1)
        kept.append((images.to("cuda", non_blocking=True), numbers))
        del images
    assert all(torch.equal(images[:, 5, 5].long().cpu(), numbers) for images, numbers in kept)


def test_data_in_memory_is_gathered_on_the_device():
    data = TensorDataset(torch.arange(1000).view(100, 10), torch.arange(100))
    loader = Loader(data, 7, shuffle=True, device="cuda", generator=torch.Generator().manual_seed(1))
    batches = iter(loader)
    assert isinstance(batches, InMemoryIterator)
    rows, numbers = map(torch.cat, zip(*batches))
    assert rows.is_cuda and torch.equal(rows[:, 0], numbers * 10)
    data.tensors[0].add_(1)
    first = next(iter(loader))
    assert torch.equal(first[0][:, 0], first[1] * 10 + 1)


def test_images_become_floats_on_the_device(tmp_path):
    transforms = pytest.importorskip("torchvision.transforms")
    folders = pytest.importorskip("torchvision.datasets")
    image = pytest.importorskip("PIL.Image")
    for number in range(8):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 50, 3), dtype=np.uint8)
        (tmp_path / f"{number % 2}").mkdir(exist_ok=True)
        image.fromarray(pixels).save(tmp_path / f"{number % 2}" / f"{number}.png")
    steps = [transforms.CenterCrop(32), transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.25] * 3)]
    data = folders.ImageFolder(tmp_path, transforms.Compose(steps))
    expected = [batch[0] for batch in DataLoader(data, 4)]
    found = [batch[0] for batch in Loader(data, 4, device="cuda")]
    assert all(batch.is_cuda and batch.dtype == torch.float32 for batch in found)
    assert all(torch.allclose(one.cpu(), other, atol=1e-5) for one, other in zip(found, expected))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_copies_come_from_pinned_memory_whatever_their_size(num_workers, monkeypatch):
    from hasten.data.epoch.transfer import Transfer

    sent, to = [], torch.Tensor.to
    send = Transfer.send

    def noting(self, batch):
        monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *given, **more: note(tensor, *given, **more))
        try:
            return send(self, batch)
        finally:
            monkeypatch.setattr(torch.Tensor, "to", to)

    def note(tensor, *given, **more):
        sent.append(tensor.is_pinned())
        return to(tensor, *given, **more)

    monkeypatch.setattr(Transfer, "send", noting)
    for images, numbers in Loader(Large(), 8, num_workers=num_workers, device="cuda"):
        assert images.is_cuda and numbers.is_cuda
    assert sent and all(sent)


def test_batches_on_the_device_are_only_a_few_steps_ahead():
    from hasten.data.epoch.transfer import MAX_AHEAD

    busy, batches = work(), iter(Loader(Large(), 8, num_workers=1, device="cuda"))
    for images, _ in batches:
        for _ in range(8):
            busy = (busy @ busy).clamp(-1, 1)
        assert images.is_cuda and len(batches._transfer._used) <= MAX_AHEAD + 2
