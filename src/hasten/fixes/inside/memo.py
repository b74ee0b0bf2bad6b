"""What known libraries read, decode and resize is kept in memory, and on the local disk: for whoever makes the batches."""

from __future__ import annotations

import functools
import os
import uuid
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data import dataloader as torch_dataloader

from hasten.agent.handle import Handle, NotApplicableError
from hasten.agent.models import Models
from hasten.protocol import Value

LOOKED_AFTER = 32  # batches, after which something should have been cached
RUN = "HASTEN_MEMO"  # names the memo that the processes of a run share
_budgets: dict[Models, dict[str, Any]] = {}  # until its patches are undone


def cache(handle: Handle, value: Value) -> None:
    """Library calls are memoized in so much memory."""
    _open(handle, ram=value)


def disk_cache(handle: Handle, value: Value) -> None:
    """The same on the local disk."""
    _open(handle, disk=value)


def pure(handle: Handle, value: str) -> None:
    """Functions that the user vouches for are memoized as well."""
    if handle.models not in _budgets:
        _open(handle, ram="auto")
    from hasten.data.memo.pure import mark

    names = value.split(",")
    mark(handle.patches, [name for name in names if not name.startswith("__main__:")])
    own = [name for name in names if name.startswith("__main__:")]
    if own:  # the script has defined them when it asks for its first batch
        handle.patches.wrap(DataLoader, "__iter__", lambda original: _marking(original, handle, own))


def _marking(original: Callable[..., Any], handle: Handle, names: list[str]) -> Callable[..., Any]:
    from hasten.data.memo.pure import mark

    @functools.wraps(original)
    def __iter__(self: Any) -> Any:
        mark(handle.patches, names)
        names.clear()
        return original(self)

    return __iter__


def _open(handle: Handle, **budget: object) -> None:
    try:
        from hasten.data.memo.memo import key_of_host, open_memo, use_in_process
        from hasten.data.memo.table import hold_installed
    except ImportError as error:
        raise NotApplicableError(f"it needs {error.name} in this environment") from None
    is_first = handle.models not in _budgets
    budgets = _budgets.setdefault(handle.models, {"ram": None, "disk": None})
    budgets.update(budget)
    key = key_of_host() or os.environ.setdefault(RUN, uuid.uuid4().hex).encode()
    memo = open_memo(**budgets, host_key=key)
    use_in_process(memo)
    handle.patches.on_undo(memo.close)
    if is_first:
        handle.patches.on_undo(hold_installed())
        handle.patches.on_undo(lambda: use_in_process(None))
        handle.patches.on_undo(lambda: _budgets.pop(handle.models, None))
    kind = torch_dataloader._BaseDataLoaderIter  # pyright: ignore[reportPrivateUsage]
    handle.patches.wrap(kind, "__next__", lambda original: _looking(original, handle, memo))


def _looking(original: Callable[..., Any], handle: Handle, memo: Any) -> Callable[..., Any]:
    """Refuse the fix where none of the first batches was made through a library that is known."""
    left = LOOKED_AFTER

    def look() -> None:
        nonlocal left
        left = 0
        counts = memo.counts()
        if not counts.num_hits and not counts.value_bytes:
            handle.refuse("no sample is read through a library whose calls can be cached")

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        nonlocal left
        try:
            batch = original(self)
        except StopIteration:
            if left:
                look()
            raise
        if left:
            left -= 1
            if not left:
                look()
        return batch

    return __next__
