"""Write docs/fixes.md from the catalog of optimizations.

    python docs/make_fixes_page.py           write the page
    python docs/make_fixes_page.py --check   say whether it is up to date, and exit with 1 if not

What an optimization is called, does, guarantees and may be set to is written in one place only: its file in
src/hasten/optimizations.
"""

from __future__ import annotations

from pathlib import Path

from generate import main

from hasten.optimizations.catalog import GROUPS
from hasten.optimizations.optimization import Optimization

PAGE = Path(__file__).resolve().parent / "fixes.md"
ABOUT = {
    "Input": "On the way from the disk to the batch; for the validation loader as well.",
    "Precision": "Products in fewer bits. A script that chose a precision itself is left alone.",
    "Execution": "The same mathematics, executed differently.",
    "Ranks": "What DistributedDataParallel exchanges between ranks.",
    "Recipe": "Other training dynamics: tried only with `--recipe`, and proven by `--metric`.",
}
HEAD = """\
# Fixes

<!-- Written by docs/make_fixes_page.py from src/hasten/optimizations; edit the titles there. -->

What `hasten tune` tries and `hasten run` applies, from outside, to an unmodified script. Each is one line under `[fixes]` in `hasten.toml`; `false` turns it off. [Tuning](tuning.md) explains how they are chosen and proven.

| guarantee | means |
|---|---|
| identical | the same batches and the same arithmetic. Where samples draw random numbers, another number of workers or another loader draws others, and the loss is held against the script's own seeds |
| rounding | the same mathematics, rounded differently |
| precision | fewer bits |
| recipe | other training dynamics |

"""


def files() -> dict[Path, str]:
    """The page by its path."""
    return {PAGE: page()}


def page() -> str:
    """The whole page as text."""
    parts = [HEAD]
    for title, group in GROUPS.items():
        says = ABOUT[title]
        parts.append(
            f"## {title}\n\n{says}\n\n| setting | may be | what it does | guarantee | answers |\n|---|---|---|---|---|\n"
        )
        parts += [_row(optimization) for optimization in group]
        parts.append("\n")
    return "".join(parts).rstrip() + "\n"


def _row(fix: Optimization) -> str:
    answers = ", ".join(f"[{kind}](bottlenecks.md#{kind})" for kind in fix.answers) or "-"
    extra = "".join(
        f"; {verb} {', '.join(f'`{name}`' for name in names)}"
        for verb, names in (("needs", fix.needs), ("not with", fix.excludes))
        if names
    )
    return f"| `{fix.name}` | {fix.allowed} | {fix.title}{extra} | {fix.guarantee} | {answers} |\n"


if __name__ == "__main__":
    raise SystemExit(main(files))
