"""How near does the search come to the best of all combinations, and with how many trials?

Each workload is tuned as a user would tune it. Then every combination of the switches is launched once, in an order drawn
by lot, and the eight fastest thrice more, in turn, so that luck does not choose; the fastest by its median is the best.
At last the plan that was found and the best run in turn, in pairs.

    python benchmarks/search.py [--only WORKLOAD ...] [--budget 600] [--rounds 6] [--again]

combinations   in the grid, of which each is one trial
trials         that the search made, its proof counted as one
reached        the plan's speed over the best's, with its 95 % interval

--again takes the grid from the committed results and measures only the search and the last comparison. Prints a table and
one JSON line; everything that was measured goes to benchmarks/results/search/WORKLOAD.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benches import bench_of
from tune import first_run, tuned

from hasten.diagnosis.situation import Situation
from hasten.errors import PlanError
from hasten.launch.side import Frequencies, SideError
from hasten.measurement.diagnose import situation_of
from hasten.optimizations.catalog import checked
from hasten.records import Settings, Value, to_json
from hasten.stats import paired_speedup
from hasten.tuning.trial import Sides, side
from hasten.tuning.trial_config import config_for

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "search"
FINALISTS, REPEATS = 8, 3
INPUT: dict[str, Sequence[Value]] = {"num_workers": (False, 1, 2), "loader": (False, True)}
COMPUTE: dict[str, Sequence[Value]] = {"bf16": (False, True), "channels_last": (False, True)}
GRIDS: dict[str, dict[str, Sequence[Value]]] = {
    "slow_decode": {**INPUT, "cache": (False, "auto"), "decode": (False, True), **COMPUTE},
    "slow_transform": {**INPUT, "cache": (False, "auto"), "pixels": (False, "close"), **COMPUTE},
    "python_bound_data": {
        "num_workers": (False, 1, 2),
        "gather": (False, True),
        "loader": (False, True),
        "bf16": (False, True),
        "fused_optimizer": (False, True),
        "cpu_threads": (False, 1),
    },
    "channels_first": {
        **COMPUTE,
        "allocator": (False, "glibc"),
        "fused_optimizer": (False, True),
        "set_to_none": (False, True),
        "flush_denormal": (False, True),
    },
}


def combinations(grid: dict[str, Sequence[Value]]) -> list[Settings]:
    """Every combination that makes sense, without what is off."""
    found: list[Settings] = []
    for values in itertools.product(*grid.values()):
        settings = {name: value for name, value in zip(grid, values) if value is not False}
        try:
            found.append(checked(settings))
        except PlanError:
            continue
    return found


def key_of(settings: Settings) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items()) or "nothing"


class Workload:
    """One script, tuned and searched through."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.script = ROOT / "tests" / "faulty" / f"{name}.py"
        self.bench = bench_of([sys.executable, str(self.script)])

    def tune(self, *, budget: float) -> None:
        """Search as a user does."""
        self.tuning, self.took = tuned(self.script, self.folder, budget=budget)
        run = first_run(self.tuning, self.folder)
        self.first: Situation = situation_of(run, {})
        self.frequencies = Frequencies.of(run.facts)

    def step_seconds(self, settings: Settings) -> float | None:
        """One launch's seconds a step; None where the script does not train under these settings."""
        try:
            seen = side(self.bench, settings, config_for(self.first, settings))
        except SideError:
            return None
        return self.frequencies.step_seconds(seen, phases=list(seen.parts))

    def grid(self) -> dict[str, list[float]]:
        """Seconds a step of every combination, the fastest several times."""
        every = {key_of(settings): settings for settings in combinations(GRIDS[self.name])}
        order = list(every)
        random.Random(0).shuffle(order)
        found: dict[str, list[float]] = {}
        for number, key in enumerate(order):
            taken = self.step_seconds(every[key])
            if taken is not None:
                found[key] = [taken]
            print(f"\r{self.name}: {number + 1} of {len(order)}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        finalists = sorted(found, key=lambda key: found[key][0])[:FINALISTS]
        for _ in range(REPEATS):
            for key in finalists:
                taken = self.step_seconds(every[key])
                if taken is not None:
                    found[key].append(taken)
        return found

    def against(self, best: Settings, *, rounds: int) -> Sides:
        """The best and the plan, in turn."""
        sides = Sides()
        config = config_for(self.first, {**best, **self.tuning.settings})
        for _ in range(rounds):
            sides.add_pair((self.bench, best), (self.bench, self.tuning.settings), config)
        return sides


def finalists_of(found: dict[str, list[float]]) -> list[str]:
    """Those that were measured most often, the fastest first."""
    most = max(map(len, found.values()))
    finalists = [key for key in found if len(found[key]) == most]
    return sorted(finalists, key=lambda key: statistics.median(found[key]))


def measure(name: str, *, budget: float, rounds: int, known: dict[str, list[float]] | None) -> dict[str, object]:
    folder = Path(tempfile.mkdtemp(prefix="hasten-bench-search-"))
    load = os.getloadavg()[0]
    try:
        workload = Workload(name, folder)
        workload.tune(budget=budget)
        found = known or workload.grid()
        by_key = {key_of(settings): settings for settings in combinations(GRIDS[name])}
        # A fix that could be applied when the grid was measured may refuse to be by now.
        best = next(by_key[key] for key in finalists_of(found) if workload.step_seconds(by_key[key]) is not None)
        sides = workload.against(best, rounds=rounds)
        of_best, of_plan = sides.seconds(workload.frequencies)
        return {
            "load_before": load,
            "combinations": len(combinations(GRIDS[name])),
            "trials": len(workload.tuning.trials) + (workload.tuning.proof is not None),
            "search_seconds": workload.took,
            "plan": workload.tuning.settings,
            "tuning": json.loads(to_json(workload.tuning)),
            "best": best,
            "reached": paired_speedup(of_best, of_plan, looks=False),
            "step_seconds": {"best": of_best, "plan": of_plan},
            "grid": found,
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=GRIDS, default=list(GRIDS), metavar="WORKLOAD")
    parser.add_argument("--budget", type=float, default=600.0)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--again", action="store_true")
    wanted = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    brief: dict[str, object] = {}
    for name in wanted.only:
        path = RESULTS / f"{name}.json"
        known = json.loads(path.read_text(encoding="utf-8"))["grid"] if wanted.again else None
        result = measure(name, budget=wanted.budget, rounds=wanted.rounds, known=known)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        value, low, high = result["reached"]  # type: ignore[misc]
        print(f"{name}: plan {key_of(result['plan'])}, best {key_of(result['best'])}")  # type: ignore[arg-type]
        print(
            f"  reached {value:.3f} ({low:.3f} to {high:.3f}) with {result['trials']} trials of "
            f"{result['combinations']} combinations",
            flush=True,
        )
        brief[name] = {k: v for k, v in result.items() if k not in ("grid", "step_seconds", "tuning")}
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    print(json.dumps({"benchmark": "search", "machine": machine, "workloads": brief}))


if __name__ == "__main__":
    main()
