"""Charts of the machine over the run: cores, memory, disk, page faults, and the device.

In: a Run. Out: one chart of small panels, with epochs and phases of the run shaded. Refuses to conclude.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hasten import format
from hasten.records import DeviceSample, ResourceSample, Run, Value
from hasten.reports.page.chart import Chart, Spec, draw, says

MOST_POINTS = 240  # of a line
GIB = 2.0**30
MIB = 2.0**20


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One quantity over time."""

    title: str
    lines: dict[str, list[tuple[float, float]]]  # (seconds, value) by the line's name
    told: Callable[[float], str]
    limit: tuple[str, float] | None = None


def machine_over_time(run: Run) -> Chart | None:
    """Small panels under each other, on one scale of time."""
    panels = [panel for panel in _panels(run) if any(len(line) > 1 for line in panel.lines.values())]
    if not panels:
        return None
    samples = run.resources
    ends = [0.0, samples[-1].at]
    epochs = [step.start for step in run.steps if step.starts_epoch]
    window = [run.steps[0].start, run.steps[-1].start + run.steps[-1].seconds] if run.steps else ends

    def spec(width: int) -> Spec:
        drawn = [_drawn(panel, width, ends, epochs, window, last=panel is panels[-1]) for panel in panels]
        return {"vconcat": drawn, "spacing": 8}

    caption = (
        "Sampled from outside the measured process. Shaded: the steps that were measured; before them the script starts. "
        "Dotted: epochs begin."
    )
    return draw("machine", "The machine over time", caption, spec)


def _panels(run: Run) -> list[Panel]:
    samples, machine = run.resources, run.machine
    panels = [
        Panel(
            title="cores in use",
            lines={
                "this script": [(s.at, s.tree_cpu) for s in samples],
                "all else": [(s.at, s.others_cpu) for s in samples],
            },
            told=lambda value: f"{value:.1f} cores",
            limit=("cores", machine.num_cores),
        ),
        Panel(
            title="memory, GiB",
            lines={
                "this script": _resident(samples, window_start=run.steps[0].start if run.steps else 0.0),
                "page cache": [(s.at, s.page_cache_bytes / GIB) for s in samples if s.page_cache_bytes is not None],
            },
            told=lambda value: format.size(value * GIB),
            limit=("all memory", machine.memory_bytes / GIB),
        ),
        Panel(
            title="disk, MiB/s",
            lines={
                "read": _rates(samples, lambda s: s.read_bytes, MIB),
                "written": _rates(samples, lambda s: s.written_bytes, MIB),
            },
            told=lambda value: f"{format.size(value * MIB)}/s",
        ),
        Panel(
            title="page faults/s",
            lines={
                "minor": _rates(samples, lambda s: s.minor_faults, 1.0),
                "major": _rates(samples, lambda s: s.major_faults, 1.0),
            },
            told=lambda value: f"{value:,.0f} page faults a second",
        ),
    ]
    return panels + _device_panels(run)


def _device_panels(run: Run) -> list[Panel]:
    def lines(of: Callable[[DeviceSample], float | None]) -> dict[str, list[tuple[float, float]]]:
        found: dict[str, list[tuple[float, float]]] = {}
        for sample in run.resources:
            for number, device in enumerate(sample.devices):
                value = of(device)
                if value is not None:
                    found.setdefault(f"GPU {number}", []).append((sample.at, value))
        return found

    limit = run.machine.devices[0].memory_bytes / GIB if run.machine.devices else None
    return [
        Panel(title="GPU busy", lines=lines(lambda d: d.utilization), told=lambda v: f"{format.share(v)} busy"),
        Panel(
            title="GPU memory, GiB",
            lines=lines(lambda d: None if d.memory_used_bytes is None else d.memory_used_bytes / GIB),
            told=lambda v: format.size(v * GIB),
            limit=("all memory", limit) if limit is not None else None,
        ),
        Panel(title="GPU power, W", lines=lines(lambda d: d.power_watts), told=format.watts),
        Panel(title="GPU temperature, °C", lines=lines(lambda d: d.temperature_celsius), told=format.celsius),
    ]


def _resident(samples: Sequence[ResourceSample], *, window_start: float) -> list[tuple[float, float]]:
    """Memory of the script's processes, in GiB.

    Older records hold readings of next to nothing where processes came or went as they were read. A process that trains
    holds torch alone in far more than a twentieth of what it usually takes, so such a reading is none.
    """
    while_training = [s.resident_bytes for s in samples if s.at >= window_start]
    least = statistics.median(while_training) / 20 if while_training else 0.0
    return [(s.at, s.resident_bytes / GIB) for s in samples if s.at < window_start or s.resident_bytes >= least]


def _rates(
    samples: Sequence[ResourceSample], of: Callable[[ResourceSample], Value | None], unit: float
) -> list[tuple[float, float]]:
    """The increase of a counter a second, between one sample and the next."""
    known = [(s.at, float(value)) for s in samples if (value := of(s)) is not None]
    return [
        (at, max(0.0, value - before) / (at - earlier) / unit)
        for (earlier, before), (at, value) in itertools.pairwise(known)
        if at > earlier
    ]


def _thinned(line: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """As many points as can be told apart: of each group the largest value, for peaks matter."""
    finite = [point for point in line if math.isfinite(point[1])]
    size = math.ceil(len(finite) / MOST_POINTS) or 1
    return [max(finite[n : n + size], key=lambda point: point[1]) for n in range(0, len(finite), size)]


def _drawn(
    panel: Panel, width: int, ends: Sequence[float], epochs: Sequence[float], window: Sequence[float], *, last: bool
) -> Spec:
    rows = [
        {"line": name, "at": at, "value": value, "says": f"{name}: {panel.told(value)} after {format.seconds(at)}"}
        for name, line in panel.lines.items()
        for at, value in _thinned(line)
    ]
    names = [name for name, line in panel.lines.items() if line]
    colour = {"domain": names, "range": ["var(--forward)", "var(--rest)"][: len(names)]}
    most = max((float(str(row["value"])) for row in rows), default=0.0)
    limit = panel.limit if panel.limit is not None and most > panel.limit[1] / 3 else None
    x = {
        "field": "at",
        "type": "quantitative",
        "scale": {"domain": [*ends], "nice": False},
        "title": "seconds since the start" if last else None,
        "axis": {"labels": last, "ticks": last},
    }
    layers: list[Spec] = [
        {
            "data": {"values": [{"at": window[0], "to": window[1]}]},
            "mark": {"type": "rect", "color": "var(--shade)", "aria": False},
            "encoding": {"x": x, "x2": {"field": "to"}},
        },
        {
            "data": {"values": [{"at": at} for at in epochs]},
            "mark": {"type": "rule", "color": "var(--dim)", "strokeDash": [2, 3], "aria": False},
            "encoding": {"x": x},
        },
        {
            "data": {"values": rows},
            "mark": {"type": "line", "strokeWidth": 1.6, "interpolate": "step-after", "aria": False},
            "encoding": {
                "x": x,
                "y": {"field": "value", "type": "quantitative", "title": panel.title, "axis": {"tickCount": 3}},
                "color": {
                    "field": "line",
                    "type": "nominal",
                    "title": None,
                    "scale": colour,
                    "legend": {"orient": "top"},
                },
            },
        },
        {
            "data": {"values": rows},
            "mark": {"type": "circle", "size": 22, "opacity": 0},
            "encoding": {"x": x, "y": {"field": "value", "type": "quantitative"}, "description": says()},
        },
    ]
    if limit is not None:
        layers.append(
            {
                "data": {"values": [{"most": limit[1], "says": f"{limit[0]}: {panel.told(limit[1])}"}]},
                "mark": {"type": "rule", "color": "var(--bad)", "strokeDash": [4, 3]},
                "encoding": {"y": {"field": "most", "type": "quantitative"}, "description": says()},
            }
        )
    return {"width": width - 70, "height": 76, "layer": layers, "resolve": {"scale": {"color": "independent"}}}
