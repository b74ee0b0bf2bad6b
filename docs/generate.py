"""Write every generated file, or check that each is what its generator makes.

    python docs/generate.py                   write all of them
    python docs/generate.py --check           name those that are out of date, and exit with 1 if there are any
    python docs/make_NAME.py [--check]        the same for one generator

A generator is a file docs/make_*.py with a function `files()`: the text of each file that it writes, by path.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
Files = Mapping[Path, str]


def generators() -> list[str]:
    """The module names of all generators."""
    return sorted(path.stem for path in Path(__file__).parent.glob("make_*.py"))


def all_files() -> dict[Path, str]:
    """What all generators make."""
    return {path: text for name in generators() for path, text in importlib.import_module(name).files().items()}


def stale(files: Files) -> list[Path]:
    """Files that are missing, or differ from what their generator makes."""
    return [path for path, text in files.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]


def between(text: str, begin: str, end: str, inner: str) -> str:
    """A text with everything between two marker lines replaced."""
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    assert found and closed, f"a marker is missing: {begin.strip()}"
    return f"{before}{begin}\n{inner}\n{end}{after}"


def main(files: Callable[[], Files] = all_files) -> int:
    """Write the files, or check them; returns the exit code."""
    parser = argparse.ArgumentParser(description="Write generated files, or check them.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is out of date")
    check = parser.parse_args().check
    found = files()
    wrong = stale(found)
    if not check:
        for path in wrong:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(found[path], encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
        return 0
    for path in wrong:
        print(f"{path.relative_to(ROOT)} is out of date; run `make generated`", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
