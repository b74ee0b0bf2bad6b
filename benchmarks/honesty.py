"""Does a trial call equal things equal, and worse things worse?

    python benchmarks/honesty.py [--rounds 50] [--slower 0.03]

same        a script against itself, --rounds times, each a whole trial as `hasten tune` makes it: at most one in twenty
            may be called faster or slower
slower      the same script, each step made longer by --slower: dropped by a trial; and called slower, with an interval
            below 1, where nobody gives up before it is clear
harmful     fixes that make things worse here: bfloat16 on a CPU without units for it (oneDNN told to leave them alone),
            workers for a dataset that costs nothing, compiling a script of ten seconds. None may be kept

Prints a table and one JSON line; every trial with its raw step times goes to benchmarks/results/honesty.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import msgspec

from hasten.fixes.catalog import CATALOG
from hasten.fixes.fix import Fix
from hasten.measurement.side import Bench, Frequencies
from hasten.records import Trial
from hasten.tuning.manner import Manner
from hasten.tuning.startup import charged
from hasten.tuning.trial import compare, try_fix

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "honesty.json"
NO_RARE = Frequencies(by_phase={})
MANNER = Manner()
CATALOG["slower"] = Fix(
    name="slower",
    title="planted",
    guarantee="identical",
    answers=(),
    propose=lambda _: "planted",
    kind="number",
    installer="steady:slower",
)


def bench(folder: Path, *, script: Path = HERE / "steady.py", **variables: str) -> Bench:
    command = ["env", *(f"{name}={value}" for name, value in variables.items()), sys.executable, str(script)]
    return Bench(command, folder / "sides", patience=120.0)


def same(folder: Path, *, rounds: int) -> list[Trial]:
    """The script against itself."""
    steady = bench(folder)
    trials: list[Trial] = []
    for number in range(rounds):
        trials.append(compare(steady, {}, {}, fix="nothing", frequencies=NO_RARE, manner=MANNER))
        show(f"same {number + 1}", trials[-1])
    return trials


def slower(folder: Path, *, share: float, rounds: int) -> list[Trial]:
    """The script made slower, as a trial sees it and as a comparison that does not give up does."""
    steady = bench(folder)
    trials: list[Trial] = []
    for number in range(rounds):
        settings = {"slower": share}
        for gives_up in (True, False):
            trial = compare(steady, {}, settings, fix="slower", frequencies=NO_RARE, manner=MANNER, gives_up=gives_up)
            trials.append(msgspec.structs.replace(trial, note="trial" if gives_up else "to the end"))
            show(f"slower {number + 1}, {trials[-1].note}", trials[-1])
    return trials


def harmful(folder: Path) -> list[Trial]:
    """What makes things worse."""
    faulty = HERE.parent / "tests" / "faulty"
    without_units = bench(folder, script=faulty / "full_precision.py", ONEDNN_MAX_CPU_ISA="AVX2")
    cheap = bench(folder)
    cases = (
        ("bf16", True, without_units, None),
        ("num_workers", 2, cheap, None),
        ("compile", "default", cheap, 10.0),
    )
    trials: list[Trial] = []
    for fix, value, chosen, seconds in cases:
        trial = try_fix(chosen, {}, fix, value, frequencies=NO_RARE, manner=MANNER)
        if seconds is not None and trial.baseline_seconds:  # a script that takes so long
            trial = charged(trial, num_steps=seconds / trial.baseline_seconds[0])
        trials.append(trial)
        show(f"harmful {fix}", trial)
    return trials


def show(what: str, trial: Trial) -> None:
    speedup = trial.speedup
    figures = f"{speedup.value:.3f} ({speedup.low:.3f} to {speedup.high:.3f})" if speedup is not None else ""
    print(f"{what:24} {trial.verdict:14} {figures:28} {len(trial.baseline_seconds):2} pairs {trial.note}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--slower", type=float, default=0.03)
    wanted = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hasten-bench-honesty-"))
    load = os.getloadavg()[0]
    try:
        found = {
            "harmful": harmful(folder),
            "slower": slower(folder, share=wanted.slower, rounds=max(1, wanted.rounds // 10)),
            "same": same(folder, rounds=wanted.rounds),
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    brief = {
        "benchmark": "honesty",
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "load_before": load,
        "slower_share": wanted.slower,
        "verdicts": {name: Counter(t.verdict for t in trials) for name, trials in found.items()},
    }
    raw = {name: json.loads(msgspec.json.encode(trials)) for name, trials in found.items()}
    RESULTS.write_text(json.dumps({**brief, "trials": raw}, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(brief))


if __name__ == "__main__":
    main()
