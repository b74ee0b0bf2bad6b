"""PyTorch's own tests of its DataLoader, run with hasten.Loader in DataLoader's place.

Runs a copy of PyTorch's test/test_dataloader.py three times with pytest, each in a process of its own:

    torch     as it is
    loader    `DataLoader` is hasten.Loader, in the processes that the tests start as well
    memo      torch's DataLoader, with hasten's cache of library calls active during each test

The file is not part of this repository. Take it from the PyTorch release that is installed. Slow tests run, tests that
need an accelerator are skipped where there is none, and the start method of worker processes is reset after each test.
A test that takes more than --timeout seconds fails; a test without an outcome, because the process died, is an error.

    python benchmarks/torch_dataloader_tests.py path/to/test_dataloader.py [--timeout 300] [--only EXPRESSION]

Prints the counts and the tests whose outcomes differ. Every outcome goes to
benchmarks/results/torch_dataloader_tests.json, except with --only. Needs pytest, psutil and expecttest. Linux.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import importlib.metadata
import json
import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import psutil
import pytest

from hasten.patches import Patches

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "torch_dataloader_tests.json"
SIDES = ("torch", "loader", "memo")
GRACE = 60  # seconds after a test's timeout in which the interpreter may still raise, before the process is ended
MEMO_BYTES = 64 << 20
STARTUP = "import torch_dataloader_tests\n\ntorch_dataloader_tests.at_startup()\n"


def main() -> None:
    options = arguments()
    sides = {side: run(side, options) for side in SIDES}
    names = list(dict.fromkeys(name for outcomes in sides.values() for name in outcomes))
    lost = ("error", "no outcome: the process ended before")
    rows = {name: {side: sides[side].get(name, lost) for side in SIDES} for name in names}
    result = {
        "torch": importlib.metadata.version("torch"),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "file_sha256": hashlib.sha256(options.file.read_bytes()).hexdigest(),
        "counts": {side: dict(Counter(row[side][0] for row in rows.values())) for side in SIDES},
        "differences": [
            {"test": name, **{side: found[0] for side, found in row.items()}, "errors": errors_of(row)}
            for name, row in rows.items()
            if len({found[0] for found in row.values()}) > 1
        ],
        "sides": SIDES,
        "outcomes": {name: " ".join(row[side][0] for side in SIDES) for name, row in rows.items()},
    }
    if not options.only:
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    for side, counts in result["counts"].items():
        print(f"{side:8}", ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items())))
    for row in result["differences"]:
        print(row["test"], *(f"{side}: {row[side]}" for side in SIDES), *row["errors"].values(), sep="\n    ")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=lambda path: Path(path).resolve(), help="PyTorch's test/test_dataloader.py")
    parser.add_argument("--timeout", type=int, default=300, help="seconds that a test may take")
    parser.add_argument("--only", default="", help="run the tests that match this expression, as pytest's -k")
    return parser.parse_args()


def errors_of(row: dict[str, tuple[str, str]]) -> dict[str, str]:
    return {side: error for side, (outcome, error) in row.items() if outcome in ("failed", "error")}


def run(side: str, options: argparse.Namespace) -> dict[str, tuple[str, str]]:
    """Outcome and first line of the error of each test, in the file's order."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(STARTUP)  # the tests start interpreters of their own
        paths = [folder, str(HERE), os.environ.get("PYTHONPATH", "")]
        report = Path(folder) / "report.jsonl"
        variables = {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTORCH_TEST_WITH_SLOW": "1",
            "HASTEN_TESTS_SIDE": side,
            "HASTEN_TESTS_REPORT": str(report),
            "HASTEN_TESTS_TIMEOUT": str(options.timeout),
        }
        plugins = ["-p", "torch_dataloader_tests", "-p", "no:cacheprovider", "-p", "no:faulthandler"]
        command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(options.file.parent)]
        command += [*plugins, "--tb=short", "--disable-warnings", "-k", options.only, str(options.file)]
        subprocess.run(command, env=os.environ | variables, cwd=options.file.parent, check=False)
        lines = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
    found: dict[str, tuple[str, str]] = {}
    for name, outcome, error in lines:  # the last one counts
        found[name] = outcome, error
    return found


# In the interpreters that the tests run in


def at_startup() -> None:
    """Called by each interpreter before anything else."""
    side = os.environ.get("HASTEN_TESTS_SIDE")
    is_child = "--multiprocessing-fork" in sys.orig_argv
    if side == "loader":
        Patches().after_import("torch", replace)
    elif side == "memo" and is_child:
        Patches().after_import("torch", memoize)


def replace(torch: ModuleType) -> None:
    from hasten import Loader

    torch.utils.data.DataLoader = torch.utils.data.dataloader.DataLoader = Loader


def memoize(_: ModuleType) -> None:
    from hasten.data.memo.memo import open_memo, use_in_process
    from hasten.data.memo.table import hold_installed

    hold_installed()
    use_in_process(open_memo(ram=MEMO_BYTES, disk=None))


def pytest_collection_finish(session: pytest.Session) -> None:
    import torch.utils.data

    is_ours = torch.utils.data.DataLoader.__module__.startswith("hasten")
    assert is_ours == (os.environ["HASTEN_TESTS_SIDE"] == "loader"), torch.utils.data.DataLoader
    for item in session.items:
        _report(item.nodeid, "error", "no outcome: the process ended before")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    crash = getattr(report.longrepr, "reprcrash", None)
    said = crash.message if crash is not None else str(report.longrepr or "")
    is_call = report.when == "call"
    if is_call or not report.passed:
        outcome = "error" if report.failed and not is_call else report.outcome
        _report(report.nodeid, outcome, next(iter(said.splitlines()), ""))


def _report(name: str, outcome: str, error: str) -> None:
    with open(os.environ["HASTEN_TESTS_REPORT"], "a") as file:
        file.write(json.dumps([name.partition("::")[2], outcome, error]) + "\n")


@pytest.fixture(autouse=True)
def _around_each_test() -> Iterator[None]:
    seconds = int(os.environ["HASTEN_TESTS_TIMEOUT"])
    method = multiprocessing.get_start_method(allow_none=True)
    faulthandler.dump_traceback_later(seconds + GRACE, exit=True)
    signal.signal(signal.SIGALRM, _time_out)
    signal.alarm(seconds)
    try:
        yield from _memoizing() if os.environ["HASTEN_TESTS_SIDE"] == "memo" else [None]
    finally:
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
        multiprocessing.set_start_method(method, force=True)


def _memoizing() -> Iterator[None]:
    from hasten.data.memo.memo import open_memo
    from hasten.data.memo.table import memoizing

    with memoizing(open_memo(ram=MEMO_BYTES, disk=None)):
        yield


def _time_out(*_: object) -> NoReturn:
    for child in psutil.Process().children(recursive=True):
        child.kill()
    pytest.fail("took too long")


if __name__ == "__main__":
    main()
