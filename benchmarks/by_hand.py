"""What fixing each faulty script by hand really gains, with nobody measuring inside it.

Every script of tests/faulty runs as it is and with --fixed, in turn (A B B A ...), each time to a smaller and to
a larger number of optimizer steps; the difference of the two wall times over the difference of the steps is the
steady step time, start-up and warm-up left out. The larger number is such that the difference is many times what
start-ups vary by. Whole epochs are compared, and small_batch by the sample.

    python benchmarks/by_hand.py [--only KIND ...] [--rounds 4] [--seconds 6]

Prints a table and one JSON line; the raw times go to benchmarks/results/by_hand.json.
"""

import argparse
import ast
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "tests" / "faulty"
RESULTS = ROOT / "benchmarks" / "results" / "by_hand.json"


@dataclass(frozen=True, kw_only=True)
class Case:
    """How many steps tell a script's steady step time, on either side: few, and many to begin with."""

    faulty: tuple[int, int]
    fixed: tuple[int, int]
    period: int = 1  # steps in an epoch, or between validations: the counts are multiples of it
    fixed_steps: float = 1.0  # fixed steps that do the work of one faulty step


CASES = {
    "slow_read": Case(faulty=(20, 100), fixed=(100, 2100)),
    "slow_decode": Case(faulty=(20, 80), fixed=(50, 650)),
    "slow_transform": Case(faulty=(10, 50), fixed=(20, 200)),
    "slow_transform_python": Case(faulty=(20, 120), fixed=(40, 340)),
    "slow_collate": Case(faulty=(40, 240), fixed=(50, 550)),
    "too_few_workers": Case(faulty=(10, 70), fixed=(20, 120)),
    "too_many_workers": Case(faulty=(256, 768), fixed=(256, 1792), period=512),
    "worker_startup": Case(faulty=(20, 320), fixed=(100, 2100), period=10),
    "python_bound_data": Case(faulty=(195, 975), fixed=(195, 3120), period=195),
    "python_bound_custom": Case(faulty=(50, 650), fixed=(100, 3100)),
    "shallow_prefetch": Case(faulty=(60, 540), fixed=(60, 780), period=60),
    "sync_points": Case(faulty=(120, 920), fixed=(200, 2200), period=40),
    "launch_bound": Case(faulty=(50, 350), fixed=(50, 1550)),
    "full_precision": Case(faulty=(10, 50), fixed=(10, 90)),
    "full_precision_float64": Case(faulty=(50, 450), fixed=(50, 850)),
    "channels_first": Case(faulty=(10, 60), fixed=(10, 160)),
    "unfused_optimizer": Case(faulty=(50, 300), fixed=(50, 550)),
    "zero_grad_in_place": Case(faulty=(20, 270), fixed=(20, 420)),
    "anomaly_detection": Case(faulty=(50, 300), fixed=(100, 900)),
    "profiler_on": Case(faulty=(100, 400), fixed=(100, 1600), period=50),
    "validation_gradients": Case(faulty=(100, 700), fixed=(100, 1000), period=10),
    "validation_often": Case(faulty=(100, 900), fixed=(200, 3200), period=100),
    "checkpoint_often": Case(faulty=(200, 800), fixed=(200, 1800), period=200),
    "logging_each_step": Case(faulty=(200, 1600), fixed=(200, 3200), period=100),
    "page_faults": Case(faulty=(5, 25), fixed=(5, 35)),
    "thread_contention": Case(faulty=(50, 250), fixed=(100, 900)),
    "denormals": Case(faulty=(50, 150), fixed=(200, 2200)),
    "small_batch": Case(faulty=(100, 900), fixed=(50, 550), fixed_steps=2 / 64),
    "script_bound": Case(faulty=(100, 1100), fixed=(100, 2100)),
    "slow_transport": Case(faulty=(20, 120), fixed=(50, 550)),
    "slow_transport_objects": Case(faulty=(100, 1100), fixed=(100, 2100)),
    "waiting_samples": Case(faulty=(10, 70), fixed=(50, 550)),
    "waiting_samples_main": Case(faulty=(20, 170), fixed=(50, 450)),
    "waiting_samples_lock": Case(faulty=(10, 60), fixed=(100, 1100)),
    "shallow_prefetch_few": Case(faulty=(40, 360), fixed=(40, 520), period=40),
    "slow_sampler": Case(faulty=(100, 900), fixed=(200, 4200)),
    "slow_sampler_workers": Case(faulty=(20, 120), fixed=(50, 550)),
    "short_full_precision": Case(faulty=(4, 24), fixed=(4, 44)),
    "short_anomaly_detection": Case(faulty=(10, 90), fixed=(20, 320)),
    "short_validation_gradients": Case(faulty=(12, 72), fixed=(12, 120), period=12),
    "amp_switched_off": Case(faulty=(5, 25), fixed=(5, 45)),
    "crowded_decode": Case(faulty=(10, 60), fixed=(10, 80)),
}


STEPS: dict[tuple[str, bool], int] = {}  # the larger number that was found long enough


def seconds_of(script: Path, *, steps: int, fixed: bool) -> float:
    """Wall time of one run of the script, from start to exit."""
    command = [sys.executable, str(script), "--steps", str(steps)] + ["--fixed"] * fixed
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def step_time(name: str, case: Case, *, fixed: bool, seconds: float) -> dict[str, float]:
    """One pair of runs: both wall times, and the seconds a faulty step's work takes."""
    few, many = case.fixed if fixed else case.faulty
    many = STEPS.get((name, fixed), many)
    script = SCRIPTS / f"{name}.py"
    short = seconds_of(script, steps=few, fixed=fixed)
    while True:
        long = seconds_of(script, steps=many, fixed=fixed)
        if long - short > 0.6 * seconds or many > 200_000:
            break
        # Not long enough to tell; a first guess from a difference that may be mostly noise grows step by step.
        growth = min(8.0, max(2.0, seconds / max(long - short, 1e-3)))
        many = few + round((many - few) * growth / case.period) * case.period
    STEPS[name, fixed] = many
    a_step = (long - short) / (many - few) * (case.fixed_steps if fixed else 1.0)
    return {"few": few, "many": many, "short_seconds": short, "long_seconds": long, "step_seconds": a_step}


def compare(name: str, case: Case, *, rounds: int, seconds: float) -> dict[str, object]:
    """Both sides in turn, the order turned round at every round."""
    sides: dict[str, list[dict[str, float]]] = {"faulty": [], "fixed": []}
    load = []
    for number in range(rounds):
        for side in ("faulty", "fixed") if number % 2 == 0 else ("fixed", "faulty"):
            load.append(os.getloadavg()[0])
            sides[side].append(step_time(name, case, fixed=side == "fixed", seconds=seconds))
    return {"kind": expected_kind(SCRIPTS / f"{name}.py"), "load_before": load, **summary(sides), "runs": sides}


def summary(sides: dict[str, list[dict[str, float]]]) -> dict[str, object]:
    """Medians of the rounds, and the smallest and largest gain of any round."""
    faulty = [run["step_seconds"] for run in sides["faulty"]]
    fixed = [run["step_seconds"] for run in sides["fixed"]]
    gains = [before - after for before, after in zip(faulty, fixed)]
    gain = statistics.median(faulty) - statistics.median(fixed)
    return {
        "faulty_seconds": statistics.median(faulty),
        "fixed_seconds": statistics.median(fixed),
        "gain_seconds": gain,
        "gain_range": [min(gains), max(gains)],
        "gain_share": gain / statistics.median(faulty),
    }


def expected_kind(script: Path) -> str:
    """The finding that the first line of the script's docstring announces."""
    docstring = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    return docstring.splitlines()[0].removeprefix("Expected finding: ").rstrip(".")


def print_row(name: str, result: dict) -> None:
    faulty, fixed, gain = (1e3 * result[f"{what}_seconds"] for what in ("faulty", "fixed", "gain"))
    spread = " .. ".join(f"{1e3 * seconds:.2f}" for seconds in result["gain_range"])
    print(f"{name:24}{faulty:10.2f}{fixed:10.2f}{gain:10.2f}   {spread:<22}{result['gain_share']:6.0%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=sorted(CASES), default=list(CASES), metavar="SCRIPT")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=6.0, help="the larger number of steps takes so much longer")
    arguments = parser.parse_args()
    report = {
        "benchmark": "by_hand",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "scripts": {},
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    if arguments.only != list(CASES) and RESULTS.exists():
        report["scripts"] = json.loads(RESULTS.read_text(encoding="utf-8"))["scripts"]  # the others stay
    print(f"{'':24}{'faulty':>10}{'fixed':>10}{'gain':>10}")
    print(
        f"{'':24}{'ms/step':>10}{'ms/step':>10}{'ms/step':>10}   {'smallest .. largest':<22}{'share':>6}", flush=True
    )
    for name in arguments.only:
        result = compare(name, CASES[name], rounds=arguments.rounds, seconds=arguments.seconds)
        report["scripts"][name] = {"rounds": arguments.rounds, **result}
        RESULTS.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print_row(name, result)
    brief = {name: {k: v for k, v in r.items() if k != "runs"} for name, r in report["scripts"].items()}
    print(json.dumps({**report, "scripts": brief}))


if __name__ == "__main__":
    main()
