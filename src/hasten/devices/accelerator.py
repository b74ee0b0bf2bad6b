"""The accelerator that this torch is built for, through the API that all of them share: CUDA and ROCm, XPU, MPS, and others.

It never initializes the device itself. What only CUDA has is in `cuda.py`. Only the API of torch 2.6 is used:
`torch.accelerator` for streams and devices, the device's own module for the rest.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch


def built_for() -> str | None:
    """The type of device that this torch is built for, "cuda" (ROCm too), "xpu" or "mps"; None for the CPU alone.

    The device itself is not asked: a process that has initialized CUDA cannot fork workers that use it.
    """
    if torch.version.cuda is not None or torch.version.hip is not None:
        return "cuda"
    try:
        found = torch.accelerator.current_accelerator()
    except RuntimeError:  # torch 2.6, without an accelerator
        return None
    return None if found is None or found.type == "cpu" else found.type


def is_available(device: str | torch.device | None = None) -> bool:
    """Whether torch can use an accelerator, or one of type `device`. Initializes no CUDA device."""
    kind = built_for()
    if kind is None or (device is not None and torch.device(device).type != kind):
        return False
    if kind == "cuda":  # counted with NVML, which initializes nothing
        return torch.cuda.device_count() > 0
    return bool(torch.accelerator.is_available())


def is_in_use() -> bool:
    """Whether this process has initialized the accelerator."""
    kind = built_for()
    if kind is None:
        return False
    module = torch.get_device_module(kind)
    begun = getattr(module, "is_initialized", None)
    return bool(begun() if begun is not None else module.is_available() and memory_in_use())


def in_mixed_precision(device: str) -> bool:
    """Whether autocast computes in less than float32 there. Scripts open one in float32 to switch it off."""
    return torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) != torch.float32


def new_event(*, timed: bool = False) -> torch.Event:
    """A new event that is not recorded yet. Two `timed` events give the time between them."""
    return torch.Event(torch.device(str(built_for())), enable_timing=timed)


def new_stream(device: torch.device) -> torch.Stream:
    """A new stream, in addition to the script's."""
    return torch.Stream(device)


def current_stream(device: torch.device) -> torch.Stream:
    """The current stream of this thread."""
    return torch.accelerator.current_stream(device)


def on_stream(stream: torch.Stream) -> contextlib.AbstractContextManager[Any]:
    """A context manager that makes `stream` the current stream of this thread, and restores stream and device."""
    return torch.get_device_module(stream.device).stream(stream)


def has_streams(device: torch.device) -> bool:
    """Whether copies to the device can overlap with computation. On MPS, host and device share memory."""
    return device.type != "mps" and hasattr(torch.get_device_module(device), "stream")


def wait() -> None:
    """Synchronize the current device."""
    torch.accelerator.synchronize()


def memory_in_use() -> int:
    """Bytes of the current device that are used by live tensors."""
    module = torch.get_device_module(built_for())
    return int((getattr(module, "memory_allocated", None) or module.current_allocated_memory)())


def free_memory(device: torch.device) -> int:
    """Free bytes of the device, from its driver; on MPS the rest of the recommended maximum."""
    module = torch.get_device_module(device)
    ask = getattr(module, "mem_get_info", None)
    return int(ask(device)[0] if ask is not None else module.recommended_max_memory() - memory_in_use())


def cache_holders() -> list[Any]:
    """The modules of torch that have an `empty_cache`."""
    kind = built_for()
    modules = [torch.accelerator, *([] if kind is None else [torch.get_device_module(kind)])]
    return [module for module in modules if hasattr(module, "empty_cache")]
