"""A batch whose samples have all come becomes what the training loop is given.

In: a draft, its slot, its nest. Out: the batch, whose tensors are views of the slot wherever that may be lent. Refuses
to know the crew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch._utils import ExceptionWrapper

from hasten.loading.crew.kit import Kit
from hasten.loading.crew.randomness import sample_seed
from hasten.loading.crew.worker import threads_as_there
from hasten.loading.epoch.drafts import Draft
from hasten.loading.generators import kept, seed_generators
from hasten.loading.memory.nest import Nest, finished, map_tensors
from hasten.loading.memory.packing import unpack
from hasten.loading.memory.slots import Slots

SMALL = 64 << 10  # bytes; to copy them takes a few microseconds


def put(sample: Any, row: int, draft: Draft, nest: Nest) -> list[object]:
    """Write a sample into its row here, in the training process; return what has no row."""
    assert draft.slot is not None
    targets = nest.targets(nest.arrays(draft.slot.memory, len(draft.indices)))
    return [kept for objects in nest.write([sample], targets, row) for kept in objects]


def hand_out(draft: Draft, nest: Nest | None, slots: Slots, collate: Callable[[Any], Any]) -> Any:
    """The batch. It keeps its slot for as long as anything refers to it."""
    if not draft.indices:
        return collate([])
    if draft.is_whole:
        return _whole(draft, slots)
    assert nest is not None
    if draft.strays or draft.slot is None:
        return collate(_samples(draft, nest))
    lends = slots.has_room(draft.slot.place.size)
    arrays = [_lent(array, lends) for array in nest.arrays(draft.slot.memory, len(draft.indices))]
    objects = [draft.objects[row] for row in range(len(draft.indices))] if nest.num_objects else []
    return nest.batch(arrays, objects)


def made_by_dataset(asked: Draft, kit: Kit, *, in_processes: bool) -> Any:
    """The batch that was asked for, made as a worker would without cache and recipe. Moves no generator."""
    indices, dataset = asked.indices, kit.dataset
    with kept(), threads_as_there(in_processes=in_processes):
        if kit.fetches_batches:
            seed_generators(sample_seed(asked.seed, repr(indices), 0))
            samples = dataset.__getitems__(indices)
        else:
            samples: list[Any] = []
            for row, index in enumerate(indices):
                seed_generators(sample_seed(asked.seed, index, asked.occurrences[row] if asked.occurrences else 0))
                samples.append(dataset[index])
        seed_generators(sample_seed(asked.seed, repr(indices), 1))  # for a collate_fn that draws
        return kit.collate(samples if kit.batched else samples[0])


def raise_again(error: BaseException) -> NoReturn:
    """What the user's code raised; with the traceback of the worker, where it was one."""
    if isinstance(error, ExceptionWrapper):
        error.reraise()
    raise error


def _whole(draft: Draft, slots: Slots) -> Any:
    if draft.in_slot and draft.slot is not None:
        lends = slots.has_room(draft.slot.place.size)
        memory = draft.slot.memory if lends else draft.slot.memory.copy()
        batch = unpack(draft.value, memory.data).value
        if isinstance(batch, torch.Tensor) or type(batch) in (dict, list, tuple):
            return map_tensors(batch, lambda tensor: _lent(tensor, lends))
        return batch
    return draft.value if draft.memory is None else unpack(draft.value, memoryview(draft.memory)).value


def _lent(tensor: torch.Tensor, lends: bool) -> torch.Tensor:
    """The tensor itself; or a copy, where it is small, for who keeps labels would keep the images beside them, or where
    the batches to come need the slot.
    """
    if tensor.is_nested or tensor.layout != torch.strided or tensor.requires_grad:
        return tensor  # none of these lies in a slot
    is_small = tensor.numel() * tensor.element_size() <= SMALL
    return tensor if lends and not is_small else tensor.clone()


def _samples(draft: Draft, nest: Nest) -> list[Any]:
    """The samples one by one, where not all of them found a row."""
    length = len(draft.indices)
    if draft.slot is None:
        return [finished(draft.strays[row]) for row in range(length)]
    arrays = nest.arrays(draft.slot.memory, length)
    return [
        finished(draft.strays[row]) if row in draft.strays else nest.read(arrays, row, draft.objects.get(row, []))
        for row in range(length)
    ]
