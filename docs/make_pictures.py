"""Draw the pictures of the docs from committed results.

    python docs/make_pictures.py           write docs/pictures/*.svg
    python docs/make_pictures.py --check   check whether they are up to date; exit with 1 if not

The pictures show saved benchmark results; nothing is measured.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
from generate import main

from hasten.records import Run
from hasten.reports.page.chart import Chart, aria_label, draw, standalone
from hasten.reports.page.lanes import timeline
from hasten.reports.page.machine import machine_over_time

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PICTURES = ROOT / "docs" / "pictures"
SIDES = {"speedup": "tuned", "by_hand": "fixed by hand"}


def tuned_scripts() -> Chart | None:
    """Speedup of each faulty script over its baseline: tuned, and fixed by hand."""
    rows: list[dict[str, Any]] = []
    for path in sorted((RESULTS / "tune").glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        for side, name in SIDES.items():
            if side in result:
                value, low, high = result[side]
                text = f"{path.stem}, {name}: {value:.2f}x faster ({low:.2f} to {high:.2f})"
                rows.append(
                    {"script": path.stem, "side": name, "value": value, "low": low, "high": high, "label": text}
                )
    if not rows:
        return None
    order = sorted({row["script"] for row in rows}, key=lambda s: -max(r["value"] for r in rows if r["script"] == s))

    def spec(width: int) -> dict[str, Any]:
        x = {
            "type": "quantitative",
            "title": "speedup over the baseline",
            "scale": {"type": "log", "nice": False},
            "axis": {"values": [1, 1.5, 2, 3, 5, 10, 20, 50, 100]},
        }
        shared = {
            "y": {"field": "script", "type": "nominal", "sort": order, "title": None},
            "yOffset": {"field": "side", "type": "nominal"},
            "color": {
                "field": "side",
                "type": "nominal",
                "title": None,
                "scale": {"domain": list(SIDES.values()), "range": ["var(--good)", "var(--rest)"]},
                "legend": {"orient": "top"},
            },
            "description": aria_label(),
        }
        return {
            "width": width,
            "height": 26 * len(order) + 70,
            "data": {"values": rows},
            "layer": [
                {
                    "mark": {"type": "rule", "strokeWidth": 3},
                    "encoding": {"x": {"field": "low", **x}, "x2": {"field": "high"}, **shared},
                },
                {
                    "mark": {"type": "circle", "size": 50, "opacity": 1},
                    "encoding": {"x": {"field": "value", **x}, **shared},
                },
            ],
        }

    return draw("tune", "Faulty scripts, tuned", "", spec)


def public_scripts() -> Chart | None:
    """Samples per second of each public script that was measured: as it is, and under its plan."""
    rows: list[dict[str, Any]] = []
    for path in sorted((RESULTS / "wild").glob("*.json")):
        speedup = json.loads(path.read_text(encoding="utf-8")).get("regret", {}).get("speedup")
        if speedup is not None:
            value, low, high = speedup
            told = f"{value:.2f}x"
            one = {"script": path.stem, "low": low, "high": high, "gain": value}
            rows.append({**one, "side": "as it is", "value": 1.0, "told": "", "label": f"{path.stem}, as it is: 1"})
            label = f"{path.stem}, tuned: {told} ({low:.2f} to {high:.2f})"
            rows.append({**one, "side": "tuned", "value": value, "told": told, "label": label})
    if not rows:
        return None
    order = [row["script"] for row in sorted(rows, key=lambda r: -r["gain"]) if row["side"] == "tuned"]
    most = max(row["high"] for row in rows)

    def spec(width: int) -> dict[str, Any]:
        x = {
            "type": "quantitative",
            "title": "times as fast as the unmodified script, with 95% intervals",
            "scale": {"domain": [0, 1.05 * most]},
            "axis": {"tickCount": 6},
        }
        shared = {
            "y": {"field": "script", "type": "nominal", "sort": order, "title": None},
            "yOffset": {"field": "side", "type": "nominal", "sort": ["as it is", "tuned"]},
        }
        color = {
            "field": "side",
            "type": "nominal",
            "title": None,
            "scale": {"domain": ["as it is", "tuned"], "range": ["var(--rest)", "var(--good)"]},
            "legend": {"orient": "top"},
        }
        tuned = [{"filter": "datum.side == 'tuned'"}]
        return {
            "width": width,
            "height": 34 * len(order),
            "data": {"values": rows},
            "layer": [
                {
                    "mark": {"type": "bar"},
                    "encoding": {"x": {"field": "value", **x}, "color": color, "description": aria_label(), **shared},
                },
                {
                    "transform": tuned,
                    "mark": {"type": "rule", "strokeWidth": 1.5, "color": "var(--ink)"},
                    "encoding": {"x": {"field": "low", **x}, "x2": {"field": "high"}, **shared},
                },
                {
                    "transform": tuned,
                    "mark": {"type": "text", "align": "left", "dx": 6, "color": "var(--ink)"},
                    "encoding": {"x": {"field": "high", **x}, "text": {"field": "told", "type": "nominal"}, **shared},
                },
            ],
        }

    return draw("public", "Public scripts, tuned", "", spec)


def case_study_runs(name: str) -> tuple[Run, Run | None] | None:
    """The baseline run of a case study and its tuned run; None where it was not measured."""
    path = RESULTS / "case_studies" / f"{name}.json"
    if not path.exists():
        return None
    result = json.loads(path.read_text(encoding="utf-8"))
    runs = [result.get("run"), result.get("after")]
    before, after = (msgspec.convert(run, Run) if run is not None else None for run in runs)
    return (before, after) if before is not None else None


def case_study_steps(name: str) -> Chart | None:
    """A few steps of the baseline and of the tuned script."""
    runs = case_study_runs(name)
    if runs is None:
        return None
    before, after = runs
    return timeline(before.timeline, after.timeline if after is not None else None)


def case_study_machine(name: str, *, after: bool) -> Chart | None:
    """The machine over the run of the baseline, or of the tuned script."""
    runs = case_study_runs(name)
    run = runs[after] if runs is not None else None
    return machine_over_time(run) if run is not None else None


def limited_memory() -> Chart | None:
    """Memory over time of super-resolution, by the kind of cache, below the limit of its control group."""
    rows: list[dict[str, Any]] = []
    limit = 0.0
    for path in sorted((RESULTS / "case_studies").glob("limit_*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        if "bytes_each_second" not in result:
            continue
        name = result["side"]
        limit = result["limit"] / 2**20
        for second, used in enumerate(result["bytes_each_second"]):
            mib = used / 2**20
            rows.append({"side": name, "second": second, "mib": mib, "label": f"{name}, {second} s: {mib:.0f} MiB"})
    if not rows:
        return None

    def spec(width: int) -> dict[str, Any]:
        y = {"type": "quantitative", "title": "MiB"}
        return {
            "width": width,
            "height": 260,
            "layer": [
                {
                    "data": {"values": rows},
                    "mark": {"type": "line", "strokeWidth": 2},
                    "encoding": {
                        "x": {"field": "second", "type": "quantitative", "title": "seconds"},
                        "y": {"field": "mib", **y},
                        "color": {
                            "field": "side",
                            "type": "nominal",
                            "title": None,
                            "scale": {"range": ["var(--rest)", "var(--good)", "var(--data_wait)"]},
                            "legend": {"orient": "top"},
                        },
                        "description": aria_label(),
                    },
                },
                {
                    "data": {"values": [{"limit": limit}]},
                    "mark": {"type": "rule", "color": "var(--ink)", "strokeDash": [4, 4]},
                    "encoding": {"y": {"field": "limit", **y}},
                },
            ],
        }

    return draw("limit", "Memory under a limit", "", spec)


PICTURED: dict[str, Callable[[], Chart | None]] = {
    "public-scripts": public_scripts,
    "tune": tuned_scripts,
    "xray": functools.partial(case_study_steps, "xray"),
    "feed": functools.partial(case_study_steps, "waiting"),
    "superres-before": functools.partial(case_study_machine, "superres", after=False),
    "superres-after": functools.partial(case_study_machine, "superres", after=True),
    "superres-limit": limited_memory,
}


def files() -> dict[Path, str]:
    """Each picture's file and text."""
    colors = resources.files("hasten.reports.page").joinpath("assets").joinpath("colors.css").read_text("utf-8")
    drawn = {name: make() for name, make in PICTURED.items()}
    return {
        PICTURES / f"{name}.svg": standalone(chart.wide, colors=colors)
        for name, chart in drawn.items()
        if chart is not None
    }


if __name__ == "__main__":
    raise SystemExit(main(files))
