"""What does measuring cost a step? Ours, and TraceML's on the same loop.

A training loop of a given step time runs as a script: alone, under hasten's time of record, under its marks, and
(where `traceml-ai` is installed) under TraceML. Each side is a fresh process; the sides take turns, and the ratio to
the process alone is taken round by round.

    python benchmarks/overhead.py [--rounds 8] [--steps 1500] [--width 256]

Prints a table and one JSON line; the raw step times go to benchmarks/results/overhead.json.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from hasten.stats import ratio_interval

RESULTS = Path(__file__).resolve().parent / "results"

LOOP = """
import sys, time, torch
steps, width, out, trace = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], len(sys.argv) > 4
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, width),
                            torch.nn.ReLU(), torch.nn.Linear(width, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(64 * 64, 64), torch.randint(0, 10, (64 * 64,)))
loader = torch.utils.data.DataLoader(data, batch_size=64)
if trace:
    import traceml_ai as traceml
    traceml.init(mode="auto")
def train():
    times, last, done = [], time.perf_counter(), 0
    while True:
        for x, y in loader:
            if trace:
                with traceml.trace_step(model):
                    step(x, y)
            else:
                step(x, y)
            now = time.perf_counter()
            times.append(now - last)
            last, done = now, done + 1
            if done == steps:
                return times
def step(x, y):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
times = train()[steps // 5:]
open(out, "w").write(repr(sum(sorted(times)[:int(0.9 * len(times))]) / int(0.9 * len(times))))
"""


def run(side: str, folder: Path, *, steps: int, width: int) -> float:
    """Mean seconds of a step (the slowest tenth left out: it is the machine's) in one fresh process."""
    loop, out = folder / "loop.py", folder / "out.txt"
    loop.write_text(LOOP)
    out.unlink(missing_ok=True)
    words = [sys.executable, str(loop), str(steps), str(width), str(out)]
    if side == "traceml":
        words.append("trace")
    environment = dict(os.environ)
    if side in ("record", "marked"):
        from hasten.measurement.launch import environment_for

        measured = folder / f"{side}-{len(list(folder.iterdir()))}"
        measured.mkdir()
        spec = {"mode": "hold", "full": side == "marked", "seconds": 3600.0}
        (measured / "spec.json").write_text(json.dumps(spec))
        environment = environment_for(measured, {})
    subprocess.run(words, env=environment, check=True, capture_output=True, cwd=folder)
    return float(out.read_text())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--width", type=int, default=512)
    wanted = parser.parse_args()
    sides = ["alone", "record", "marked"]
    if subprocess.run([sys.executable, "-c", "import traceml_ai"], capture_output=True, check=False).returncode == 0:
        sides.append("traceml")
    times: dict[str, list[float]] = {side: [] for side in sides}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        for number in range(wanted.rounds):
            for side in sides if number % 2 == 0 else sides[::-1]:
                times[side].append(run(side, Path(folder), steps=wanted.steps, width=wanted.width))
    result = {"load": load, "steps": wanted.steps, "width": wanted.width, "times": times}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "overhead.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"{'side':10s} {'step':>10s}  ratio to alone (95 %)")
    ratios = {}
    for side in sides:
        paired = [a / b for a, b in zip(times[side], times["alone"])]
        estimate = ratio_interval(paired, [1.0] * len(paired))
        ratios[side] = [round(x, 4) for x in estimate]
        print(
            f"{side:10s} {1e3 * statistics.median(times[side]):7.3f} ms  "
            f"{estimate.value:.4f} ({estimate.low:.4f} to {estimate.high:.4f})"
        )
    print(json.dumps({"load": load, "ratios": ratios}))


if __name__ == "__main__":
    main()
