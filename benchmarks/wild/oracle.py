"""What the best of all settings gains on one script: every optimization alone, then the helpful ones together, greedily.

It asks no diagnosis what is worth a trial; the only choice is the list of values below. Sides are launched in pairs that take
turns. Speed alone counts: whether the model trains as well is the proof's affair, and what it dropped is told apart.

Run in the script's folder, by `wild.py`: python oracle.py OUT.json SITUATION.json COMMAND...
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path

from hasten.errors import PlanError
from hasten.launch.side import Bench, Frequencies, SideError
from hasten.measurement.diagnose import situation_of
from hasten.optimizations.catalog import checked
from hasten.records import Run, Settings, from_json
from hasten.sandbox.workspace import Workspace
from hasten.stats import paired_speedup
from hasten.tuning.trial import Sides
from hasten.tuning.trial_config import config_for

ALONE: tuple[Settings, ...] = (
    {"bf16": True},
    {"channels_last": True},
    {"fused_optimizer": True},
    {"set_to_none": True},
    {"no_debug": True},
    {"no_grad_validation": True},
    {"cpu_threads": 1},
    {"allocator": "glibc"},
    {"flush_denormal": True},
    {"num_workers": 1},
    {"num_workers": 2},
    {"persistent_workers": True},
    {"prefetch_factor": 8},
    {"loader": True},
    {"cache": "auto"},
    {"decode": True},
    {"resize": True},
    {"gather": True},
    {"loader": True, "pixels": "close"},
    {"omp_wait": "passive"},
)
COMPILE: Settings = {"compile": "default"}  # minutes of its own: only with --compile
TIES = 1.02  # a speedup that may be luck
PAIRS = 3  # where a choice depends on it


class Oracle:
    """One script's speedups."""

    def __init__(self, bench: Bench, run: Run) -> None:
        self.bench = bench
        self.first = situation_of(run, {})
        self.frequencies = Frequencies.of(run.facts)

    def speedup(
        self, before: Settings, after: Settings, *, pairs: int
    ) -> tuple[float, float | None, float | None] | str:
        """`before`'s step time over `after`'s with its interval; or why `after` cannot be run."""
        sides = Sides()
        config = config_for(self.first, {**before, **after})
        try:
            for _ in range(pairs):
                sides.add_pair((self.bench, before), (self.bench, after), config)
        except SideError as error:
            return str(error)
        one, other = sides.seconds(self.frequencies)
        if pairs < 2:
            return (one[0] / other[0], None, None)
        estimate = paired_speedup(one, other, looks=False)
        return (estimate.value, estimate.low, estimate.high)


def better(oracle: Oracle, before: Settings, after: Settings) -> float | None:
    """The speedup if it is more than luck."""
    found = oracle.speedup(before, after, pairs=PAIRS)
    if isinstance(found, str):
        return None
    value, low, _ = found
    return value if value > TIES and low is not None and low > 2.0 - value else None


def measure(oracle: Oracle, out: Path, *, plan: Settings, candidates: tuple[Settings, ...] = ALONE) -> None:
    """Write what was found, as it is found."""
    known: dict[str, object] = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    began = time.monotonic()

    def keep(**more: object) -> None:
        known.update(more)
        out.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")

    alone: dict[str, object] = dict(known.get("alone", {}))  # type: ignore[call-overload]
    for settings in candidates:
        key = json.dumps(settings)
        if key not in alone:
            alone[key] = oracle.speedup({}, settings, pairs=1)
            print(f"{settings}: {alone[key]}", file=sys.stderr, flush=True)
            keep(alone=alone)
    gains = {key: found[0] for key, found in alone.items() if isinstance(found, (list, tuple))}
    best: Settings = {}
    for key in sorted((key for key in gains if gains[key] > TIES), key=lambda key: -gains[key]):
        more: Settings = json.loads(key)
        if all(best.get(name) == value for name, value in more.items()):
            continue
        try:
            together = checked({**best, **more})
        except PlanError:
            continue
        if better(oracle, best, together) is not None:
            best = together
            print(f"best so far: {best}", file=sys.stderr, flush=True)
            keep(best=best)
    keep(best=best)
    keep(best_speedup=oracle.speedup({}, best, pairs=4) if best else (1.0, 1.0, 1.0))
    # The plan's regret is measured side by side with the best.
    same = plan == best
    keep(plan=plan, reached=(1.0, 1.0, 1.0) if same else oracle.speedup(best, plan, pairs=4))
    if plan and not same:
        keep(plan_speedup=oracle.speedup({}, plan, pairs=4))
    keep(
        oracle_seconds=time.monotonic() - began,
        load=os.getloadavg()[0],
        gains_median=statistics.median(gains.values()),
    )


def main() -> None:
    out, situation, *command = sys.argv[1:]
    content = json.loads(Path(situation).read_text(encoding="utf-8"))
    run = from_json(Run, Path(content["run"]).read_bytes(), source=content["run"])
    with Workspace() as workspace:
        measure(Oracle(Bench(command, workspace, patience=120.0), run), Path(out), plan=content["plan"])


if __name__ == "__main__":
    main()
