"""Super-resolution in a control group with less memory than its samples take."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from case_study_common import FOLDERS, copies, hasten, scratch

from hasten.workloads.catalog import WORKLOADS

REPEATS = 40  # copies of each photograph: prepared, all of them are twice what the limit allows
LIMIT = 1200 << 20  # bytes of a control group: torch and its libraries take half of it


@contextlib.contextmanager
def control_group(limit: int) -> Generator[Path | None]:
    """A memory control group of this process's own; None where none can be made."""
    own = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    path = next((line.split(":")[2] for line in own if ":memory:" in line), None)
    place = Path("/sys/fs/cgroup/memory" + (path or "")) / f"hasten-case-studies-{os.getpid()}"
    try:
        place.mkdir()
        (place / "memory.limit_in_bytes").write_text(str(limit))
    except OSError:
        yield None
        return
    try:
        yield place
    finally:
        for _ in range(50):
            with contextlib.suppress(OSError):
                place.rmdir()
                break
            time.sleep(0.1)


def limited(command: list[str], folder: Path, *, seconds: float) -> dict[str, Any]:
    """A command in a group of LIMIT bytes: how it ended, and the group's memory in every second."""
    with control_group(LIMIT) as group:
        if group is None:
            return {"note": "no memory control group can be made here"}
        inside = ["bash", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "-", *command]
        used: list[float] = []
        with (folder / "output.txt").open("wb") as output:
            start = time.perf_counter()
            process = subprocess.Popen(inside, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
            while process.poll() is None and time.perf_counter() - start < seconds:
                used.append(anonymous_bytes(group))
                time.sleep(1.0)
            over = process.poll() is None
            if over:
                process.kill()
            code = process.wait()
        said = (folder / "output.txt").read_text(errors="replace").splitlines()
        return {
            "limit": LIMIT,
            "exit_code": None if over else code,
            "seconds": time.perf_counter() - start,
            "bytes_each_second": used,
            "failed_charges": int((group / "memory.failcnt").read_text()),
            "said": [line for line in said if "Epoch" in line or "hasten" in line or "rror" in line][-12:],
        }


def anonymous_bytes(group: Path) -> float:
    """What the group holds that is no file's page cache: its own, and shared memory."""
    told = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return float(told["total_rss"]) + float(told.get("total_shmem", 0))


def limit(data: Path, _wanted: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    with copies(data / FOLDERS["superres"], REPEATS) as folder:
        yield from limit_of(folder)


def limit_of(photographs: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    script = [str(WORKLOADS["superres"].script), "--data", str(photographs)]
    script += ["--epochs", "3", "--blocks", "1", "--channels", "8"]
    for name, command in {
        "hasten's cache": hasten("run", "--set", "cache=auto", "--set", "loader=true", *script),
        "the script's dictionary": [sys.executable, *script, "--ram-cache"],
        "as it is": [sys.executable, *script],
    }.items():
        with scratch() as folder:
            result = {"side": name, **limited(command, folder, seconds=300.0)}
        peak = max(result.get("bytes_each_second", [0.0]))
        print(
            f"limit {name}: exit {result.get('exit_code')}, {peak / 2**20:.0f} of {LIMIT / 2**20:.0f} MiB", flush=True
        )
        yield f"limit: {name}", result


def searched(data: Path, _wanted: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """What `hasten tune` keeps of superres where memory holds about a third of its samples."""
    with copies(data / FOLDERS["superres"], REPEATS) as photographs, scratch() as folder:
        script = [str(WORKLOADS["superres"].script), "--data", str(photographs), "--epochs", "1000"]
        script += ["--blocks", "1", "--channels", "4", "--side", "48"]  # so small a net waits for its photographs
        result = limited(hasten("tune", "--budget", "10m", *script), folder, seconds=1500.0)
        plan = folder / "hasten.toml"
        text = plan.read_text(encoding="utf-8") if plan.exists() else ""
        result["plan"] = text.partition("[fixes]\n")[2].splitlines()
    print("\n".join(result["plan"]), flush=True)
    yield "searched", result
