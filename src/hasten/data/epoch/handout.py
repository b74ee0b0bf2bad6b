"""A batch whose samples are all there becomes what the training loop is given: views of its slot where those may be lent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch._utils import ExceptionWrapper

from hasten.data.epoch.pending import PendingBatch
from hasten.data.generators import kept, sample_seed, seed_generators
from hasten.data.layout.packing import unpack
from hasten.data.layout.slots import Slots
from hasten.data.layout.tree import Layout, finished, map_tensors
from hasten.data.workers.tasks import WorkerConfig
from hasten.data.workers.worker import threads_as_there

SMALL = 64 << 10  # bytes; to copy them takes a few microseconds


def put(sample: Any, row: int, pending: PendingBatch, layout: Layout) -> list[object]:
    """Write a sample into its row here, in the training process; return what has no row."""
    assert pending.slot is not None
    targets = layout.targets(layout.arrays(pending.slot.memory, len(pending.indices)))
    return [kept for objects in layout.write([sample], targets, row) for kept in objects]


def hand_out(pending: PendingBatch, layout: Layout | None, slots: Slots, collate: Callable[[Any], Any]) -> Any:
    """The batch. It keeps its slot for as long as anything refers to it."""
    if not pending.indices:
        return collate([])
    if pending.is_whole:
        return _whole(pending, slots)
    assert layout is not None
    if pending.strays or pending.slot is None:
        return collate(_samples(pending, layout))
    lends = slots.has_room(pending.slot.place.size)
    arrays = [_lent(array, lends) for array in layout.arrays(pending.slot.memory, len(pending.indices))]
    objects = [pending.objects[row] for row in range(len(pending.indices))] if layout.num_objects else []
    return layout.batch(arrays, objects)


def made_by_dataset(asked: PendingBatch, config: WorkerConfig, *, in_processes: bool) -> Any:
    """The batch that was asked for, made as a worker would without cache and recipe. Moves no generator."""
    indices, dataset = asked.indices, config.dataset
    with kept(), threads_as_there(in_processes=in_processes):
        if config.fetches_batches:
            seed_generators(sample_seed(asked.seed, repr(indices), 0))
            samples = dataset.__getitems__(indices)
        else:
            samples: list[Any] = []
            for row, index in enumerate(indices):
                seed_generators(sample_seed(asked.seed, index, asked.occurrences[row] if asked.occurrences else 0))
                samples.append(dataset[index])
        seed_generators(sample_seed(asked.seed, repr(indices), 1))  # for a collate_fn that draws
        return config.collate(samples if config.batched else samples[0])


def raise_again(error: BaseException) -> NoReturn:
    """What the user's code raised; with the traceback of the worker, where it was one."""
    if isinstance(error, ExceptionWrapper):
        error.reraise()
    raise error


def _whole(pending: PendingBatch, slots: Slots) -> Any:
    if pending.in_slot and pending.slot is not None:
        lends = slots.has_room(pending.slot.place.size)
        memory = pending.slot.memory if lends else pending.slot.memory.copy()
        batch = unpack(pending.value, memory.data)
        if isinstance(batch, torch.Tensor) or type(batch) in (dict, list, tuple):
            return map_tensors(batch, lambda tensor: _lent(tensor, lends))
        return batch
    return pending.value if pending.memory is None else unpack(pending.value, memoryview(pending.memory))


def _lent(tensor: torch.Tensor, lends: bool) -> torch.Tensor:
    """The tensor itself; or a copy, where it is small, for who keeps labels would keep the images beside them, or where
    the batches to come need the slot.
    """
    if tensor.is_nested or tensor.layout != torch.strided or tensor.requires_grad:
        return tensor  # none of these lies in a slot
    is_small = tensor.numel() * tensor.element_size() <= SMALL
    return tensor if lends and not is_small else tensor.clone()


def _samples(pending: PendingBatch, layout: Layout) -> list[Any]:
    """The samples one by one, where not all of them found a row."""
    length = len(pending.indices)
    if pending.slot is None:
        return [finished(pending.strays[row]) for row in range(length)]
    arrays = layout.arrays(pending.slot.memory, length)
    return [
        finished(pending.strays[row])
        if row in pending.strays
        else layout.read(arrays, row, pending.objects.get(row, []))
        for row in range(length)
    ]
