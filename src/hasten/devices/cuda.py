"""What CUDA alone has: cuDNN, TF32, page-locked memory, warnings of waits, captured graphs. ROCm has most of it too.

In: settings. Out: what they were, or how to undo them. Refuses other devices: each function says what it is without CUDA.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from hasten.devices import accelerator

TF32_FROM = (8, 0)  # the compute capability of Ampere
WAIT = "synchronizing CUDA operation"  # in torch's warning
PROTOTYPE = "Synchronization debug mode is a prototype"  # said once, of the look itself


def is_in_use() -> bool:
    """Whether this process has begun to use a CUDA device."""
    return torch.cuda.is_initialized()


def is_available() -> bool:
    """Whether torch can use a CUDA device. Initializes none."""
    return accelerator.is_available("cuda")


def has_tf32() -> bool:
    """Whether the current device computes float32 products on tensor cores."""
    return is_available() and torch.version.hip is None and torch.cuda.get_device_capability() >= TF32_FROM


def has_bf16() -> bool:
    """Whether the current device has units for bfloat16; emulation does not count."""
    return is_available() and torch.cuda.is_bf16_supported(including_emulation=False)


def allows_tf32() -> bool:
    """Whether matrix products of float32 may be made in TF32."""
    matmul: Any = torch.backends.cuda.matmul
    try:
        return bool(matmul.allow_tf32)
    except RuntimeError:  # the script uses the settings of torch 2.9, and torch refuses to tell by the older ones
        return matmul.fp32_precision == "tf32"


def allow_tf32() -> Callable[[], None]:
    """Make float32 products in TF32 from now on; what undoes it.

    By the older settings unless the script has used the newer: where both are mixed, torch raises at the next reading.
    """
    places: list[tuple[Any, str, object]] = [
        (torch.backends.cuda.matmul, "allow_tf32", True),
        (torch.backends.cudnn, "allow_tf32", True),
    ]
    try:
        before = [getattr(owner, name) for owner, name, _ in places]
    except RuntimeError:
        cudnn: Any = torch.backends.cudnn
        owners = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)
        places = [(owner, "fp32_precision", "tf32") for owner in owners]
        before = [getattr(owner, name) for owner, name, _ in places]
    for owner, name, value in places:
        setattr(owner, name, value)

    def undo() -> None:
        for (owner, name, _), value in zip(places, before):
            setattr(owner, name, value)

    return undo


def autotunes() -> bool:
    """Whether cuDNN tries its algorithms on each new shape."""
    return bool(torch.backends.cudnn.benchmark)


def autotune(on: bool) -> Callable[[], None]:
    """Have cuDNN try its algorithms on each new shape and keep the fastest, or not; what undoes it."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = on
    return lambda: setattr(torch.backends.cudnn, "benchmark", before)


def is_capturing() -> bool:
    """Whether operators of this thread go into a graph now, not to the device."""
    return is_in_use() and torch.cuda.is_current_stream_capturing()


def memory_requests() -> int | None:
    """How often torch's allocator has asked the driver for memory; None where no CUDA device is in use."""
    if not is_in_use():
        return None
    return int(torch.cuda.memory_stats().get("num_device_alloc", 0))


def pin(address: int, size: int) -> Callable[[], object] | None:
    """Lock host memory in place, for the device to copy from; what undoes it. None where that cannot be done.

    Args:
        address: of its first byte, at a page's beginning.
        size: in bytes.
    """
    runtime: Any = torch.cuda.cudart()
    if int(runtime.cudaHostRegister(address, size, 0)) != 0:
        # CUDA remembers the failure, and torch would raise it at the script's next operator: it is raised here.
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device="cuda").add_(1)
        return None
    return functools.partial(runtime.cudaHostUnregister, address)


class WaitWatch:
    """PyTorch's own warnings of operations that make the host wait for the GPU, for one short stretch."""

    def __init__(self, found: Callable[[], object]) -> None:
        """`found` is called at each such operation, from the thread and stack that made it."""
        self._found = found
        self._undo: Callable[[], None] | None = None

    def on(self) -> None:
        """Begin to listen."""
        shown, filters, mode = warnings.showwarning, list(warnings.filters), torch.cuda.get_sync_debug_mode()

        def showwarning(message: object, *arguments: object, **settings: object) -> None:
            if WAIT in str(message):
                self._found()
            else:
                shown(message, *arguments, **settings)  # type: ignore[arg-type]

        def undo() -> None:
            torch.cuda.set_sync_debug_mode(mode)
            warnings.showwarning = shown
            warnings.filters[:] = filters  # type: ignore[index]

        warnings.showwarning = showwarning  # type: ignore[assignment]
        warnings.filterwarnings("ignore", message=PROTOTYPE)
        warnings.filterwarnings("always", message=f".*{WAIT}.*")
        torch.cuda.set_sync_debug_mode("warn")
        self._undo = undo

    def off(self) -> None:
        """Leave everything as it was; harmless where it was never begun."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()
