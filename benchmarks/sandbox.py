"""What the sandbox costs a measured script: at its start, and in every step.

    python benchmarks/sandbox.py [--pairs 8] [--starts 20]

start       `true` inside each form of the sandbox and by itself, in turn, --starts times
steps       a script in the sandbox and by itself, both at once, taking turns, --pairs times: one that computes, one whose
            workers read and decode photographs, one that saves a checkpoint every tenth step

Prints one JSON line; benchmarks/results/sandbox.json holds every value.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path

from hasten.launch.side import Bench, Frequencies
from hasten.sandbox.workspace import Workspace, _entered
from hasten.stats import paired_speedup
from hasten.tuning.trial import Sides
from hasten.tuning.trial_config import TrialConfig
from hasten.workloads.catalog import WORKLOADS

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "sandbox.json"
SAVING = """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0
while True:
    optimizer.zero_grad()
    model(torch.randn(64, 512)).square().mean().backward()
    optimizer.step()
    step += 1
    if step % 10 == 0:
        torch.save(model.state_dict(), "last.pt")
"""


class Bare(Workspace):
    """A workspace whose launches are in no sandbox."""

    @contextlib.contextmanager
    def sandboxed(self, command: Sequence[str]) -> Generator[tuple[list[str], Path | None]]:
        yield list(command), None


def entered(workspace: Workspace) -> Workspace:
    atexit.register(workspace.__exit__)
    return workspace.__enter__()


def starts(number: int) -> dict[str, list[float]]:
    """Seconds of `true`, by form."""
    found: dict[str, list[float]] = {"bare": [], "overlay": [], "landlock": []}
    with tempfile.TemporaryDirectory(prefix="hasten-bench-", dir="/var/tmp") as top:
        for round_ in range(number):
            for form, seconds in found.items():
                view = Path(top) / f"{form}{round_}"
                view.mkdir()
                words = ["true"] if form == "bare" else [*_entered(form, view, Path(top), real=[]), "true"]
                began = time.perf_counter()
                subprocess.run(words, check=True)
                seconds.append(time.perf_counter() - began)
    return found


def steps(commands: dict[str, Sequence[str]], pairs: int) -> dict[str, object]:
    """Step times in the sandbox over those by itself, by script."""
    bare, boxed = entered(Bare()), entered(Workspace())
    found: dict[str, object] = {"form": boxed.form}
    for name, command in commands.items():
        sides = Sides()
        config = TrialConfig(seconds=4.0, turns=True)
        for _ in range(pairs):
            sides.add_pair(
                (Bench(command, bare, patience=60.0), {}), (Bench(command, boxed, patience=60.0), {}), config
            )
        without, within = sides.seconds(Frequencies(by_phase={"checkpoint": 0.1} if name == "saving" else {}))
        found[name] = {
            "within_over_without": list(paired_speedup(within, without, looks=False)),
            "without": without,
            "within": within,
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--starts", type=int, default=20)
    wanted = parser.parse_args()
    load = os.getloadavg()[0]
    feed = WORKLOADS["feed"]
    with tempfile.TemporaryDirectory(prefix="hasten-bench-") as folder:
        os.chdir(folder)
        (Path(folder) / "saving.py").write_text(SAVING)
        data = feed.prepare(num_images=feed.num_images, on_progress=lambda _d, _n: None)
        commands = {
            "computing": [sys.executable, str(HERE / "steady.py")],
            "reading": [sys.executable, str(feed.script), *feed.arguments(data, num_images=feed.num_images)],
            "saving": [sys.executable, "saving.py"],
        }
        told = {"load_before": load, "starts": starts(wanted.starts), "steps": steps(commands, wanted.pairs)}
    RESULTS.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    medians = {form: statistics.median(seconds) for form, seconds in told["starts"].items()}
    ratios = {name: told["steps"][name]["within_over_without"] for name in commands}
    print(json.dumps({"start_seconds": medians, "steps": ratios}))


if __name__ == "__main__":
    main()
