"""Does hasten name the planted fault first, and promise what fixing it by hand gives?

Every script of tests/faulty is diagnosed as a user would, and its first finding is held against the planted one; the
recoverable share of the step against the gain that benchmarks/by_hand.py measured. The healthy ones must give none.

    python benchmarks/diagnosis.py [--only KIND ...] [--seconds 20] [--again] [--scripts tests/faulty/unseen]

Prints a table and one JSON line; the raw diagnoses go to benchmarks/results/diagnosis.json, those of another folder to
diagnosis_FOLDER.json. `--again` prints the table of the saved diagnoses.
"""

import argparse
import ast
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "tests" / "faulty"
RESULTS = ROOT / "benchmarks" / "results"


def expected(script: Path) -> str | None:
    """The kind that a script's docstring promises; None for a healthy one."""
    words = (ast.get_docstring(ast.parse(script.read_text())) or "").split()
    return words[2].strip(".") if words[:2] == ["Expected", "finding:"] and "healthy" not in script.stem else None


def diagnose(script: Path, *, seconds: float) -> dict[str, object]:
    """One script, diagnosed in a folder of its own."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "hasten", "diagnose", "--json", "--seconds", str(seconds), str(script)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    result: dict[str, object] = {
        "exit": done.returncode,
        "seconds": time.monotonic() - started,
        "load": os.getloadavg()[0],
    }
    if done.returncode == 0:
        answer = json.loads(done.stdout.replace(f"{ROOT}/", ""))
        diagnosis = answer["diagnosis"]
        result |= {
            "step": diagnosis["breakdown"]["step_seconds"],
            "phases": diagnosis["breakdown"]["phases"],
            "findings": diagnosis["findings"],
            "interventions": answer["run"].get("interventions", []),
            "overhead": answer["run"].get("overhead"),
        }
    else:
        result["error"] = done.stderr[-500:]
    return result


def gain_by_hand(name: str) -> float | None:
    """Share of the faulty step that fixing by hand recovers."""
    path = RESULTS / "by_hand.json"
    if not path.exists():
        return None
    row = json.loads(path.read_text())["scripts"].get(name)
    return row["gain_share"] if row else None


def line(name: str, planted: str | None, result: dict[str, object]) -> dict[str, object]:
    """One row of the table."""
    findings = result.get("findings") or []
    assert isinstance(findings, list)
    top = findings[0] if findings else None
    share = top["recoverable"] / result["step"] if top else None
    by_hand = gain_by_hand(name)
    return {
        "script": name,
        "planted": planted,
        "top": top["kind"] if top else None,
        "right": (top["kind"] if top else None) == planted,
        "promised": share,
        "by_hand": by_hand,
        "within": share / by_hand if share is not None and by_hand else None,
        "others": [f["kind"] for f in findings[1:]],
        "seconds": result["seconds"],
    }


def shown(value: object) -> str:
    return "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--scripts", type=Path, default=SCRIPTS)
    wanted = parser.parse_args()
    scripts = wanted.scripts.resolve()
    path = RESULTS / ("diagnosis.json" if scripts == SCRIPTS else f"diagnosis_{scripts.name}.json")
    saved = json.loads(path.read_text())["scripts"] if path.exists() else {}
    for script in [] if wanted.again else sorted(scripts.glob("*.py")):
        if not wanted.only or script.stem in wanted.only:
            print(f"... {script.stem}", file=sys.stderr, flush=True)
            saved[script.stem] = diagnose(script, seconds=wanted.seconds)
            RESULTS.mkdir(exist_ok=True)
            machine = {"python": platform.python_version(), "cores": os.cpu_count(), "processor": platform.machine()}
            path.write_text(json.dumps({"machine": machine, "scripts": saved}, indent=1) + "\n")
    rows = [line(name, expected(scripts / f"{name}.py"), saved[name]) for name in sorted(saved)]
    print(f"{'script':24s} {'top finding':22s} {'promised':>8s} {'by hand':>8s} {'ratio':>6s} {'s':>4s}  also")
    for row in rows:
        mark = "" if row["right"] else "  <- WRONG"
        print(
            f"{row['script']!s:24s} {shown(row['top']):22s} {shown(row['promised']):>8s} {shown(row['by_hand']):>8s} "
            f"{shown(row['within']):>6s} {row['seconds']:4.0f}  {', '.join(row['others'])}{mark}"  # type: ignore[arg-type]
        )
    right = sum(bool(r["right"]) for r in rows)
    close = [r for r in rows if isinstance(r["within"], float) and 0.8 <= r["within"] <= 1.25]
    compared = [r for r in rows if r["within"] is not None]
    print(
        json.dumps({"scripts": len(rows), "right": right, "compared": len(compared), "within_20_percent": len(close)})
    )


if __name__ == "__main__":
    main()
