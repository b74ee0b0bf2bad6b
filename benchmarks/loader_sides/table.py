"""From the runs to figures with their intervals, and to a table for people. Measures nothing."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from hasten.stats import Estimate, mean_interval, ratio_interval
from loader_sides.catalog import Workload

BASELINES = {"main": ("torch", "torch, 0 workers"), "streaming": ("torch beside streaming",)}
HEADINGS = (
    f"{'':32}{'workers':>7} {'samples/s':>26} {'CPU ms':>26} {'CPU of torch':>22}"
    f" {'peak MiB':>9} {'first s':>8} {'pixels':>14}"
)


def summary(record: dict) -> dict:
    """A side's figures; those with an interval as [value, low, high]."""
    runs = record["runs"]
    if not runs:
        return {"failed": record.get("failed", "no run")}
    figures = {
        "workers": record["workers"],
        "samples_per_second": mean_interval([run["samples"] / run["seconds"] for run in runs]),
        "cpu_seconds_per_sample": mean_interval(cpu_per_sample(runs)),
        "peak_bytes": max(run["peak_bytes"] for run in runs),
        "first_batch_seconds": statistics.median(run["first_batch_seconds"] for run in runs),
        "written_bytes_per_epoch": sum(run["written_bytes"] for run in runs) / sum(run["epochs"] for run in runs),
    }
    for key in ("pixels", "failed"):
        if key in record:
            figures[key] = record[key]
    return figures


def cpu_per_sample(runs: Sequence[dict]) -> list[float]:
    return [run["cpu_seconds"] / run["samples"] for run in runs]


def print_table(name: str, workload: Workload, result: dict) -> None:
    loads = ", ".join(f"{load[0]:.1f}" for load in result["load_before_rounds"])
    print(f"\n{name}: {workload.title} (batch {workload.batch_size}; load before each round: {loads})")
    print(HEADINGS)
    for side, record in result["sides"].items():
        print(row(side, record, baseline_of(record, result["sides"])), flush=True)
    if workload.bound is not None:
        print(f"{'bound by the mean cost':32}{workload.workers:7} {workload.bound:26.1f}")


def baseline_of(record: dict, sides: dict[str, dict]) -> dict | None:
    """torch's DataLoader of the same environment."""
    names = (name for name in BASELINES[record["environment"]] if sides.get(name, {}).get("runs"))
    return next((sides[name] for name in names), None)


def row(side: str, record: dict, baseline: dict | None) -> str:
    found = summary(record)
    if "workers" not in found:
        return f"{side:32}{found['failed']}"
    rate, cpu = found["samples_per_second"], Estimate(*(1e3 * x for x in found["cpu_seconds_per_sample"]))
    ratio = None
    if baseline and baseline is not record:
        ratio = ratio_interval(cpu_per_sample(record["runs"]), cpu_per_sample(baseline["runs"]))
    pixels = found.get("pixels", {})
    text = f"{pixels['largest']:.0f}, {pixels['mean']:.3f}" if "mean" in pixels else "-"
    note = record["note"] + (f" FAILED LATER: {found['failed']}" if "failed" in found else "")
    return (
        f"{side:32}{found['workers']:7} {between(rate, 1):>26} {between(cpu, 3):>26} {between(ratio, 2):>22}"
        f" {found['peak_bytes'] / 2**20:9.0f} {found['first_batch_seconds']:8.2f} {text:>14}  {note}"
    ).rstrip()


def between(estimate: Estimate | None, digits: int) -> str:
    if estimate is None:
        return "-"
    if estimate.high == float("inf"):
        return f"{estimate.value:.{digits}f}"
    return f"{estimate.value:.{digits}f} ({estimate.low:.{digits}f} .. {estimate.high:.{digits}f})"


def print_half_cache(result: dict) -> None:
    """What half of the memory saves of the work: 0.5 is all that any cache of shuffled epochs can."""
    found = {name: summary(record) for name, record in result["sides"].items()}
    budget = result["half_bytes"]
    print(f"budget {budget / 2**20:.0f} MiB, half of the decoded bytes")
    ours = [found.get(f"hasten, {what}", {}) for what in ("no cache", "half", "whole")]
    if all("workers" in figures for figures in ours):
        none, half, whole = (figures["cpu_seconds_per_sample"][0] for figures in ours)
        extra = ours[1]["peak_bytes"] - ours[0]["peak_bytes"]
        print(f"hasten: {(none - half) / (none - whole):.2f} of the saving of a whole cache;", end=" ")
        print(f"peak {extra / 2**20:.0f} MiB above that without a cache")
    for name in ("litdata", "streaming"):
        if "workers" in found.get(name, {}):
            share = found[name]["written_bytes_per_epoch"] / (2 * budget)
            print(f"{name}: fetched {share:.2f} of the data anew each epoch")


def without_infinity(figures: object) -> object:
    """For JSON, which knows none: an interval of one round has no upper end."""
    if isinstance(figures, dict):
        return {key: without_infinity(value) for key, value in figures.items()}
    if isinstance(figures, (list, tuple)):
        return [without_infinity(value) for value in figures]
    return None if figures == float("inf") else figures
