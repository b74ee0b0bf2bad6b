"""Scripts against themselves on a GPU: fixed by hand, compiled, and under settings chosen by hand."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

FAULTY = Path(__file__).resolve().parent.parent.parent / "tests" / "faulty" / "gpu"
TIMER = """
import runpy, sys, time, torch
from torch.optim.optimizer import register_optimizer_step_post_hook
seconds, settle = float(sys.argv[1]), int(sys.argv[2])
script, sys.argv = sys.argv[3], sys.argv[3:]
seen = {"steps": 0, "began": 0.0, "check": 1}
def stepped(*_):
    seen["steps"] += 1
    done = seen["steps"] - settle
    if done == 0:
        torch.cuda.synchronize()
        seen["began"] = time.perf_counter()
    elif done > 0 and done % seen["check"] == 0:
        torch.cuda.synchronize()
        taken = time.perf_counter() - seen["began"]
        if taken >= seconds:
            print("STEP", taken / done, done, flush=True)
            raise SystemExit(0)
        seen["check"] = max(1, int(0.2 * seconds * done / taken))
register_optimizer_step_post_hook(stepped)
runpy.run_path(script, run_name="__main__")
"""


def step_seconds(script: Path, *words: str, seconds: float, settle: int) -> float:
    """Mean seconds of a steady step of a script in a process of its own, start and warm-up left out."""
    command = [sys.executable, "-c", TIMER, str(seconds), str(settle), str(script), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    line = next((line for line in done.stdout.splitlines() if line.startswith("STEP ")), None)
    if line is None:
        raise RuntimeError(f"{script.name} {' '.join(words)} told no step time\n{done.stderr[-3000:]}")
    return float(line.split()[1])


def fixed(name: str, dry: bool) -> dict[str, Any]:
    """The script as it is and fixed by hand, A B B A."""
    script, small = FAULTY / f"{name}.py", ["--small"] if dry else []
    sides: dict[str, list[float]] = {"faulty": [], "fixed": []}
    for side in ("faulty", "fixed") if dry else ("faulty", "fixed", "fixed", "faulty"):
        words = [*small, *(["--fixed"] if side == "fixed" else [])]
        sides[side].append(step_seconds(script, *words, seconds=0.3 if dry else 4.0, settle=5 if dry else 30))
    faulty, other = (statistics.fmean(sides[side]) for side in ("faulty", "fixed"))
    brief = f"{1e3 * faulty:.2f} ms, fixed {1e3 * other:.2f} ms: {faulty / other:.2f}x"
    return {"brief": brief, "step_seconds": sides, "gain_share": 1 - other / faulty}


def gain(command: list[str], settings: dict[str, Any], dry: bool, *, pairs: int, seconds: float) -> dict[str, Any]:
    """These settings against none, in pairs, by a trial of hasten."""
    from benches import bench_of

    from hasten.launch.side import Frequencies
    from hasten.measurement.diagnose import situation_of
    from hasten.measurement.measure import MeasureOptions, measure
    from hasten.records import to_json
    from hasten.tuning.trial import compare
    from hasten.tuning.trial_config import config_for

    with tempfile.TemporaryDirectory() as folder, Path(folder, "output.txt").open("wb") as output:
        wanted = MeasureOptions(quick=True, seconds=seconds, script_output=output.fileno())
        run, _ = measure(command, options=wanted, root=Path(folder))
    first = situation_of(run, {})
    config = replace(config_for(first, settings), most_pairs=pairs)
    bench = bench_of([sys.executable, *command])
    trial = compare(
        (bench, {}),
        (bench, settings),
        fix=next(iter(settings)),
        frequencies=Frequencies.of(run.facts),
        config=config,
        gives_up=False,
    )
    speedup = trial.speedup
    shown = f"{speedup.value:.2f}x ({speedup.low:.2f} to {speedup.high:.2f})" if speedup else trial.note
    return {"brief": f"{shown} with {settings}", "settings": settings, "trial": json.loads(to_json(trial))}


def compiled(name: str, mode: str, dry: bool) -> dict[str, Any]:
    """A script under torch.compile against none; "reduce-overhead" captures CUDA graphs."""
    command = [str(FAULTY / f"{name}.py"), *(["--small"] if dry else [])]
    return gain(command, {"compile": mode}, dry, pairs=1 if dry else 4, seconds=2 if dry else 8)


# What an engineer sets on a GPU box without measuring; the order of application is hasten's.
BY_HAND = {"bf16": True, "channels_last": True, "cudnn_benchmark": True, "fused_optimizer": True, "set_to_none": True}
FEEDING = {"num_workers": 14, "persistent_workers": True, "pin_memory": True, "non_blocking": True}


def case_study_by_hand(name: str, dry: bool) -> dict[str, Any]:
    """A case study under settings chosen by hand against itself."""
    from hasten.workloads.catalog import WORKLOADS

    workload = WORKLOADS[name]
    number = 24 if dry else workload.num_images_on_gpu
    folder = workload.prepare(num_images=number)
    command = [str(workload.script), *workload.arguments(folder, num_images=number)]
    settings = {"fused_optimizer": True} if dry else {**BY_HAND, **FEEDING}
    return gain(command, settings, dry, pairs=1 if dry else 4, seconds=2 if dry else 8)
