"""Show where the step goes, how long steps take over the run, and what a sample costs to load."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hasten import format
from hasten.records import PHASES, Breakdown, Diagnosis, LoaderFacts, Phase, Run, Step
from hasten.reports.page.chart import Chart, Spec, aria_label, draw, named_rows, short

SMALLEST = 0.005  # share of the step; a smaller phase has no bar
UNACCOUNTED = "unaccounted"
MOST_POINTS = 400  # dots in the chart of step times: steps, or groups of steps
NUM_SLOW = 12  # slow steps that are marked with their cause
SLOW = 1.5  # times the median step


@dataclass(frozen=True)
class Bar:
    """One bar: its length in percent of the longest, and its label."""

    width: float
    label: str


@dataclass(frozen=True)
class PhaseRow:
    """One phase: its bar in the baseline, and in the run with the plan if there is one."""

    name: str
    color: str
    before: Bar
    after: Bar | None


def phase_rows(diagnosis: Diagnosis, after: Diagnosis | None) -> list[PhaseRow]:
    """The rows of all phases that are large enough to be seen, in the order of a step."""
    before = _seconds(diagnosis.breakdown)
    now = _seconds(after.breakdown) if after is not None else None
    step, tuned_step = sum(before.values()), sum(now.values()) if now is not None else 0.0
    longest = max([*before.values(), *(now or {}).values()], default=0.0)
    if step <= 0 or longest <= 0:
        return []

    def bar(seconds: float, whole: float) -> Bar:
        label = f"{format.seconds(seconds)}, {format.share(seconds / whole)}" if whole > 0 else ""
        return Bar(width=round(100 * seconds / longest, 1), label=label)

    return [
        PhaseRow(
            name=format.phase(name),
            color=name,
            before=bar(seconds, step),
            after=None if now is None else bar(now.get(name, 0.0), tuned_step),
        )
        for name, seconds in before.items()
        if max(seconds, (now or {}).get(name, 0.0)) >= SMALLEST * step
    ]


def _seconds(breakdown: Breakdown) -> dict[str, float]:
    parts = [*((name, breakdown.phases.get(name)) for name in PHASES), (UNACCOUNTED, breakdown.unaccounted)]
    return {name: max(0.0, seconds) for name, seconds in parts if seconds is not None and math.isfinite(seconds)}


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
