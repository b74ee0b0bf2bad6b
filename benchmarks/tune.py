"""Does `hasten tune` find what each planted fault calls for, and how near does the plan come to fixing it by hand?

Every script of tests/faulty is tuned as a user would tune it; then the script as it is, the script under the plan and the
script with --fixed are compared two by two, in the config of trials. Where what is fixed is how often something comes
(validation, checkpoints), trials cannot tell: there whole runs are timed, to fewer and to more steps, as by_hand.py does.

    python benchmarks/tune.py [--only SCRIPT ...] [--budget 300] [--rounds 4]

    fix        whether the plan has a fix that answers the script's finding (or a suggestion for the source does)
    plan       script / plan step time; 95 % interval over the rounds
    by hand    script / fixed step time
    reached    the plan's speed over that of the fixed script

Prints a table and one JSON line; everything that was measured goes to benchmarks/results/tune/SCRIPT.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benches import bench_of
from by_hand import CASES, SCRIPTS, Case, expected_kind

from hasten.launch.side import Frequencies
from hasten.measurement.diagnose import situation_of
from hasten.optimizations.catalog import CATALOG
from hasten.records import Run, Settings, Tuning, from_json, to_json
from hasten.stats import Estimate, paired_speedup
from hasten.tuning.trial import Sides
from hasten.tuning.trial_config import config_for

RESULTS = Path(__file__).resolve().parent / "results" / "tune"
HOW_OFTEN = ("validation_often", "checkpoint_often")
HEALTHY = ("healthy", "healthy_accumulation", "healthy_heavy_model", "healthy_no_workers")


def tuned(script: Path, folder: Path, *, budget: float) -> tuple[Tuning, float]:
    """The search, made by the command line, and the seconds it took."""
    command = [sys.executable, "-m", "hasten", "tune", "--budget", f"{budget}s", str(script)]
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    took = time.perf_counter() - start
    (saved,) = (folder / ".hasten" / "tunings").glob("*/tuning.json")
    return from_json(Tuning, saved.read_bytes(), source=str(saved)), took


def first_run(tuning: Tuning, folder: Path) -> Run:
    path = folder / ".hasten" / "runs" / tuning.runs[0] / "run.json"
    return from_json(Run, path.read_bytes(), source=str(path))


def answers(tuning: Tuning, kind: str) -> list[str]:
    """What of the plan answers the finding."""
    fixes = [name for name in tuning.settings if kind in CATALOG[name].answers]
    return fixes + ["suggestion" for one in tuning.suggestions if one.kind == kind]


@dataclass(frozen=True)
class Compared:
    """Two commands, a pair of launches a round."""

    one: list[float]
    other: list[float]

    @property
    def speedup(self) -> Estimate:
        return paired_speedup(self.one, self.other, looks=False)


def comparisons(
    script: Path, tuning: Tuning, run: Run, folder: Path, *, rounds: int, fixed_steps: float
) -> dict[str, Compared]:
    """The script against the plan, against the fixed script, and these two against each other."""
    config = config_for(situation_of(run, {}), tuning.settings)
    commands = {"script": [script], "plan": [script], "fixed": [script, "--fixed"]}
    benches = {side: bench_of([sys.executable, *map(str, words)]) for side, words in commands.items()}
    settings: dict[str, Settings] = {"script": {}, "plan": tuning.settings, "fixed": {}}
    work = {"script": 1.0, "plan": 1.0, "fixed": fixed_steps}  # steps that do the work of one faulty step
    found: dict[str, Compared] = {}
    for name, (one, other) in {
        "speedup": ("script", "plan"),
        "by_hand": ("script", "fixed"),
        "reached": ("fixed", "plan"),
    }.items():
        sides = Sides()
        for _ in range(rounds):
            sides.add_pair((benches[one], settings[one]), (benches[other], settings[other]), config)
        first, second = sides.seconds(Frequencies.of(run.facts))
        found[name] = Compared([s * work[one] for s in first], [s * work[other] for s in second])
    return found


def whole_comparisons(script: Path, tuning: Tuning, folder: Path, case: Case, *, rounds: int) -> dict[str, Compared]:
    """The same three, by the difference of whole runs to fewer and to more steps, in turn."""
    plan = [sys.executable, "-m", "hasten", "run", "--plan", str(folder / "hasten.toml")]
    sides = {
        "script": ([sys.executable, str(script)], case.faulty),
        "plan": ([*plan, str(script)], case.fixed),
        "fixed": ([sys.executable, str(script), "--fixed"], case.fixed),
    }
    taken: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds):
        for side in list(sides)[:: 1 if number % 2 == 0 else -1]:
            command, counts = sides[side]
            few, many = (timed([*command, "--steps", str(steps)], folder) for steps in counts)
            taken[side].append((many - few) / (counts[1] - counts[0]))
    return {
        "speedup": Compared(taken["script"], taken["plan"]),
        "by_hand": Compared(taken["script"], taken["fixed"]),
        "reached": Compared(taken["fixed"], taken["plan"]),
    }


def timed(command: list[str], folder: Path) -> float:
    """Wall seconds of a command."""
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def measure(name: str, *, budget: float, rounds: int) -> dict[str, object]:
    """One script, tuned and compared."""
    script = SCRIPTS / f"{name}.py"
    kind = expected_kind(script)
    folder = Path(tempfile.mkdtemp(prefix="hasten-bench-tune-"))
    load = os.getloadavg()[0]
    try:
        tuning, took = tuned(script, folder, budget=budget)
        result: dict[str, object] = {
            "kind": kind,
            "load_before": load,
            "seconds": took,
            "settings": tuning.settings,
            "answers": answers(tuning, kind),
            "tuning": json.loads(to_json(tuning)),
        }
        if tuning.settings and name in CASES:
            case, run = CASES[name], first_run(tuning, folder)
            found = (
                whole_comparisons(script, tuning, folder, case, rounds=rounds)
                if name in HOW_OFTEN
                else comparisons(script, tuning, run, folder, rounds=rounds, fixed_steps=case.fixed_steps)
            )
            for what, compared in found.items():
                result[what] = compared.speedup
                result[f"{what}_seconds"] = [compared.one, compared.other]
        return result
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def print_row(name: str, result: dict) -> None:
    plan = " ".join(f"{key}={value}" for key, value in result["settings"].items()) or "empty"
    fix = "-" if name in HEALTHY else "yes" if result["answers"] else "NO"
    figures = "".join(
        f"{value:8.2f} ({low:.2f} to {high:.2f})".ljust(26) if (value, low, high) else ""
        for value, low, high in (result[key] for key in ("speedup", "by_hand", "reached") if key in result)
    )
    print(f"{name:24} {fix:4} {result['seconds']:5.0f} s {figures or ' ':80} {plan}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    every = [*CASES, *HEALTHY]
    parser.add_argument("--only", nargs="+", choices=every, default=every, metavar="SCRIPT")
    parser.add_argument("--budget", type=float, default=300.0)
    parser.add_argument("--rounds", type=int, default=4)
    wanted = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    brief: dict[str, object] = {}
    print(f"{'':24} fix    took     plan                     by hand                   reached")
    for name in wanted.only:
        try:
            result = measure(name, budget=wanted.budget, rounds=wanted.rounds)
        except (subprocess.CalledProcessError, RuntimeError) as error:
            print(f"{name:24} failed: {error}", flush=True)
            continue
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        brief[name] = {
            key: value for key, value in result.items() if key != "tuning" and not key.endswith("_seconds")
        }
        print_row(name, result)
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    print(json.dumps({"benchmark": "tune", "machine": machine, "scripts": brief}))


if __name__ == "__main__":
    main()
