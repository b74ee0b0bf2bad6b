"""CPU and memory limits of Linux control groups (cgroups), versions 1 and 2. Without cgroups, every answer is None.

A limit can be set at any level, so every folder from the process's own up to the root is read, and the tightest limit
counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# Version 1 writes "no limit" as a number just below 2**63; no machine has an exbibyte.
UNLIMITED = 1 << 60


@dataclass(frozen=True)
class CgroupFolders:
    """The folders of a controller, from the process's own up to the root."""

    version: int
    folders: tuple[Path, ...]


@dataclass(frozen=True)
class CgroupMemory:
    """The memory of a cgroup in bytes: its limit, what is available, and the page cache."""

    limit: int
    available: int
    page_cache: int


def find_folders(controller: str, *, cgroup: str, mountinfo: str) -> CgroupFolders | None:
    """Where `controller` ("cpu", "memory") is mounted for the process whose /proc/<pid>/cgroup is given."""
    paths = _paths_by_controller(cgroup)
    # A hybrid system mounts version 2 for bookkeeping while version 1 has the controller.
    for version, key in ((1, controller), (2, "")):
        mount = _find_mount(version, controller, mountinfo)
        if key in paths and mount is not None:
            return CgroupFolders(version, _levels(paths[key], *mount))
    return None


def _paths_by_controller(cgroup: str) -> dict[str, str]:
    paths: dict[str, str] = {}
    for line in cgroup.splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        paths.update({name: path for name in names.split(",")})
    return paths


def _find_mount(version: int, controller: str, mountinfo: str) -> tuple[str, str] | None:
    """(root inside the hierarchy, mount point) of the controller's mount."""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        before, after = left.split(), right.split()
        if len(before) < 5 or len(after) < 3:
            continue
        if (version == 2 and after[0] == "cgroup2") or (
            version == 1 and after[0] == "cgroup" and controller in after[2].split(",")
        ):
            return before[3], before[4]
    return None


def _levels(path: str, root: str, mount: str) -> tuple[Path, ...]:
    # In a container without a cgroup namespace, the path is the host's, but the mount shows only the container's part.
    inner = PurePosixPath(path)
    if root != "/" and inner.is_relative_to(root):
        inner = PurePosixPath("/") / inner.relative_to(root)
    parts = [part for part in inner.parts[1:] if part != ".."]
    own = [Path(mount, *parts[:depth]) for depth in range(len(parts), -1, -1)]
    return tuple(own)


def find_cgroup(controller: str, *, pid: int | None = None) -> CgroupFolders | None:
    """The controller's folders of a process, this one by default; None where there are no cgroups."""
    try:
        cgroup = Path("/proc", str(pid or "self"), "cgroup").read_text(encoding="utf-8")
        mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    except OSError:
        return None
    return find_folders(controller, cgroup=cgroup, mountinfo=mountinfo)


def read_quota(found: CgroupFolders | None) -> float | None:
    """Cores that the CPU quota allows; None without a quota."""
    if found is None:
        return None
    return _tightest(_quota_of(folder, found.version) for folder in found.folders)


def _quota_of(folder: Path, version: int) -> float | None:
    if version == 2:
        words = (_read(folder / "cpu.max") or "").split()
    else:
        words = [_read(folder / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
    numbers = [_number(word) for word in words]
    if len(numbers) != 2 or numbers[0] is None or not numbers[1] or numbers[0] <= 0:
        return None  # "max", -1, or no such file
    return numbers[0] / numbers[1]


def read_memory(found: CgroupFolders | None) -> CgroupMemory | None:
    """The memory within the tightest limit; None without a limit."""
    if found is None:
        return None
    levels = [_memory_of(folder, found.version) for folder in found.folders]
    limited = [level for level in levels if level is not None]
    if not limited:
        return None
    return CgroupMemory(
        limit=min(level.limit for level in limited),
        available=min(level.available for level in limited),
        page_cache=limited[0].page_cache,
    )


def _memory_of(folder: Path, version: int) -> CgroupMemory | None:
    names = ("memory.max", "memory.high") if version == 2 else ("memory.limit_in_bytes",)
    limit = _tightest(_number(_read(folder / name)) for name in names)
    used = _number(_read(folder / ("memory.current" if version == 2 else "memory.usage_in_bytes")))
    if limit is None or used is None or limit >= UNLIMITED:
        return None
    counters = parse_counters(_read(folder / "memory.stat") or "")
    prefix = "" if version == 2 else "total_"
    # The kernel reclaims file pages under pressure, but not shared memory.
    cache = counters.get(f"{prefix}inactive_file", 0) + counters.get(f"{prefix}active_file", 0)
    return CgroupMemory(int(limit), max(0, int(limit) - used + cache), cache)


def read_throttled_seconds(found: CgroupFolders | None) -> float | None:
    """Core-seconds that runnable threads were throttled so far; None if unknown."""
    if found is None:
        return None
    # Each level counts only the throttling of its own quota, so the levels add up.
    levels = [parse_throttled(_read(folder / "cpu.stat") or "") for folder in found.folders]
    known = [level for level in levels if level is not None]
    return sum(known) if known else None


def parse_throttled(cpu_stat: str) -> float | None:
    """Seconds from a cpu.stat: microseconds in version 2, nanoseconds in version 1."""
    counters = parse_counters(cpu_stat)
    if "throttled_usec" in counters:
        return counters["throttled_usec"] / 1e6
    if "throttled_time" in counters:
        return counters["throttled_time"] / 1e9
    return None


def parse_counters(text: str) -> dict[str, int]:
    """Parse lines of a name and an integer; a colon after the name and a unit after the number are ignored."""
    counters: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[1].isdigit():
            counters[words[0].rstrip(":")] = int(words[1])
    return counters


def _tightest(limits: Iterable[float | None]) -> float | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
