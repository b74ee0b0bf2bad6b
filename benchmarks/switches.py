"""What does each switch of a write-up gain by itself, on this machine?

    python benchmarks/switches.py DATA [--only efficient classify] [--pairs 6]

DATA is the folder of benchmarks/case_studies.py. Every switch that the write-ups of `efficient` and `classify` name, and that has a
meaning on the device at hand, is tried alone against the script as it is, in the config of trials; none is given up early.
Prints a table and one JSON line; everything that was measured goes to benchmarks/results/case_studies/switches_NAME.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from dataclasses import replace
from pathlib import Path

from benches import bench_of
from case_studies import RESULTS
from case_study_common import FOLDERS, scratch, shown

from hasten import format
from hasten.launch.side import Frequencies
from hasten.measurement.diagnose import situation_of
from hasten.measurement.measure import MeasureOptions, measure
from hasten.records import Settings, Trial, to_json
from hasten.stats import Estimate
from hasten.tuning.trial import compare
from hasten.tuning.trial_config import config_for
from hasten.workloads.catalog import WORKLOADS

SWITCHES: dict[str, list[Settings]] = {
    "efficient": [{"no_debug": True}, {"set_to_none": True}, {"no_grad_validation": True}],
    "classify": [
        {"num_workers": 4},
        {"persistent_workers": True},
        {"bf16": True},
        {"set_to_none": True},
        {"batch_size": 64},
    ],
}
ON_A_GPU: dict[str, list[Settings]] = {
    "efficient": [{"cudnn_benchmark": True}],
    "classify": [{"pin_memory": True}, {"non_blocking": True}, {"cudnn_benchmark": True}],
}


def trials(name: str, data: Path, folder: Path, *, pairs: int) -> dict[str, Trial]:
    """Each switch against the script as it is."""
    workload = WORKLOADS[name]
    words = [str(workload.script), *workload.arguments(data / FOLDERS[name], num_images=workload.num_images)]
    with (folder / "output.txt").open("wb") as output:
        run, _ = measure(
            words, options=MeasureOptions(quick=True, seconds=10.0, script_output=output.fileno()), root=folder
        )
    first = situation_of(run, {})
    bench = bench_of([sys.executable, *words])
    found: dict[str, Trial] = {}
    for settings in SWITCHES[name] + (ON_A_GPU[name] if not first.case.on_cpu else []):
        ((switch, value),) = settings.items()
        found[format.setting(switch, value)] = compare(
            (bench, {}),
            (bench, settings),
            fix=switch,
            frequencies=Frequencies.of(run.facts),
            config=replace(config_for(first, settings), most_pairs=pairs),
            gives_up=False,
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="+", choices=SWITCHES, default=list(SWITCHES), metavar="NAME")
    parser.add_argument("--pairs", type=int, default=6)
    wanted = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    brief: dict[str, dict[str, object]] = {}
    for name in wanted.only:
        load = os.getloadavg()[0]
        with scratch() as folder:
            found = trials(name, wanted.data.resolve(), folder, pairs=wanted.pairs)
        for switch, trial in found.items():
            speedup = shown(Estimate(*_ends(trial))) if trial.speedup is not None else trial.note
            print(f"{name:10s} {switch:22s} {speedup}, {len(trial.baseline_seconds)} pairs", flush=True)
        told = {
            "machine": machine,
            "load_before": load,
            "trials": {k: json.loads(to_json(t)) for k, t in found.items()},
        }
        (RESULTS / f"switches_{name}.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        brief[name] = {switch: trial.speedup and _ends(trial) for switch, trial in found.items()}
    print(json.dumps({"benchmark": "switches", "machine": machine, "switches": brief}))


def _ends(trial: Trial) -> tuple[float, float, float]:
    assert trial.speedup is not None
    return trial.speedup.value, trial.speedup.low, trial.speedup.high


if __name__ == "__main__":
    main()
