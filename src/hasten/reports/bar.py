"""The step as a bar of its phases, with a legend.

In: a Breakdown. Out: rows on a sheet. Refuses to know why a phase takes what it takes.
"""

from collections.abc import Sequence
from typing import NamedTuple

from hasten import format
from hasten.records import PHASES, Breakdown
from hasten.reports.sheet import HARD_SPACE, Piece, Sheet

_COLOURS = {
    "data_wait": "red",
    "epoch_start": "magenta",
    "copy": "yellow",
    "forward": "green",
    "loss": "bright_green",
    "backward": "blue",
    "optimizer": "cyan",
    "zero_grad": "bright_cyan",
    "sync": "bright_red",
    "logging": "bright_yellow",
    "validation": "bright_magenta",
    "checkpoint": "bright_blue",
    "script": "white",
}
_REST = "bright_black"
_LEAST = 0.01  # of the step; smaller phases share one line
_ENTRY = 30  # columns that an entry of the legend takes


class _Part(NamedTuple):
    name: str
    seconds: float
    glyph: str
    colour: str


def add_bar(sheet: Sheet, breakdown: Breakdown) -> None:
    """Put the bar, its legend, the small phases and the unseen ones on the sheet."""
    seen = [(name, seconds) for name, seconds in _in_order(breakdown) if seconds is not None]
    whole = max(breakdown.step_seconds, sum(max(0.0, seconds) for _, seconds in seen))
    if whole <= 0:
        return
    large = [pair for pair in seen if pair[1] >= _LEAST * whole]
    glyphs = _glyphs(sheet)
    parts = [
        _Part(format.phase(name), seconds, glyphs[index % len(glyphs)], _COLOURS.get(name, _REST))
        for index, (name, seconds) in enumerate(large)
    ]
    sheet.paragraph(*_segments(parts, width=sheet.width - sheet.gutter))
    _add_legend(sheet, parts, whole=whole)
    small = [
        f"{format.phase(name)} {format.seconds(took)}".replace(" ", HARD_SPACE)
        for name, took in seen
        if (name, took) not in large
    ]
    if small:
        sheet.paragraph((f"under {format.share(_LEAST)} each: {', '.join(small)}", "dim"))
    unseen = [format.phase(name) for name, seconds in _in_order(breakdown) if seconds is None]
    if unseen:
        sheet.paragraph((f"{format.NOT_SEEN}: {', '.join(unseen)}", "dim"))


def _in_order(breakdown: Breakdown) -> list[tuple[str, float | None]]:
    return [*((name, breakdown.phases.get(name)) for name in PHASES), ("unaccounted", breakdown.unaccounted)]


def _glyphs(sheet: Sheet) -> str:
    """Colours tell the parts of the bar apart; without them, shades do; without those, signs."""
    if not sheet.can_show("█░▓▒"):
        return "#.=o*-+:"
    return "█" if sheet.coloured else "█░▓▒"


def _segments(parts: Sequence[_Part], *, width: int) -> list[Piece]:
    """The bar itself: each part as many cells as its share of all parts."""
    total = sum(part.seconds for part in parts)
    pieces: list[Piece] = []
    before = 0.0
    for part in parts:
        start, before = round(before / total * width), before + part.seconds
        pieces.append((part.glyph * (round(before / total * width) - start), part.colour))
    return pieces


def _add_legend(sheet: Sheet, parts: Sequence[_Part], *, whole: float) -> None:
    entries: list[list[Piece]] = [
        [
            (part.glyph, part.colour),
            part.name,
            f" {format.seconds(part.seconds)}",
            f" {format.share(part.seconds / whole)}",
        ]
        for part in parts
    ]
    num_columns = max(1, min((sheet.width - sheet.gutter) // _ENTRY, 3, len(entries)))
    num_rows = -(-len(entries) // num_columns)
    rows: list[list[Piece]] = []
    for row in range(num_rows):
        cells: list[Piece] = []
        for index in range(row, num_rows * num_columns, num_rows):
            cells += [*(entries[index] if index < len(entries) else [""] * 4), " "]
        rows.append(cells)
    sheet.table(rows, align="llrrl" * num_columns, gap=1)
