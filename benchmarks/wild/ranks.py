"""Public scripts with two and three ranks: does `hasten run` leave their exit codes, files and losses as they are?

    python benchmarks/wild/ranks.py [NAME ...] [--ranks 2 3]

Each is run twice without hasten and once under `hasten run` with a fix of identical results. What differs between the two
runs without hasten is not held against hasten, and is counted as `varies`. Results: benchmarks/results/wild-ranks.json.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import tomllib
from sources import HERE, Script, leftovers, prepare, restore, scripts

RESULTS = HERE.parent / "results" / "wild-ranks.json"
SETTINGS = ["ddp_bucket_view=true"]
OURS = {".hasten", "hasten.toml"}
TIMES = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d{4,}")  # and process ids, in the names of files
PATIENCE = 400.0  # seconds for one run


@dataclass(frozen=True, kw_only=True)
class Case:
    """A script with ranks."""

    script: Script
    losses: re.Pattern[str]
    settings: list[str]

    def command(self, ranks: int) -> list[str]:
        """With so many ranks."""
        torchrun = f"python -m torch.distributed.run --standalone --nproc-per-node {ranks}"
        text = self.script.command.replace("torchrun", torchrun, 1).replace("{ranks}", str(ranks))
        return [sys.executable if word == "python" else word for word in shlex.split(text)]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a run left and printed."""

    exit_code: int | None
    losses: list[str]  # sorted, for ranks print in any order
    files: dict[str, str]
    tail: str


def cases() -> dict[str, Case]:
    """All of them, by name."""
    known, found = scripts(), {}
    for entry in tomllib.loads((HERE / "ranks.toml").read_text(encoding="utf-8"))["case"]:
        base, edits = known[entry.pop("of")], tuple(entry.pop("edits", ()))
        losses, settings = re.compile(entry.pop("losses")), entry.pop("settings", SETTINGS)
        kept = base.edits if "folder" not in entry else ()
        data = base.data if "folder" not in entry else ()
        name = f"ranks-{entry.pop('name', base.name)}"
        script = replace(base, name=name, edits=(*kept, *edits), data=data, **entry)
        found[name] = Case(script=script, losses=losses, settings=settings)
    return found


def seen(case: Case, command: list[str]) -> Seen:
    """One run, from a clean checkout."""
    directory = prepare(case.script)
    try:
        done = subprocess.run(
            command, cwd=directory, env=case.script.variables(), capture_output=True, text=True, timeout=PATIENCE
        )
        code, text = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        code, text = None, str(error)
    paths = [case.script.place / line[3:].strip('"') for line in leftovers(case.script)]
    files = {
        TIMES.sub("N", str(path.relative_to(case.script.place))): sha256(path.read_bytes()).hexdigest()
        for path in paths
        if path.is_file() and not OURS & {*path.relative_to(case.script.place).parts}
    }
    restore(case.script)
    return Seen(exit_code=code, losses=sorted(case.losses.findall(text)), files=files, tail=text[-1500:])


def compare(case: Case, ranks: int) -> dict[str, Any]:
    """Both ways, and what differs."""
    command = case.command(ranks)
    began = time.monotonic()
    first = seen(case, command)
    settings = [word for one in case.settings for word in ("--set", one)]
    words = command[1:] if command[0] == sys.executable else command
    under = seen(case, [sys.executable, "-m", "hasten", "run", *settings, *words])
    again = seen(case, command)
    own = {name for name in {*first.files, *again.files} if first.files.get(name) != again.files.get(name)}
    differing = {n for n in {*first.files, *under.files} - own if first.files.get(n) != under.files.get(n)}
    losses_vary = first.losses != again.losses
    return {
        "exit_codes": [first.exit_code, under.exit_code, again.exit_code],
        "same_exit_code": under.exit_code in (first.exit_code, again.exit_code),
        "same_names": {*first.files} == {*under.files} or {*again.files} == {*under.files},
        "num_files": len(first.files),
        "differing": sorted(differing),
        "varies": sorted(own),
        "num_losses": len(first.losses),
        "same_losses": None if losses_vary else first.losses == under.losses,
        "seconds": time.monotonic() - began,
        **({} if under.exit_code == 0 else {"tail": under.tail}),
    }


def main() -> None:
    """Compare what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = cases()
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 3])
    wanted = parser.parse_args()
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for name in wanted.names or known:
        for ranks in wanted.ranks:
            result = found.setdefault(name, {})[str(ranks)] = compare(known[name], ranks)
            print(name, ranks, json.dumps(result), flush=True)
            RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
