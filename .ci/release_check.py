"""Build the sdist and the wheel, install the wheel into a fresh environment, and try it there.

    make release-check
    python .ci/release_check.py             into dist/; exit code 1 and a line for each thing that is wrong
    python .ci/release_check.py --publish   the same, and refuses what must not be published

Only hatchling, which builds, comes over the network. Everything else the fresh environment takes from the one that this
runs in, so PyTorch is not downloaded; the installed hasten is the wheel's all the same, and that is checked.
"""

from __future__ import annotations

import argparse
import email
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from collections.abc import Collection, Iterator, Mapping
from email.message import Message
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "hasten"
SCRIPT = ROOT / "tests" / "faulty" / "healthy_no_workers.py"
MOST_BYTES = 2 << 20  # of the wheel
COMMANDS = (
    "check",
    "diagnose",
    "tune",
    "run",
    "report",
    "compare",
    "merge",
    "prove",
    "explain",
    "speedtest",
    "clean",
    "mcp",
    "completion",
)
PLACEHOLDER = "ADDRESS_OF_THIS_REPOSITORY"


def main() -> int:
    """Build, check, report; returns the exit code."""
    parser = argparse.ArgumentParser(description="Build sdist and wheel, install the wheel and try it.")
    parser.add_argument("--publish", action="store_true", help="refuse what must not be published")
    publish = parser.parse_args().publish
    with tempfile.TemporaryDirectory(prefix="release-check-") as name:
        scratch = Path(name)
        sdist, wheel = build(scratch)
        wrong: list[str] = []
        for check in (check_wheel, check_sdist, check_installed):
            try:
                wrong += check(sdist, wheel, scratch)
            except CommandFailedError as error:
                wrong.append(str(error))
    unready = not_ready(wheel)
    for line in unready:
        print(f"not yet to be published: {line}")
    wrong += unready if publish else []
    for line in wrong:
        print(f"wrong: {line}", file=sys.stderr)
    print(f"{sdist.relative_to(ROOT)} and {wheel.relative_to(ROOT)}: {'not right' if wrong else 'all right'}")
    return 1 if wrong else 0


class CommandFailedError(Exception):
    """A command ended with an error; the message has the last lines of what it said."""


def run(*words: object, cwd: Path) -> str:
    """A command's standard output. Raises CommandFailedError."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*map(str, words)], cwd=cwd, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        said = "\n".join(f"{done.stdout}{done.stderr}".splitlines()[-8:])
        raise CommandFailedError(f"{' '.join(map(str, words))} ended with {done.returncode}\n{said}")
    return done.stdout


# ------------------------------------------------------------------------------------------------------------ build


def build(scratch: Path) -> tuple[Path, Path]:
    """The sdist and the wheel, built into an empty dist/ by an environment of their own."""
    run(sys.executable, "-m", "venv", scratch / "build", cwd=ROOT)
    run(scratch / "build" / "bin" / "pip", "install", "--quiet", requirement(), cwd=ROOT)
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    run(scratch / "build" / "bin" / "hatchling", "build", "--directory", ROOT / "dist", cwd=ROOT)
    (sdist,), (wheel,) = (ROOT / "dist").glob("*.tar.gz"), (ROOT / "dist").glob("*.whl")
    return sdist, wheel


def requirement() -> str:
    """What builds, as pyproject.toml names it."""
    return pyproject(ROOT)["build-system"]["requires"][0]


def pyproject(root: Path) -> dict[str, Any]:
    """What pyproject.toml says."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


# ----------------------------------------------------------------------------------------------------------- checks


def check_wheel(_sdist: Path, wheel: Path, _scratch: Path) -> Iterator[str]:
    """What is wrong with a wheel's files and metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    texts = about(wheel)
    yield from wrong_files(names, expected_files())
    yield from wrong_metadata(email.message_from_string(texts["METADATA"]), version())
    if "hasten = hasten.__main__:main" not in texts.get("entry_points.txt", ""):
        yield "the wheel has no command `hasten`"
    if wheel.stat().st_size > MOST_BYTES:
        yield f"the wheel has {wheel.stat().st_size} bytes, more than {MOST_BYTES}"


def about(wheel: Path) -> dict[str, str]:
    """The files of the wheel's own .dist-info by name; the package holds another one, for torch's entry point."""
    with zipfile.ZipFile(wheel) as archive:
        names = (name for name in archive.namelist() if name.split("/")[0].endswith(".dist-info"))
        return {name.partition("/")[2]: archive.read(name).decode() for name in names}


def expected_files(root: Path = ROOT) -> set[str]:
    """The package's files as a wheel names them, and what pyproject.toml puts beside them."""
    wheel = pyproject(root)["tool"]["hatch"]["build"]["targets"]["wheel"]
    included = {"src/hasten": "hasten", **wheel.get("force-include", {})}
    return {target for source, target in included.items() if (root / source).is_file()} | {
        f"{target}/{path.relative_to(root / source).as_posix()}"
        for source, target in included.items()
        for path in (root / source).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def wrong_files(names: Collection[str], expected: Collection[str]) -> list[str]:
    """Files that a wheel lacks, and files that are not the package's."""
    found = {name for name in names if not name.split("/")[0].endswith(".dist-info")}
    missing = [f"the wheel lacks {name}" for name in sorted({*expected} - found)]
    return missing + [f"the wheel has {name}" for name in sorted(found - {*expected})]


def wrong_metadata(metadata: Message | Mapping[str, str], expected_version: str) -> list[str]:
    """What a package index would show that is not so."""
    wrong = []
    if metadata["Version"] != expected_version:
        wrong.append(f"the wheel's version is {metadata['Version']}, the package's {expected_version}")
    for field in ("Summary", "Requires-Python", "License-Expression", "License-File", "Description-Content-Type"):
        if not metadata[field]:
            wrong.append(f"the metadata has no {field}")
    classifiers = metadata.get_all("Classifier", []) if isinstance(metadata, Message) else []
    systems = [one for one in classifiers if one.startswith("Operating System")]
    if systems != ["Operating System :: POSIX :: Linux"]:
        wrong.append(f"the metadata names {systems or 'no system'}; hasten was tried on Linux only")
    return wrong


def check_sdist(sdist: Path, wheel: Path, scratch: Path) -> Iterator[str]:
    """What differs where the wheel is built from the sdist, as others will do."""
    with tarfile.open(sdist) as archive:
        archive.extractall(scratch / "sdist", filter="data")
    (tree,) = (scratch / "sdist").iterdir()
    run(scratch / "build" / "bin" / "hatchling", "build", "-t", "wheel", "--directory", scratch / "again", cwd=tree)
    (again,) = (scratch / "again").glob("*.whl")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        if sorted(one.namelist()) != sorted(other.namelist()):
            yield f"the sdist's wheel has other files: {sorted({*one.namelist()} ^ {*other.namelist()})}"
    for name in ("README.md", "LICENSE", "CHANGELOG.md", "tests", "docs", "Makefile"):
        if not (tree / name).exists():
            yield f"the sdist lacks {name}"


def check_installed(_sdist: Path, wheel: Path, scratch: Path) -> Iterator[str]:
    """What is wrong with the wheel once it is installed."""
    fresh, empty = scratch / "fresh", scratch / "empty"
    empty.mkdir()
    run(sys.executable, "-m", "venv", "--without-pip", fresh, cwd=empty)
    python, hasten = fresh / "bin" / "python", fresh / "bin" / "hasten"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel, cwd=empty)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])", cwd=empty).strip()
    # Everything else is this environment's; its own hasten stands behind the wheel's.
    (Path(site) / "packages.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    where = run(python, "-c", "import hasten; print(hasten.__file__)", cwd=empty).strip()
    if not where.startswith(site):
        yield f"the installed hasten is not the wheel's but {where}"
    told = run(hasten, "--version", cwd=empty).strip()
    if not told.startswith(f"hasten {version()} ("):
        yield f"`hasten --version` prints {told}"
    text = run(hasten, "--help", cwd=empty)
    yield from (f"`hasten --help` does not name {one}" for one in COMMANDS if one not in text)
    keys = set(json.loads(run(hasten, "check", "--json", cwd=empty)))
    if keys != {"machine", "disk", "lines", "reads"}:
        yield f"`hasten check --json` prints {sorted(keys)}"
    run(python, "-c", "import hasten; hasten.Loader([1, 2, 3, 4], batch_size=2)", cwd=empty)
    # The entry point that reaches into a script lies in the package: only an installed wheel shows that it is there.
    shutil.copy(SCRIPT, empty)
    told = run(hasten, "diagnose", "--quick", "--steps", 5, "--json", SCRIPT.name, cwd=empty)
    if not json.loads(told)["run"]["steps"]:
        yield f"`hasten diagnose {SCRIPT.name}` saw no step"


def version() -> str:
    """The one version number."""
    text = (PACKAGE / "__init__.py").read_text(encoding="utf-8")
    return text.partition('__version__ = "')[2].partition('"')[0]


# ---------------------------------------------------------------------------------------------------------- publish


def not_ready(wheel: Path) -> list[str]:
    """What must be done before this wheel may be published."""
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    status = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=False)
    return unready(about(wheel)["METADATA"], changes, version(), changed=bool(status.stdout.strip()))


def unready(metadata: str, changes: str, expected_version: str, *, changed: bool) -> list[str]:
    """What must be done first, from the wheel's metadata, the changelog and the state of the checkout."""
    found = []
    if PLACEHOLDER in metadata:
        found.append("the repository's address in pyproject.toml is a placeholder")
    headings = [line for line in changes.splitlines() if line.startswith(f"## [{expected_version}]")]
    if len(headings) != 1 or "unreleased" in headings[0]:
        found.append(f"CHANGELOG.md has no date for {expected_version}")
    if changed:
        found.append("the checkout has changes that are not committed")
    return found


if __name__ == "__main__":
    raise SystemExit(main())
