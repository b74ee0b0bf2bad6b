"""The sections of a GPU day, most valuable first, and the items of each.

An item is a function of `dry` that returns JSON; `brief` in it is the line that is printed. `dry`: on a simulated device,
so everything is small, and no figure means anything.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu import input_side, scripts

ROOT = Path(__file__).resolve().parent.parent.parent
FAULTY = ROOT / "tests" / "faulty" / "gpu"
TESTS = ("devices", "optimizations/test_gpu.py", "data/test_device.py", "measurement/test_gpu.py")
CASE_STUDIES = ("classify", "feed", "xray", "superres", "efficient")
WORTH_FIRST = ("item_each_step", "pageable_copy", "full_precision", "healthy_resnet", "launch_bound")

Item = Callable[[bool], dict[str, Any]]


@dataclass(frozen=True)
class Section:
    """What belongs together, and what an item of it usually takes, in seconds."""

    what: str
    seconds: float
    items: dict[str, Item]
    dry_items: int = 1  # so many of them are walked through on a simulated device


def hasten(*words: object, cwd: str | Path | None = None, limit: float = 460.0) -> dict[str, Any]:
    """The JSON of a command of hasten; what the script printed is dropped. Raises RuntimeError."""
    with tempfile.TemporaryDirectory(prefix="hasten-gpu-") as scratch:
        command = [sys.executable, "-m", "hasten", *map(str, words)]
        done = subprocess.run(command, cwd=cwd or scratch, capture_output=True, text=True, timeout=limit)
    line = next((line for line in reversed(done.stdout.splitlines()) if line.startswith("{")), None)
    whole = done.stdout[done.stdout.find("\n{\n") + 1 :] if "\n{\n" in done.stdout else done.stdout
    for text in (whole, line or ""):
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            continue
    raise RuntimeError(
        f"hasten {words[0]} ended with {done.returncode}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
    )


def tests(dry: bool) -> dict[str, Any]:
    """The tests that need a GPU, and those of the same modules that do not."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "junit.xml")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "gpu",
            "-p",
            "no:cacheprovider",
            "--junitxml",
            str(report),
        ]
        done = subprocess.run(
            [*command, *(str(ROOT / "tests" / one) for one in TESTS)], capture_output=True, text=True
        )
        if not report.exists():
            raise RuntimeError(done.stdout[-3000:] + done.stderr[-3000:])
        suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    cases = {
        f"{case.get('classname')}::{case.get('name')}": next(
            (one.tag for one in case if one.tag != "system-out"), "passed"
        )
        for case in suite
    }
    troubled = {
        case.get("name"): (one.text or "")[-3000:]
        for case in suite
        for one in case
        if one.tag in ("failure", "error")
    }
    passed = sum(state == "passed" for state in cases.values())
    brief = f"{passed} of {len(cases)} passed; failed: {', '.join(map(str, troubled)) or 'none'}"
    return {"brief": brief, "exit_code": done.returncode, "cases": cases, "troubled": troubled}


def check(dry: bool) -> dict[str, Any]:
    """What hasten says of the machine."""
    told = hasten("check", "--json")
    return {"brief": f"{len(told.get('lines', told.get('checks', [])))} lines", "check": told}


def diagnose(name: str, dry: bool) -> dict[str, Any]:
    """What hasten finds in a script, against the finding that its docstring announces."""
    script = FAULTY / f"{name}.py"
    words = ["diagnose", "--json", "--seconds", 2 if dry else 8, *(["--quick"] if dry else []), script]
    record = hasten(*words, *(["--small"] if dry else []), limit=300)
    diagnosis, run = record.get("diagnosis", {}), record.get("run", record)
    expected = re.search(r"Expected finding: (\w+)", script.read_text(encoding="utf-8"))
    found = [finding["kind"] for finding in diagnosis["findings"]]
    first = found[0] if found else "none"
    step = diagnosis["breakdown"]["step_seconds"]
    return {
        "brief": f"{1e3 * step:.1f} ms a step; expected {expected and expected[1]}, found {', '.join(found) or 'none'}",
        "expected": expected and expected[1],
        "is_right": expected is not None and expected[1] == first,
        "diagnosis": diagnosis,
        "facts": run.get("facts"),
        "interventions": run.get("interventions"),
        "resources": run.get("resources"),
        "notes": run.get("notes"),
    }


def proven(tuning: dict[str, Any]) -> str:
    """The verdict of a search, its speed-up, and its settings, in a line."""
    proof, settings = tuning.get("proof") or {}, tuning.get("settings") or {}
    gain = proof.get("speedup")
    told = "" if gain is None else f" {gain['value']:.2f}x ({gain['low']:.2f} to {gain['high']:.2f})"
    return f"{proof.get('verdict', 'no proof')}{told} with {', '.join(settings) or 'nothing'}"


def tuned(name: str, dry: bool) -> dict[str, Any]:
    """What `hasten tune` proves of a faulty script in two minutes; its fix by hand is in the section `fixed`."""
    budget, small = ("20s", ["--small"]) if dry else ("2m", [])
    record = hasten("tune", "--json", "--budget", budget, FAULTY / f"{name}.py", *small, limit=400)
    tuning = record.get("tuning") or {}
    return {"brief": proven(tuning), "tuning": tuning}


def overhead(dry: bool) -> dict[str, Any]:
    """What measuring costs a step of about a millisecond."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "overhead.json")
        rounds, steps = (2, 20) if dry else (20, 300)
        words = [
            "--device",
            "cuda",
            "--rounds",
            rounds,
            "--steps",
            steps,
            "--width",
            64 if dry else 600,
            "--results",
            out,
        ]
        words += ["--settle", 20] if dry else []
        command = [sys.executable, str(ROOT / "benchmarks" / "overhead.py"), *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[-3000:])
        ratios = json.loads(done.stdout.splitlines()[-1])["ratios_wall_and_cpu"]
        return {"brief": str({side: wall for side, (wall, _) in ratios.items()}), **json.loads(out.read_text())}


def case_study(name: str, dry: bool) -> dict[str, Any]:
    """A case study as `hasten speedtest` reports it: baseline, tuned, and the device over time."""
    with tempfile.TemporaryDirectory(prefix="hasten-gpu-case-study-") as folder:
        words = ["speedtest", name, "--json", "--budget", "4m"]
        if dry:
            words = ["speedtest", name, "--json", "--no-tune", "--quick", "--images", "24", "--seconds", "2"]
        record = hasten(*words, cwd=folder)
    run, tuning = record.get("run") or {}, record.get("tuning") or {}
    return {
        "brief": proven(tuning),
        "diagnosis": record.get("diagnosis"),
        "facts": run.get("facts"),
        "resources": run.get("resources"),
        "tuning": tuning or None,
    }


def speedtest(dry: bool) -> dict[str, Any]:
    """The first command that a user runs, with its record."""
    small = ["--no-tune", "--quick", "--images", "24", "--seconds", "2"] if dry else []
    with tempfile.TemporaryDirectory(prefix="hasten-gpu-speedtest-") as folder:
        record = hasten("speedtest", "--json", *small, cwd=folder)
    tuning = record.get("tuning") or {}
    return {"brief": proven(tuning), "run": record["run"], "tuning": tuning or None}


def by_hand(name: str, dry: bool) -> dict[str, Any]:
    """The same case study under what an engineer would set without asking, in pairs with the script as it is."""
    return scripts.case_study_by_hand(name, dry)


def shared(dry: bool) -> dict[str, Any]:
    """A healthy script diagnosed while another one trains on the same GPU."""
    other = FAULTY / "healthy_loader.py"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    small = ["--small"] if dry else []
    with open(os.devnull, "wb") as nowhere:
        beside = subprocess.Popen(
            [sys.executable, str(other), *small], stdout=nowhere, stderr=nowhere, env=environment
        )
        try:
            time.sleep(2 if dry else 15)
            together = diagnose("healthy_resnet", dry)
        finally:
            beside.kill()
            beside.wait()
    return together


SECTIONS: dict[str, Section] = {
    "tests": Section("the tests that need a GPU", 90, {"gpu": tests}),
    "check": Section("hasten check", 30, {"check": check}),
    "speedtest": Section("hasten speedtest, as in the README", 100, {"superres": speedtest}),
    "diagnose": Section(
        "hasten diagnose on the faulty scripts for a GPU",
        40,
        {
            name: functools.partial(diagnose, name)
            for name in sorted((path.stem for path in FAULTY.glob("*.py")), key=lambda n: (n not in WORTH_FIRST, n))
            if name != "memory_full"
        },
        dry_items=2,
    ),
    "tuned": Section(
        "hasten tune on faulty scripts for a GPU, within two minutes",
        150,
        {
            name: functools.partial(tuned, name)
            for name in ("full_precision", "starved_by_augmentation", "launch_bound")
        },
    ),
    "loader": Section(
        "copies, pinned memory, streams and the device tier of hasten.Loader",
        60,
        {
            "copies": input_side.copies,
            "overlap": input_side.overlap,
            "device_tier": input_side.device_tier,
            "photographs": input_side.photographs,
        },
        dry_items=4,
    ),
    "overhead": Section("what measuring costs a step of a millisecond", 120, {"overhead": overhead}),
    "fixed": Section(
        "what fixing each faulty script by hand gains",
        60,
        {
            name: functools.partial(scripts.fixed, name)
            for name in sorted(path.stem for path in FAULTY.glob("*.py"))
            if not name.startswith("healthy") and name != "memory_full"
        },
    ),
    "case_studies": Section(
        "the case studies: baseline, tuned, and the GPU over time",
        420,
        {name: functools.partial(case_study, name) for name in CASE_STUDIES},
    ),
    "by_hand": Section(
        "the case studies under what an engineer would set by hand",
        240,
        {name: functools.partial(by_hand, name) for name in CASE_STUDIES},
    ),
    "compile": Section(
        "torch.compile and CUDA graphs against none",
        240,
        {
            f"{name}_{mode}": functools.partial(scripts.compiled, name, mode)
            for name in ("launch_bound", "healthy_resnet")
            for mode in ("reduce-overhead", "default")
        },
    ),
    "augmentation": Section(
        "augmenting on the GPU, image by image and by the batch", 60, {"augment": input_side.augment}
    ),
    "sharing": Section("two processes on one GPU", 90, {"beside_another": shared}),
}
