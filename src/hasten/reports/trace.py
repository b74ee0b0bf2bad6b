"""A run as a trace that Perfetto and Chrome's about:tracing open.

In: a Run. Out: JSON in the Trace Event Format: every step as a slice, a few of them with their lanes, the machine as
counters. Times are microseconds since the run's start. Refuses to invent an order: in steps whose marks are not kept, only
how long each phase took is known, and stands among the slice's arguments.
"""

from __future__ import annotations

import json

from hasten import format
from hasten.records import Run

MICRO = 1e6
STEPS, FIRST_LANE = 1, 2  # thread numbers


def trace_of(run: Run) -> str:
    """The trace as text."""
    events: list[dict[str, object]] = [_named("process_name", 0, "hasten: " + " ".join(run.command))]
    events.append(_named("thread_name", STEPS, "steps"))
    for step in run.steps:
        told = {format.phase(name): format.seconds(seconds) for name, seconds in step.phases.items()}
        events.append(_slice(f"step {step.index}", STEPS, step.start, step.seconds, told))
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


def _slice(name: str, thread: int, start: float, seconds: float, told: dict[str, str]) -> dict[str, object]:
    found: dict[str, object] = {"ph": "X", "pid": 1, "tid": thread, "name": name}
    found.update({"ts": start * MICRO, "dur": seconds * MICRO})
    if told:
        found["args"] = told
    return found


def _counter(name: str, at: float, values: dict[str, float]) -> dict[str, object]:
    return {"ph": "C", "pid": 1, "name": name, "ts": at * MICRO, "args": values}
