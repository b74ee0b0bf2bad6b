"""Turn a complete batch into what the training loop receives: views of its slot, if the slot can be spared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch._utils import ExceptionWrapper

from hasten.data.epoch.pending import PendingBatch
from hasten.data.generators import preserve_generators, sample_seed, seed_generators
from hasten.data.layout.packing import unpack
from hasten.data.layout.slots import Slots
from hasten.data.layout.tree import Layout, map_tensors, with_floats
from hasten.data.workers.tasks import WorkerConfig
from hasten.data.workers.worker import match_worker_threads

SMALL = 64 << 10  # bytes; copying them takes a few microseconds


def write_sample(sample: Any, row: int, pending: PendingBatch, layout: Layout) -> list[object]:
    """Write a sample to its row in the training process; return its leaves that have no row."""
    assert pending.slot is not None
    targets = layout.targets(layout.arrays(pending.slot.memory, len(pending.indices)))
    return [leaf for objects in layout.write([sample], targets, row) for leaf in objects]


def finish_batch(pending: PendingBatch, layout: Layout | None, slots: Slots, collate: Callable[[Any], Any]) -> Any:
    """Return the batch. It keeps its slot reserved for as long as anything refers to it."""
    if not pending.indices:
        return collate([])
    if pending.is_whole:
        return _whole(pending, slots)
    assert layout is not None
    if pending.unplaced or pending.slot is None:
        return collate(_samples(pending, layout))
    has_room = slots.has_room(pending.slot.place.size)
    arrays = [_view_or_copy(array, has_room) for array in layout.arrays(pending.slot.memory, len(pending.indices))]
    objects = [pending.objects[row] for row in range(len(pending.indices))] if layout.num_objects else []
    return layout.batch(arrays, objects)


def build_with_dataset(asked: PendingBatch, config: WorkerConfig, *, in_processes: bool) -> Any:
    """Build the requested batch as a worker would, without cache and pipeline. Leaves all generators unchanged."""
    indices, dataset = asked.indices, config.dataset
    with preserve_generators(), match_worker_threads(in_processes=in_processes):
        if config.fetches_batches:
            seed_generators(sample_seed(asked.seed, repr(indices), 0))
            samples = dataset.__getitems__(indices)
        else:
            samples: list[Any] = []
            for row, index in enumerate(indices):
                seed_generators(sample_seed(asked.seed, index, asked.occurrences[row] if asked.occurrences else 0))
                samples.append(dataset[index])
        seed_generators(sample_seed(asked.seed, repr(indices), 1))  # in case collate_fn draws
        return config.collate(samples if config.batched else samples[0])


def reraise(error: BaseException | ExceptionWrapper) -> NoReturn:
    """Raise the exception of the user's code, with the traceback of the worker process if it came from one."""
    if isinstance(error, ExceptionWrapper):
        error.reraise()
    raise error


def _whole(pending: PendingBatch, slots: Slots) -> Any:
    if pending.in_slot and pending.slot is not None:
        has_room = slots.has_room(pending.slot.place.size)
        memory = pending.slot.memory if has_room else pending.slot.memory.copy()
        batch = unpack(pending.value, memory.data)
        if isinstance(batch, torch.Tensor) or type(batch) in (dict, list, tuple):
            return map_tensors(batch, lambda tensor: _view_or_copy(tensor, has_room))
        return batch
    return pending.value if pending.memory is None else unpack(pending.value, memoryview(pending.memory))


def _view_or_copy(tensor: torch.Tensor, has_room: bool) -> torch.Tensor:
    """Return the tensor itself, or a copy if it is small or the next batches need the slot.

    Small tensors are copied because a script that stores labels would otherwise keep the images in memory, too.
    """
    if tensor.is_nested or tensor.layout != torch.strided or tensor.requires_grad:
        return tensor  # such tensors are never in a slot
    is_small = tensor.numel() * tensor.element_size() <= SMALL
    return tensor if has_room and not is_small else tensor.clone()


def _samples(pending: PendingBatch, layout: Layout) -> list[Any]:
    """Return the samples one by one, for batches in which not every sample fits its row."""
    length = len(pending.indices)
    if pending.slot is None:
        return [with_floats(pending.unplaced[row]) for row in range(length)]
    arrays = layout.arrays(pending.slot.memory, length)
    return [
        with_floats(pending.unplaced[row])
        if row in pending.unplaced
        else layout.read(arrays, row, pending.objects.get(row, []))
        for row in range(length)
    ]
