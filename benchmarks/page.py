"""How long does a page take to write, and how large is it, by the number of steps?

    python benchmarks/page.py [--steps 100 100000 1000000]

A committed run of the X-ray case study, its steps over and over until there are so many. Prints a table and one JSON line,
which goes to benchmarks/results/page.json too.
"""

import argparse
import json
import os
import platform
import time
from pathlib import Path

import msgspec

from hasten.measurement.diagnose import diagnose
from hasten.records import Run
from hasten.reports.page.page import PageInput, page

RESULTS = Path(__file__).resolve().parent / "results"


def lengthened(run: Run, num_steps: int) -> Run:
    """The run's steps over and over, one after the other."""
    one = run.steps[-1].start + run.steps[-1].seconds - run.steps[0].start
    steps = [
        msgspec.structs.replace(step, index=n, start=step.start + n // len(run.steps) * one)
        for n in range(num_steps)
        for step in (run.steps[n % len(run.steps)],)
    ]
    return msgspec.structs.replace(run, steps=tuple(steps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="+", default=[100, 100_000, 1_000_000])
    wanted = parser.parse_args()
    told = json.loads((RESULTS / "case_studies" / "xray.json").read_text(encoding="utf-8"))
    run = msgspec.convert(told["run"], Run)
    page(PageInput(run=run, diagnosis=diagnose(run)))  # what is imported, is imported now
    found = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": os.getloadavg()[0],
        "pages": [written(lengthened(run, number)) for number in wanted.steps],
    }
    (RESULTS / "page.json").write_text(json.dumps(found) + "\n", encoding="utf-8")
    print(json.dumps(found))


def written(run: Run) -> dict[str, float]:
    """Seconds and CPU seconds of a page from its record on, and its bytes."""
    wall, cpu = time.perf_counter(), time.process_time()
    size = len(page(PageInput(run=run, diagnosis=diagnose(run))).encode())
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{len(run.steps):>9,} steps: {wall:.2f} s, {cpu:.2f} s of CPU, {size / 2**20:.1f} MiB", flush=True)
    return {"steps": len(run.steps), "seconds": wall, "cpu_seconds": cpu, "bytes": size}


if __name__ == "__main__":
    main()
