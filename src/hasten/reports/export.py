"""A run for other programs: its steps as a table for spreadsheets and pandas, and as a trace.

The trace opens in Perfetto and Chrome's about:tracing (Trace Event Format). Every step is a slice; a few steps have a track
for each lane of the timeline; the machine is counters. Times are microseconds since the run's start. Steps outside the
timeline have no order of phases: their phases' durations are arguments of the slice.
"""

from __future__ import annotations

import csv
import io
import json

from hasten import format
from hasten.records import PHASES, Phase, Run

COLUMNS = ("step", "start", "seconds", "marked", "starts_epoch", "num_batches", "num_samples")


def phases_of(run: Run) -> list[Phase]:
    """The phases that occur in any step, in the order of `PHASES`."""
    seen = {name for step in run.steps for name in step.phases}
    return [name for name in PHASES if name in seen]


def rows_of(run: Run) -> list[list[float | None]]:
    """One row per step, with the columns `COLUMNS` and `phases_of(run)`. A phase that was not seen is None, never zero."""
    phases = phases_of(run)
    return [
        [s.index, s.start, s.seconds, s.marked, s.starts_epoch, s.num_batches, s.num_samples]
        + [s.phases.get(name) for name in phases]
        for s in run.steps
    ]


def csv_of(run: Run) -> str:
    """The table as CSV text. Times are in seconds, starts since the run's start; what was not measured is an empty cell."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, *phases_of(run)])
    writer.writerows(rows_of(run))
    return text.getvalue()


MICRO = 1e6
STEPS, FIRST_LANE = 1, 2  # thread numbers


def trace_of(run: Run) -> str:
    """The trace as JSON text."""
    events: list[dict[str, object]] = [_named("process_name", 0, "hasten: " + " ".join(run.command))]
    events.append(_named("thread_name", STEPS, "steps"))
    for step in run.steps:
        args = {format.phase(name): format.seconds(seconds) for name, seconds in step.phases.items()}
        events.append(_slice(f"step {step.index}", STEPS, step.start, step.seconds, args))
    if run.timeline is not None:
        lanes = list(dict.fromkeys(bar.lane for bar in run.timeline.bars))
        events += [_named("thread_name", FIRST_LANE + n, lane) for n, lane in enumerate(lanes)]
        for bar in run.timeline.bars:
            lane = FIRST_LANE + lanes.index(bar.lane)
            events.append(_slice(bar.kind, lane, run.timeline.start + bar.start, bar.seconds, {}))
    for sample in run.resources:
        events.append(_counter("cores", sample.at, {"script": sample.tree_cpu, "others": sample.others_cpu}))
        events.append(_counter("memory (GiB)", sample.at, {"script": sample.resident_bytes / 2**30}))
        for number, device in enumerate(sample.devices):
            if device.utilization is not None:
                events.append(_counter(f"GPU {number}", sample.at, {"busy": device.utilization}))
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _named(what: str, thread: int, name: str) -> dict[str, object]:
    shown = name.encode("utf-8", "backslashreplace").decode("utf-8")
    return {"ph": "M", "pid": 1, "tid": thread, "name": what, "args": {"name": shown}}


def _slice(name: str, thread: int, start: float, seconds: float, args: dict[str, str]) -> dict[str, object]:
    found: dict[str, object] = {"ph": "X", "pid": 1, "tid": thread, "name": name}
    found.update({"ts": start * MICRO, "dur": seconds * MICRO})
    if args:
        found["args"] = args
    return found


def _counter(name: str, at: float, values: dict[str, float]) -> dict[str, object]:
    return {"ph": "C", "pid": 1, "name": name, "ts": at * MICRO, "args": values}
