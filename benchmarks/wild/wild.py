"""Public training scripts that nobody here wrote: does hasten find what an exhaustive search finds?

    python benchmarks/wild/wild.py list
    python benchmarks/wild/wild.py try NAME [--seconds 60]         the script as it is, for a while
    python benchmarks/wild/wild.py run [NAME ...] [--parts PART ...] [--again] [--budget 600]   one script at a time
    python benchmarks/wild/wild.py table

The parts of a run: `diagnose`; `oracle`, the best of all settings, which asks no rule of hasten's; `edit`, what the first
finding asks of the source, if the manifest has that edit; `tune`; `regret`, the plan beside the oracle's. Each script's results lie in benchmarks/results/wild/NAME.json; what is there is not measured again
unless --again. Sources and data lie in ~/.cache/hasten-wild (HASTEN_WILD), never in this repository.

right      the first finding is answered by the optimization or edit that gains most alone, or by one that is not surely
           slower; or nothing gains and nothing is found
regret     how much slower the plan is than the best of all settings, measured side by side; without those that the quality
           check found to harm training
known at   seconds until a plan with 90% of the final gain was known
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from oracle import is_luck
from sources import CACHE, HERE, Script, apply, leftovers, prepare, restore, scripts

from hasten.machine.machine import read_machine
from hasten.optimizations.catalog import CATALOG
from hasten.records import Interval, Tuning, from_json

RESULTS = HERE.parent / "results" / "wild"
PARTS = ["diagnose", "oracle", "edit", "tune", "regret"]
TIE = 0.97  # of the best gain alone: what reaches it is the best as well
GAINS = 1.05  # a speedup that a diagnosis must not miss
HASTEN = [sys.executable, "-m", "hasten"]
OURS = {".hasten", "hasten.toml"}  # what hasten is asked to leave
LONGEST = 1500.0  # seconds for one part of one script


def attempt(script: Script, seconds: float) -> None:
    """Run the script as it is, and show the end of what it printed."""
    directory = prepare(script)
    log = script.place.with_suffix(".log")
    start = time.monotonic()
    code = _ended(script.words, directory, script.variables(), log, seconds)
    lines = log.read_text(errors="replace").replace("\r", "\n").splitlines()
    print("\n".join(line[:160] for line in lines[-25:]))
    ended = "still running" if code is None else f"ended with exit code {code}"
    print(f"{script.name}: {ended} after {time.monotonic() - start:.0f} s; left {len(leftovers(script))} files")
    restore(script)


def measure(script: Script, *, parts: list[str], again: bool, budget: float) -> None:
    """Those of the parts that are not there yet; all of them `again`."""
    path = RESULTS / f"{script.name}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def keep(**more: object) -> None:
        found.update(more)
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    directory, variables = prepare(script), script.variables()
    scratch = CACHE / "results" / script.name
    scratch.mkdir(parents=True, exist_ok=True)
    wanted = [part for part in parts if again or part not in found]
    machine = read_machine()
    if wanted:
        keep(machine={"cpu": machine.cpu, "features": machine.cpu_features, "torch": machine.torch})
    keep(repository=script.repository, commit=script.commit, tags=script.tags, healthy=script.healthy)
    if "diagnose" in wanted:
        keep(diagnose=_diagnosed(script, directory, variables, scratch))
    if "oracle" in wanted and (scratch / "run.json").exists():
        keep(oracle=_searched(script, directory, variables, scratch / "oracle.json", {}))
    edit = _suggested(script, found.get("diagnose", {}))
    if "edit" in wanted and edit is not None:
        keep(edit=_edited(script, directory, variables, scratch, edit))
    if "tune" in wanted:
        keep(tune=_tuned(script, directory, variables, scratch, budget=budget))
    if "regret" in wanted and "best" in found.get("oracle", {}) and "settings" in found.get("tune", {}):
        plan, broken = found["tune"]["settings"], {*(found["tune"].get("proof") or {}).get("broken_by", ())}
        best = {name: value for name, value in found["oracle"]["best"].items() if name not in broken}
        without = sorted(broken & {*found["oracle"]["best"]})
        regret = _searched(script, directory, variables, scratch / "regret.json", {"plan": plan, "best": best})
        keep(regret={**regret, "without": without})


def _searched(
    script: Script, directory: Path, variables: dict[str, str], out: Path, plans: dict[str, object]
) -> dict[str, Any]:
    """What `oracle.py` wrote; "failed": how it ended, if badly."""
    out.unlink(missing_ok=True)
    situation = out.with_name(f"{out.stem}-of.json")
    situation.write_text(json.dumps({"run": str(out.with_name("run.json")), **plans}), encoding="utf-8")
    command = [sys.executable, str(HERE / "oracle.py"), str(out), str(situation), *script.words]
    code = _ended(command, directory, variables, out.with_suffix(".log"), LONGEST)
    restore(script)
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    return found if code == 0 else {**found, "failed": code}


def _suggested(script: Script, diagnosed: dict[str, Any]) -> dict[str, str] | None:
    """The manifest's edit for the first finding."""
    first = next(iter(diagnosed.get("findings", [])), {}).get("kind")
    return next((edit for edit in script.suggested if edit["answers"] == first), None)


def _edited(
    script: Script, directory: Path, variables: dict[str, str], scratch: Path, edit: dict[str, str]
) -> dict[str, object]:
    """What the edited script gains over the one that is committed."""
    apply(script, edit)
    out = scratch / "edit.out"
    prove = [*HASTEN, "prove", "--json", "--budget", "150s", "--git", "HEAD"]
    code = _ended([*prove, *_after(script)], directory, variables, out, LONGEST)
    restore(script)
    try:
        speedup = json.loads(out.read_text(errors="replace"))["proof"]["speedup"]
    except (ValueError, KeyError, TypeError):
        return {"failed": code, "output": _end_of(out)}
    return {"answers": edit["answers"], "gain": [speedup["value"], speedup["low"], speedup["high"]]}


def _diagnosed(script: Script, directory: Path, variables: dict[str, str], scratch: Path) -> dict[str, object]:
    out = scratch / "diagnose.out"
    start = time.monotonic()
    code = _ended([*HASTEN, "diagnose", "--json", *_after(script)], directory, variables, out, LONGEST)
    took, left, load = time.monotonic() - start, _left(script), os.getloadavg()[0]
    restore(script)
    found: dict[str, object] = {"seconds": took, "exit_code": code, "left": left, "processes": _alive(script)}
    if code != 0:
        return {**found, "output": _end_of(out)}
    record = json.loads(out.read_text(errors="replace"))
    (scratch / "run.json").write_text(json.dumps(record["run"]), encoding="utf-8")
    diagnosis = record["diagnosis"]
    findings = [
        {"kind": f["kind"], "recoverable": f["recoverable"], "title": f["title"]} for f in diagnosis["findings"]
    ]
    step = diagnosis["breakdown"]["step_seconds"]
    return {**found, "load": load, "step_seconds": step, "verdict": diagnosis["verdict"], "findings": findings}


def _tuned(
    script: Script, directory: Path, variables: dict[str, str], scratch: Path, *, budget: float
) -> dict[str, object]:
    out = scratch / "tune.out"
    start = time.monotonic()
    code = _ended([*HASTEN, "tune", "--budget", f"{budget:g}s", *_after(script)], directory, variables, out, LONGEST)
    took, left, load = time.monotonic() - start, _left(script), os.getloadavg()[0]
    found: dict[str, object] = {"seconds": took, "budget": budget, "exit_code": code, "left": left}
    found["processes"] = _alive(script)
    saved = sorted((directory / ".hasten" / "tunings").glob("*/tuning.json"))
    if not saved:
        restore(script)
        return {**found, "output": _end_of(out)}
    tuning = from_json(Tuning, saved[-1].read_bytes(), source=str(saved[-1]))
    restore(script)
    proof = tuning.proof
    return {
        **found,
        "load": load,
        "settings": tuning.settings,
        "proof": {"verdict": proof.verdict, "speedup": interval_of(proof.speedup), "broken_by": proof.broken_by}
        if proof is not None
        else None,
        "trials": [
            {
                "added": trial.added,
                "settings": trial.settings,
                "verdict": trial.verdict,
                "speedup": interval_of(trial.speedup),
                "seconds": trial.seconds,
                "at": trial.at,
                "note": trial.note,
            }
            for trial in tuning.trials
        ],
        "skipped": {one.fix: [one.state, one.reason] for one in tuning.skipped},
        "notes": tuning.notes,
    }


def interval_of(found: Interval | None) -> list[float] | None:
    """Value, low and high."""
    return None if found is None else [found.value, found.low, found.high]


def _after(script: Script) -> list[str]:
    """The script as hasten's commands take it."""
    words = script.words
    return words[1:] if words[0] == sys.executable else words


def _left(script: Script) -> list[str]:
    return [line for line in leftovers(script) if not OURS & {*Path(line[3:].strip('"')).parts}]


def _alive(script: Script) -> int:
    """How many processes still run in the script's checkout."""
    found = 0
    for name in os.listdir("/proc"):
        try:
            found += name.isdigit() and Path(os.readlink(f"/proc/{name}/cwd")).is_relative_to(script.place)
        except OSError:
            continue
    return found


def _ended(command: list[str], directory: Path, variables: dict[str, str], out: Path, seconds: float) -> int | None:
    """The command's exit code, its output in `out` and a file beside it; None if it took too long."""
    with out.open("wb") as file, out.with_suffix(".err").open("wb") as errors:
        process = subprocess.Popen(
            command, cwd=directory, env=variables, stdout=file, stderr=errors, start_new_session=True
        )
        try:
            return process.wait(seconds)
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
            os.killpg(process.pid, signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGKILL)
            process.wait()
            if isinstance(error, KeyboardInterrupt):
                raise
            return None


def _end_of(out: Path) -> str:
    """The last of what was written."""
    return (out.read_text(errors="replace") + out.with_suffix(".err").read_text(errors="replace"))[-2000:]


def judged(found: dict[str, Any]) -> dict[str, Any]:
    """One row of the table."""
    oracle, diagnose = found.get("oracle", {}), found["diagnose"]
    alone = {key: v for key, v in oracle.get("alone", {}).items() if isinstance(v, list)}
    edit = found.get("edit", {}).get("gain")
    gains = [v for v in [*alone.values(), *([edit] if edit else [])] if not is_luck(v)]
    most = max(gains, key=lambda v: v[0], default=[1.0, None, None])
    gain = most[0]
    best = [key for key in sorted(alone, key=lambda key: -alone[key][0]) if _ties(alone[key], most)]
    findings = diagnose.get("findings", [])
    first = findings[0] if findings else None
    answering = {name for name, one in CATALOG.items() if first is not None and first["kind"] in one.answers}
    if not oracle or "failed" in oracle:
        right = None
    elif gain < GAINS:
        state = checks(found).get(first["kind"]) if first is not None else None
        right = None if state == "possible" else state is None
    elif edit and first is not None and first["kind"] == found["edit"]["answers"]:
        right = _ties(edit, most)
    else:
        right = any(answering & {*json.loads(key)} for key in best)
    told = [", ".join(f"{k}={v}" for k, v in json.loads(key).items()) for key in best[:2]]
    return {
        "first": first["kind"] if first is not None else None,
        "best_alone": " or ".join([*(["the edit"] if edit and edit is most else []), *told][:2]),
        "gain_alone": gain,
        "right": right,
        "known_at": known_at(found),
    }


def checks(found: dict[str, Any]) -> dict[str, str]:
    """Of each finding that promises 5% or more: whether an optimization or edit that answers it gains that much.

    Args:
        found: A script's results.

    Returns:
        Kind of finding to "confirmed", that much is gained, and surely something; "possible", the interval holds that
        much; "refuted"; "unchecked", nothing that was measured answers it.
    """
    oracle, diagnose, edit = found.get("oracle", {}), found["diagnose"], found.get("edit", {})
    if "alone" not in oracle:
        return {}
    made: dict[str, str] = {}
    for finding in diagnose.get("findings", []):
        kind = finding["kind"]
        if finding["recoverable"] < (GAINS - 1) * diagnose["step_seconds"]:
            continue
        answering = {name for name, one in CATALOG.items() if kind in one.answers}
        gains = [v for key, v in oracle["alone"].items() if isinstance(v, list) and answering & {*json.loads(key)}]
        if edit.get("gain") and edit["answers"] == kind:
            gains.append(edit["gain"])
        if any(value >= GAINS and (low or 0.0) > 1.0 for value, low, _ in gains):
            made[kind] = "confirmed"
        elif any((high or value) >= GAINS for value, _, high in gains):
            made[kind] = "possible"
        else:
            made[kind] = "refuted" if gains else "unchecked"
    return made


def _ties(one: list[float | None], best: list[float | None]) -> bool:
    """Whether a speedup is the best, or gains enough and is not surely less: the interval of their ratio holds 1."""
    assert one[0] is not None and best[0] is not None
    if one[0] >= TIE * best[0]:
        return True
    if one[0] < GAINS or None in one or None in best:
        return False
    widths = [math.log(high / low) / 2 for _, low, high in (one, best)]  # type: ignore[operator]
    return math.log(best[0] / one[0]) <= math.hypot(*widths)


def known_at(found: dict[str, Any]) -> float | None:
    """Seconds until the plan so far had 90% of its final gain, by the trials that it was kept for.

    At its end the plan is tried without each of its settings: what is faster with it then was known before.
    """
    speed, points, kept = 1.0, [], set[str]()
    for trial in found.get("tune", {}).get("trials", []):
        if trial["verdict"] == "faster" and trial["speedup"] and not {*trial["added"]} <= kept:
            speed *= trial["speedup"][0]
            points.append((trial["at"], speed))
            kept |= {*trial["added"]}
    enough = 1 + 0.9 * (speed - 1)
    return next((at for at, reached in points if reached >= enough), None)


SHORT_STEP = 0.5  # seconds
COLUMNS = ("script", "step", "first finding", "best alone", "right", "plan", "best of all", "plan / best", "known at")


def rows(known: dict[str, Script]) -> list[tuple[str, ...]]:
    """What was measured so far."""
    made: list[tuple[str, ...]] = []
    for name in known:
        path = RESULTS / f"{name}.json"
        if not path.exists():
            continue
        found = json.loads(path.read_text(encoding="utf-8"))
        if "step_seconds" not in found.get("diagnose", {}):
            made.append((name, "failed", *[""] * (len(COLUMNS) - 2)))
            continue
        row, oracle, regret = judged(found), found.get("oracle", {}), found.get("regret", {})
        right = {True: "yes", False: "NO", None: ""}[row["right"]]
        known_at = f"{row['known_at']:.0f} s" if row["known_at"] else ""
        left_out = regret.get("without")
        gains = f"{row['best_alone']} {row['gain_alone']:.2f}x" if row["gain_alone"] >= GAINS else "nothing gains"
        made.append(
            (
                name,
                f"{1e3 * found['diagnose']['step_seconds']:.3g} ms",
                row["first"] or "none",
                gains if oracle else "not searched",
                right,
                _ratio(regret.get("speedup")),
                _ratio(oracle.get("best_speedup")),
                _ratio(regret.get("reached")) + (" without " + ", ".join(left_out) if left_out else ""),
                known_at,
            )
        )
    return made


def _ratio(found: object) -> str:
    if not isinstance(found, list):
        return ""
    value, low, high = found
    return f"{value:.2f}" if low is None or low == high else f"{value:.2f} ({low:.2f} to {high:.2f})"


def summary(known: dict[str, Script]) -> dict[str, Any]:
    """How often what was asked for was reached."""
    names = [line[0] for line in rows(known)]
    found = [json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in names]
    diagnosed = [one for one in found if "step_seconds" in one.get("diagnose", {})]
    judgements = [judged(one) for one in diagnosed]
    rights = [row["right"] for row in judgements if row["right"] is not None]
    reached = [r for one in found if isinstance(r := one.get("regret", {}).get("reached"), list)]
    speedups = [s for one in found if isinstance(s := one.get("regret", {}).get("speedup"), list)]
    checked = [state for one in diagnosed for state in checks(one).values()]
    times = [(one["diagnose"]["step_seconds"], at) for one in diagnosed if (at := known_at(one)) is not None]
    return {
        "scripts": len(found),
        "judged": len(rights),
        "right": sum(rights),
        "regret_of_5_percent_at_most": sum(r[0] >= 0.95 for r in reached),
        "regrets": len(reached),
        "slower_than_before": sum(s[2] is not None and s[2] < 1.0 for s in speedups),
        "findings": {state: checked.count(state) for state in ("confirmed", "possible", "refuted", "unchecked")},
        "healthy": sum(row["right"] is not None and row["gain_alone"] < GAINS for row in judgements),
        "median_known_at": _median([at for _, at in times]),
        "median_known_at_of_short_steps": _median([at for step, at in times if step < SHORT_STEP]),
        "left_something": [name for name, one in zip(names, found) if _left_something(one)],
    }


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def _left_something(found: dict[str, Any]) -> bool:
    return any(found.get(part, {}).get(what) for part in ("diagnose", "tune") for what in ("left", "processes"))


def table(known: dict[str, Script]) -> None:
    """Print it, and how often what was asked for was reached."""
    lines = [COLUMNS, *rows(known)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(COLUMNS))]
    for line in lines:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip())
    print(json.dumps(summary(known)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="what", required=True)
    commands.add_parser("list")
    commands.add_parser("table")
    trying = commands.add_parser("try")
    trying.add_argument("name")
    trying.add_argument("--seconds", type=float, default=60.0)
    running = commands.add_parser("run")
    running.add_argument("names", nargs="*")
    running.add_argument("--budget", type=float, default=600.0)
    running.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    running.add_argument("--again", action="store_true")
    wanted, known = parser.parse_args(), scripts()
    names = [wanted.name] if wanted.what == "try" else getattr(wanted, "names", [])
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"no script is named {unknown[0]}; `list` shows them")
    if wanted.what == "list":
        for one in known.values():
            print(f"{one.name:30} {one.repository:40} {', '.join(one.tags)}")
    elif wanted.what == "table":
        table(known)
    elif wanted.what == "try":
        attempt(known[wanted.name], wanted.seconds)
    else:
        RESULTS.mkdir(parents=True, exist_ok=True)
        for name in names or known:
            print(name, flush=True)
            measure(known[name], parts=wanted.parts, again=wanted.again, budget=wanted.budget)


if __name__ == "__main__":
    main()
