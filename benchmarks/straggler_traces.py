"""The rule by which ranks are compared, held against traces of large jobs that others have labeled.

    git clone https://github.com/ByteDance-Seed/StragglerAnalysis
    python benchmarks/straggler_traces.py StragglerAnalysis/data        results in benchmarks/results/ranks/traces.json

The traces belong to Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025): AR has
one slow worker, SE samples of unequal length, ST a last pipeline stage with more work. Each holds the operators of every rank
of a hybrid-parallel job. What a rank computes is its own time, and the rest of the step is communication.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pandas

from hasten.diagnosis.case import WORTH_INFERRED
from hasten.launch.ranks import compare
from hasten.records import RankSteps

LABELS = {"AR": "one slow worker", "SE": "unequal samples", "ST": "the last stage"}
COMPUTE = {"forward-compute": "forward", "backward-compute": "backward", "optimizer": "optimizer"}
RESULT = Path(__file__).parent / "results" / "ranks" / "traces.json"


def main() -> None:
    """Judge all three."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the folder with trace-AR.parquet and meta-AR.yaml")
    folder = parser.parse_args().data
    found = {name: judge(folder, name) for name in LABELS}
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for name, one in found.items():
        print(
            f"{name} ({LABELS[name]}): {one['verdict']}; step {one['step_seconds']:.2f} s, {one['saved']:.2f} s of it saved"
        )


def judge(folder: Path, name: str) -> dict[str, Any]:
    """The verdict on one trace: ranks are compared within each data-parallel group, and then the stages."""
    trace = pandas.read_parquet(folder / f"trace-{name}.parquet")
    groups = [compare(steps_of(ranks)) for _, ranks in trace.groupby("stage")]
    most = max(groups, key=lambda ranks: ranks.late.saved.value if ranks.late else ranks.imbalance)
    late, saved = most.late, most.imbalance
    if late is not None:
        verdict, saved = f"rank {', '.join(map(str, late.ranks))}", late.saved.value
    elif saved >= WORTH_INFERRED * most.step_seconds:
        verdict = "ranks take turns"
    else:
        stages = compare(steps_of(trace[trace["dp_rank"] == 0]))
        late = stages.late
        if late is None:
            verdict, saved = "even", 0.0
        else:
            slow = sorted(set(trace[trace["rank"].isin(late.ranks)]["stage"]))
            verdict, saved = f"stage {', '.join(map(str, slow))}", late.saved.value
    return {
        "label": LABELS[name],
        "verdict": verdict,
        "num_ranks": int(trace["rank"].nunique()),
        "num_steps": most.num_steps,
        "step_seconds": most.step_seconds,
        "saved": saved,
        "share_last": late.share if late else None,
        "phase": late.phase if late else None,
        "published": json.loads((folder / f"ms-{name}.json").read_text(encoding="utf-8")),
    }


def steps_of(trace: pandas.DataFrame) -> list[RankSteps]:
    """Every rank's steps. Times of a trace are relative to the step's start."""
    trace = trace.assign(end=trace["start_ts"] + trace["duration"])
    lengths = trace.groupby("step")["end"].max()
    steps = list(lengths.index)
    work = trace[trace["optype"].isin(list(COMPUTE))]
    sums = work.groupby(["rank", "step", "optype"], observed=True)["duration"].sum()
    found: list[RankSteps] = []
    for rank in sorted(trace["rank"].unique()):
        own = {phase: [float(sums.get((rank, step, op), 0.0)) for step in steps] for op, phase in COMPUTE.items()}
        rest = [float(lengths[step]) - sum(column[n] for column in own.values()) for n, step in enumerate(steps)]
        phases: Any = {**own, "communication": rest}
        found.append(
            RankSteps(
                rank=int(rank),
                world_size=trace["rank"].nunique(),
                host="",
                node=0,
                job="",
                backend="nccl",
                indices=tuple(range(len(steps))),
                seconds=tuple(float(lengths[step]) for step in steps),
                phases={phase: tuple(column) for phase, column in phases.items()},
            )
        )
    return found


if __name__ == "__main__":
    main()
