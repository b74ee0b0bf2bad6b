"""Changes of the user's own source that nothing from outside can replace, as unified diffs.

In: findings that name a line. Out: Edits, which a person reads and applies, or `--write` does. Refuses to write by
itself, and to guess: a line whose surroundings are not understood gets no edit.
"""

from __future__ import annotations

import ast
import difflib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hasten.errors import DirectoryError
from hasten.records import Edit, Finding
from hasten.tuning.rewriting.copies import copied_at_once
from hasten.tuning.rewriting.crops import cropped_first
from hasten.tuning.rewriting.doubles import in_float32
from hasten.tuning.rewriting.lookups import looked_up_once
from hasten.tuning.rewriting.rarer import rarer
from hasten.tuning.rewriting.sums import in_tensors
from hasten.tuning.rewriting.text import lines_of

Idiom = tuple[Callable[[str, ast.Module, int], "str | None"], str]
IN_TENSORS: Idiom = (in_tensors, "summed up as a tensor, without reading it")
AT_ONCE: Idiom = (copied_at_once, "copied in one assignment, not number by number")
CROPPED: Idiom = (cropped_first, "cropped first, so that nothing is done to pixels that are thrown away")
LOOKED_UP: Idiom = (looked_up_once, "looked up once, and cut from that")
IN_FLOAT32: Idiom = (in_float32, "computed in float32, where float64 was named")
IDIOMS: dict[str, tuple[Idiom, ...]] = {
    "sync_points": (IN_TENSORS,),
    "slow_collate": (AT_ONCE,),
    "slow_transform": (CROPPED, AT_ONCE),
    "double_precision": (IN_FLOAT32,),
    "script_bound": (AT_ONCE, LOOKED_UP),
}
RARER = ("logging_each_step", "sync_points", "validation_often", "checkpoint_often")
TOLERATED = 0.01  # share of the step that may be left of the cost
FACTORS = (10, 20, 50, 100, 200, 500)


def edits_for(
    findings: Sequence[Finding], *, step_seconds: float, times_an_epoch: Mapping[str, float] | None = None
) -> tuple[Edit, ...]:
    """One edit a finding, where there is one; `times_an_epoch` tells how often what should come once an epoch comes."""
    times = times_an_epoch or {}
    edits = (_edit(finding, step_seconds, times.get(finding.kind)) for finding in findings)
    return tuple(edit for edit in edits if edit is not None)


def _edit(finding: Finding, step_seconds: float, times: float | None) -> Edit | None:
    if finding.kind not in (*RARER, *IDIOMS) or finding.where is None:
        return None
    path = Path(finding.where.file)
    try:
        text = path.read_text(encoding="utf-8")  # with \n for any end of a line
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return None
    share = finding.recoverable / step_seconds
    changed, how, left = _changed(finding.kind, text, tree, finding.where.line, share, times)
    if changed is None or changed == text or not _parses(changed):
        return None
    name = os.path.relpath(path)
    diff = difflib.unified_diff(lines_of(_ended(text)), lines_of(_ended(changed)), f"a/{name}", f"b/{name}", n=2)
    return Edit(
        kind=finding.kind,
        file=str(path),
        line=_first_changed(text, changed),
        diff="".join(diff),
        because=f"{finding.title}: {how}",
        recoverable=finding.recoverable * (1 - left),
    )


def _changed(
    kind: str, text: str, tree: ast.Module, line: int, share: float, times: float | None
) -> tuple[str | None, str, float]:
    """The text mended, in what way, and the part of the cost that is left; `share` of the step is the cost now."""
    for mend, how in IDIOMS.get(kind, ()):
        if (changed := mend(text, tree, line)) is not None:
            return changed, how, 0.0
    if kind not in RARER:
        return None, "", 1.0
    if times is not None:  # what is recovered then is what once an epoch leaves
        factor = math.ceil(times)
        return rarer(text, tree, line, factor), f"{factor} times more rarely, once an epoch", 0.0
    factor = next((f for f in FACTORS if share / f <= TOLERATED), FACTORS[-1])
    return rarer(text, tree, line, factor), f"{factor} times more rarely", 1 / factor


def _first_changed(text: str, changed: str) -> int:
    """The line from which on the two differ."""
    before, after = lines_of(text), lines_of(changed)
    return next((n for n, (a, b) in enumerate(zip(before, after), start=1) if a != b), min(len(before), len(after)))


def _ended(text: str) -> str:
    """The text with an end to its last line."""
    return text if text.endswith("\n") else text + "\n"


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def write_edits(edits: Sequence[Edit], *, within: Path | None = None) -> list[str]:
    """Apply edits to their files; what became of each, in words. A file that has changed meanwhile is left alone.

    `within`: only to scripts below this folder, for a record may name any. Raises DirectoryError.
    """
    told: list[str] = []
    for edit in edits:
        path = Path(edit.file)
        if within is not None and not (path.suffix == ".py" and path.resolve().is_relative_to(within.resolve())):
            told.append(f"left {edit.file} as it is: it is no script below this folder; apply the diff by hand")
            continue
        try:
            text = path.read_bytes().decode("utf-8")
            end = "\r\n" if "\r\n" in text else "\n"
            changed = apply_diff(text.replace("\r\n", "\n"), edit.diff)
            if changed is None or text.count("\n") != text.count(end):  # line ends of both kinds
                told.append(f"left {edit.file}:{edit.line} as it is: the diff does not fit; apply it by hand")
                continue
            path = path.resolve()  # not in a link's place
            part = path.with_name(f".{path.name}.{os.getpid()}")
            part.write_bytes(changed.replace("\n", end).encode("utf-8"))
            part.chmod(path.stat().st_mode)
            part.replace(path)
            told.append(f"changed {edit.file}:{edit.line}")
        except OSError as error:
            raise DirectoryError(f"cannot write {path} ({error.strerror}); apply the diff by hand") from None
    return told


def apply_diff(text: str, diff: str) -> str | None:
    """The text with a unified diff applied; None where it does not fit, wherever it has moved to."""
    changed = _ended(text)
    for hunk in diff.split("\n@@ ")[1:]:
        body = [line for line in hunk.split("\n")[1:] if line]
        before = "".join(line[1:] + "\n" for line in body if line[0] in " -")
        after = "".join(line[1:] + "\n" for line in body if line[0] in " +")
        if changed.count(before) != 1:
            return None
        changed = changed.replace(before, after)
    return changed if text.endswith("\n") else changed[:-1]
