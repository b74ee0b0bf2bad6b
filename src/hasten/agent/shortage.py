"""What it looks like when memory runs out, or is about to, and what can be done about it at once."""

from __future__ import annotations

import ctypes
import functools
import gc
import sys
from pathlib import Path

import torch

from hasten.cgroup import CgroupFolders, find_cgroup, parse_counters, read_memory
from hasten.devices import accelerator

MOST = 0.7  # share of the memory in use, from which it may run out
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


def may_run_out() -> bool:
    """Whether most of the memory is in use: of the device, of the machine, or of what this process may have."""
    if accelerator.is_in_use() and accelerator.share_in_use() > MOST:
        return True
    return _share_of_machine() > MOST or _share_of_limit() > MOST


def _share_of_machine() -> float:
    """Share of the memory that is not available: of the machine, or of the control group if that leaves less."""
    group = read_memory(_memory_group())
    in_group = 0.0 if group is None else 1.0 - group.available / group.limit
    try:
        sizes = parse_counters(Path("/proc/meminfo").read_text(encoding="ascii"))
        return max(in_group, 1.0 - sizes["MemAvailable"] / sizes["MemTotal"])
    except (OSError, ValueError, KeyError):
        return in_group


@functools.cache
def _memory_group() -> CgroupFolders | None:
    return find_cgroup("memory")


def _share_of_limit() -> float:
    """Share of the address space that `ulimit -v` leaves; 0 without such a limit."""
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (ImportError, OSError, ValueError, IndexError):
        return 0.0
    return 0.0 if limit == resource.RLIM_INFINITY else pages * resource.getpagesize() / limit


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
