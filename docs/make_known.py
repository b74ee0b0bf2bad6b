"""Write the page's explanations of how each finding is detected, from docs/bottlenecks.md.

    python docs/make_known.py           write src/hasten/reports/page/assets/known.json
    python docs/make_known.py --check   check whether it is up to date; exit with 1 if not

A wheel contains no docs, and a page opens offline, so the paragraphs are part of the package.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from generate import main

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "bottlenecks.md"
KNOWN = ROOT / "src" / "hasten" / "reports" / "page" / "assets" / "known.json"
MARK = "**How it is detected.**"


def files() -> dict[Path, str]:
    """JSON: the paragraph of each kind of finding, without markup."""
    found: dict[str, str] = {}
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        kind = section.partition("\n")[0].strip()
        paragraph = next((line for line in section.splitlines() if line.startswith(MARK)), "")
        found[kind] = plain(paragraph.removeprefix(MARK).strip())
    return {KNOWN: json.dumps(found, indent=1, ensure_ascii=False) + "\n"}


def plain(text: str) -> str:
    """A paragraph without links, code marks and emphasis."""
    text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text)
    return re.sub(r"[`*]", "", text)


if __name__ == "__main__":
    raise SystemExit(main(files))
