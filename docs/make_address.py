"""Write the repository's address into README.md and CONTRIBUTING.md, from `[project.urls]` in pyproject.toml.

    python docs/make_address.py           write it
    python docs/make_address.py --check   say whether it is up to date, and exit with 1 if not

There is one place to change it: pyproject.toml. Until the repository has a public address, a placeholder stands there.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from generate import ROOT, main

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md")


def files() -> dict[Path, str]:
    """The pages by their paths."""
    return {page: with_address(page.read_text(encoding="utf-8"), address()) for page in PAGES}


def address() -> str:
    """The repository's address, or the placeholder for it."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]


def with_address(text: str, where: str) -> str:
    """A page with the address in the command that clones the repository."""
    return re.sub(r"(?m)^git clone \S+ hasten\b", f"git clone {where} hasten", text)


if __name__ == "__main__":
    raise SystemExit(main(files))
