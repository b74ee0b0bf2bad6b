"""What the best of all settings gains on one script: every optimization alone, then the helpful ones together, greedily.

It asks no rule what is worth a trial: all values of the list below are tried, but those about something that the script was
not seen to do (a layout without convolutions, workers without a loader). Sides are launched together and take turns. Speed alone counts: whether the model trains as well is the proof's affair, and what it dropped is told apart.

Run in the script's folder, by `wild.py`: python oracle.py OUT.json SITUATION.json COMMAND...
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hasten.errors import PlanError
from hasten.launch.side import Bench, Frequencies, NotAppliedError, SideError
from hasten.measurement.diagnose import situation_of
from hasten.optimizations.catalog import GROUPS, checked
from hasten.records import Run, Settings, from_json
from hasten.sandbox.workspace import Workspace
from hasten.stats import paired_speedup
from hasten.tuning.trial import Sides, side_by_side
from hasten.tuning.trial_config import KEEPING, config_for

ALONE: tuple[Settings, ...] = (
    {"bf16": True},
    {"matmul_precision": "medium"},
    {"channels_last": True},
    {"allocator": "glibc"},
    {"cpu_threads": 1},
    {"flush_denormal": True},
    {"omp_wait": "passive"},
    {"fused_optimizer": True},
    {"set_to_none": True},
    {"no_debug": True},
    {"no_grad_validation": True},
    {"num_workers": 1},
    {"num_workers": 2},
    {"persistent_workers": True},
    {"prefetch_factor": 8},
    {"loader": True},
    {"loader": True, "pixels": "close"},
    {"decode": True},
    {"resize": True},
    {"gather": True},
    {"cache": "auto"},
)
TIES = 1.02  # a speedup that may be luck
ROUNDS, REACHED_ROUNDS = 3, 4  # of what gains, and of a figure of the table
# Settings about what does not come in every step, or that a few steps say nothing about.
RARELY = {"no_grad_validation", "persistent_workers", "num_workers", "prefetch_factor", *KEEPING}
SECONDS, FEWEST_STEPS = 3.0, 5  # for which the others are tried
MOST_AT_ONCE = 5  # launches

Found = tuple[float, float | None, float | None] | str


class Oracle:
    """One script's speedups."""

    def __init__(self, bench: Bench, run: Run) -> None:
        self.bench = bench
        self.run = run
        self.first = situation_of(run, {})
        self.frequencies = Frequencies.of(run.facts)
        peak = max((sample.resident_bytes for sample in run.resources), default=0)
        # Launches that take turns, the script as it is among them.
        self.most = max(2, min(MOST_AT_ONCE, int(run.machine.memory_available_bytes / max(1, peak))))

    def changes_nothing(self, settings: Settings) -> bool:
        """Whether the settings are about something that the script was not seen to do, or has already."""
        facts, train, names = self.run.facts, self.first.case.train, {*settings}
        absent = {
            "bf16": facts.autocast,
            "channels_last": not any(m.num_convolutions for m in facts.models),
            "fused_optimizer": all(optimizer.fused for optimizer in facts.optimizers),
            "set_to_none": not facts.zero_grad_in_place,
            "no_debug": not (facts.anomaly_detection or facts.profiler),
            "no_grad_validation": not facts.validation_grad,
        }
        if any(absent.get(name) for name in names):
            return True
        if train is None:
            return bool(names & {one.name for one in GROUPS["Input"]})
        decodes = any(stage.name == "decode" for stage in train.stages)
        needs_workers = {"persistent_workers", "prefetch_factor"} & names
        return (
            settings.get("num_workers") == train.num_workers
            or bool(needs_workers and not train.num_workers)
            or bool({"decode", "resize", "pixels"} & names and not decodes)
        )

    def rounds(self, sides: Sequence[Settings], *, number: int) -> list[list[float]]:
        """Seconds a step of each side, in so many rounds. Raises SideError.

        The first is what the others are held against: all of them take turns, one launch of each in a round.
        """
        together = {name: value for one in sides for name, value in one.items()}
        config = config_for(self.first, together)
        if not RARELY & {*together}:
            config = replace(config, seconds=min(config.seconds, max(SECONDS, FEWEST_STEPS * self.first.case.step)))
        times: list[list[float]] = [[] for _ in sides]
        for round_number in range(number):
            first = round_number % len(sides)  # another one in each round
            launches = [(self.bench, settings) for settings in (*sides[first:], *sides[:first])]
            results = side_by_side(launches, config)
            results = results[len(results) - first :] + results[: len(results) - first]
            seen = Sides(baseline=results[:1] * len(sides), candidate=results)
            for own, seconds in zip(times, seen.seconds(self.frequencies)[1]):
                own.append(seconds)
        return times

    def beside(self, before: Settings, added: Sequence[Settings]) -> list[tuple[float, float] | str]:
        """Of one round: seconds a step with `before`, and with each added to it; or why one cannot be run."""
        if len(added) > 1 and len(added) >= self.most:
            return [self.beside(before, [one])[0] for one in added]
        try:
            (same,), *others = self.rounds([before, *({**before, **one} for one in added)], number=1)
        except SideError as error:
            if len(added) == 1:
                return [str(error)]
            if not isinstance(error, NotAppliedError):
                return [self.beside(before, [one])[0] for one in added]
            name = str(error).partition(" ")[0]
            rest = [one for one in added if name not in one]
            found = iter(self.beside(before, rest) if rest else [])
            return [str(error) if name in one else next(found) for one in added]
        return [(same, other) for (other,) in others]

    def helpful(self, before: Settings, waiting: Sequence[Settings], told: dict[str, Found]) -> list[Settings]:
        """What gains on top of `before`, most first; `told` gets the speedup of all.

        Of many looks the best is luck: what one round shows to gain takes part in the next, and all of its rounds count.
        """
        pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for _ in range(ROUNDS):
            for batch in self.batches(waiting):
                for one, found in zip(batch, self.beside(before, batch)):
                    key = json.dumps(one)
                    pairs[key] += [] if isinstance(found, str) else [found]
                    told[key] = found if isinstance(found, str) else compared(*map(list, zip(*pairs[key])))
                    print(f"{before} + {one}: {told[key]}", file=sys.stderr, flush=True)
            gains = {key: one[0] for key in map(json.dumps, waiting) if not isinstance(one := told[key], str)}
            waiting = [json.loads(key) for key in sorted(gains, key=lambda key: -gains[key]) if gains[key] > TIES]
        return waiting

    def batches(self, waiting: Sequence[Settings]) -> list[list[Settings]]:
        """Settings that are tried beside one baseline."""
        rare, often = ([one for one in waiting if bool(RARELY & {*one}) == is_rare] for is_rare in (True, False))
        size = self.most - 1 if config_for(self.first, {}).turns else 1
        return [group[n : n + size] for group in (often, rare) for n in range(0, len(group), size)]


def compared(one: list[float], other: list[float]) -> Found:
    """The speedup of one side's times over the other's."""
    if len(one) < 2:
        return (one[0] / other[0], None, None)
    estimate = paired_speedup(one, other, looks=False)
    return (estimate.value, estimate.low, estimate.high)


def is_luck(speedup: Sequence[float | None]) -> bool:
    """Whether a gain may be none: of twenty optimizations that do nothing, one seems to gain.

    The interval then reaches further below 1 than the value is above it, or to half of the speed.

    Args:
        speedup: Value, low and high; None: one round alone, in which it gained next to nothing.
    """
    value, low, _ = speedup
    return value is not None and low is not None and value >= 1.0 and low < max(2.0 - value, 0.5)


def search(oracle: Oracle, out: Path) -> None:
    """Every optimization alone, then greedily what helps on top of the best so far; written as it is found."""
    known: dict[str, Any] = {"alone": {}, "added": [], "best": {}, "best_speedup": (1.0, 1.0, 1.0)}
    began, best, told = time.monotonic(), {}, known["alone"]
    waiting = oracle.helpful({}, [one for one in ALONE if not oracle.changes_nothing(one)], told)
    while waiting:
        added, *rest = waiting
        if is_luck(told[json.dumps(added)]):
            waiting = rest
            continue
        known["best_speedup"] = told[json.dumps(added)] if not best else None  # of several it is measured at the end
        best = known["best"] = {**best, **added}
        known["added"].append({"to": best, "speedups": (told := {})})
        waiting = oracle.helpful(best, [one for one in rest if _is_new(best, one)], told)
        _write(out, known)
    if known["best_speedup"] is None:
        known["best_speedup"] = compared(*oracle.rounds([{}, best], number=ROUNDS))
    _write(out, {**known, "seconds": time.monotonic() - began, "load": os.getloadavg()[0]})


def _is_new(best: Settings, added: Settings) -> bool:
    together = {**best, **added}
    with contextlib.suppress(PlanError):
        return together != best and checked(together) == together
    return False


def reach(oracle: Oracle, out: Path, *, best: Settings, plan: Settings) -> None:
    """How fast a plan is beside the best of all settings, and beside the script as it is."""
    began = time.monotonic()
    sides = [one for n, one in enumerate(({}, best, plan)) if one not in ({}, best, plan)[:n]]
    times = oracle.rounds(sides, number=REACHED_ROUNDS) if len(sides) > 1 else []
    same: Found = (1.0, 1.0, 1.0)
    # By equality: the same settings may be named in another order.
    reached = compared(times[sides.index(best)], times[sides.index(plan)]) if plan != best else same
    speedup = compared(times[sides.index({})], times[sides.index(plan)]) if plan else same
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
