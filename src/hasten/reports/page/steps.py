"""Charts of the step: where it goes, and how its length changes over the run.

In: a Run and its Diagnosis. Out: charts. Refuses to conclude.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from hasten import format
from hasten.records import PHASES, Diagnosis, Phase, Run, Step
from hasten.reports.page.chart import NARROW, Chart, Spec, colours, draw, named_rows, says

LEAST = 0.002  # of the step: less cannot be seen in a bar
MOST_POINTS = 400  # steps, or groups of steps, that a chart of the run's course shows
NUM_SLOW = 12  # slow steps that are marked with their cause
SLOW = 1.5  # times the median step
REST = "rest"  # a step of which only the length is known


def where_it_goes(run: Run, diagnosis: Diagnosis) -> Chart | None:
    """The mean step by phase, above it what it would be with batches, and with copies, for free."""
    breakdown, ceiling = diagnosis.breakdown, diagnosis.ceiling
    step = breakdown.step_seconds
    if not math.isfinite(step) or step <= 0:
        return None
    rows: list[dict[str, object]] = []
    parts = [*((name, breakdown.phases.get(name)) for name in PHASES), ("unaccounted", breakdown.unaccounted)]
    for order, (name, seconds) in enumerate(parts):
        if seconds is None or not math.isfinite(seconds) or seconds < LEAST * step:
            continue
        text = f"{format.phase(name)}: {format.seconds(seconds)}, {format.share(seconds / step)} of the step"
        rows.append({"bar": "now", "part": format.phase(name), "ms": 1e3 * seconds, "order": order, "says": text})
    for bar, seconds in (("batches for free", ceiling.free_batches), ("copies for free", ceiling.free_copies)):
        if seconds is not None and math.isfinite(seconds):
            text = f"with {bar}: {format.seconds(seconds)} a step"
            rows.append({"bar": bar, "part": "all of it", "ms": 1e3 * seconds, "order": 0, "says": text})
    shown = [part for part in [*map(format.phase, PHASES), "unaccounted", "all of it"] if _has(rows, part)]
    keys = {format.phase(name): name for name in PHASES} | {"unaccounted": "unaccounted", "all of it": REST}
    bars = list(dict.fromkeys(str(row["bar"]) for row in rows))

    def spec(width: int) -> Spec:
        return {
            "width": width,
            "height": 34 * len(bars) + (130 if width == NARROW else 70),  # with its legend
            "data": {"values": rows},
            "mark": {"type": "bar", "height": {"band": 0.72}},
            "encoding": {
                "y": named_rows("bar", bars, width),
                "x": {
                    "field": "ms",
                    "type": "quantitative",
                    "title": "ms a step",
                    "axis": {"tickCount": width // 80},
                },
                "color": {
                    "field": "part",
                    "type": "nominal",
                    "title": None,
                    "scale": colours([keys[part] for part in shown], shown),
                    "legend": {"orient": "bottom", "columns": 2 if width == NARROW else 6},
                },
                "order": {"field": "order", "type": "quantitative"},
                "description": says(),
            },
        }

    caption = (
        "The mean step in the time of record. Phases are the training thread's own seconds; those that were not seen are "
        "not in it."
    )
    if len(bars) > 1:
        caption += " Beneath it the same script with its batches replayed, or with them on the device already."
    return draw("step", "Where the step goes", caption, spec)


def _has(rows: Sequence[dict[str, object]], part: str) -> bool:
    return any(row["part"] == part for row in rows)


def course(run: Run) -> Chart | None:
    """Step times in their order; the slow ones with what took longer in them than it does as a rule."""
    steps = [step for step in run.steps if math.isfinite(step.seconds)]
    if len(steps) < 2:
        return None
    middle = statistics.median(step.seconds for step in steps)
    groups = _grouped(steps)
    line = [
        {
            "at": group[0].start,
            "low": 1e3 * min(s.seconds for s in group),
            "high": 1e3 * max(s.seconds for s in group),
            "ms": 1e3 * statistics.median(s.seconds for s in group),
            "says": _told(group),
        }
        for group in groups
    ]
    slow = sorted((s for s in steps if s.seconds > SLOW * middle), key=lambda s: -s.seconds)[:NUM_SLOW]
    typical = _typical(steps)
    marked = [
        {
            "at": step.start,
            "ms": 1e3 * step.seconds,
            "says": f"step {step.index}: {format.seconds(step.seconds)}, {_cause(step, typical)}",
        }
        for step in slow
    ]

    def spec(width: int) -> Spec:
        x = {"field": "at", "type": "quantitative", "title": "seconds since the start", "scale": {"zero": False}}
        y = {"field": "ms", "type": "quantitative", "title": "ms a step", "scale": {"zero": True}}
        return {
            "width": width,
            "height": 240,
            "layer": [
                {
                    "data": {"values": line},
                    "mark": {"type": "rule", "color": "var(--rest)", "strokeWidth": 2},
                    "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "description": says()},
                },
                {
                    "data": {"values": line},
                    "mark": {"type": "circle", "color": "var(--forward)", "size": 18, "opacity": 1},
                    "encoding": {"x": x, "y": y, "description": says()},
                },
                {
                    "data": {"values": marked},
                    "mark": {"type": "point", "color": "var(--bad)", "filled": True, "size": 50, "opacity": 1},
                    "encoding": {"x": x, "y": y, "description": says()},
                },
            ],
        }

    per = "Each dot is a step." if len(groups) == len(steps) else f"Each dot is the median of {len(groups[0])} steps."
    caption = f"{per} Red: steps that took more than {SLOW:g} times the median, with what was longer in them."
    return draw("course", "Step times over the run", caption, spec)


def _grouped(steps: Sequence[Step]) -> list[Sequence[Step]]:
    size = math.ceil(len(steps) / MOST_POINTS)
    return [steps[n : n + size] for n in range(0, len(steps), size)]


def _told(group: Sequence[Step]) -> str:
    if len(group) == 1:
        return f"step {group[0].index}: {format.seconds(group[0].seconds)}"
    times = [step.seconds for step in group]
    return (
        f"steps {group[0].index} to {group[-1].index}: {format.seconds(statistics.median(times))}, "
        f"from {format.seconds(min(times))} to {format.seconds(max(times))}"
    )


def _typical(steps: Sequence[Step]) -> dict[Phase, float]:
    """The median seconds of each phase, over the steps in which it was asked for."""
    seen: set[Phase] = {name for step in steps for name in step.phases}
    return {name: statistics.median(step.phases.get(name, 0.0) for step in steps) for name in seen}


def _cause(step: Step, typical: dict[Phase, float]) -> str:
    longer = {name: seconds - typical.get(name, 0.0) for name, seconds in step.phases.items()}
    name = max(longer, key=lambda phase: longer[phase], default="")
    if not name or longer[name] < 0.25 * step.seconds:
        return "no phase seen to be the cause"
    return f"{format.phase(name)} took {format.seconds(longer[name])} longer than it does as a rule"
