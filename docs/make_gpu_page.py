"""Write what was measured on GPUs into docs/gpu.md, from benchmarks/results/gpu/.

python docs/make_gpu_page.py           write the part of the page between its two marks
python docs/make_gpu_page.py --check   check whether it is up to date; exit with 1 if not
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from generate import between, main

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "gpu.md"
RESULTS = ROOT / "benchmarks" / "results" / "gpu"
BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"
NOTHING = "**Nothing has been measured on a GPU yet.** Every figure in these pages comes from CPUs.\n"


def measured(results: Path = RESULTS) -> str:
    """Markdown: a table for each device with a line for each item, or a note that there is none."""
    devices = sorted(results.glob("*/device.json"))
    return "\n".join("".join(table(path.parent)) for path in devices) or NOTHING


def table(folder: Path) -> Iterator[str]:
    """The items of one device."""
    device = read(folder / "device.json")
    memory = f"{device['memory_bytes'] / 2**30:.0f} GiB"
    yield f"### {device['device']}\n\n{memory}, torch {device['torch']}, Python {device['python']}.\n\n"
    yield "| Item | Result |\n|---|---|\n"
    for path in sorted(folder.glob("*/*.json")):
        result = read(path)
        name = f"{path.parent.name}/{path.name.removesuffix('.json').removesuffix('.failed')}"
        text = f"failed: {result['failed']}" if "failed" in result else result.get("brief", "")
        yield f"| {name} | {str(text).replace('|', '/')} |\n"


def read(path: Path) -> dict[str, Any]:
    """A result."""
    return json.loads(path.read_text(encoding="utf-8"))


def files() -> dict[Path, str]:
    """The page by its path."""
    return {PAGE: page()}


def page(results: Path = RESULTS) -> str:
    """The whole page with its measured part replaced."""
    return between(PAGE.read_text(encoding="utf-8"), BEGIN, END, measured(results))


if __name__ == "__main__":
    raise SystemExit(main(files))
