"""Everything that only a GPU can tell, in sections that run one by one: for a machine that is at hand for minutes.

    make gpu-day [ONLY="diagnose case_studies"] [BUDGET=30m] [RESULTS=DIR] [DRY=1]
    python benchmarks/gpu_day.py [--only SECTION ...] [--budget 30m] [--results DIR] [--dry] [--list]

A section holds items; each is a process of its own that writes RESULTS/SECTION/ITEM.json and takes at most eight minutes.
What is there is skipped, so a day may be cut anywhere and gone on with; what failed leaves ITEM.failed.json and is tried
again. Items begin in the order of their worth, as long as the budget lasts. RESULTS is benchmarks/results/gpu/DEVICE.

`--dry` walks through every section on a simulated device (tests/simulated_gpu): its figures mean nothing, and go to a
scratch folder. Of a section with many items alike the first are taken.

On a machine without network, `make gpu-wheels` on another one puts the missing packages into .wheels/; they are used
from there. Python 3.10 and later, torch 2.6 and later, with CUDA.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WHEELS = ROOT / ".wheels"
SITE = WHEELS / f"site-{sys.implementation.cache_tag}"
NEEDED = (
    "msgspec",
    "rich",
    "psutil",
    "pynvml",
    "PIL",
    "jinja2",
    "vl_convert",
    "simplejpeg",
    "blake3",
    "cykooz_resizer",
    "threadpoolctl",
    "shtab",
    "pytest",
)
MOST_SECONDS = 480.0  # of one item
MOST_BYTES = 10_000_000  # of all results


def main() -> int:
    wanted = arguments()
    use_wheels()
    from gpu.sections import SECTIONS

    if wanted.list:
        for name, section in SECTIONS.items():
            print(f"{name:12s} {section.what}")
            print(f"{'':12s} {' '.join(section.items)}")
        return 0
    if wanted.item:
        section, item = wanted.item.split("/", 1)
        result = SECTIONS[section].items[item](wanted.dry)
        Path(wanted.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        return 0
    environment = surroundings(dry=wanted.dry)
    device = ask_device(environment)
    if device is None:
        print(
            "There is no GPU that torch can use here: see `hasten check`, or walk through with --dry.",
            file=sys.stderr,
        )
        return 2
    results = wanted.results or (
        Path(tempfile.mkdtemp(prefix="hasten-gpu-day-")) if wanted.dry else of_device(device)
    )
    results.mkdir(parents=True, exist_ok=True)
    (results / "device.json").write_text(json.dumps(device, indent=1) + "\n", encoding="utf-8")
    return walk(wanted, SECTIONS, results, environment)


def walk(wanted: argparse.Namespace, sections: dict, results: Path, environment: dict[str, str]) -> int:
    """Run what is not there yet, in order; how many failed."""
    ends = time.monotonic() + seconds_of(wanted.budget)
    failed = left = 0
    for name in wanted.only or sections:
        items = list(sections[name].items)
        for item in items[: sections[name].dry_items] if wanted.dry else items:
            out = results / name / f"{item}.json"
            if out.exists():
                print(f"{name}/{item}: is there", flush=True)
                continue
            usual = sections[name].seconds
            if not wanted.dry and ends - time.monotonic() < usual:
                print(f"{name}/{item}: left for another time, it takes about {usual:.0f} s", flush=True)
                left += 1
                continue
            failed += not run_item(f"{name}/{item}", out, environment, wanted.dry, ends)
    size = sum(path.stat().st_size for path in results.rglob("*.json"))
    print(f"{results}: {size / 1e6:.1f} MB, {failed} failed, {left} left", flush=True)
    if size > MOST_BYTES:
        print(f"that is over {MOST_BYTES / 1e6:.0f} MB: keep less of each result", file=sys.stderr)
    return 1 if failed else 0


def run_item(name: str, out: Path, environment: dict[str, str], dry: bool, ends: float) -> bool:
    """One item in a process of its own; whether it succeeded."""
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = out.with_suffix(".part")
    command = [sys.executable, __file__, "--item", name, "--out", str(scratch), *(["--dry"] if dry else [])]
    start = time.monotonic()
    limit = max(30.0, min(MOST_SECONDS, ends - start))
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit)
        code, said = done.returncode, done.stderr
    except subprocess.TimeoutExpired as error:
        code, said = None, (error.stderr or b"").decode(errors="replace") if error.stderr else ""
    taken = time.monotonic() - start
    trouble = out.with_suffix(".failed.json")
    if code == 0 and scratch.exists():
        result = {"seconds": round(taken, 1), **json.loads(scratch.read_text(encoding="utf-8"))}
        scratch.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        scratch.replace(out)
        trouble.unlink(missing_ok=True)
        print(f"{name}: {taken:.0f} s  {result.get('brief', '')}", flush=True)
        return True
    scratch.unlink(missing_ok=True)
    why = f"exit code {code}" if code is not None else f"over {limit:.0f} s"
    told = {"failed": why, "seconds": round(taken, 1), "stderr": said[-6000:]}
    trouble.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    last = said.strip().splitlines()[-1:] or [""]
    print(f"{name}: {taken:.0f} s  FAILED, {why}: {last[0][:200]}", flush=True)
    return False


def surroundings(*, dry: bool) -> dict[str, str]:
    """The environment of every item: this checkout, what was brought along, and with `dry` the simulated device."""
    path = [ROOT / "src", *([SITE] if SITE.exists() else [])]
    path += [ROOT / "tests" / "simulated_gpu"] if dry else []
    given = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, path), *([given] if given else [])])}


def ask_device(environment: dict[str, str]) -> dict[str, object] | None:
    """What torch says of the first GPU; None where there is none."""
    code = """
import json, platform, torch
if torch.cuda.is_available():
    p = torch.cuda.get_device_properties(0)
    print(json.dumps({"device": p.name, "memory_bytes": p.total_memory, "torch": torch.__version__,
                      "cuda": torch.version.cuda, "python": platform.python_version()}))
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    return json.loads(done.stdout) if done.stdout.strip() else None


def of_device(device: dict[str, object]) -> Path:
    slug = re.sub(r"[^a-z0-9]+", "_", str(device["device"]).lower()).strip("_")
    return ROOT / "benchmarks" / "results" / "gpu" / slug


def use_wheels() -> None:
    """Unpack what was brought along, where something is missing and nothing can be fetched."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    wheels = sorted(map(str, WHEELS.glob("*.whl")))
    if missing and wheels and not SITE.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
        subprocess.run([*pip, "--target", str(SITE), *wheels], check=True)
    sys.path[:0] = [str(ROOT / "src"), *([str(SITE)] if SITE.exists() else [])]
    importlib.invalidate_caches()
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        sys.exit(
            f"gpu_day: missing {', '.join(missing)}: pip install them, or `make gpu-wheels` where there is a network"
        )


def seconds_of(budget: str) -> float:
    found = re.fullmatch(r"(\d+)(s|m|h)", budget)
    if found is None:
        sys.exit(f"gpu_day: --budget {budget} has no unit: give 90s, 30m or 1h")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="SECTION")
    parser.add_argument("--budget", default="30m")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--dry", action="store_true", help="on a simulated device")
    parser.add_argument("--list", action="store_true", help="name the sections and their items")
    parser.add_argument("--item", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
