"""What holds for every test: no patch of ours outlives it, and what needs a GPU is skipped without one."""

import builtins
import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hasten.patches import _Finder
from hasten.sandbox.workspace import Workspace

sys.path.append(str(Path(__file__).parent))  # for command.py and runs.py
os.environ.setdefault("OMP_NUM_THREADS", "1")  # two threads of each of several processes mostly wait for each other

import served

SERVANT = served.Servant()


def pytest_configure():
    if sys.platform == "linux":
        SERVANT.install()
    # A shell's background jobs ignore interrupts, and so would every process that a test starts.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure():
    SERVANT.remove()
    SERVANT.stop()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    SERVANT.is_on = item.get_closest_marker("contract") is None
    SERVANT.is_allowed = item.get_closest_marker("slow") is not None


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items):
    for item in items:
        # What a file has started once for many tests is not started again by another process of pytest-xdist.
        if item.get_closest_marker("slow") and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.path.name))
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting:
        return
    import torch

    if not torch.cuda.is_available():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def patched_places():
    """Every place at which hasten hooks, as (name, what is there now)."""
    places = [("builtins.print", builtins.print), ("builtins.open", builtins.open)]
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "compile"):
        return places
    from torch.optim.optimizer import Optimizer
    from torch.utils.data import DataLoader
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    owners = (
        (torch.Tensor, ("item", "to", "cuda", "cpu", "backward", "__float__", "__repr__")),
        (DataLoader, ("__iter__", "__init__")),
        (_BaseDataLoaderIter, ("__next__",)),
        (Optimizer, ("zero_grad",)),
        (torch.nn.Module, ("zero_grad", "compile")),
        (torch, ("save", "load", "compile", "set_anomaly_enabled")),
        (torch.autograd, ("backward", "grad")),
    )
    return places + [(f"{owner.__name__}.{name}", getattr(owner, name)) for owner, names in owners for name in names]


def hooks_left():
    """Names of what hasten left behind: patched functions, global hooks, import finders."""
    left = [name for name, what in patched_places() if is_ours(what)]
    left += ["sys.meta_path" for finder in sys.meta_path if isinstance(finder, _Finder)]
    left += ["sys.excepthook"] if is_ours(sys.excepthook) else []
    if "torch.nn.modules.module" in sys.modules and "torch.optim.optimizer" in sys.modules:
        from torch.nn.modules import module
        from torch.optim import optimizer

        for name in ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks"):
            left += [name] if getattr(module, name) else []
        for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
            left += [name] if getattr(optimizer, name) else []
    return left


def is_ours(function):
    """Whether hasten's code runs when this is called; functools.wraps hides the module, not the code."""
    code = getattr(function, "__code__", None)
    return code is not None and "/hasten/" in code.co_filename.replace("\\", "/")


@pytest.fixture
def workspace():
    """A scratch folder in which launches lie; what they write elsewhere is gone when they end."""
    with Workspace() as made:
        yield made


@pytest.fixture
def ask(tmp_path, monkeypatch, capfd):
    """`hasten WORDS` in this process and the test's folder, for what starts no script."""

    def started(*_):
        raise AssertionError("this process would have become the script")

    def answer(*words):
        from hasten.cli import main

        try:
            code = main(words)
        except SystemExit as end:  # argparse
            code = end.code
        return subprocess.CompletedProcess(words, code, *capfd.readouterr())

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(os, "execvpe", started)
    return answer


@pytest.fixture(autouse=True)
def no_hook_outlives_a_test():
    assert hooks_left() == [], "an earlier test or import left hooks behind"
    threads = {*threading.enumerate()}
    yield
    if hooks_left():
        gc.collect()  # an exception's traceback may hold the iterator that raised it
    assert hooks_left() == [], "this test left hooks behind"
    left = [thread for thread in threading.enumerate() if thread.name == "hasten-lines" and thread not in threads]
    assert left == [], "this test left a thread behind that samples lines"
