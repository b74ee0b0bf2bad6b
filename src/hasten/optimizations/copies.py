"""Copies of batches to the device: from pinned memory, and without making the host wait."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING

from hasten.errors import NotApplicableError
from hasten.optimizations.optimization import Optimization, from_finding
from hasten.protocol import Value

if TYPE_CHECKING:
    import torch

    from hasten.agent.handle import Handle

Function = Callable[..., object]
NO_DEVICE = "there is no device to copy to"


def enable_pinning(handle: Handle, _value: Value) -> None:
    """Have batches lie in pinned memory, from which a GPU copies faster and by itself."""
    from hasten.agent.loader_arguments import change_loaders
    from hasten.devices import accelerator

    if not accelerator.is_available():
        raise NotApplicableError(NO_DEVICE)
    change_loaders(handle, lambda given: given.update(pin_memory=True))


def enable_non_blocking(handle: Handle, _value: Value) -> None:
    """Copy a loader's pinned batches to the GPU without making the host wait; the script's own buffers do."""
    import torch
    from torch.utils.data.dataloader import _BaseDataLoaderIter  # pyright: ignore[reportPrivateUsage]
    from torch.utils.weak import WeakIdKeyDictionary

    from hasten.agent.tree import tensors_in
    from hasten.devices import accelerator

    if not accelerator.is_available():
        raise NotApplicableError(NO_DEVICE)

    handed_out: MutableMapping[torch.Tensor, bool] = WeakIdKeyDictionary()

    def marking(original: Function) -> Function:
        @functools.wraps(original)
        def __next__(self: object) -> object:
            batch = original(self)
            handed_out.update((tensor, True) for tensor in tensors_in(batch, most=64))
            return batch

        return __next__

    def without_waiting(original: Function) -> Function:
        @functools.wraps(original)
        def copy(self: torch.Tensor, *arguments: object, **settings: object) -> object:
            # A buffer of the script's own may be filled again while a copy is under way.
            if "non_blocking" not in settings and self in handed_out and self.is_pinned():
                device = settings.get("device", arguments[0] if arguments else None)
                if len(arguments) <= 1 and isinstance(device, (str, int, torch.device)):
                    settings["non_blocking"] = True
            return original(self, *arguments, **settings)

        return copy

    handle.patches.wrap(_BaseDataLoaderIter, "__next__", marking)
    with contextlib.suppress(ImportError):
        from hasten.data.epoch.batches import BatchIterator

        handle.patches.wrap(BatchIterator, "__next__", marking)
    for name in ("to", str(accelerator.built_for())):
        if hasattr(torch.Tensor, name):  # there is no Tensor.mps
            handle.patches.wrap(torch.Tensor, name, without_waiting)


PIN_MEMORY = Optimization(
    name="pin_memory",
    title="batches lie in pinned memory, from which a GPU copies faster",
    guarantee="identical",
    answers=("pageable_copy", "blocking_copy"),
    propose=from_finding("pageable_copy", otherwise="no copy from pageable memory is waited for"),
    enable=enable_pinning,
)
NON_BLOCKING = Optimization(
    name="non_blocking",
    title="copies from pinned memory do not make the host wait",
    guarantee="identical",
    answers=("blocking_copy",),
    propose=from_finding("blocking_copy", otherwise="no copy to the device is waited for"),
    enable=enable_non_blocking,
)
