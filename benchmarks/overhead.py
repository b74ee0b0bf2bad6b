"""What does measuring cost a step, and a run under an empty plan? Ours, and TraceML's on the same loop.

One process trains on a small model, in short stretches: alone, with hasten's hooks as in the time of record, with every
step marked, and as `hasten run` follows it when the plan is empty, in random order. hasten's hooks are really put on and taken off between stretches. Fresh processes
of one program differ by a fifth on a shared machine, far more than what is asked about; stretches within a second of
each other differ by little, and each is held against the stretch alone of its round.

TraceML (`traceml-ai`, where it is installed) is asked in a process of its own, with and without its step context; its
patches of torch stay on in both, for it cannot take them off, so its figure is a lower bound.

    python benchmarks/overhead.py [--rounds 40] [--steps 300] [--width 600] [--device cuda] [--results FILE]

Prints a table and one JSON line; the raw step times go to benchmarks/results/overhead.json, or to FILE.
"""

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hasten.agent import child, segments
from hasten.agent.following import follow
from hasten.protocol import Following, LaunchSpec
from hasten.stats import ratio_interval

Stretches = dict[str, list[list[float]]]  # wall and CPU seconds of a step, by condition
Around = Callable[[], contextlib.AbstractContextManager[object]]
RESULTS = Path(__file__).resolve().parent / "results"
# Steps before a stretch is timed: hasten's warm-up ends, and the interpreter has its caches again, which every function
# patched on a class empties.
SETTLE = 300


class Loop:
    """A plain training loop, held at any step and gone on with."""

    def __init__(self, width: int, device: str = "cpu") -> None:
        torch.manual_seed(0)
        self.device = device
        torch.set_num_threads(1)
        hidden = [nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
        self.model = nn.Sequential(*hidden, nn.Linear(width, 10)).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        data = TensorDataset(torch.randn(64 * 64, 64), torch.randint(0, 10, (64 * 64,)))
        self.batches = self._endlessly(DataLoader(data, batch_size=64))

    def _endlessly(self, loader: DataLoader) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            yield from loader

    def step(self) -> None:
        """One step, as in any script."""
        x, y = (tensor.to(self.device) for tensor in next(self.batches))
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()

    def stretch(self, steps: int, around: Around = contextlib.nullcontext) -> list[float]:
        """Wall and CPU seconds of a step, means of a stretch."""
        start, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            with around():
                self.step()
        if self.device != "cpu":
            torch.accelerator.synchronize()
        return [(time.perf_counter() - start) / steps, (time.process_time() - cpu) / steps]


@contextlib.contextmanager
def hooks(loop: Loop, *, full: bool) -> Iterator[None]:
    """hasten's hooks, for one stretch."""
    with tempfile.TemporaryDirectory() as folder:
        session, patches = child.begin(Path(folder), LaunchSpec(mode="hold", full=full, seconds=3600.0))
        try:
            loop.stretch(SETTLE)
            yield
        finally:
            session.sampler.running(False)
            session.sampler.end()
            patches.undo()


@contextlib.contextmanager
def following(loop: Loop) -> Iterator[None]:
    """What `hasten run` puts on when the plan is empty, for one stretch."""
    plan = Following(script="", settings={})
    patches = follow(LaunchSpec(mode="follow", following=plan))
    try:
        loop.stretch(SETTLE)
        yield
    finally:
        patches.undo()


def ours(loop: Loop, *, rounds: int, steps: int) -> Stretches:
    """The stretches of each condition, a round each."""
    segments.WARM_SECONDS = 0.02  # of a session: a stretch is shorter than a user's warm-up
    conditions: dict[str, Around] = {
        "record": lambda: hooks(loop, full=False),
        "marked": lambda: hooks(loop, full=True),
        "run": lambda: following(loop),
    }
    found: Stretches = {"alone": [], **{name: [] for name in conditions}}
    for _ in range(rounds):
        for name in random.sample(list(found), len(found)):
            if name == "alone":
                loop.stretch(SETTLE)
                found[name].append(loop.stretch(steps))
            else:
                with conditions[name]():
                    found[name].append(loop.stretch(steps))
    return found


def traceml(loop: Loop, *, rounds: int, steps: int) -> Stretches:
    """The same for TraceML's step context."""
    import traceml_ai

    traceml_ai.init(mode="auto")
    found: Stretches = {"alone beside traceml": [], "traceml": []}
    for _ in range(rounds):
        for name in random.sample(list(found), len(found)):
            around = (lambda: traceml_ai.trace_step(loop.model)) if name == "traceml" else contextlib.nullcontext
            loop.stretch(SETTLE, around)
            found[name].append(loop.stretch(steps, around))
    return found


def of_traceml(wanted: argparse.Namespace) -> Stretches:
    """TraceML's stretches, from a process of its own; nothing where it is not installed."""
    options = ["--rounds", str(wanted.rounds), "--steps", str(wanted.steps), "--width", str(wanted.width)]
    command = [sys.executable, __file__, "--traceml", *options]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        print("no TraceML:", (done.stderr.strip().splitlines() or ["it failed"])[-1], file=sys.stderr)
        return {}
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=300, help="in a stretch")
    parser.add_argument("--width", type=int, default=600, help="of the model's layers: 600 takes about 2 ms a step")
    parser.add_argument("--settle", type=int, default=SETTLE, help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--results", type=Path, default=RESULTS / "overhead.json")
    parser.add_argument("--traceml", action="store_true", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    globals()["SETTLE"] = wanted.settle
    loop = Loop(wanted.width, wanted.device)
    loop.stretch(10 * SETTLE)
    if wanted.traceml:
        print(json.dumps(traceml(loop, rounds=wanted.rounds, steps=wanted.steps)))
        return
    load = os.getloadavg()[0]
    found = ours(loop, rounds=wanted.rounds, steps=wanted.steps) | of_traceml(wanted)
    result = {
        "load": load,
        "device": wanted.device,
        "width": wanted.width,
        "torch": torch.__version__,
        "wall_and_cpu_seconds": found,
    }
    wanted.results.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{'':8s} {'step alone':>11s}  {'wall, ratio to alone (95 %)':28s} CPU, ratio to alone (95 %)")
    ratios: dict[str, list[list[float]]] = {}
    for side in (s for s in ("record", "marked", "run", "traceml") if s in found):
        beside = found["alone beside traceml" if side == "traceml" else "alone"]
        estimates = [
            ratio_interval([a[figure] / b[figure] for a, b in zip(found[side], beside)], [1.0] * len(beside))
            for figure in (0, 1)
        ]
        ratios[side] = [[round(x, 4) for x in estimate] for estimate in estimates]
        texts = [f"{e.value:.4f} ({e.low:.4f} to {e.high:.4f})" for e in estimates]
        alone = 1e3 * statistics.median(b[0] for b in beside)
        print(f"{side:8s} {alone:8.3f} ms  {texts[0]:28s} {texts[1]}")
    print(json.dumps({"load": load, "ratios_wall_and_cpu": ratios}))


if __name__ == "__main__":
    main()
