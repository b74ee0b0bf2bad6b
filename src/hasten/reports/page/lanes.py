"""The picture that everybody draws to explain prefetching, from a run's own marks.

In: Timelines. Out: a chart with a lane for the training thread, each worker and the device. Refuses to conclude.
"""

from __future__ import annotations

from hasten import format
from hasten.records import PHASES, STAGES, Timeline
from hasten.reports.page.chart import NARROW, Chart, Spec, colours, draw, named_rows, says

LANE_HEIGHT = 30  # pixels


def timeline(before: Timeline | None, after: Timeline | None = None, *, under: str = "after") -> Chart | None:
    """A few real steps; where there are two timelines, one above the other on one scale.

    `under`: what the other is called.
    """
    parts = [(name, line) for name, line in (("before", before), (under, after)) if line is not None and line.bars]
    if not parts:
        return None
    several = len(parts) > 1
    longest = max(line.seconds for _, line in parts)
    rows = [row for name, line in parts for row in _rows(line, part=name if several else "")]
    ends = [
        {"part": name if several else "", "ms": 1e3 * end}
        for name, line in parts
        for end in line.step_ends
        if end <= longest
    ]
    seen = {str(row["key"]) for row in rows}
    keys = [key for key in (*PHASES, *STAGES) if key in seen]
    keys += sorted(seen - {*keys})
    labels = [_label(key) for key in keys]

    def panel(part: str, width: int) -> Spec:
        lanes = list(dict.fromkeys(str(row["lane"]) for row in rows if row["part"] == part))
        scale = {"domain": [0, 1e3 * longest], "nice": False}
        return {
            "width": width - (90 if width == NARROW else 110),
            "height": LANE_HEIGHT * len(lanes),
            "title": {"text": part, "anchor": "start", "color": "var(--dim)", "fontSize": 12} if part else None,
            "layer": [
                {
                    "data": {"values": [row for row in rows if row["part"] == part]},
                    "mark": {"type": "rect", "height": {"band": 0.7}},
                    "encoding": {
                        "x": {
                            "field": "from",
                            "type": "quantitative",
                            "title": "ms",
                            "scale": scale,
                            "axis": {"tickCount": width // 80},
                        },
                        "x2": {"field": "to"},
                        "y": named_rows("lane", lanes, width),
                        "color": {
                            "field": "kind",
                            "type": "nominal",
                            "title": None,
                            "scale": colours(keys, labels),
                            "legend": {"orient": "bottom", "columns": 2 if width == NARROW else 7},
                        },
                        "description": says(),
                    },
                },
                {
                    "data": {"values": [end for end in ends if end["part"] == part]},
                    "mark": {"type": "rule", "color": "var(--ink)", "strokeDash": [2, 3], "aria": False},
                    "encoding": {"x": {"field": "ms", "type": "quantitative"}},
                },
            ],
        }

    def spec(width: int) -> Spec:
        return {"vconcat": [panel(name if several else "", width) for name, _ in parts], "spacing": 12}

    caption = (
        f"{_steps(len(parts[0][1].step_ends))} A gap in the training thread belongs to the script itself. A worker goes "
        "through its stages sample by sample; drawn is what each took of a whole batch."
    )
    if several:
        caption += " Both on one scale: what is missing to the right is what was gained."
    return draw("timeline", "A few real steps", caption, spec)


def _steps(number: int) -> str:
    if not number:
        return "The beginning of a step as it was measured; all of it would be too much to draw."
    steps = (
        "A step as it was measured, up to the"
        if number == 1
        else f"{number} steps as they were measured, each up to a"
    )
    return f"{steps} dotted line."


def _rows(line: Timeline, *, part: str) -> list[dict[str, object]]:
    return [
        {
            "part": part,
            "lane": bar.lane,
            "key": bar.kind,
            "kind": _label(bar.kind),
            "from": 1e3 * bar.start,
            "to": 1e3 * (bar.start + bar.seconds),
            "says": f"{bar.lane}: {_label(bar.kind)} {format.seconds(bar.seconds)}, from {format.seconds(bar.start)} on",
        }
        for bar in line.bars
    ]


def _label(key: str) -> str:
    return format.stage(key) if key in STAGES else format.phase(key)
