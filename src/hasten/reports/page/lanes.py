"""Draw a few steps as a timeline, with a lane for the training thread, each worker and the device."""

from __future__ import annotations

from hasten import format
from hasten.records import PHASES, STAGES, Timeline
from hasten.reports.page.chart import NARROW, Chart, Spec, aria_label, colors, draw, named_rows

LANE_HEIGHT = 30  # pixels


def timeline(before: Timeline | None, after: Timeline | None = None, *, tuned: str = "tuned") -> Chart | None:
    """A few steps as they were measured. Two timelines are drawn one above the other, on one scale.

    Args:
        before: of the baseline.
        after: of the run with the plan, if there is one.
        tuned: name of `after`.
    """
    parts = [(name, line) for name, line in (("baseline", before), (tuned, after)) if line is not None and line.bars]
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
                            "scale": colors(keys, labels),
                            "legend": {"orient": "bottom", "columns": 2 if width == NARROW else 7},
                        },
                        "description": aria_label(),
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
        f"{_steps(len(parts[0][1].step_ends))} Gaps in the training thread are the script's own code. A worker handles "
        "one sample after another; each bar is the time of a stage for a whole batch."
    )
    if several:
        caption += " Both share one scale: the shorter one is faster by the space to its right."
    return draw("timeline", "A few real steps", caption, spec)


def _steps(number: int) -> str:
    if not number:
        return "The start of a measured step; the whole step has too many events to draw."
    steps = "One measured step, up to the" if number == 1 else f"{number} measured steps, each up to a"
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
            "label": f"{bar.lane}: {_label(bar.kind)} {format.seconds(bar.seconds)}, starting at {format.seconds(bar.start)}",
        }
        for bar in line.bars
    ]


def _label(key: str) -> str:
    return format.stage(key) if key in STAGES else format.phase(key)
