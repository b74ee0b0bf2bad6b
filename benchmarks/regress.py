"""Two commits of hasten against each other: is anything worse than it was?

    make regress BASE=COMMIT [HEAD=COMMIT] [ONLY="size commands fixtures"]
    python benchmarks/regress.py COMMIT [--head COMMIT] [--only PART ...] [--items ITEM ...] [--rounds 3]

Both are built as wheels and installed into an environment of their own, which sees the packages of this one; then they take
turns, and every part is asked of both by the scripts of this checkout.

size      bytes of the wheel, files and lines of the package
commands  wall and CPU seconds until a command has answered, ROUNDS times, in turn
fixtures  `hasten diagnose` on every script of tests/faulty: the first finding and what it would save
tune      `hasten tune` on six of them: the speedup that was proven, and how long it took
loader    benchmarks/loader.py on its six main cases: samples/s and CPU over torch's of the same minute
overhead  benchmarks/overhead.py of each commit
case_studies  the scripts of examples/case_studies under their input fixes, ROUNDS times, in turn; HASTEN_CASE_STUDIES names
          the folder of images

What is there is skipped: results lie in .regress/BASE..HEAD/, and the table is made of them. A part that a commit cannot do
is told as such.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from case_study_common import FOLDERS
from loader_sides.catalog import WORKLOADS

from hasten.stats import ratio_interval

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = sorted(path.stem for path in (ROOT / "tests" / "faulty").glob("*.py"))
TUNED = ("slow_decode", "too_few_workers", "full_precision", "anomaly_detection", "python_bound_data", "sync_points")
LOADERS = ("photos_cold", "photos_second_epoch", "center_second_epoch", "xray", "numpy_dataset", "tensors")
COMMANDS = {
    "--version": ["--version"],
    "--help": ["--help"],
    "check": ["check", "--json"],
    "report": ["report", "nothing"],  # an error, which must come as soon
}

# Their input fixes alone, for so many epochs that most samples come from the cache.
CASE_STUDIES = {
    "xray": (["cache=auto"], "--images 64 --epochs 3"),
    "feed": (["cache=auto"], "--images 800 --epochs 6"),
    "superres": (["cache=auto"], "--epochs 6 --blocks 1 --channels 8"),
    "efficient": (["loader=true"], "--images 2400 --epochs 4"),
    "classify": (["cache=auto"], "--images 800 --epochs 4"),
}


@dataclass(frozen=True)
class Side:
    """One commit, built and installed."""

    name: str  # "base" or "head"
    commit: str
    tree: Path
    wheel: Path
    python: Path

    def hasten(self, *words: object, cwd: Path, limit: float = 900.0) -> subprocess.CompletedProcess[str]:
        """A command of its hasten, in a folder of its own."""
        command = [str(self.python), "-m", "hasten", *map(str, words)]
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=limit, env=environment())


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def built(name: str, commit: str, folder: Path) -> Side:
    """The commit's tree, wheel and environment; what is there is taken."""
    tree, python = folder / name / "tree", folder / name / "env" / "bin" / "python"
    if not tree.exists():
        tree.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(tree)], check=True)
        subprocess.run(["git", "-C", str(tree), "checkout", "--quiet", commit], check=True)
    if not list((folder / name).glob("*.whl")):
        pip = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--wheel-dir",
            str(folder / name),
            str(tree),
        ]
        subprocess.run(pip, check=True)
    (wheel,) = (folder / name).glob("*.whl")
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / name / "env")], check=True)
        ask = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
        site = Path(subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip())
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
        # Everything else is this environment's; its own hasten stands behind the wheel's.
        (site / "packages.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    return Side(name, commit, tree, wheel, python)


# ------------------------------------------------------------------------------------------------------------ parts


def size(side: Side, _item: str, _rounds: int) -> dict[str, Any]:
    files = list((side.tree / "src" / "hasten").rglob("*.py"))
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    return {"bytes": side.wheel.stat().st_size, "files": len(files), "lines": lines}


def command(side: Side, item: str, _rounds: int) -> dict[str, Any]:
    with scratch() as folder:
        before, start = os.times(), time.perf_counter()
        side.hasten(*COMMANDS[item], cwd=folder)
        after, seconds = os.times(), time.perf_counter() - start
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"seconds": seconds, "cpu_seconds": cpu}


def fixture(side: Side, item: str, _rounds: int) -> dict[str, Any]:
    with scratch() as folder:
        start = time.perf_counter()
        done = side.hasten("diagnose", "--json", ROOT / "tests" / "faulty" / f"{item}.py", cwd=folder)
        record = printed(done)
    diagnosis = record["diagnosis"]
    step = diagnosis["breakdown"]["step_seconds"]
    first = diagnosis["findings"][0] if diagnosis["findings"] else None
    return {
        "finding": first["kind"] if first else "none",
        "share": first["recoverable"] / step if first else 0.0,
        "seconds": time.perf_counter() - start,
    }


def tuned(side: Side, item: str, _rounds: int) -> dict[str, Any]:
    with scratch() as folder:
        start = time.perf_counter()
        script = ROOT / "tests" / "faulty" / f"{item}.py"
        record = printed(side.hasten("tune", "--json", "--budget", "3m", script, cwd=folder, limit=1500.0))
    proof = record["tuning"].get("proof") or {}  # what is empty is left out
    return {
        "speedup": proof.get("speedup"),
        "verdict": proof.get("verdict", "no plan"),
        "settings": record["tuning"].get("settings", {}),
        "seconds": time.perf_counter() - start,
    }


def loader(side: Side, item: str, rounds: int) -> dict[str, Any]:
    names = sides_of(item)
    torch, *ours = names
    words = [
        "--only",
        item,
        "--sides",
        ";".join([*names, ""]),
        "--rounds",
        rounds,
        "--python",
        side.python,
        "--workers",
        2,
    ]
    out = ROOT / "benchmarks" / "results" / "loader" / f"{item}.some.json"
    before = out.read_text(encoding="utf-8") if out.exists() else None
    benchmark = [sys.executable, str(ROOT / "benchmarks" / "loader.py"), *map(str, words)]
    try:
        done = subprocess.run(benchmark, capture_output=True, text=True, timeout=1500, env=environment())
    finally:  # what is committed there is of another benchmark
        out.unlink(missing_ok=True)
        if before is not None:
            out.write_text(before, encoding="utf-8")
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    told = json.loads(done.stdout.splitlines()[-1])[item]
    figures = ("samples_per_second", "cpu_seconds_per_sample")
    return {name: {figure: told[name][figure][0] / told[torch][figure][0] for figure in figures} for name in ours}


def sides_of(item: str) -> list[str]:
    """torch's side of a workload of benchmarks/loader.py, and hasten's."""
    sides = WORKLOADS[item].sides
    torch = sorted((side.name for side in sides if side.module == "torch_side"), key=lambda name: name != "torch")[0]
    return [torch, *(side.name for side in sides if side.module == "hasten_side")]


def overhead(side: Side, _item: str, rounds: int) -> dict[str, Any]:
    benchmark = [str(side.python), str(side.tree / "benchmarks" / "overhead.py"), "--rounds", str(10 * rounds)]
    done = subprocess.run(benchmark, capture_output=True, text=True, timeout=1500, env=environment())
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return {"ratios": json.loads(done.stdout.splitlines()[-1])["ratios_wall_and_cpu"]}


def case_study(side: Side, item: str, _rounds: int) -> dict[str, Any]:
    """A script of this checkout under a fixed plan, from its start to its end."""
    settings, arguments = CASE_STUDIES[item]
    words = [word for setting in settings for word in ("--set", setting)]
    script = ROOT / "examples" / "case_studies" / f"{item}.py"
    data = Path(os.environ["HASTEN_CASE_STUDIES"]).resolve() / FOLDERS[item]
    with scratch() as folder:
        before, start = os.times(), time.perf_counter()
        done = side.hasten("run", *words, script, "--data", data, *arguments.split(), cwd=folder)
        after, seconds = os.times(), time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"seconds": seconds, "cpu_seconds": cpu}


PARTS: dict[str, tuple[Callable[[Side, str, int], dict[str, Any]], tuple[str, ...], bool]] = {
    "size": (size, ("wheel",), False),
    "commands": (command, tuple(COMMANDS), True),  # a round is one call of each side
    "overhead": (overhead, ("step",), False),
    "fixtures": (fixture, tuple(FIXTURES), False),
    "loader": (loader, LOADERS, False),
    "tune": (tuned, TUNED, False),
    "case_studies": (case_study, tuple(CASE_STUDIES), True),
}


def printed(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The record that a command printed, behind what the script did. Raises RuntimeError."""
    for start in [0, *(found.end() - 1 for found in re.finditer(r"\n\{", done.stdout))]:
        try:
            found = json.loads(done.stdout[start:])
        except json.JSONDecodeError:
            continue
        if isinstance(found, dict):
            return found
    raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip()[-500:]}")


class scratch:
    """A folder that is gone afterwards."""

    def __enter__(self) -> Path:
        self.folder = Path(
            subprocess.check_output(["mktemp", "-d", "-t", "hasten-regress-XXXXXX"], text=True).strip()
        )
        return self.folder

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


# ------------------------------------------------------------------------------------------------------------ table


def measure(sides: tuple[Side, Side], part: str, item: str, out: Path, rounds: int) -> None:
    """One item of one part, both sides in turn."""
    work, _, has_rounds = PARTS[part]
    found: dict[str, list[dict[str, Any]]] = {side.name: [] for side in sides}
    for number in range(2 * rounds if has_rounds else 1):
        for side in sides if number % 2 == 0 else sides[::-1]:
            try:
                found[side.name].append(work(side, item, rounds))
            except (RuntimeError, KeyError, IndexError, subprocess.SubprocessError, ValueError) as error:
                found[side.name].append({"failed": str(error)[-800:]})
    out.parent.mkdir(parents=True, exist_ok=True)
    told = {"load": os.getloadavg()[0], **found}
    out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def rows(part: str, item: str, found: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """What is told of an item: name, base, head, and head over base where that is a ratio."""
    base, head = found["base"], found["head"]
    failed = {
        name: next((one["failed"] for one in found[name] if "failed" in one), None) for name in ("base", "head")
    }
    if any(failed.values()):
        texts = [(failed[name] or "done").strip().splitlines()[-1][:60] for name in ("base", "head")]
        yield item, texts[0], texts[1], ""
        return
    one, other = base[0], head[0]
    if part == "size":
        for name in ("bytes", "files", "lines"):
            yield name, f"{one[name]:,}", f"{other[name]:,}", f"{other[name] / one[name]:.2f}"
    elif part in ("commands", "case_studies"):
        prefix = "hasten " if part == "commands" else ""
        for name, unit in (("seconds", "s"), ("cpu_seconds", "s CPU")):
            sides = [[run[name] for run in side] for side in (head, base)]
            ratio = ratio_interval(*sides)
            medians = [f"{statistics.median(side):.2f} {unit}" for side in sides]
            yield (
                f"{prefix}{item}",
                medians[1],
                medians[0],
                f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})",
            )
    elif part == "fixtures":
        texts = [f"{run['finding']} {100 * run['share']:.0f} %" for run in (one, other)]
        yield item, *texts, "" if one["finding"] == other["finding"] else "**differs**"
    elif part == "tune":
        texts = []
        for run in (one, other):
            speed = run["speedup"]
            shown = f"{speed['value']:.2f}x ({speed['low']:.2f} to {speed['high']:.2f})" if speed else "no speedup"
            texts.append(f"{shown}, {run['verdict']}, {run['seconds']:.0f} s")
        yield item, *texts, ""
    elif part == "loader":
        for name, figures in one.items():
            for figure, unit in (
                ("samples_per_second", "of torch's rate"),
                ("cpu_seconds_per_sample", "of torch's CPU"),
            ):
                ratio = other[name][figure] / figures[figure]
                texts = [f"{run[name][figure]:.3g} {unit}" for run in (one, other)]
                yield f"{item}, {name}", *texts, f"{ratio:.2f}"
    else:
        for name in one["ratios"]:
            texts = ["{:.3f} ({:.3f} to {:.3f})".format(*run["ratios"][name][0]) for run in (one, other)]
            yield f"step, {name}", *texts, ""


def table(folder: Path, sides: tuple[Side, Side]) -> Iterator[str]:
    """Markdown of all that is there."""
    base, head = (side.commit[:10] for side in sides)
    yield f"| | | base {base} | head {head} | head / base |"
    yield "|---|---|---|---|---|"
    for part, (_, items, _) in PARTS.items():
        for item in items:
            path = folder / part / f"{item.lstrip('-')}.json"
            if path.exists():
                for row in rows(part, item, json.loads(path.read_text(encoding="utf-8"))):
                    yield f"| {part} | " + " | ".join(row) + " |"


def commit_of(name: str) -> str:
    found = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--verify", f"{name}^{{commit}}"], capture_output=True, text=True
    )
    if found.returncode:
        sys.exit(f"regress: {name} is no commit of {ROOT}")
    return found.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("base", metavar="COMMIT")
    parser.add_argument("--head", default="HEAD", metavar="COMMIT")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--items", nargs="+", metavar="ITEM", help="of these parts, the items to measure now")
    parser.add_argument("--rounds", type=int, default=3)
    wanted = parser.parse_args()
    commits = commit_of(wanted.base), commit_of(wanted.head)
    folder = ROOT / ".regress" / "..".join(commit[:10] for commit in commits)
    sides = built("base", commits[0], folder), built("head", commits[1], folder)
    for part in wanted.only:
        for item in PARTS[part][1]:
            out = folder / part / f"{item.lstrip('-')}.json"
            if not out.exists() and (not wanted.items or item in wanted.items):
                print(f"{part}: {item}", file=sys.stderr, flush=True)
                measure(sides, part, item, out, wanted.rounds)
    print("\n".join(table(folder, sides)))


if __name__ == "__main__":
    main()
