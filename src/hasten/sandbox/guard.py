"""End a measured script and remove its scratch folder if hasten itself is killed: a program that waits for that.

Run by its path, with the standard library only: `python -I -S guard.py FOLDER`. Hasten holds the other end of its standard
input. It inherits the lock of the folder and holds it for as long as anything of the launch may exist. It ends only processes
that carry the scratch folder in their environment.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import sys
import time

VARIABLE = "HASTEN_RUN_FOLDER"  # in the environment of every measured process: a folder inside the scratch folder
ROUNDS = 50  # looks for processes that are left, a tenth of a second each


def processes_of(folder: str) -> list[int]:
    """The processes that are measured into a folder below this one."""
    mark = os.fsencode(f"{VARIABLE}={folder}{os.sep}")
    found: list[int] = []
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else []:
        try:
            if name.isdigit() and int(name) != os.getpid():
                with open(f"/proc/{name}/environ", "rb") as file:
                    if any(variable.startswith(mark) for variable in file.read().split(b"\0")):
                        found.append(int(name))
        except OSError:
            continue  # it has ended, or is somebody else's
    return found


def end_all(folder: str) -> None:
    """Kill every process of a scratch folder, and remove what it shares in memory."""
    ended: set[int] = set()
    for _ in range(ROUNDS):
        left = processes_of(folder)
        if not left:
            break
        for pid in left:
            ended.add(pid)
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(0.1)
    shared = "/dev/shm"
    for name in os.listdir(shared) if os.path.isdir(shared) else []:
        parts = name.split("_")  # torch_<pid>_<random>_<count>
        if len(parts) == 4 and parts[0] == "torch" and parts[1].isdigit() and int(parts[1]) in ended:
            try:
                os.unlink(os.path.join(shared, name))
            except OSError:
                continue


def remove(folder: str) -> None:
    """Remove a folder, whatever permissions a script gave to what is in it."""
    for parent, folders, _ in os.walk(folder):
        for name in folders:
            path = os.path.join(parent, name)
            try:
                if not os.path.islink(path):
                    os.chmod(path, stat.S_IRWXU)
            except OSError:
                continue
    shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Wait for the end of standard input; hasten says before whether all is well."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"):  # they reach the whole group; hasten ends it
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    folder = sys.argv[1]
    if sys.stdin.buffer.read() != b"done":
        end_all(folder)
        remove(folder)


if __name__ == "__main__":
    main()
