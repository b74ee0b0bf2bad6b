"""The accelerator that this torch is built for, through what all of them offer: CUDA and ROCm, XPU, MPS, and others.

In: nothing. Out: its name, whether it is in use, streams, events, memory and random states. Refuses to be the first to
touch the device, and to know what CUDA alone has: that is in `cuda.py`.

Only what torch 2.6 has is used: `torch.accelerator` for streams and devices, the device's own module for the rest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
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
    except RuntimeError:  # torch 2.6, where there is none
        return None
    return None if found is None or found.type == "cpu" else found.type


def is_available(device: str | torch.device | None = None) -> bool:
    """Whether there is an accelerator that torch can use; `device`: one of that type. Initializes no CUDA device."""
    kind = built_for()
    if kind is None or (device is not None and torch.device(device).type != kind):
        return False
    if kind == "cuda":  # counted by the driver's management library, which initializes nothing
        return torch.cuda.device_count() > 0
    return bool(torch.accelerator.is_available())


def is_in_use() -> bool:
    """Whether this process has begun to use the accelerator."""
    kind = built_for()
    if kind is None:
        return False
    module = torch.get_device_module(kind)
    begun = getattr(module, "is_initialized", None)
    return bool(begun() if begun is not None else module.is_available() and memory_in_use())


def new_event(*, timed: bool = False) -> torch.Event:
    """An event, not recorded yet; `timed`: of two of them the device tells what lay between."""
    return torch.Event(torch.device(str(built_for())), enable_timing=timed)


def new_stream(device: torch.device) -> torch.Stream:
    """A stream besides the one that the script computes on."""
    return torch.Stream(device)


def current_stream(device: torch.device) -> torch.Stream:
    """The stream that operators of this thread go to."""
    return torch.accelerator.current_stream(device)


def on_stream(stream: torch.Stream) -> contextlib.AbstractContextManager[Any]:
    """Operators of this thread go to `stream`; afterwards stream and device are what they were."""
    return torch.get_device_module(stream.device).stream(stream)


def has_streams(device: torch.device) -> bool:
    """Whether copies to the device can go on beside what it computes; on MPS host and device share their memory."""
    return device.type != "mps" and hasattr(torch.get_device_module(device), "stream")


def wait() -> None:
    """Wait until the current device has done all that it was asked for."""
    torch.accelerator.synchronize()


def memory_in_use() -> int:
    """Bytes of the current device that live tensors take."""
    module = torch.get_device_module(built_for())
    return int((getattr(module, "memory_allocated", None) or module.current_allocated_memory)())


def free_memory(device: torch.device) -> int:
    """Bytes of the device that are free, by its driver; on MPS the rest of what it recommends to use."""
    module = torch.get_device_module(device)
    ask = getattr(module, "mem_get_info", None)
    return int(ask(device)[0] if ask is not None else module.recommended_max_memory() - memory_in_use())


def share_in_use() -> float:
    """Share of the current device's memory that is not free, 0..1; on MPS of what it recommends to use."""
    module = torch.get_device_module(built_for())
    ask = getattr(module, "mem_get_info", None)
    if ask is None:
        return memory_in_use() / module.recommended_max_memory()
    free, total = ask()
    return 1.0 - free / total


def give_back_memory() -> None:
    """Give what torch's allocator keeps for later back to the device; nothing where the device was never used."""
    if is_in_use():
        torch.get_device_module(built_for()).empty_cache()


def cache_holders() -> list[Any]:
    """The modules of torch that have an `empty_cache`."""
    kind = built_for()
    modules = [torch.accelerator, *([] if kind is None else [torch.get_device_module(kind)])]
    return [module for module in modules if hasattr(module, "empty_cache")]


def random_states() -> dict[int, torch.Tensor]:
    """The state of each device's random generator, by its number; none where the device was never used."""
    if not is_in_use():
        return {}
    return {number: _random_state(number) for number in range(torch.accelerator.device_count())}


def random_state() -> dict[int, torch.Tensor]:
    """The same of the current device alone."""
    if not is_in_use():
        return {}
    number = torch.accelerator.current_device_index()
    return {number: _random_state(number)}


def set_random_states(states: Mapping[int, torch.Tensor]) -> None:
    """Put them back."""
    for number, state in states.items():
        torch.get_device_module(built_for()).set_rng_state(state, *_numbered(number))


def _random_state(number: int) -> torch.Tensor:
    return torch.get_device_module(built_for()).get_rng_state(*_numbered(number))


def _numbered(number: int) -> tuple[torch.device, ...]:
    """The argument that names a device; MPS has one and takes none."""
    kind = str(built_for())
    return () if kind == "mps" else (torch.device(kind, number),)
