"""Draw a chart with Vega-Lite as SVG, once wide and once narrow, with a text label for every mark.

Colors in the SVG are CSS variables that the page's style sheet defines. Each datum has a field `label`: the text that is
shown on hover and read by screen readers. Vega puts it on the mark as its `aria-label`.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hasten.safe_text import legible

Spec = dict[str, Any]
Data = Sequence[Mapping[str, Any]]

WIDE, NARROW = 860, 300  # width of a chart in pixels
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

    name: str  # its id in the page
    title: str
    caption: str  # what it shows, and how it was measured
    wide: str  # SVG
    narrow: str


def draw(name: str, title: str, caption: str, spec: Callable[[int], Spec]) -> Chart:
    """Draw a chart at both widths; `spec` makes the Vega-Lite specification for a width."""
    wide, narrow = (_svg(spec(width), prefix=f"{name}-{width}") for width in (WIDE, NARROW))
    return Chart(name=name, title=title, caption=caption, wide=wide, narrow=narrow)


def _svg(spec: Spec, *, prefix: str) -> str:
    import vl_convert

    whole = {"config": _CONFIG, "autosize": {"type": "fit", "contains": "padding"}, "padding": 2, **spec}
    if any(key in spec for key in ("vconcat", "hconcat", "facet")):
        whole.pop("autosize")
    text = vl_convert.vegalite_to_svg(json.dumps(_plain(whole), ensure_ascii=False))
    # Several drawings share one page, so ids must be unique.
    text = re.sub(r'id="([^"]+)"', rf'id="{prefix}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", text)
    text = re.sub(r"<svg ", '<svg role="img" ', text, count=1)
    return with_widths(text)


def _plain(value: object) -> object:
    """The specification without control characters, which crash the renderer's process."""
    if isinstance(value, str):
        return legible(value, keep="\n")
    if isinstance(value, dict):
        return {_plain(key): _plain(inner) for key, inner in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def standalone(svg: str, *, colors: str) -> str:
    """The drawing with the style sheet's colors inside, to be used as a picture file."""
    opening, _, rest = svg.partition(">")
    return f"{opening}><style>{colors}\nsvg {{ background: var(--paper); }}</style>{rest}\n"


def aria_label(field: str = "label") -> Spec:
    """The Vega-Lite encoding that puts a field of the data on each mark as its `aria-label`."""
    return {"field": field, "type": "nominal"}


def named_rows(field: str, order: Sequence[str], width: int) -> Spec:
    """A vertical axis of names in this order, without a line; long names are truncated in a narrow chart."""
    axis = {"domain": False, "ticks": False, "labelLimit": 130 if width == NARROW else 240}
    return {"field": field, "type": "nominal", "sort": list(order), "title": None, "axis": axis}


def colors(names: Sequence[str], labels: Sequence[str], **legend: Any) -> Spec:
    """A color scale: each label gets the style sheet's color of the corresponding name."""
    return {
        "domain": list(labels),
        "range": [f"var(--{name})" for name in names],
        **legend,
    }


def short(text: str, most: int = MOST_LABEL) -> str:
    """A label, shortened in the middle if it is longer than `most` characters."""
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[-(most // 2 - 1) :]}"


# In thousandths of the font size, for the characters from space to tilde (Adobe, Core 14 AFM files, Helvetica).
_HELVETICA = (
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278,
    556, 556, 556, 556, 556, 556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556,
    1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833, 722, 778,
    667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556,
    333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556,
    556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584,
)  # fmt: skip
_OTHERS = 556  # for characters outside ASCII: accented letters, the micro sign
_TEXT = re.compile(r"<text ([^>]*?font-size=\"([\d.]+)px\"[^>]*)>([^<]+)</text>")


def width_of(text: str, *, size: float) -> float:
    """Width of a text in Helvetica, in pixels, at a font size in pixels."""
    return sum(_HELVETICA[ord(c) - 32] if " " <= c <= "~" else _OTHERS for c in text) * size / 1000


def with_widths(svg: str) -> str:
    """Add `textLength` to every text of an SVG."""

    def with_length(found: re.Match[str]) -> str:
        attributes, size, text = found.groups()
        width = width_of(html.unescape(text), size=float(size))
        return f'<text {attributes} textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs">{text}</text>'

    return _TEXT.sub(with_length, svg)
