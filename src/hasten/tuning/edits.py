"""Changes of the user's own source that nothing from outside can replace, as unified diffs.

In: findings that name a line. Out: Edits, which a person reads and applies, or `--write` does. Refuses to write by
itself, and to guess: a line whose surroundings it does not understand gets no edit.

All of them do something less often: logging, validating, saving. Where the line stands under `if step % n == 0`, n grows;
where it stands in a loop that counts its rounds, it gets such a condition.
"""

from __future__ import annotations

import ast
import difflib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from hasten.errors import DirectoryError
from hasten.records import Edit, Finding

RARER = ("logging_each_step", "sync_points", "validation_often", "checkpoint_often")
REPORTS = """
    print info debug warning log write save log_metric log_metrics add_scalar add_scalars add_histogram
    set_postfix set_postfix_str set_description
"""  # calls that tell or save something, and of which a script needs nothing back
READS = """
    item tolist cpu detach mean sum max min norm numpy format state_dict get_last_lr
    float int len str round dict
"""  # calls that may stand in what they are told
TRAINS = "step backward zero_grad update clip_grad_norm_"  # calls that must not become rarer
TOLERATED = 0.01  # share of the step that may be left of the cost
FACTORS = (10, 20, 50, 100, 200, 500)


def edits_for(findings: Sequence[Finding], *, step_seconds: float) -> tuple[Edit, ...]:
    """One edit a finding, where there is one."""
    return tuple(edit for finding in findings if (edit := _edit(finding, step_seconds)) is not None)


def _edit(finding: Finding, step_seconds: float) -> Edit | None:
    if finding.kind not in RARER or finding.where is None:
        return None
    path = Path(finding.where.file)
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return None
    share = finding.recoverable / step_seconds
    factor = next((f for f in FACTORS if share / f <= TOLERATED), FACTORS[-1])
    changed = _rarer(text, tree, finding.where.line, factor)
    if changed is None or changed == text or not _parses(changed):
        return None
    name = os.path.relpath(path)
    diff = difflib.unified_diff(
        text.splitlines(keepends=True), changed.splitlines(keepends=True), f"a/{name}", f"b/{name}", n=2
    )
    return Edit(
        kind=finding.kind,
        file=str(path),
        line=finding.where.line,
        diff="".join(diff),
        because=f"{finding.title}: {factor} times more rarely",
        recoverable=finding.recoverable * (1 - 1 / factor),
    )


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _rarer(text: str, tree: ast.Module, line: int, factor: int) -> str | None:
    """The text with what stands at `line` done `factor` times more rarely."""
    around = list(_around(tree, line))  # outermost first
    if not around or not isinstance(around[-1], ast.stmt):
        return None
    for node in reversed(around):
        if isinstance(node, ast.If) and (modulo := _modulo(node.test)) is not None and _in_body(node, line):
            if node.orelse or any(_trains(inner) for inner in node.body):
                return None
            return _replaced(text, modulo, _times(text, modulo, factor))
        if isinstance(node, (ast.For, ast.While)):
            break
    loop = next((node for node in reversed(around) if isinstance(node, ast.For)), None)
    statement = around[-1]
    counter = _counter(loop) if loop is not None else None
    if counter is None or not _only_reports(statement):
        return None
    return _guarded(text, statement, f"if {counter} % {factor} == 0:")


def _around(tree: ast.AST, line: int) -> Iterator[ast.AST]:
    """The statements that hold a line, from the outside to the inside; functions begin anew."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.stmt, ast.ExceptHandler)) and node.lineno <= line <= (
            node.end_lineno or node.lineno
        ):
            yield node
            yield from _around(node, line)


def _in_body(node: ast.If, line: int) -> bool:
    return node.body[0].lineno <= line <= (node.body[-1].end_lineno or line)


def _only_reports(statement: ast.AST) -> bool:
    """Whether a statement tells something and does nothing else: none of the user's own functions is called in it."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    outer = statement.value
    calls = [node for node in ast.walk(outer) if isinstance(node, ast.Call) and node is not outer]
    return _called(outer) in REPORTS.split() and all(_called(call) in READS.split() for call in calls)


def _trains(statement: ast.stmt) -> bool:
    return any(_called(node) in TRAINS.split() for node in ast.walk(statement) if isinstance(node, ast.Call))


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _modulo(test: ast.expr) -> ast.expr | None:
    """What follows the % of a test for divisibility."""
    for node in ast.walk(test):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and not isinstance(node.left, ast.Constant):
            return node.right
    return None


def _times(text: str, node: ast.expr, factor: int) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return str(factor * node.value)
    return f"({factor} * {ast.get_source_segment(text, node)})"


def _counter(loop: ast.For) -> str | None:
    """The name that counts a loop's rounds: of enumerate, or of a range."""
    called = loop.iter.func.id if isinstance(loop.iter, ast.Call) and isinstance(loop.iter.func, ast.Name) else ""
    if called == "range" and isinstance(loop.target, ast.Name):
        return loop.target.id
    if called == "enumerate" and isinstance(loop.target, ast.Tuple) and isinstance(loop.target.elts[0], ast.Name):
        return loop.target.elts[0].id
    return None


def _replaced(text: str, node: ast.expr, new: str) -> str | None:
    """The text with one expression, on one line, replaced."""
    if node.lineno != node.end_lineno:
        return None
    lines = text.splitlines(keepends=True)
    raw = lines[node.lineno - 1].encode()
    lines[node.lineno - 1] = (raw[: node.col_offset] + new.encode() + raw[node.end_col_offset :]).decode()
    return "".join(lines)


def _guarded(text: str, statement: ast.stmt, condition: str) -> str | None:
    """The text with a statement, alone on its lines, under a condition."""
    lines = text.splitlines(keepends=True)
    first, last = statement.lineno - 1, (statement.end_lineno or statement.lineno) - 1
    indent = lines[first][: statement.col_offset]
    if indent.strip() or lines[last].encode()[statement.end_col_offset or 0 :].strip().startswith(b";"):
        return None
    step = "\t" if indent.endswith("\t") else "    "
    body = [step + line if line.strip() else line for line in lines[first : last + 1]]
    return "".join([*lines[:first], f"{indent}{condition}\n", *body, *lines[last + 1 :]])


def write_edits(edits: Sequence[Edit]) -> list[str]:
    """Apply edits to their files; those that were applied. A file that has changed meanwhile is left alone.

    Raises DirectoryError.
    """
    written: list[str] = []
    for edit in edits:
        path = Path(edit.file)
        try:
            changed = apply_diff(path.read_text(encoding="utf-8"), edit.diff)
            if changed is not None:
                part = path.with_name(f".{path.name}.{os.getpid()}")
                part.write_text(changed, encoding="utf-8")
                part.chmod(path.stat().st_mode)
                part.replace(path)
                written.append(f"{edit.file}:{edit.line}")
        except OSError as error:
            raise DirectoryError(f"cannot write {path} ({error.strerror}); apply the diff by hand") from None
    return written


def apply_diff(text: str, diff: str) -> str | None:
    """The text with a unified diff applied; None where it does not fit, wherever it has moved to."""
    for hunk in diff.split("\n@@ ")[1:]:
        body = hunk.split("\n", 1)[1].splitlines()
        before = "".join(line[1:] + "\n" for line in body if line[:1] in " -")
        after = "".join(line[1:] + "\n" for line in body if line[:1] in " +")
        if text.count(before) != 1:
            return None
        text = text.replace(before, after)
    return text
