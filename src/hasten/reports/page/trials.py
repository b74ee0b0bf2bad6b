"""Draw the trials of a tuning run with their intervals, and the losses of both sides."""

from __future__ import annotations

import math

from hasten import format
from hasten.records import Trial, Tuning
from hasten.reports.page.chart import NARROW, Chart, Spec, aria_label, draw, short
from hasten.reports.tuning import VERDICTS, baseline_name, outcome

WIDEST = 20.0  # intervals are drawn up to this ratio


def forest(tuning: Tuning) -> Chart | None:
    """A row for each trial, and one for the whole plan: speedup with its 95% interval. None without any."""
    rows = [_row(f"{n + 1}. {_name(trial)}", trial, tuning) for n, trial in enumerate(tuning.trials) if _drawn(trial)]
    proof = tuning.proof
    if proof is not None and proof.speedup is not None and math.isfinite(proof.speedup.value):
        text = f"the whole plan: {format.ratio_interval(proof.speedup)}, quality check {VERDICTS[proof.verdict]}"
        low, high = _within(proof.speedup.low), _within(proof.speedup.high)
        value = _within(proof.speedup.value)
        rows.append(
            {
                "row": "the whole plan",
                "value": value,
                "low": low,
                "high": high,
                "state": "the whole plan",
                "label": text,
            }
        )
    if not rows:
        return None
    order = [row["row"] for row in rows]
    states = [state for state in ("kept", "dropped", "the whole plan") if any(r["state"] == state for r in rows)]
    shades = {"kept": "var(--good)", "dropped": "var(--rest)", "the whole plan": "var(--ink)"}
    least = min(0.8, *(float(str(row["low"])) for row in rows))
    most = max(1.25, *(float(str(row["high"])) for row in rows))

    def spec(width: int) -> Spec:
        x = {
            "type": "quantitative",
            "title": "times as fast",
            "scale": {"type": "log", "domain": [least, most], "nice": False},
            "axis": {"values": [v for v in (0.25, 0.5, 0.8, 1, 1.25, 1.5, 2, 3, 5, 10, 20) if least <= v <= most]},
        }
        y = {
            "field": "row",
            "type": "nominal",
            "sort": order,
            "title": None,
            "axis": {"labelLimit": 130 if width == NARROW else 260},
        }
        color = {
            "field": "state",
            "type": "nominal",
            "title": None,
            "scale": {"domain": states, "range": [shades[state] for state in states]},
            "legend": {"orient": "bottom", "columns": 1 if width == NARROW else 3},
        }
        return {
            "width": width,
            "height": 26 * len(rows) + 70,
            "data": {"values": rows},
            "layer": [
                {
                    "data": {"values": [{"one": 1}]},
                    "mark": {"type": "rule", "color": "var(--ink)", "strokeDash": [2, 3], "aria": False},
                    "encoding": {"x": {"field": "one", **x}},
                },
                {
                    "mark": {"type": "rule", "strokeWidth": 3},
                    "encoding": {
                        "x": {"field": "low", **x},
                        "x2": {"field": "high"},
                        "y": y,
                        "color": color,
                        "description": aria_label(),
                    },
                },
                {
                    "mark": {"type": "circle", "size": 70, "opacity": 1},
                    "encoding": {"x": {"field": "value", **x}, "y": y, "color": color, "description": aria_label()},
                },
            ],
        }

    caption = (
        "Each fix compared with the settings it was added to, in fresh processes that alternate. Right of the dotted line is "
        "faster; a fix is kept if its whole 95% interval is there."
    )
    return draw("trials", "What was tried", caption, spec)


def _drawn(trial: Trial) -> bool:
    return trial.speedup is not None and math.isfinite(trial.speedup.value) and trial.speedup.value > 0


def _name(trial: Trial) -> str:
    return short(format.added(trial.added))


def _row(name: str, trial: Trial, tuning: Tuning) -> dict[str, object]:
    assert trial.speedup is not None
    kept = outcome(trial, tuning) == "kept"
    pairs = format.count(len(trial.baseline_seconds), noun="pair")
    return {
        "row": name,
        "value": _within(trial.speedup.value),
        "low": _within(trial.speedup.low),
        "high": _within(trial.speedup.high),
        "state": "kept" if kept else "dropped",
        "label": f"{name}: {format.ratio_interval(trial.speedup)}, {outcome(trial, tuning)}, {pairs}",
    }


def _within(ratio: float) -> float:
    return min(WIDEST, max(1 / WIDEST, ratio))


def losses(tuning: Tuning) -> Chart | None:
    """The loss of each step of baseline and tuned, for one seed; None without losses."""
    proof = tuning.proof
    if proof is None:
        return None
    sides = ((baseline_name(proof.reference_settings), proof.baseline_losses), ("tuned", proof.plan_losses))
    rows = [
        {"side": side, "step": step + 1, "loss": loss, "label": f"{side}, step {step + 1}: loss {loss:.4g}"}
        for side, values in sides
        for step, loss in enumerate(values)
        if loss is not None and math.isfinite(loss)
    ]
    if not rows:
        return None

    def spec(width: int) -> Spec:
        return {
            "width": width,
            "height": 240,
            "data": {"values": rows},
            "layer": [
                {"mark": {"type": "line", "strokeWidth": 1.5, "aria": False}},
                {"mark": {"type": "circle", "size": 16, "opacity": 1}, "encoding": {"description": aria_label()}},
            ],
            "encoding": {
                "x": {"field": "step", "type": "quantitative", "title": "step"},
                "y": {"field": "loss", "type": "quantitative", "title": "loss", "scale": {"zero": False}},
                "color": {
                    "field": "side",
                    "type": "nominal",
                    "title": None,
                    "scale": {
                        "domain": [side for side, _ in sides],
                        "range": ["var(--data_wait)", "var(--forward)"],
                    },
                    "legend": {"orient": "bottom"},
                },
            },
        }

    return draw("losses", "Training loss", "The first steps of baseline and tuned, with the same seed.", spec)
