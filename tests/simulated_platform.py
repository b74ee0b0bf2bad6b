"""Run a piece of hasten as if the machine were a Mac, or ran Windows: `python simulated_platform.py mac|windows WHAT ...`.

hasten's own modules see another `sys.platform`, no /proc, /sys or /dev/shm, and an `os`, `socket` and `signal` without what
that platform lacks. Other libraries see the real machine, for they bring their own code for each platform.
"""

import builtins
import importlib.abc
import importlib.machinery
import io
import multiprocessing
import os
import signal
import socket
import sys
import time
import types

HIDDEN = ("/proc", "/sys", "/dev/shm")
LINUX_ONLY = (
    "sched_getaffinity",
    "sched_setaffinity",
    "memfd_create",
    "eventfd",
    "pidfd_open",
    "posix_fadvise",
    "splice",
)
NOT_ON_WINDOWS = {
    "os": (
        *LINUX_ONLY,
        "fork",
        "killpg",
        "setsid",
        "setpgid",
        "getpgid",
        "geteuid",
        "getuid",
        "getloadavg",
        "statvfs",
        "mkfifo",
    ),
    "socket": ("AF_UNIX",),
    "signal": ("SIGKILL", "SIGSTOP", "SIGCONT", "SIGHUP", "pthread_sigmask"),
}
NAMES = {"mac": "darwin", "windows": "win32"}


class Seen(types.ModuleType):
    """A module as it is on the other platform."""

    def __init__(self, real, gone=(), **changes):
        super().__init__(real.__name__)
        self.__dict__.update(_real=real, _gone=frozenset(gone), **changes)

    def __getattr__(self, name):
        if name in self.__dict__["_gone"]:
            raise AttributeError(name)
        return getattr(self.__dict__["_real"], name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports hasten's modules with other modules in the place of sys, os, socket and signal."""

    def __init__(self, seen):
        self.seen = seen

    def find_spec(self, name, path, target=None):
        if name != "hasten" and not name.startswith("hasten."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        spec.loader_state, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        real = builtins.__import__

        def seen_import(name, globals=None, locals=None, fromlist=(), level=0):
            if level == 0 and name in self.seen:
                return self.seen[name]
            return real(name, globals, locals, fromlist, level)

        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": seen_import}
        exec(module.__spec__.loader_state.get_code(module.__name__), module.__dict__)


def hide(module, name):
    real = getattr(module, name)

    def hidden(path=".", *more, **options):
        if isinstance(path, (str, bytes, os.PathLike)) and os.fsdecode(path).startswith(HIDDEN):
            frame = sys._getframe(1)
            while frame is not None and "/importlib/" in frame.f_code.co_filename + "/":
                frame = frame.f_back
            asked_by = frame.f_code.co_filename if frame is not None else ""
            if "/hasten/" in asked_by or "pathlib" in asked_by:
                raise FileNotFoundError(2, "No such file or directory", os.fsdecode(path))
        return real(path, *more, **options)

    setattr(module, name, hidden)


def simulate(platform):
    """From now on, hasten sees the other platform."""
    import msgspec  # noqa: F401
    import psutil  # noqa: F401
    import rich.console
    import rich.markdown
    import rich.progress  # noqa: F401
    import torch.utils.data  # noqa: F401

    multiprocessing.set_start_method("spawn")
    gone = NOT_ON_WINDOWS if platform == "windows" else {"os": LINUX_ONLY}
    if platform == "windows":
        for name in ("fcntl", "resource", "pwd"):
            sys.modules[name] = None
        sys.modules["msvcrt"] = types.SimpleNamespace(locking=lambda *_: None, LK_NBLCK=1, LK_UNLCK=3)
    seen = {
        "sys": Seen(sys, platform=NAMES[platform]),
        "os": Seen(os, gone["os"], **({"name": "nt"} if platform == "windows" else {})),
        "socket": Seen(socket, gone.get("socket", ())),
        "signal": Seen(signal, gone.get("signal", ())),
    }
    for module, name in (
        (builtins, "open"),
        (io, "open"),
        (os, "open"),
        (os, "stat"),
        (os, "listdir"),
        (os, "scandir"),
    ):
        hide(module, name)
    sys.meta_path.insert(0, Finder(seen))


def loader():
    """Batches of a Loader, without workers and from threads."""
    import torch

    import hasten

    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return 32

        def __getitem__(self, index):
            return torch.tensor([float(index)])

    for options in ({}, {"num_workers": 2, "workers": "threads"}, {"cache": "1 MiB"}):
        batches = [batch.flatten().tolist() for batch in hasten.Loader(Numbers(), 16, **options)]
        assert batches == [[*map(float, range(16))], [*map(float, range(16, 32))]], batches
    print("the same batches")


def measured():
    """A measured block."""
    import torch
    from torch import nn

    import hasten

    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hasten.measure() as run:
        until = time.monotonic() + 3
        while time.monotonic() < until:
            optimizer.zero_grad()
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
    print(run)


def main():
    platform, what, *words = sys.argv[1:]
    simulate(platform)
    if what == "hasten":
        from hasten.cli import main as run

        raise SystemExit(run(words))
    {"loader": loader, "measure": measured}[what]()


if __name__ == "__main__":
    main()
