"""What each finding and each word of a report means: from two pages of the docs, which an installed package carries."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from hasten.reports.sheet import Sheet, legible

_PACKAGE = Path(__file__).resolve().parents[1]
_DOCS = next(docs for docs in (_PACKAGE / "docs", _PACKAGE.parents[1] / "docs") if docs.is_dir())
PAGE = _DOCS / "bottlenecks.md"
_WORDS = _DOCS / "how-to" / "reading-the-report.md"
_ROW = re.compile(r"^\| ([^|`]+) \| ([^|]+) \|$", re.MULTILINE)
_DETECTED = "**How it is detected.**"
_WIDEST = 100  # longer lines are hard to read
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")


@functools.cache
def sections() -> dict[str, str]:
    """The Markdown of each kind of finding, without its heading and without links."""
    parts = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    return {
        kind.strip(): _LINK.sub(r"\1", text).strip() for kind, _, text in (part.partition("\n") for part in parts)
    }


@functools.cache
def words() -> dict[str, str]:
    """What the words of a report mean."""
    rows = _ROW.findall(_WORDS.read_text(encoding="utf-8"))
    return {word.strip(): _LINK.sub(r"\1", text) for names, text in rows[1:] for word in names.split(",")}


def first_sentence(kind: str) -> str:
    """What a finding means, in short."""
    return sections()[kind].partition("\n")[0].partition(". ")[0].rstrip(".")


def detection_of(kind: str) -> str:
    """How a finding is detected, in plain text; "" for an unknown one."""
    lines = sections().get(kind, "").splitlines()
    paragraph = next((line for line in lines if line.startswith(_DETECTED)), "")
    return re.sub(r"[`*]", "", paragraph.removeprefix(_DETECTED)).strip()


def print_explanation(text: str, *, console: Console) -> None:
    """Print Markdown; as it is written, where the console cannot show bullets."""
    if not Sheet(console).can_show("•" + text):
        shown = (legible(line, encoding=console.encoding) for line in text.splitlines())
        console.print("\n".join(shown), soft_wrap=True, highlight=False, markup=False)
        return
    console.print(Markdown(text, code_theme="ansi_light"), width=min(console.width, _WIDEST))
