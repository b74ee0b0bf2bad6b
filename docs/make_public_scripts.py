"""docs/public-scripts.md: what hasten finds in training scripts that nobody here wrote, from benchmarks/results/wild."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from generate import ROOT, main

sys.path.insert(0, str(ROOT / "benchmarks" / "wild"))

from sources import Script, scripts
from wild import COLUMNS, RESULTS, rows, summary

PAGE = ROOT / "docs" / "public-scripts.md"
TEXT = """# Public training scripts

Does hasten name the right cause, and find the best plan, on scripts that nobody here wrote? `benchmarks/wild/` has a manifest of {number} public training scripts of {repositories} repositories: vision, segmentation, detection, GANs, diffusion, language, speech, tables, graphs, reinforcement learning, time series; plain loops, Lightning, Accelerate, Transformers, fastai, timm, Ignite, Keras, skorch; with and without a DataLoader. Each entry pins a commit, the command, and how its data is made: the scripts' own data sets cannot be downloaded here, so generated data of the same form takes their place. Where a script needs a newer library's spelling, a changed path or fewer epochs, the entry lists the edit.

For each script, on an otherwise idle machine with two cores of a server CPU and no GPU (with bfloat16 instructions, unless the raw result names a CPU without them):

- `hasten diagnose` and `hasten tune`, as a user would; with `--budget 300s` where the raw result names no other.
- **The best of all settings**: every optimization alone beside the unmodified script, in launches that take turns; what gains more than 2% in one round takes part in the next, of three; then the same on top of the best, until nothing gains. This search asks none of hasten's rules.
- The plan beside the best of all settings, four pairs, with the 95% interval.

A first finding is **right** if the optimization that gains most alone answers it, or one within 3% of it, or one that gains 5% and whose 95% interval does not tell it from the best; if the finding asks for an edit of the source, the edit is made and `hasten prove` measures it. If nothing gains 5%, no finding may promise 5%; where the interval of what answers it holds 5%, the script is not judged. A gain whose interval reaches as far below 1 as its value is above it, or to half of the speed, counts as luck. **Plan / best** below 1 is regret. **Known at**: when the plan had 90% of its final gain. Rules were developed on one half of the manifest, chosen by a hash of the name; scripts of the other half are marked with *.

{summary}

{table}

Raw results: `benchmarks/results/wild/`. Repeat with `make wild` (hours; resumable). A blank has not been measured yet.
"""


def files() -> dict[Path, str]:
    """The page."""
    known = scripts()
    if not RESULTS.is_dir():
        return {}
    return {PAGE: page(known)}


def page(known: dict[str, Script]) -> str:
    """Its text."""
    made = [(name + " *" * known[name].held_out, *rest) for name, *rest in rows(known)]
    lines = [COLUMNS, ("---",) * len(COLUMNS), *made]
    return TEXT.format(
        number=len(known),
        repositories=len({one.repository for one in known.values()}),
        summary=sentence(summary(known)),
        table="\n".join(f"| {' | '.join(line)} |" for line in lines),
    )


def sentence(found: dict[str, Any]) -> str:
    """The summary in words."""
    at, of_short, promised = found["median_known_at"], found["median_known_at_of_short_steps"], found["findings"]
    return (
        f"So far {found['scripts']} scripts were measured. The first finding is right in {found['right']} of "
        f"{found['judged']} that could be judged. The plan reaches at least 95% of the best speed on "
        f"{found['regret_of_5_percent_at_most']} of {found['regrets']}; it is slower than the script as it was on "
        f"{found['slower_than_before']}. Of the scripts that gain, half know 90% of their gain within "
        f"{at:.0f} s; of those with steps under 0.5 s, within {of_short:.0f} s. "
        f"Of {sum(promised.values())} findings that promise 5% or more, an optimization or edit that answers them gains "
        f"5% for {promised['confirmed']}, perhaps for {promised['possible']}, and less for {promised['refuted']}; for "
        f"{promised['unchecked']} nothing that was measured does what they ask."
        if at is not None and of_short is not None
        else f"So far {found['scripts']} scripts were measured."
    )


if __name__ == "__main__":
    raise SystemExit(main(files))
