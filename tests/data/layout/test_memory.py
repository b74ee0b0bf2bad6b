"""Slots are reused and bounded, and memory does not grow."""

import gc
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from samples import Nested, same
from torch.utils.data import DataLoader, Dataset, default_collate

from hasten.data.layout.arena import Arena
from hasten.data.layout.slots import Slots
from hasten.data.loader import Loader


def places(slots, size, count):
    """Return the places of the next slots, which are returned at once."""
    return [slot.place for slot in [slots.take(size) for _ in range(count)]]


def test_a_slot_is_reused_when_nothing_refers_to_it():
    slots = Slots(Arena(1 << 20))
    slot = slots.take(1000)
    place = slot.place
    tensor = torch.frombuffer(slot.memory, dtype=torch.uint8)[10:20]
    del slot
    assert slots.take(1000).place != place
    del tensor
    assert place in places(slots, 1000, 2)


def test_a_view_of_a_view_keeps_the_slot_reserved():
    slots = Slots(Arena(1 << 20))
    slot = slots.take(4096)
    place = slot.place
    kept = torch.frombuffer(slot.memory, dtype=torch.float32).view(32, 32).t().numpy()[3:5]
    del slot
    assert slots.take(4096).place != place
    kept += 1
    del kept
    assert place in places(slots, 4096, 2)


def test_a_slot_is_not_reused_while_a_device_copies_from_it():
    done = False
    slots = Slots(Arena(1 << 20), when_returned=lambda: lambda: done)
    place = slots.take(100).place
    assert slots.take(100).place != place
    done = True
    assert place in places(slots, 100, 2)


def test_the_capacity_is_never_exceeded():
    slots = Slots(Arena(10 * 4096))
    taken = [slots.take(4096) for _ in range(12)]
    assert taken[:10].count(None) == 0 and taken[10:] == [None, None]
    assert slots.arena.size == 10 * 4096 and not slots.has_room(1)


def test_only_reserved_memory_is_allocated():
    arena = Arena(1 << 30)
    arena.reserve(5000)
    assert os.fstat(arena._file.descriptor).st_blocks * 512 == 8192


def test_pinned_memory_is_unpinned_with_its_slots():
    said = []
    slots = Slots(Arena(1 << 20), pin=lambda address, size: said.append(size) or (lambda: said.append("undone")))
    slots.take(100)
    del slots
    assert said == [4096, "undone"]


def test_every_batch_arrives_without_memory_for_slots(monkeypatch):
    monkeypatch.setattr("hasten.data.epoch.state.available_memory", lambda: 10 * 4096 * 4)

    class Large(Dataset):
        def __len__(self):
            return 9

        def __getitem__(self, index):
            return torch.full((3, 100, 100), float(index)), index

    for num_workers in (0, 1):
        assert same(list(Loader(Large(), 4, num_workers=num_workers)), list(DataLoader(Large(), 4)))
        collated = list(Loader(Large(), 4, num_workers=num_workers, collate_fn=list))
        assert same(collated, list(DataLoader(Large(), 4, collate_fn=list)))


def test_memory_that_runs_out_is_not_a_bus_error(monkeypatch):
    def refuse(arena, size):
        raise OSError(28, "No space left on device")

    loader = Loader(Nested(), 4, num_workers=1, persistent_workers=True)
    first = next(iter(loader))
    monkeypatch.setattr(Arena, "reserve", refuse)
    assert same([first, *loader][1:], list(DataLoader(Nested(), 4)))
    assert same(list(Loader(Nested(), 4)), list(DataLoader(Nested(), 4)))
    with pytest.raises(MemoryError, match="fewer workers"):
        list(Loader(Nested(), 4, num_workers=1))


@pytest.mark.parametrize("collate_fn", [None, list], ids=["rows", "whole"])
def test_all_batches_may_be_stored(collate_fn):
    assert same(
        list(Loader(Nested(200), 2, num_workers=1, collate_fn=collate_fn)),
        list(DataLoader(Nested(200), 2, collate_fn=collate_fn)),
    )


class Filled(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return np.full((64, 64), index, dtype=np.float32), index


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [{}, {"collate_fn": list, "persistent_workers": True}], ids=str)
def test_two_hundred_epochs_leave_nothing_behind(arguments):
    process = psutil.Process()
    loader = Loader(Filled(), 2, num_workers=1, **arguments)

    def held():
        gc.collect()
        maps = sum("memfd:hasten" in line for line in Path("/proc/self/maps").read_text().splitlines())
        return process.num_fds(), process.num_threads(), maps

    def run(epochs):
        for epoch in range(epochs):
            for _batch in loader:
                if epoch % 3 == 0:
                    break
        return held()

    before, resident, arena = run(10), process.memory_info().rss, loader._state.slots.arena
    size = arena.size
    assert run(200) == before
    assert arena.size <= 2 * size  # a worker may still write for the abandoned epoch when the next one starts
    assert process.memory_info().rss - resident < 16 << 20


def default_collate_too(samples):
    return default_collate(samples)


class Pictures(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((100_000,), float(index)), index


@pytest.mark.parametrize(
    "arguments",
    [{}, {"num_workers": 1}, {"num_workers": 1, "collate_fn": default_collate_too}],
    ids=["alone", "a worker", "a worker that collates"],
)
def test_storing_labels_does_not_keep_the_images_in_memory(arguments):
    loader = Loader(Pictures(), 4, **arguments)
    labels = [labels for _, labels in loader]
    assert loader._state.slots.used_bytes < 12 * 4 * 100_000 * 4
    assert torch.cat(labels).tolist() == list(range(64))


def test_without_room_each_array_is_copied_separately(monkeypatch):
    monkeypatch.setattr("hasten.data.epoch.state.available_memory", lambda: 4 * 2_000_000)
    kept = [images[0, :1] for images, _ in Loader(Pictures(), 4)]
    assert [int(image) for image in kept] == list(range(0, 64, 4))


def test_a_slot_may_be_returned_by_another_thread_while_one_is_looked_for():
    slots = Slots(Arena(1 << 20))

    class Returning:
        """A place, at the look at which another one is returned."""

        offset = 0

        @property
        def size(self):
            slots._free.append(SimpleNamespace(offset=4096, size=4096))
            return 4096

    slots._free.append(Returning())
    assert slots.take(1_000_000).place.size >= 1_000_000
