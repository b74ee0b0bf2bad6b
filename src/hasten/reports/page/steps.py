"""Draw where the step goes, how long steps take over the run, and what a sample costs to load."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from hasten import format
from hasten.records import PHASES, Diagnosis, LoaderFacts, Phase, Run, Step
from hasten.reports.page.chart import NARROW, Chart, Spec, aria_label, colors, draw, named_rows, short

SMALLEST = 0.002  # share of the step: less cannot be seen in a bar
MOST_POINTS = 400  # dots in the chart of step times: steps, or groups of steps
NUM_SLOW = 12  # slow steps that are marked with their cause
SLOW = 1.5  # times the median step
REST = "rest"  # color of a step without phases


def where_it_goes(run: Run, diagnosis: Diagnosis) -> Chart | None:
    """The mean step by phase, and what it would be with instant data loading and with instant copies."""
    breakdown, ceiling = diagnosis.breakdown, diagnosis.ceiling
    step = breakdown.step_seconds
    if not math.isfinite(step) or step <= 0:
        return None
    rows: list[dict[str, object]] = []
    parts = [*((name, breakdown.phases.get(name)) for name in PHASES), ("unaccounted", breakdown.unaccounted)]
    for order, (name, seconds) in enumerate(parts):
        if seconds is None or not math.isfinite(seconds) or seconds < SMALLEST * step:
            continue
        text = f"{format.phase(name)}: {format.seconds(seconds)}, {format.share(seconds / step)} of the step"
        rows.append({"bar": "now", "part": format.phase(name), "ms": 1e3 * seconds, "order": order, "label": text})
    for bar, seconds in (("instant data loading", ceiling.free_batches), ("instant copies too", ceiling.free_copies)):
        if seconds is not None and math.isfinite(seconds):
            text = f"with {bar}: {format.seconds(seconds)} per step"
            rows.append({"bar": bar, "part": "whole step", "ms": 1e3 * seconds, "order": 0, "label": text})
    shown = [part for part in [*map(format.phase, PHASES), "unaccounted", "whole step"] if _has(rows, part)]
    keys = {format.phase(name): name for name in PHASES} | {"unaccounted": "unaccounted", "whole step": REST}
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
                    "title": "ms per step",
                    "axis": {"tickCount": width // 80},
                },
                "color": {
                    "field": "part",
                    "type": "nominal",
                    "title": None,
                    "scale": colors([keys[part] for part in shown], shown),
                    "legend": {"orient": "bottom", "columns": 2 if width == NARROW else 6},
                },
                "order": {"field": "order", "type": "quantitative"},
                "description": aria_label(),
            },
        }

    caption = (
        "The mean uninstrumented step. Phases are exclusive times on the training thread; phases that were not seen are left "
        "out."
    )
    if len(bars) > 1:
        caption += " Below it: the same script with its batches replayed from memory, or already on the device."
    return draw("step", "Where the step goes", caption, spec)


def _has(rows: Sequence[dict[str, object]], part: str) -> bool:
    return any(row["part"] == part for row in rows)


def step_times(run: Run) -> Chart | None:
    """Step times over the run; slow steps are marked, with the phase that took longer than usual."""
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
            "label": _describe(group),
        }
        for group in groups
    ]
    slow = sorted((s for s in steps if s.seconds > SLOW * middle), key=lambda s: -s.seconds)[:NUM_SLOW]
    typical = _typical(steps)
    marked = [
        {
            "at": step.start,
            "ms": 1e3 * step.seconds,
            "label": f"step {step.index}: {format.seconds(step.seconds)}, {_cause(step, typical)}",
        }
        for step in slow
    ]

    def spec(width: int) -> Spec:
        x = {"field": "at", "type": "quantitative", "title": "seconds since the start", "scale": {"zero": False}}
        y = {"field": "ms", "type": "quantitative", "title": "ms per step", "scale": {"zero": True}}
        return {
            "width": width,
            "height": 240,
            "layer": [
                {
                    "data": {"values": line},
                    "mark": {"type": "rule", "color": "var(--rest)", "strokeWidth": 2},
                    "encoding": {
                        "x": x,
                        "y": {**y, "field": "low"},
                        "y2": {"field": "high"},
                        "description": aria_label(),
                    },
                },
                {
                    "data": {"values": line},
                    "mark": {"type": "circle", "color": "var(--forward)", "size": 18, "opacity": 1},
                    "encoding": {"x": x, "y": y, "description": aria_label()},
                },
                {
                    "data": {"values": marked},
                    "mark": {"type": "point", "color": "var(--bad)", "filled": True, "size": 50, "opacity": 1},
                    "encoding": {"x": x, "y": y, "description": aria_label()},
                },
            ],
        }

    per = "Each dot is a step." if len(groups) == len(steps) else f"Each dot is the median of {len(groups[0])} steps."
    caption = f"{per} Red: steps that took more than {SLOW:g} times the median; hover for the phase that took longer."
    return draw("steps", "Step times over the run", caption, spec)


def _grouped(steps: Sequence[Step]) -> list[Sequence[Step]]:
    size = math.ceil(len(steps) / MOST_POINTS)
    return [steps[n : n + size] for n in range(0, len(steps), size)]


def _describe(group: Sequence[Step]) -> str:
    if len(group) == 1:
        return f"step {group[0].index}: {format.seconds(group[0].seconds)}"
    times = [step.seconds for step in group]
    return (
        f"steps {group[0].index} to {group[-1].index}: {format.seconds(statistics.median(times))}, "
        f"from {format.seconds(min(times))} to {format.seconds(max(times))}"
    )


def _typical(steps: Sequence[Step]) -> dict[Phase, float]:
    """The median seconds of each phase, over all steps."""
    seen: set[Phase] = {name for step in steps for name in step.phases}
    return {name: statistics.median(step.phases.get(name, 0.0) for step in steps) for name in seen}


def _cause(step: Step, typical: dict[Phase, float]) -> str:
    longer = {name: seconds - typical.get(name, 0.0) for name, seconds in step.phases.items()}
    name = max(longer, key=lambda phase: longer[phase], default="")
    if not name or longer[name] < 0.25 * step.seconds:
        return "no single phase is the cause"
    return f"{format.phase(name)} took {format.seconds(longer[name])} longer than usual"


MOST_STAGES = 14


def busiest_loader(run: Run) -> LoaderFacts | None:
    """The training loader with the most measured work; None without one."""
    loaders = [x for x in run.facts.loaders if x.role == "train" and x.stages and x.num_measured_samples]
    return max(loaders, key=lambda x: sum(stage.seconds for stage in x.stages), default=None)


def cost_of_a_sample(run: Run) -> Chart | None:
    """A bar for each stage: a worker's time per sample, split into CPU time and waiting."""
    loader = busiest_loader(run)
    if loader is None:
        return None
    number = loader.num_measured_samples
    rows: list[dict[str, object]] = []
    order: list[str] = []
    for stage in sorted(loader.stages, key=lambda s: -s.seconds)[:MOST_STAGES]:
        name = short(format.stage(stage.name, detail=stage.detail))
        while name in order:
            name += " "
        order.append(name)
        text = (
            f"{format.stage(stage.name, detail=stage.detail)}: {format.seconds(stage.seconds / number)} per sample, "
        )
        text += f"{format.seconds(stage.cpu_seconds / number)} of it on the CPU"
        busy = min(stage.cpu_seconds, stage.seconds)
        rows.append({"stage": name, "what": "CPU", "ms": 1e3 * busy / number, "order": 0, "label": text})
        waits = 1e3 * (stage.seconds - busy) / number
        rows.append({"stage": name, "what": "waiting", "ms": waits, "order": 1, "label": text})

    def spec(width: int) -> Spec:
        return {
            "width": width,
            "height": 26 * len(order) + 70,
            "data": {"values": rows},
            "mark": {"type": "bar", "height": {"band": 0.7}},
            "encoding": {
                "y": named_rows("stage", order, width),
                "x": {"field": "ms", "type": "quantitative", "title": "ms per sample"},
                "color": {
                    "field": "what",
                    "type": "nominal",
                    "title": None,
                    "scale": {"domain": ["CPU", "waiting"], "range": ["var(--forward)", "var(--rest)"]},
                    "legend": {"orient": "bottom"},
                },
                "order": {"field": "order", "type": "quantitative"},
                "description": aria_label(),
            },
        }

    caption = f"{loader.name}: mean of {format.count(number, noun='sample')}, by library and transform."
    return draw("stages", "What a sample costs to make", caption, spec)
