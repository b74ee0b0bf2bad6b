"""Functions of the user's own in which samples spend their time, by the names under which a plan can vouch for them."""

from __future__ import annotations

import ast
import os
from collections import defaultdict
from pathlib import Path

from hasten.records import Run

WORTH = 0.1  # share of the time in the user's lines, below which a function is not named


def own_functions(run: Run) -> dict[str, float]:
    """Share (0..1) of the time that loader workers spend in lines of the script, by "module:function".

    Only functions at the top level of a module, for others have no name that finds them. A `__getitem__` is none of them:
    what it returns may depend on everything.
    """
    seconds: dict[str, float] = defaultdict(float)
    total = 0.0
    lines = [line for line in run.hot_lines if line.in_worker or line.phase == "data_wait"]
    for line in lines:
        total += line.seconds
        name = _name_of(run, line.where.file, line.where.line)
        if name is not None:
            seconds[name] += line.seconds
    return {name: spent / total for name, spent in sorted(seconds.items()) if spent >= WORTH * total}


def _name_of(run: Run, file: str, line: int) -> str | None:
    path = Path(run.directory, file)
    module = _module_of(run, path)
    try:
        tree = ast.parse(path.read_text(encoding="utf-8")) if module is not None else None
    except (OSError, SyntaxError, ValueError):
        return None
    functions = [node for node in (tree.body if tree is not None else []) if isinstance(node, ast.FunctionDef)]
    name = next((node.name for node in functions if node.lineno <= line <= (node.end_lineno or 0)), None)
    return None if name is None else f"{module}:{name}"


def _module_of(run: Run, path: Path) -> str | None:
    """Under which name the script's process has the file."""
    first = run.command[0] if run.command else ""
    script = Path(run.directory, first)
    if first.endswith(".py") and os.path.realpath(script) == os.path.realpath(path):
        return "__main__"
    root = script.parent if first.endswith(".py") else Path(run.directory)
    try:
        parts = path.resolve().relative_to(root.resolve()).with_suffix("").parts
    except ValueError:
        return None
    return ".".join(parts) if all(part.isidentifier() for part in parts) else None
