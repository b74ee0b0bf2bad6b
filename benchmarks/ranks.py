"""What is said of jobs with several ranks: planted faults, the cost of watching a collective, many simulated ranks.

    python benchmarks/ranks.py [--only planted unseen delays overhead simulated]

Each part writes its JSON into benchmarks/results/ranks/. The planted faults are in benchmarks/ranks/train.py, three ranks over
gloo; each is right if it is named first.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hasten.agent.communication import Communication
from hasten.agent.marks import Marks
from hasten.launch.ranks import compare
from hasten.patches import Patches
from hasten.records import RankFile, RankSteps, from_json, to_json
from hasten.stats import mean_interval

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "ranks"
FAULTS = {  # and what must be named first
    "healthy": None,
    "late_in_data": "straggler",
    "late_in_forward": "straggler",
    "late_in_backward": "straggler",
    "late_in_script": "straggler",
    "uneven_steps": "uneven_steps",
    "uneven_shards": "uneven_shards",
    "communication": "exposed_communication",
    "exchange": "rank_exchange",
    "barrier": "rank_exchange",
    "validation": "rank_validation",
    "checkpoint": "rank_checkpoint",
    "same_samples": "same_samples",
    "whole_dataset": "same_samples",
    "unequal_seeds": "overlapping_samples",
    "same_order": "same_order",
    "unused_parameters": "exposed_communication",  # whose remedy is to leave find_unused_parameters out
}
IN_ONE_PROCESS = {"data_parallel": "data_parallel"}
CATEGORIES = {  # of benchmarks/ranks/unseen/expected.json: what must be named first, and in which phase
    "none": (None, None),
    "one rank late: data": ("straggler", "data_wait"),
    "one rank late: forward": ("straggler", "forward"),
    "one rank late: backward": ("straggler", "backward"),
    "one rank late: script": ("straggler", "script"),
    "ranks late in turn": ("uneven_steps", None),
    "unequal batches": ("uneven_shards", None),
    "communication of gradients": ("exposed_communication", None),
    "values exchanged every step": ("rank_exchange", None),
    "rank-0 validation": ("rank_validation", None),
    "rank-0 checkpoint": ("rank_checkpoint", None),
    "same samples": ("same_samples", None),
    "overlapping samples": ("overlapping_samples", None),
    "same order every epoch": ("same_order", None),
}
USUAL_STEP = 0.07  # seconds of the healthy step where the faults got their size; on slower machines they are larger
DELAY = 0.03  # seconds that a late rank is late, in benchmarks/ranks/train.py


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"planted": planted, "unseen": unseen, "delays": delays, "overhead": overhead, "simulated": simulated}
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in parser.parse_args().only:
        found = parts[name]()
        (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def planted() -> dict[str, Any]:
    """Every fault under `hasten diagnose --quick`, and healthy training with DDP and FSDP2."""
    found: dict[str, Any] = {}
    scale = _scale()
    for fault, expected in {**FAULTS, **IN_ONE_PROCESS, "healthy --fsdp": None}.items():
        answer = _diagnosed([*fault.split(), "--scale", f"{scale:.2f}"], alone=fault in IN_ONE_PROCESS)
        diagnosis, ranks = answer["diagnosis"], answer["run"].get("ranks") or {}
        named = [one["kind"] for one in (*diagnosis.get("cautions", ()), *diagnosis["findings"])]
        late = ranks.get("late") or {}
        found[fault] = {
            "expected": expected,
            "named": named,
            "right": named[:1] == ([] if expected is None else [expected])
            and (fault != "unused_parameters" or "find_unused_parameters" in diagnosis["findings"][0]["remedy"]),
            "late_ranks": late.get("ranks"),
            "late_phase": late.get("phase"),
            "excess_of_delay": late["excess"] / (scale * DELAY) if late and fault.startswith("late") else None,
            "step_seconds": ranks.get("step_seconds"),
            "verdict": diagnosis["verdict"],
        }
        print(fault, named, "right" if found[fault]["right"] else "WRONG", late.get("phase", ""), flush=True)
    print(sum(one["right"] for one in found.values()), "of", len(found), "right")
    return {"load": os.getloadavg(), "scale": scale, "faults": found}


def unseen() -> dict[str, Any]:
    """The same for scripts that somebody wrote who had seen neither rules nor faults."""
    folder, found = HERE / "ranks" / "unseen", {}
    for name, truth in json.loads((folder / "expected.json").read_text(encoding="utf-8")).items():
        answer = _diagnosed([], folder / name)
        diagnosis, ranks = answer["diagnosis"], answer["run"]["ranks"]
        named = [one["kind"] for one in (*diagnosis.get("cautions", ()), *diagnosis["findings"])]
        phase = (ranks.get("late") or {}).get("phase")
        kind, place = CATEGORIES[truth["category"]]
        right = named[:1] == ([] if kind is None else [kind]) and place in (None, phase)
        found[name] = {"category": truth["category"], "named": named, "late_phase": phase, "right": right}
        print(name, truth["category"], named, phase, "right" if right else "WRONG", flush=True)
    print(sum(one["right"] for one in found.values()), "of", len(found), "right")
    return {"load": os.getloadavg(), "scripts": found}


def delays(times: int = 5) -> dict[str, Any]:
    """What a rank is said to be late by, over what it is, in so many diagnoses of each place of the delay."""
    late = [fault for fault in FAULTS if fault.startswith("late")]
    found: dict[str, list[float]] = {fault: [] for fault in late}
    scale = _scale()
    for fault in late * times:
        ranks = _diagnosed([fault, "--scale", f"{scale:.2f}"])["run"]["ranks"]
        found[fault].append(ranks["late"]["excess"] / (scale * DELAY) if "late" in ranks else 0.0)
    shares: dict[str, Any] = {}
    for fault, ratios in found.items():
        interval = mean_interval(ratios)
        shares[fault] = {"ratios": ratios, "mean": [interval.value, interval.low, interval.high]}
        print(fault, " to ".join(f"{value:.3f}" for value in shares[fault]["mean"]))
    return {"load": os.getloadavg(), "scale": scale, "delays": shares}


def _scale() -> float:
    """How much larger the faults must be on this machine to stay the same share of a step."""
    return max(1.0, _diagnosed(["healthy"])["run"]["ranks"]["step_seconds"] / USUAL_STEP)


def _diagnosed(arguments: list[str], script: Path = HERE / "ranks" / "train.py", *, alone: bool = False) -> Any:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    words = [sys.executable, "-m", "hasten", "diagnose", "--quick", "--seconds", "12", "--json"]
    with tempfile.TemporaryDirectory() as folder:
        words += [*([] if alone else torchrun), str(script), *arguments]
        answer = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    return json.loads(answer.stdout)


def overhead(rounds: int = 20, calls: int = 2000) -> dict[str, Any]:
    """CPU microseconds of the calling thread that watching adds to a collective, with and without in turn.

    By the clock it can add less than nothing: gloo's thread ends the exchange while the caller's marks are made.
    """
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    value = torch.ones(1)

    def seconds() -> float:
        start = time.thread_time()
        for _ in range(calls):
            dist.all_reduce(value)
        return (time.thread_time() - start) / calls

    added = []
    for _ in range(rounds):
        plain = seconds()
        marks, patches = Marks(), Patches()
        Communication(marks, patches)
        marks.full = True
        watched = seconds()
        patches.undo()
        added.append(1e6 * (watched - (plain + seconds()) / 2))  # without, before and after: later calls are faster
    dist.destroy_process_group()
    found = {"microseconds": statistics.median(added), "lowest": min(added), "highest": max(added)}
    print("a collective takes longer by", found)
    return {"load": os.getloadavg(), **found}


def simulated(sizes: tuple[int, ...] = (8, 64, 256, 1024), steps: int = 500) -> dict[str, Any]:
    """Seconds to read and to compare so many ranks, of which one is late, and bytes of their file."""
    found: dict[str, Any] = {}
    for size in sizes:
        data = to_json(RankFile(ranks=tuple(_rank(n, size, steps) for n in range(size))))
        start = time.perf_counter()
        ranks = from_json(RankFile, data).ranks
        read = time.perf_counter() - start
        compared = compare(ranks)
        took = time.perf_counter() - start - read
        assert compared.late is not None and compared.late.ranks == (size // 3,)
        found[str(size)] = {"bytes": len(data), "read_seconds": read, "compare_seconds": took}
        print(size, found[str(size)])
    return {"load": os.getloadavg(), "steps": steps, "ranks": found}


def _rank(number: int, size: int, steps: int) -> RankSteps:
    draw = random.Random(number)
    own = [0.1 + 0.002 * draw.random() + (0.02 if number == size // 3 else 0.0) for _ in range(steps)]
    waits = [0.13 - seconds for seconds in own]
    return RankSteps(
        rank=number,
        world_size=size,
        host=f"host-{number // 8}",
        node=number // 8,
        job="",
        backend="nccl",
        indices=tuple(range(steps)),
        seconds=(0.13,) * steps,
        phases={
            "forward": tuple(0.4 * s for s in own),
            "backward": tuple(0.5 * s for s in own),
            "optimizer": tuple(0.1 * s for s in own),
            "communication": tuple(waits),
        },
    )


if __name__ == "__main__":
    main()
