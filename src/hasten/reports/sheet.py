"""Lay out text for one console: its width, its character set, its colors.

No printed line is wider than the console, no number is separated from its unit, and characters that the console cannot
show are replaced.
"""

import re
import unicodedata
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

Piece = str | tuple[str, str]  # text, or text and its style

_WIDEST = 100  # longer lines are hard to read
_GUTTER = 10  # columns for the labels on the left
_NO_GUTTER_BELOW = 50  # a narrower console has no room for a gutter
_PLAIN = {
    "µ": "u",
    "…": "...",
    "→": "->",
    "·": "-",
    "×": "x",
    "–": "-",
    "—": "-",
    "‘": "'",
    "’": "'",
    "“": '"',
    "”": '"',
    "°": "",
    "≈": "~",
    "≤": "<=",
    "≥": ">=",
    "\t": " ",
    "\n": " ",
    "\r": " ",
}
HARD_SPACE = "\u00a0"  # no line break here; printed as a plain space
# No line break between a number and the word after it, or within an interval: "312 ms", "214 steps", "305 to 320".
# Settings, "NAME=1 OTHER=2", may be broken.
_INNER = re.compile(r"(?<=\d) (?=[%°]|[^\W\d])(?!\S*=)|(?<=\d to) (?=-?\d)")


def legible(text: str, *, encoding: str) -> str:
    """`text` on one line, in printable characters of `encoding`; others are replaced or escaped."""
    shown: list[str] = []
    for character in text:
        if character in "\t\n\r" or not _encodes(character, encoding):
            character = _PLAIN.get(character, character.encode("ascii", "backslashreplace").decode())
        elif unicodedata.category(character)[0] == "C":
            character = character.encode("unicode_escape").decode()
        shown.append(character)
    return "".join(shown)


class Sheet:
    """Lines for one console, with labels in a gutter on the left."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.width = min(console.width, _WIDEST)
        self.gutter = _GUTTER if self.width >= _NO_GUTTER_BELOW else 0
        self.colored = console.color_system is not None and not console.no_color
        self.arrow = "→ " if self.can_show("→") else "-> "
        self.lines: list[Text] = []

    def can_show(self, characters: str) -> bool:
        """Whether the console's encoding has all of these characters."""
        return all(_encodes(character, self._console.encoding) for character in characters)

    def print(self) -> None:
        """Print all lines."""
        for line in self.lines:
            line.plain = line.plain.replace(HARD_SPACE, " ")
            line.rstrip()
            self._console.print(line, soft_wrap=True, highlight=False)

    def gap(self) -> None:
        """Add an empty line, unless the last one is empty."""
        if self.lines and self.lines[-1].plain:
            self.lines.append(Text())

    def headline(self, text: str) -> None:
        """A bold sentence across the whole width."""
        self.lines.extend(_wrapped(self._text((text, "bold")), self.width))

    def paragraph(self, *pieces: Piece, label: str = "", label_style: str = "bold", lead: str = "") -> None:
        """Add wrapped text next to the gutter. `lead` comes before the first line; the others are indented by its width."""
        self._add(self._text(*pieces), label=label, label_style=label_style, lead=lead)

    def pair(self, left: Piece, right: Piece, *, label: str = "", lead: str = "") -> None:
        """Add two pieces at the two ends of one line, or on two lines if they do not fit."""
        texts = self._text(left), self._text(right)
        room = self.width - self.gutter - len(lead) - sum(text.cell_len for text in texts)
        if room >= 2:
            self._add(texts[0] + Text(HARD_SPACE * room) + texts[1], label=label, lead=lead)
        else:
            self._add(texts[0], label=label, lead=lead)
            self._add(texts[1], lead=" " * len(lead))

    def table(self, rows: Sequence[Sequence[Piece]], *, align: str, label: str = "", gap: int = 2) -> None:
        """Add rows in aligned columns; `align` has "l" or "r" for each column.

        If the rows are too wide, the first column is truncated; if that is not enough, each row becomes a paragraph.
        """
        cells = [[self._text(piece) for piece in row] for row in rows]
        widths = [max(text.cell_len for text in column) for column in zip(*cells)]
        room = self.width - self.gutter - sum(widths[1:]) - gap * (len(widths) - 1)
        aligned = room >= min(8, widths[0])
        widths[0] = min(widths[0], room)
        for row, text in zip(cells, [label] + [""] * len(cells)):
            if aligned:
                _align(row, widths=widths, align=align, cut="..." if not self.can_show("…") else "…")
                self._add(Text(HARD_SPACE * gap).join(row), label=text)
            else:
                self._add(Text(" ").join(cell for cell in row if cell.plain.strip()), label=text)

    def _add(self, text: Text, *, label: str = "", label_style: str = "bold", lead: str = "") -> None:
        """Wrap a text and add its lines, with the label on the first one."""
        if label and not self.gutter:
            self.lines.append(Text(label, label_style))
        shown = label if self.gutter else ""
        before = Text.assemble((shown, label_style), " " * (self.gutter - len(shown)), lead)
        if len(before) > self.width // 2:
            self.lines.append(before)
            before = Text(" " * self.gutter)
        for line in _wrapped(text, max(1, self.width - len(before))):
            self.lines.append(before + line)
            before = Text(" " * len(before))

    def _text(self, *pieces: Piece) -> Text:
        """The pieces as one text that the console can show, with hard spaces inside quantities."""
        text = Text()
        for piece in pieces:
            plain, style = (piece, "") if isinstance(piece, str) else piece
            parts = [legible(part, encoding=self._console.encoding) for part in plain.split(HARD_SPACE)]
            text.append(_INNER.sub(HARD_SPACE, HARD_SPACE.join(parts)), style)
        return text


def _encodes(character: str, encoding: str) -> bool:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    except LookupError:
        return character.isascii()
    return True


def _align(row: list[Text], *, widths: Sequence[int], align: str, cut: str) -> None:
    """Pad the cells of a row to their columns' widths; truncate the first if it is wider."""
    if row[0].cell_len > widths[0]:
        row[0].truncate(widths[0] - len(cut))
        row[0].append(cut)
    for text, width, side in zip(row, widths, align):
        pad = text.pad_right if side == "l" else text.pad_left
        pad(width - text.cell_len, HARD_SPACE)


def _wrapped(text: Text, width: int) -> list[Text]:
    """Lines of at most `width` cells, broken at spaces; a longer word is split, after a slash if possible."""
    breaks: list[int] = []
    used = 0
    for word in re.finditer(r"[^ ]+ *| +", text.plain):
        needed = cell_len(word.group().rstrip(" "))
        if used and used + needed > width:
            breaks.append(word.start())
            used = 0
        start, rest = word.start(), word.group().rstrip(" ")
        while cell_len(rest) > width:
            length = _fold(rest, width)
            start, rest = start + length, rest[length:]
            breaks.append(start)
        used += cell_len(rest) + word.end() - start - len(rest)
    return [line for line in text.divide(breaks)]


def _fold(word: str, width: int) -> int:
    """How many characters of a word fit into `width` cells."""
    length = 1
    while length < len(word) and cell_len(word[: length + 1]) <= width:
        length += 1
    slash = max(word.rfind(mark, 0, length) for mark in "/\\") + 1
    return slash if slash > length // 2 else length
