"""Give each text of a drawing a fixed width, so that its layout does not depend on the reader's fonts.

Charts are laid out with the character widths of Helvetica, which Arial and Liberation Sans share. Where none of them is
installed, a browser uses a wider font and would clip labels at the edge; `textLength` makes it squeeze them instead.
"""

from __future__ import annotations

import html
import re

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
