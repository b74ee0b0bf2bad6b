"""Instant data loading, and the loader alone: two experiments on the input, inside the script's own loop.

Batches that pass through `next(loader)` are kept and handed out again; or the loader runs without the model. What the script
does with a batch does not change, and epochs keep their length.
"""

from __future__ import annotations

import copy
import functools
from collections import UserDict
from collections.abc import Callable
from time import perf_counter

import torch
from torch.utils.data import DataLoader

from hasten.agent.session import Session
from hasten.agent.tree import mapped, tensors_in
from hasten.patches import Patches
from hasten.raw_run import DEVICE_REPLAY, JOIN, REPLAY

MOST_BATCHES = 8
MOST_BYTES = 2 << 30


class Replay:
    """Holds batches while off; hands them out in turn while on."""

    def __init__(self, session: Session, patches: Patches) -> None:
        self._session = session
        self._held: dict[int, list[object]] = {}
        self._bytes = 0
        self._position = 0
        self._on = False
        self._failed = False
        self._copying = False
        self._given: tuple[object, list[tuple[torch.Tensor, int]]] | None = None
        self._plain: set[int] = set()  # held batches without tensors: to look through all their objects takes long
        self._iterators: dict[int, object] = {}
        self._joined = 1
        self._number = self._training = -1  # the loader that was asked last, and the one that was when joining began
        patches.wrap(DataLoader, "__iter__", self._keep_iterator)

    def on(self) -> None:
        """Hand out held batches from now on."""
        self._on = not self._failed

    def off(self) -> None:
        """Let the loaders work again."""
        self._on = False
        self._joined = 1

    def join(self, count: int) -> None:
        """Hand out `count` held batches joined to one, except for validation. Call at the end of a step."""
        self.on()
        self._joined, self._training = count, self._number

    def to_device(self, device: str) -> None:
        """Move the held batches, so that the script's own copies find nothing to do."""
        try:
            self._held = {n: [mapped(b, lambda t: t.to(device)) for b in held] for n, held in self._held.items()}
        except RuntimeError as error:  # there may be no room for them
            self._fail(error)

    def forget(self) -> None:
        """Hold no batches any more: what comes next has the device to itself."""
        self.off()
        self._failed = True
        self._held.clear()

    def on_batch(self, iterator: object, fetch: Callable[[], object]) -> object:
        """Fetch a batch, or hand out a held one; a failure of ours ends replay, not the script."""
        number = self._number = self._session.loaders.number(iterator)
        held = self._held.setdefault(number, [])
        if self._on and held:
            trains = number == self._training or torch.is_grad_enabled()
            count = self._joined if trains else 1
            self._session.loaders.replays(number, count)
            try:
                return self._handed_out(held, count)
            except Exception as error:
                self._fail(error)
        self._session.loaders.fetches(number)
        batch = fetch()
        try:
            self._hold(held, batch)
        except Exception as error:
            self._fail(error)
        return batch

    def _fail(self, error: Exception) -> None:
        """Let the loaders work for good, and say why."""
        self._failed = True
        self._on = False
        self._held.clear()
        for name in (REPLAY, DEVICE_REPLAY, JOIN):
            self._session.not_applied.setdefault(name, repr(error))

    def _handed_out(self, held: list[object], count: int) -> object:
        self._watch_for_changes()
        self._position += 1
        if count > 1:
            picked = [held[(self._position + i) % len(held)] for i in range(count)]
            try:
                return _join(picked)
            except Exception as error:  # sequences of other lengths, or a type of the script's own
                self._session.not_applied.setdefault(JOIN, repr(error))
                self._joined = 1
        batch = held[self._position % len(held)]
        if self._copying:
            return copy.deepcopy(batch)
        if id(batch) not in self._plain:
            tensors = list(tensors_in(batch))
            if not tensors:
                self._plain.add(id(batch))
            self._given = batch, [(t, t._version) for t in tensors]  # pyright: ignore[reportPrivateUsage]
        return batch

    def _hold(self, held: list[object], batch: object) -> None:
        if self._failed or len(held) >= MOST_BATCHES or self._bytes > MOST_BYTES:
            return
        self._bytes += sum(t.nbytes for t in tensors_in(batch))
        # The script may change what it was given, so what is held is a copy: of plain tensors, whose changes are counted,
        # also where the script evaluates in inference mode.
        with torch.inference_mode(False):
            kept = copy.deepcopy(mapped(batch, lambda t: t.clone() if t.is_inference() else t))
            if any(t.is_pinned() for t in tensors_in(batch)):
                # A copy of pinned memory is pageable.
                kept = mapped(kept, lambda t: t.pin_memory() if t.device.type == "cpu" else t)
        held.append(kept)

    def _watch_for_changes(self) -> None:
        """A script that works in place on its batches must not get the same memory twice."""
        if self._given is None:
            return
        batch, versions = self._given
        self._given = None
        if any(t._version != version for t, version in versions):  # pyright: ignore[reportPrivateUsage]
            self._copying = True
            for held in self._held.values():
                held[:] = [b for b in held if b is not batch] or held

    def _keep_iterator(self, original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def __iter__(loader: DataLoader[object]) -> object:
            number = self._session.loaders.number_of(loader)
            kept = self._iterators.get(number)
            if self._on and kept is not None:
                # Batches for free means workers for free.
                self._session.loader_starts(loader, kept, perf_counter())
                return kept
            iterator = original(loader)
            self._iterators[self._session.loaders.number(iterator)] = iterator
            return iterator

        return __iter__


def drain(session: Session, *, seconds: float) -> tuple[list[float], str]:
    """Run the busiest loader with no model; seconds between its batches once its queue is empty, and why there are none.

    Call at the end of a step. The script does not continue afterwards.
    """
    loader = session.loaders.busiest()
    if loader is None:
        return [], "no loader to drain"
    skip = loader.num_workers * ((loader.prefetch_factor or 0) + 1)
    times: list[float] = []
    end = perf_counter() + seconds
    while perf_counter() < end and len(times) < 2000:
        iterator = iter(loader)
        count = 0
        last = perf_counter()
        while perf_counter() < end:
            try:
                next(iterator)
            except StopIteration:
                break
            now = perf_counter()
            if count >= skip:
                times.append(now - last)
            count, last = count + 1, now
        if count <= skip:
            # Epochs too short to empty the queue: count the whole epoch, worker start included.
            return [], "epochs too short to drain"
    return times, ""


def _join(batches: list[object]) -> object:
    first = batches[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(batches) if first.dim() else first  # type: ignore[arg-type]
    if isinstance(first, (dict, UserDict)):
        return type(first)({k: _join([b[k] for b in batches]) for k in first})  # type: ignore[index]
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(_join(list(parts)) for parts in zip(*batches)))  # type: ignore[call-overload]
    if isinstance(first, (list, tuple)) and first and isinstance(first[0], str):
        return type(first)(item for b in batches for item in b)  # type: ignore[union-attr]
    if isinstance(first, (list, tuple)):
        return type(first)(_join(list(parts)) for parts in zip(*batches))  # type: ignore[call-overload]
    if next(tensors_in(first), None) is not None:
        raise TypeError(f"a {type(first).__name__} cannot be joined with others")
    return first
