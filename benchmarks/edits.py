"""Does `hasten prove` tell an edit that helps from one that does nothing, and from one that harms?

    python benchmarks/edits.py [--only NAME ...] [--again] [--budget 300] [--keep FOLDER]

benchmarks/edits/ holds five training scripts, and 20 edits of them as a person or an agent would make them:

faster     10 that train as well in less time: `prove` has to call them faster, and their training as good
nothing    5 that do neither good nor harm: no claim of a speedup, and no claim of harm
harmful    5 that take less time and train worse: `prove` has to fail, with exit code 1

Prints a table and one JSON line; every proof goes to benchmarks/results/edits.json as it ends. What is there is not
measured again unless --again. `--keep` leaves both versions of each script, and their data, in a folder.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE / "edits"
RESULTS = HERE / "results" / "edits.json"
KINDS = ("faster", "nothing", "harmful")
SLACK = 300.0  # seconds beyond the budget until a proof is given up


def load() -> dict[str, dict[str, Any]]:
    """The edits by their names."""
    edits = tomllib.loads((SCRIPTS / "edits.toml").read_text(encoding="utf-8"))["edit"]
    found = {edit["name"]: edit for edit in edits}
    assert len(found) == len(edits), "two edits have one name"
    return found


def versions(edit: dict[str, Any]) -> tuple[str, str]:
    """The script before the edit and after it."""
    old = (SCRIPTS / f"{edit['script']}.py").read_text(encoding="utf-8")
    new = old
    for change in edit["edits"]:
        assert new.count(change["old"]) == 1, (
            f"{edit['name']}: {change['old']!r} is there {new.count(change['old'])} times"
        )
        new = new.replace(change["old"], change["new"])
    return old, new


def lay_out(folder: Path, edits: dict[str, dict[str, Any]]) -> None:
    """Write the data and both versions of each script."""
    if not (folder / "data").exists():
        maker = "import data, pathlib, sys; data.make(pathlib.Path(sys.argv[1]))"
        subprocess.run([sys.executable, "-c", maker, str(folder / "data")], cwd=SCRIPTS, check=True)
    for name, edit in edits.items():
        place = folder / name
        place.mkdir(exist_ok=True)
        for version, text in zip(("old", "new"), versions(edit)):
            (place / f"{version}.py").write_text(text, encoding="utf-8")


def prove(name: str, folder: Path, *, budget: float) -> dict[str, Any]:
    """One edit, judged as a user would have it judged."""
    command = [sys.executable, "-m", "hasten", "prove", "--json", "--budget", f"{budget:g}s"]
    command += [f"{name}/old.py", "--", f"{name}/new.py"]
    result: dict[str, Any] = {"load_before": os.getloadavg()[0]}
    began = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=budget + SLACK, check=False
        )
    except subprocess.TimeoutExpired:
        return result | {"exit": None, "seconds": time.monotonic() - began, "error": "still running"}
    result |= {"exit": done.returncode, "seconds": time.monotonic() - began}
    if done.returncode not in (0, 1) or not done.stdout:
        return result | {"error": done.stderr.replace(f"{folder}/", "")[-500:]}
    # The scripts' own output may come first.
    proof = json.loads(done.stdout.splitlines()[-1].replace(f"{folder}/", ""))["proof"]
    return result | {what: proof[what] for what in proof if what != "machine"}


def is_right(kind: str, result: dict[str, Any]) -> bool:
    """Whether that is what should be said of an edit of this kind."""
    verdict, quality = result.get("verdict"), result.get("quality")
    if kind == "faster":
        return result["exit"] == 0 and verdict == "faster" and quality == "proven"
    if kind == "nothing":
        return result["exit"] == 0 and verdict in ("no difference", "inconclusive") and quality != "broken"
    return result["exit"] == 1 and quality == "broken"


def line(name: str, edit: dict[str, Any], result: dict[str, Any]) -> str:
    """One row of the table."""
    speedup = result.get("speedup")
    times = f"{speedup['value']:.2f} ({speedup['low']:.2f} to {speedup['high']:.2f})" if speedup else "-"
    open_ = [check["what"] for check in result.get("checks", ()) if check["state"] != "passed"]
    mark = "" if is_right(edit["kind"], result) else "  <- WRONG"
    return (
        f"{name:20} {edit['script']:12} {edit['kind']:8} {result.get('verdict', 'none'):13} {times:22} "
        f"{result.get('quality', 'none'):11} {result.get('guarantee') or '-':10} {result['seconds']:4.0f}  "
        f"{', '.join(open_)}{mark}"
    )


def main() -> None:
    edits = load()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=edits, default=[*edits], metavar="NAME")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--budget", type=float, default=300.0)
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    wanted = parser.parse_args()
    found = json.loads(RESULTS.read_text(encoding="utf-8"))["edits"] if RESULTS.exists() else {}
    chosen = {name: edits[name] for name in wanted.only if wanted.again or name not in found}
    with tempfile.TemporaryDirectory(prefix="hasten-bench-edits-") as scratch:
        folder = wanted.keep.resolve() if wanted.keep else Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        lay_out(folder, {name: edits[name] for name in wanted.only} if wanted.keep else chosen) if chosen else None
        for name, edit in chosen.items():
            print(f"... {name}", file=sys.stderr, flush=True)
            result = prove(name, folder, budget=wanted.budget)
            found[name] = {"script": edit["script"], "kind": edit["kind"], "budget": wanted.budget, **result}
            kept = {known: found[known] for known in edits if known in found}
            machine = {"python": platform.python_version(), "cores": os.cpu_count(), "processor": platform.machine()}
            RESULTS.write_text(json.dumps({"machine": machine, "edits": kept}, indent=1) + "\n", encoding="utf-8")
    known = [name for name in edits if name in found]
    print(
        f"{'edit':20} {'script':12} {'kind':8} {'verdict':13} {'old / new time':22} {'training':11} {'as':10} {'s':>4}  not passed"
    )
    for name in known:
        print(line(name, edits[name], found[name]))
    counts = {
        kind: {
            "edits": sum(edits[name]["kind"] == kind for name in known),
            "right": sum(edits[name]["kind"] == kind and is_right(kind, found[name]) for name in known),
        }
        for kind in KINDS
    }
    right = sum(count["right"] for count in counts.values())
    seconds = sum(found[name]["seconds"] for name in known)
    print(json.dumps({"benchmark": "edits", "edits": len(known), "right": right, "seconds": seconds, **counts}))


if __name__ == "__main__":
    main()
