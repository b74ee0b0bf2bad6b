"""Chart of the input: what a sample costs to make."""

from __future__ import annotations

from hasten import format
from hasten.records import LoaderFacts, Run
from hasten.reports.page.chart import Chart, Spec, draw, named_rows, says, short

MOST_STAGES = 14


def busiest_loader(run: Run) -> LoaderFacts | None:
    """The training loader whose work was measured and is the most."""
    loaders = [x for x in run.facts.loaders if x.role == "train" and x.stages and x.num_measured_samples]
    return max(loaders, key=lambda x: sum(stage.seconds for stage in x.stages), default=None)


def cost_of_a_sample(run: Run) -> Chart | None:
    """A bar a stage: seconds of a worker for each sample, and how much of them it computed."""
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
        told = f"{format.stage(stage.name, detail=stage.detail)}: {format.seconds(stage.seconds / number)} a sample, "
        told += f"{format.seconds(stage.cpu_seconds / number)} of them on a core"
        busy = min(stage.cpu_seconds, stage.seconds)
        rows.append({"stage": name, "what": "on a core", "ms": 1e3 * busy / number, "order": 0, "says": told})
        waits = 1e3 * (stage.seconds - busy) / number
        rows.append({"stage": name, "what": "waiting", "ms": waits, "order": 1, "says": told})

    def spec(width: int) -> Spec:
        return {
            "width": width,
            "height": 26 * len(order) + 70,
            "data": {"values": rows},
            "mark": {"type": "bar", "height": {"band": 0.7}},
            "encoding": {
                "y": named_rows("stage", order, width),
                "x": {"field": "ms", "type": "quantitative", "title": "ms a sample"},
                "color": {
                    "field": "what",
                    "type": "nominal",
                    "title": None,
                    "scale": {"domain": ["on a core", "waiting"], "range": ["var(--forward)", "var(--rest)"]},
                    "legend": {"orient": "bottom"},
                },
                "order": {"field": "order", "type": "quantitative"},
                "description": says(),
            },
        }

    caption = (
        f"{loader.name}: the work of {format.count(number, noun='sample')}, by library and transform, per sample."
    )
    return draw("stages", "What a sample costs to make", caption, spec)
