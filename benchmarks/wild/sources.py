"""The scripts of the manifest: fetched at a commit, laid out with their data, outside this repository.

Each script gets a checkout of its own, so that `git status` shows what a run has left behind. Where public repositories lie
elsewhere, HASTEN_WILD_FROM says how: "https://github.com/{owner}/{name}" is the default.
"""

from __future__ import annotations

import importlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import tomllib

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("HASTEN_WILD", "~/.cache/hasten-wild")).expanduser()
FROM = os.environ.get("HASTEN_WILD_FROM", "https://github.com/{owner}/{name}")


@dataclass(frozen=True, kw_only=True)
class Script:
    """A public training script."""

    name: str
    repository: str  # owner/name on GitHub
    commit: str
    license: str
    command: str  # run in `folder`; "python" is this environment's
    folder: str = "."  # in the repository
    data: tuple[
        dict[str, Any], ...
    ] = ()  # {make = MODULE.FUNCTION, to = PATH, ...its arguments}; PATH is from `folder`
    edits: tuple[
        dict[str, str], ...
    ] = ()  # {file, old, new, why}; what the script cannot do here, such as a download
    suggested: tuple[
        dict[str, str], ...
    ] = ()  # {file, old, new, answers}; the edit that a finding of this kind asks for, and no optimization makes
    convert: str = ""  # a notebook, made into the script that `command` runs
    environment: dict[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    looked_at: bool = False  # while a rule was changed: not held out any more
    healthy: bool = False  # tuned by hand: nothing is expected to be wrong

    @property
    def held_out(self) -> bool:
        """Whether it is one of the half that is never looked at while rules are changed."""
        return sha256(self.name.encode()).digest()[0] % 2 == 1 and not self.looked_at

    @property
    def place(self) -> Path:
        """The script's own checkout."""
        return CACHE / "scripts" / self.name

    @property
    def directory(self) -> Path:
        """Where its command is run."""
        return self.place / self.folder

    @property
    def words(self) -> list[str]:
        """Its command."""
        return [sys.executable if word == "python" else word for word in shlex.split(self.command)]

    def variables(self) -> dict[str, str]:
        """The environment that it is run in: no network, no tracker."""
        quiet = {"WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "MPLBACKEND": "Agg"}
        return {**os.environ, **quiet, **self.environment}


def scripts() -> dict[str, Script]:
    """All scripts, by name."""
    found: dict[str, Script] = {}
    for path in sorted((HERE / "manifest").glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["script"]:
            lists = {key: tuple(value) for key, value in entry.items() if isinstance(value, list)}
            one = Script(**{**entry, **lists})
            assert one.name not in found, f"{one.name} is there twice"
            found[one.name] = one
    return found


def prepare(script: Script) -> Path:
    """Lay the script out as it is in the manifest, with its data; where it is there already, as it was."""
    mark = script.place.with_suffix(".json")
    wanted = json.dumps([script.commit, script.data, script.edits, script.convert], sort_keys=True)
    if mark.exists() and mark.read_text(encoding="utf-8") == wanted:
        restore(script)
        return script.directory
    shutil.rmtree(script.place, ignore_errors=True)
    script.place.parent.mkdir(parents=True, exist_ok=True)
    _git("clone", "--quiet", "--shared", "--no-checkout", os.fspath(_source(script)), os.fspath(script.place))
    # A partial clone lacks large files: without them, what can be checked out is.
    _git("checkout", "--quiet", "--detach", "--force", script.commit, at=script.place, may_fail=True)
    assert script.directory.is_dir(), f"{script.repository} at {script.commit} has no {script.folder}"
    if script.convert:
        _from_notebook(script.directory / script.convert)
    for edit in script.edits:
        apply(script, edit)
    for wanted_data in script.data:
        arguments = {key: value for key, value in wanted_data.items() if key not in ("make", "to")}
        target = script.directory / wanted_data["to"]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(_made(wanted_data["make"], arguments), target, dirs_exist_ok=True)
    # What was made belongs to the script: a commit of it, against which leftovers show.
    _git("add", "--all", "--force", at=script.place)
    name = ("-c", "user.name=wild", "-c", "user.email=wild@localhost")
    _git(*name, "commit", "--quiet", "--allow-empty", "--message", "as in the manifest", at=script.place)
    mark.write_text(wanted, encoding="utf-8")
    return script.directory


def apply(script: Script, edit: dict[str, str]) -> None:
    """Replace text in a file of the checkout, or write a file that is not there."""
    path = script.directory / edit["file"]
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    assert edit["old"] in before, f"{script.name}: {edit['file']} has no {edit['old']!r}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(before.replace(edit["old"], edit["new"]) if before else edit["new"], encoding="utf-8")


def leftovers(script: Script) -> list[str]:
    """Files of the checkout that are new, changed or gone, ignored ones included."""
    text = _git("status", "--porcelain", "--ignored", "--untracked-files=all", at=script.place)
    return [line for line in text.splitlines() if "__pycache__" not in line]


def restore(script: Script) -> None:
    """Undo what runs have left behind."""
    _git("reset", "--quiet", "--hard", at=script.place)
    _git("clean", "-fdxq", at=script.place)


def _source(script: Script) -> Path:
    """The repository, with the commit in it."""
    owner, _, name = script.repository.partition("/")
    url = FROM.format(owner=owner, name=name)
    if Path(url).is_dir():
        return Path(url)
    path = CACHE / "repositories" / f"{owner}+{name}"
    if not path.exists():
        path.mkdir(parents=True)
        _git("init", "--quiet", "--bare", at=path)
    if subprocess.run(["git", "cat-file", "-e", script.commit], cwd=path, stderr=subprocess.DEVNULL).returncode:
        _git("fetch", "--quiet", "--depth", "1", url, script.commit, at=path)
        _git("branch", "--force", f"at-{script.commit[:12]}", script.commit, at=path)
    return path


def _made(maker: str, arguments: dict[str, Any]) -> Path:
    """The folder of data that a maker of `data_*.py` makes, once."""
    key = sha256(json.dumps([maker, arguments], sort_keys=True).encode()).hexdigest()[:12]
    folder = CACHE / "data" / f"{maker}-{key}"
    if not folder.exists():
        module, _, function = maker.rpartition(".")
        scratch = folder.with_suffix(".part")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        getattr(importlib.import_module(module), function)(scratch, **arguments)
        scratch.rename(folder)
    return folder


def _from_notebook(path: Path) -> None:
    """The code cells of a notebook as a script beside it; what only a notebook understands is left out."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    lines = [
        f"{line[: len(line) - len(line.lstrip())]}pass  # {line.strip()}" if line.lstrip()[:1] in ("%", "!") else line
        for cell in code
        for line in [*cell.splitlines(), ""]
    ]
    path.with_suffix(".py").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _git(*words: str, at: Path | None = None, may_fail: bool = False) -> str:
    done = subprocess.run(["git", *words], cwd=at, capture_output=True, text=True)
    if done.returncode and not may_fail:
        raise SystemExit(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
