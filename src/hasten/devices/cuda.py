"""What only CUDA has: cuDNN, TF32, page-locked memory, synchronization warnings, graphs. ROCm has most of it too."""

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
PROTOTYPE = "Synchronization debug mode is a prototype"  # a warning that is shown once, about the debug mode itself


def is_in_use() -> bool:
    """Whether this process has initialized a CUDA device."""
    return torch.cuda.is_initialized()


def is_available() -> bool:
    """Whether torch can use a CUDA device, without initializing one."""
    return accelerator.is_available("cuda")


def has_tf32() -> bool:
    """Whether the current device computes float32 products on tensor cores."""
    return is_available() and torch.version.hip is None and torch.cuda.get_device_capability() >= TF32_FROM


def has_bf16() -> bool:
    """Whether the current device computes bfloat16 in hardware; emulation does not count."""
    return is_available() and torch.cuda.is_bf16_supported(including_emulation=False)


def allows_tf32() -> bool:
    """Whether float32 matrix products may use TF32."""
    matmul: Any = torch.backends.cuda.matmul
    try:
        return bool(matmul.allow_tf32)
    except RuntimeError:  # the script uses the settings of torch 2.9, so torch rejects the older ones
        return matmul.fp32_precision == "tf32"


def allow_tf32() -> Callable[[], None]:
    """Use TF32 for float32 products from now on; returns the function that undoes it.

    Uses the older settings unless the script has used the newer ones: torch raises an error if both are mixed.
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
    """Whether cuDNN autotuning is on."""
    return bool(torch.backends.cudnn.benchmark)


def autotune(on: bool) -> Callable[[], None]:
    """Switch cuDNN autotuning on or off; returns the function that undoes it."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = on
    return lambda: setattr(torch.backends.cudnn, "benchmark", before)


def is_capturing() -> bool:
    """Whether operators of this thread are being captured into a graph."""
    return is_in_use() and torch.cuda.is_current_stream_capturing()


def memory_requests() -> int | None:
    """How often torch's allocator has requested memory from the driver; None if no CUDA device is in use."""
    if not is_in_use():
        return None
    return int(torch.cuda.memory_stats().get("num_device_alloc", 0))


def pin(address: int, size: int) -> Callable[[], object] | None:
    """Pin host memory, so that the device can copy from it. Returns the function that undoes it, or None on failure.

    Args:
        address: of the first byte, aligned to a page.
        size: in bytes.
    """
    runtime: Any = torch.cuda.cudart()
    if int(runtime.cudaHostRegister(address, size, 0)) != 0:
        # CUDA keeps the failure, and torch would raise it in the script's next operator: raise it here instead.
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device="cuda").add_(1)
        return None
    return functools.partial(runtime.cudaHostUnregister, address)


class WaitWatch:
    """Listens to PyTorch's warnings about operations that make the host wait for the GPU, for a short time."""

    def __init__(self, found: Callable[[], object]) -> None:
        """`found` is called for each such operation, from its thread and stack."""
        self._found = found
        self._undo: Callable[[], None] | None = None

    def on(self) -> None:
        """Start listening."""
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
        """Stop listening and restore all settings; does nothing if it was not started."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()
