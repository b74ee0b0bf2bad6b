"""What it looks like when memory runs out, and what can be done about it at once.

In: an exception. Out: whether it was that; room. Refuses to know models.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import sys

import torch

from hasten.devices import accelerator

PHRASES = (  # of the CPU's allocator, and of libraries'
    "can't allocate memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def ran_out(error: BaseException) -> bool:
    """Whether an exception says that there is no memory left."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in PHRASES)


def make_room() -> None:
    """Give back what is no longer held: to the system, for the allocators keep some of it."""
    gc.collect()
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)
    accelerator.give_back_memory()


@functools.cache
def _libc() -> object:
    return ctypes.CDLL(None) if sys.platform == "linux" else None
