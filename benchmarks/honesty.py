"""Does a trial call equal things equal, and worse things worse?

    python benchmarks/honesty.py [--only same slower harmful] [--rounds 50] [--slower 0.03]

same        a script against itself, --rounds times, each a whole trial as `hasten tune` makes it: at most one in twenty
            may be called faster or slower
slower      the same script, each step made longer by --slower: dropped by a trial; and called slower, with an interval
            below 1, where nobody gives up before it is clear
harmful     fixes that make things worse here: bfloat16 on a CPU without units for it (oneDNN told to leave them alone),
            workers for a dataset that costs nothing, compiling a script of ten seconds. None may be kept

Prints a table and one JSON line; every trial with its raw step times goes to benchmarks/results/honesty.json as it ends.
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
from collections.abc import Iterator
from pathlib import Path

import msgspec
import steady
from benches import bench_of

from hasten.launch.side import Bench, Frequencies
from hasten.launch.turns import POSSIBLE
from hasten.optimizations.catalog import CATALOG
from hasten.optimizations.optimization import Optimization
from hasten.records import Trial
from hasten.tuning.budget import charged
from hasten.tuning.trial import compare, try_fix
from hasten.tuning.trial_config import TrialConfig

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "honesty.json"
NO_RARE = Frequencies(by_phase={})
CONFIG = TrialConfig(turns=POSSIBLE)
CATALOG["slower"] = Optimization(
    name="slower",
    title="planted",
    guarantee="identical",
    answers=(),
    propose=lambda _: "planted",
    kind="number",
    enable=steady.slower,
)


def bench(*, script: Path = HERE / "steady.py", **variables: str) -> Bench:
    command = ["env", *(f"{name}={value}" for name, value in variables.items()), sys.executable, str(script)]
    return bench_of(command)


def same(folder: Path, wanted: argparse.Namespace) -> Iterator[Trial]:
    """The script against itself."""
    steady = bench()
    for _ in range(wanted.rounds):
        yield compare((steady, {}), (steady, {}), fix="nothing", frequencies=NO_RARE, config=CONFIG)


def slower(folder: Path, wanted: argparse.Namespace) -> Iterator[Trial]:
    """The script made slower, as a trial sees it and as a comparison that does not give up does."""
    steady = bench()
    for _ in range(max(1, wanted.rounds // 10)):
        for gives_up in (True, False):
            settings = {"slower": wanted.slower}
            trial = compare(
                (steady, {}), (steady, settings), fix="slower", frequencies=NO_RARE, config=CONFIG, gives_up=gives_up
            )
            yield msgspec.structs.replace(trial, note="as a trial" if gives_up else "to the end")


def harmful(folder: Path, _wanted: argparse.Namespace) -> Iterator[Trial]:
    """What makes things worse."""
    faulty = HERE.parent / "tests" / "faulty"
    without_units = bench(script=faulty / "full_precision.py", ONEDNN_MAX_CPU_ISA="AVX2")
    cheap = bench()
    cases = (
        ("bf16", True, without_units, None),
        ("num_workers", 2, cheap, None),
        ("compile", "default", cheap, 10.0),
    )
    for fix, value, chosen, seconds in cases:
        trial = try_fix(chosen, {}, {fix: value}, frequencies=NO_RARE, config=CONFIG)
        if seconds is not None and trial.baseline_seconds:  # a script that takes so long
            trial = charged(trial, num_steps=seconds / trial.baseline_seconds[0])
        yield trial


QUESTIONS = {"harmful": harmful, "slower": slower, "same": same}


def show(what: str, trial: Trial) -> None:
    speedup = trial.speedup
    figures = f"{speedup.value:.3f} ({speedup.low:.3f} to {speedup.high:.3f})" if speedup is not None else ""
    print(
        f"{what:12} {trial.fix:12} {trial.verdict:14} {figures:28} {len(trial.baseline_seconds):2} pairs {trial.note}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, default=[*QUESTIONS], metavar="QUESTION")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--slower", type=float, default=0.03)
    wanted = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hasten-bench-honesty-"))
    found = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    try:
        for question in wanted.only:
            found[question] = {
                "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
                "load_before": os.getloadavg()[0],
                "slower_share": wanted.slower,
            }
            trials: list[Trial] = []
            for trial in QUESTIONS[question](folder, wanted):
                trials.append(trial)
                show(f"{question} {len(trials)}", trial)
                found[question]["verdicts"] = Counter(t.verdict for t in trials)
                found[question]["trials"] = json.loads(msgspec.json.encode(trials))
                RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    brief = {name: {k: v for k, v in told.items() if k != "trials"} for name, told in found.items()}
    print(json.dumps({"benchmark": "honesty", **brief}))


if __name__ == "__main__":
    main()
