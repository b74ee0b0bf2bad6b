"""What the best of all settings gains on one script: every optimization alone, then the helpful ones together, greedily.

It asks no diagnosis what is worth a trial; the only choice is the list of values below. Sides are launched in pairs that take
turns. Speed alone counts: whether the model trains as well is the proof's affair, and what it dropped is told apart.

Run in the script's folder, by `wild.py`: python oracle.py OUT.json SITUATION.json COMMAND...
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from hasten.errors import PlanError
from hasten.launch.side import Bench, Frequencies, SideError
from hasten.measurement.diagnose import situation_of
from hasten.optimizations.catalog import GROUPS, checked
from hasten.records import Run, Settings, from_json
from hasten.sandbox.workspace import Workspace
from hasten.stats import paired_speedup
from hasten.tuning.trial import Sides
from hasten.tuning.trial_config import config_for

ALONE: tuple[Settings, ...] = (
    {"bf16": True},
    {"matmul_precision": "medium"},
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
TIES = 1.02  # a speedup that may be luck
PAIRS = 3  # where a choice depends on it


class Oracle:
    """One script's speedups."""

    def __init__(self, bench: Bench, run: Run) -> None:
        self.bench = bench
        self.first = situation_of(run, {})
        self.frequencies = Frequencies.of(run.facts)

    def changes_nothing(self, settings: Settings) -> bool:
        """Whether the settings are about a loader, or workers, that the script does not have, or has already."""
        train = self.first.case.train
        if train is None:
            return bool({*settings} & {one.name for one in GROUPS["Input"]})
        needs_workers = {"persistent_workers", "prefetch_factor"} & {*settings}
        return settings.get("num_workers") == train.num_workers or bool(needs_workers and not train.num_workers)

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


def search(oracle: Oracle, out: Path) -> None:
    """Every optimization alone, then the helpful ones together; written as it is found."""
    known: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    began = time.monotonic()
    alone = known.setdefault("alone", {})
    for settings in ALONE:
        key = json.dumps(settings)
        if key not in alone and not oracle.changes_nothing(settings):
            alone[key] = oracle.speedup({}, settings, pairs=1)
            print(f"{settings}: {alone[key]}", file=sys.stderr, flush=True)
            _write(out, known)
    gains = {key: found[0] for key, found in alone.items() if isinstance(found, (list, tuple))}
    best: Settings = {}
    added = known["added"] = {}
    for key in sorted((key for key in gains if gains[key] > TIES), key=lambda key: -gains[key]):
        more: Settings = json.loads(key)
        if all(best.get(name) == value for name, value in more.items()):
            continue
        try:
            together = checked({**best, **more})
        except PlanError:
            continue
        found = added[key] = oracle.speedup(best, together, pairs=PAIRS)
        if not isinstance(found, str) and found[0] > TIES and (found[1] or 0.0) > 2.0 - found[0]:
            best = known["best"] = together
            print(f"best so far: {best}", file=sys.stderr, flush=True)
        _write(out, known)
    known["best"] = best
    known["best_speedup"] = oracle.speedup({}, best, pairs=4) if best else (1.0, 1.0, 1.0)
    _write(out, {**known, "seconds": time.monotonic() - began, "load": os.getloadavg()[0]})


def reach(oracle: Oracle, out: Path, *, best: Settings, plan: Settings) -> None:
    """How fast a plan is beside the best of all settings, and beside the script as it is."""
    began = time.monotonic()
    reached = (1.0, 1.0, 1.0) if plan == best else oracle.speedup(best, plan, pairs=4)
    speedup = oracle.speedup({}, plan, pairs=4) if plan else (1.0, 1.0, 1.0)
    _write(out, {"reached": reached, "speedup": speedup, "seconds": time.monotonic() - began})


def _write(out: Path, content: object) -> None:
    out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    out, situation, *command = sys.argv[1:]
    content = json.loads(Path(situation).read_text(encoding="utf-8"))
    run = from_json(Run, Path(content["run"]).read_bytes(), source=content["run"])
    with Workspace() as workspace:
        oracle = Oracle(Bench(command, workspace, patience=120.0), run)
        if "plan" in content:
            reach(oracle, Path(out), best=content["best"], plan=content["plan"])
        else:
            search(oracle, Path(out))


if __name__ == "__main__":
    main()
