"""A chart: drawn by Vega-Lite into SVG, once wide and once narrow, with a sentence for every mark.

In: a specification in Vega-Lite's grammar. Out: SVG whose colours are names that the page's style sheet gives a meaning.
Refuses to know what is drawn.

Each datum carries `says`: what a reader hears of it on hover, by keyboard or from a screen reader. Vega puts it on the mark
as its `aria-label`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hasten.reports.page.widths import with_widths
from hasten.safe_text import legible

Spec = dict[str, Any]
Data = Sequence[Mapping[str, Any]]

WIDE, NARROW = 860, 300  # pixels of a chart in all
MOST_LABEL = 28  # characters of a label beside an axis
_CONFIG: Spec = {
    "background": None,
    "font": "Helvetica, Arial, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--dim)",
        "titleColor": "var(--dim)",
        "titleFontWeight": "normal",
        "titleFontSize": 12,
        "labelFontSize": 12,
        "gridColor": "var(--grid)",
        "domainColor": "var(--grid)",
        "tickColor": "var(--grid)",
    },
    "legend": {"labelColor": "var(--dim)", "titleColor": "var(--dim)", "labelFontSize": 12, "symbolType": "square"},
    "header": {"labelColor": "var(--dim)", "labelFontSize": 12, "titleColor": "var(--dim)"},
}


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One drawn chart."""

    name: str  # of its place in the page
    title: str
    caption: str  # what is drawn, and how it was measured
    wide: str  # SVG
    narrow: str


def draw(name: str, title: str, caption: str, spec: Callable[[int], Spec]) -> Chart:
    """Draw a chart at both widths; `spec` is told the width."""
    wide, narrow = (_svg(spec(width), prefix=f"{name}-{width}") for width in (WIDE, NARROW))
    return Chart(name=name, title=title, caption=caption, wide=wide, narrow=narrow)


def _svg(spec: Spec, *, prefix: str) -> str:
    import vl_convert

    whole = {"config": _CONFIG, "autosize": {"type": "fit", "contains": "padding"}, "padding": 2, **spec}
    if any(key in spec for key in ("vconcat", "hconcat", "facet")):
        whole.pop("autosize")
    text = vl_convert.vegalite_to_svg(json.dumps(_plain(whole), ensure_ascii=False))
    # Several drawings share one page: what they refer to by name must be their own.
    text = re.sub(r'id="([^"]+)"', rf'id="{prefix}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", text)
    text = re.sub(r"<svg ", '<svg role="img" ', text, count=1)
    return with_widths(text)


def _plain(value: object) -> object:
    """A specification whose texts hold no control character, for the renderer ends the whole process at one."""
    if isinstance(value, str):
        return legible(value, keep="\n")
    if isinstance(value, dict):
        return {_plain(key): _plain(inner) for key, inner in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def standalone(svg: str, *, colours: str) -> str:
    """A drawing that carries the style sheet's colours, to be shown as a picture."""
    opening, _, rest = svg.partition(">")
    return f"{opening}><style>{colours}\nsvg {{ background: var(--paper); }}</style>{rest}\n"


def says(field: str = "says") -> Spec:
    """What a mark is called."""
    return {"field": field, "type": "nominal"}


def named_rows(field: str, order: Sequence[str], width: int) -> Spec:
    """A vertical axis of names, in this order, without a line; long ones are cut where a chart is narrow."""
    axis = {"domain": False, "ticks": False, "labelLimit": 130 if width == NARROW else 240}
    return {"field": field, "type": "nominal", "sort": list(order), "title": None, "axis": axis}


def colours(names: Sequence[str], labels: Sequence[str], **legend: Any) -> Spec:
    """A scale from names to the style sheet's colours of the same names, with its legend."""
    return {
        "domain": list(labels),
        "range": [f"var(--{name})" for name in names],
        **legend,
    }


def short(text: str, most: int = MOST_LABEL) -> str:
    """A label, cut in its middle where it is too long for an axis."""
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[-(most // 2 - 1) :]}"
