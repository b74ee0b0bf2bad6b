"""hasten's loader and its peers on the same data, each at its best, in turn.

Every side runs in fresh processes, in rounds A B C ... then C B A ..., with as many workers as suit it best (a short
search before the rounds, from 1 to twice the cores), one thread of torch each, and the page cache warm. The consumer
reads one number of each batch: the rates are what a loader alone can do. The first epoch is left out, the window is
whole epochs after it; for a side with a cache they are epochs from the cache.

    samples/s     by wall clock
    CPU ms        of the whole process tree, a sample: steadier than the wall clock on a busy machine
    of torch      that figure over torch's (of the same environment)
    peak          proportional set size of the tree, sampled twice a second, imports included
    first batch   from making the loader to the first batch, imports and conversion of the data left out
    pixels        largest and mean distance from Pillow's in steps of 1/255: the whole image to 224 x 224, in order

Intervals are 95 %, Student's t over the rounds' values (a ratio's by bootstrap), so one round has none. A side that
cannot run is named with the reason. How to make the environments stands in loader_requirements.txt.

    python benchmarks/loader.py [--only WORKLOAD ...] [--sides NAME,NAME] [--rounds 5] [--seconds 5] [--photos DIR]
                                [--xray DIR] [--python EXE] [--python-streaming EXE] [--as-before] [--check]

`--check` is one epoch of 192 samples: it shows that all sides run, and its figures mean nothing. Prints a table a
workload and one JSON line; every run goes to benchmarks/results/loader/WORKLOAD.json, or to WORKLOAD.some.json where
`--sides` chose some. Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from pathlib import Path

from loader_sides.catalog import WORKLOADS, Side, Workload
from loader_sides.environment import Environment, look_into
from loader_sides.rounds import Bench, compare_pixels, find_workers, timed_rounds
from loader_sides.sources import photos_of, xrays_of
from loader_sides.table import print_half_cache, print_table, summary, without_infinity

RESULTS = Path(__file__).resolve().parent / "results" / "loader"


def main() -> None:
    wanted = arguments()
    environments = {"main": look_into(wanted.python), "streaming": look_into(wanted.python_streaming)}
    scratch = Path(wanted.scratch)
    xray = any(WORKLOADS[name].data == "xray" for name in wanted.only)
    bench = Bench(
        environments=environments,
        photos=str(photos_of(wanted.photos, scratch)),
        xray=str(xrays_of(wanted.xray, scratch)) if xray else "",
        scratch=str(scratch),
        seconds=0.0 if wanted.check else wanted.seconds,
        num_samples=192 if wanted.check else None,
        workers=2 if wanted.check else wanted.workers,
    )
    brief = {}
    for name in wanted.only:
        result = run_workload(name, WORKLOADS[name], bench, wanted)
        print_table(name, WORKLOADS[name], result)
        if name == "half_cache":
            print_half_cache(result)
        brief[name] = {side: summary(found) for side, found in result["sides"].items()}
    print(json.dumps(without_infinity(brief)))


def run_workload(name: str, workload: Workload, bench: Bench, wanted: argparse.Namespace) -> dict:
    """All that was found, saved after every step."""
    sides = [
        side
        for side in workload.sides
        if not wanted.sides or side.name in wanted.sides.split(";" if ";" in wanted.sides else ",")
    ]
    result = {
        "workload": name,
        "title": workload.title,
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "environments": {key: found.versions for key, found in bench.environments.items()},
        "data": {"photos": wanted.photos or "made", "xray": wanted.xray or "made"},
        "half_bytes": bench.half_bytes() if name == "half_cache" else None,
        "seconds": bench.seconds,
        "load_before_rounds": [],
        "sides": {side.name: begin(side, bench.environments[side.environment]) for side in sides},
    }
    file = RESULTS / (f"{name}.some.json" if wanted.sides else f"{name}.json")
    save = (lambda: None) if wanted.check else (lambda: write_result(result, file))
    if wanted.as_before:
        take_over(result, RESULTS / f"{name}.json")
    # The comparison comes first, for it also converts the data where a side wants its own format.
    for step in (compare_pixels, find_workers):
        for side in sides:
            if "failed" not in result["sides"][side.name]:
                step(bench, workload, side, result["sides"][side.name])
                save()
    for _ in timed_rounds(bench, workload, sides, result, num_rounds=1 if wanted.check else wanted.rounds):
        save()
    return result


def write_result(result: dict, file: Path) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result, indent=1) + "\n")


def take_over(result: dict, file: Path) -> None:
    """The numbers of workers and the comparisons of pixels that earlier results hold, so as not to find them anew."""
    before = json.loads(file.read_text())["sides"]
    for name, record in result["sides"].items():
        found = before.get(name, {})
        record.update({key: found[key] for key in ("pixels", "search", "workers") if key in found})


def begin(side: Side, environment: Environment) -> dict:
    """An empty record of a side, or why it cannot run."""
    found = {"note": side.note, "environment": side.environment, "runs": []}
    missing = environment.missing(side.needs)
    return {**found, "failed": missing} if missing else found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS), metavar="WORKLOAD")
    parser.add_argument("--sides", default="", help="names, with commas or semicolons between; all where left out")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="a window is whole epochs of at least so long")
    parser.add_argument("--workers", type=int, help="for all sides, instead of searching for each one's best")
    parser.add_argument("--as-before", action="store_true", help="workers and pixels from WORKLOAD.json")
    parser.add_argument("--photos", help="a folder of class folders of JPEG files; left out: made here")
    parser.add_argument("--xray", help="a folder of PNG files; left out: made here")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the sides")
    parser.add_argument("--python-streaming", default=sys.executable, help="the one with MosaicML Streaming")
    parser.add_argument("--scratch", default=str(Path(tempfile.gettempdir()) / "hasten-loader-benchmark"))
    parser.add_argument(
        "--check", action="store_true", help="one tiny round, to see that all sides run; saves nothing"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
