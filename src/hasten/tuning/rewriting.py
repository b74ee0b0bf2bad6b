"""The user's source with one thing done otherwise.

In: a file's text, its tree and a line. Out: the text changed, or None. Refuses to guess: what is not understood stays.

Two changes are known. Something is done less often: logging, validating, saving. Where the line stands under
`if step % n == 0`, n grows; where it stands in a loop that counts its rounds, it gets such a condition. And values are
summed up as tensors, instead of being read one by one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

REPORTS = """
    print info debug warning log write save log_metric log_metrics add_scalar add_scalars add_histogram
    set_postfix set_postfix_str set_description
"""  # calls that tell or save something, and of which a script needs nothing back
READS = """
    item tolist cpu detach mean sum max min norm numpy format state_dict get_last_lr
    float int len str round dict
"""  # calls that may stand in what they are told
TRAINS = "step backward zero_grad update clip_grad_norm_"  # calls that must not become rarer


def rarer(text: str, tree: ast.Module, line: int, factor: int) -> str | None:
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


def _alone(text: str, statement: ast.stmt) -> tuple[list[str], int, int, str] | None:
    """The text's lines, the first and the last of the statement's, and its indent; None where another shares them."""
    lines = text.splitlines(keepends=True)
    first, last = statement.lineno - 1, (statement.end_lineno or statement.lineno) - 1
    indent = lines[first][: statement.col_offset]
    after = lines[last].encode()[statement.end_col_offset or 0 :].strip()
    return None if indent.strip() or after.startswith(b";") else (lines, first, last, indent)


def _guarded(text: str, statement: ast.stmt, condition: str) -> str | None:
    """The text with a statement under a condition."""
    if (found := _alone(text, statement)) is None:
        return None
    lines, first, last, indent = found
    step = "\t" if indent.endswith("\t") else "    "
    body = [step + line if line.strip() else line for line in lines[first : last + 1]]
    return "".join([*lines[:first], f"{indent}{condition}\n", *body, *lines[last + 1 :]])


def in_tensors(text: str, tree: ast.Module, line: int) -> str | None:
    """The text with what is read at `line`, and only summed up, left in tensors: no sync until the sum is told."""
    around = list(_around(tree, line))  # outermost first
    for node in reversed(around):
        if isinstance(node, ast.For) and (hits := _hits(node)) is not None:
            return _instead(text, node, hits)
    if around and isinstance(around[-1], ast.AugAssign) and isinstance(around[-1].op, ast.Add):
        reads = [term for term in _terms(around[-1].value) if isinstance(term, ast.Call) and _called(term) == "item"]
        if len(reads) == 1 and not reads[0].args:
            source = ast.get_source_segment(text, reads[0]) or ""
            return _replaced(text, reads[0], source[: source.rindex(".")] + ".detach()")
    return None


def _terms(value: ast.expr) -> Iterator[ast.expr]:
    """What is added, subtracted, multiplied and divided; nothing that stands within a call, a list or a text."""
    if isinstance(value, ast.BinOp):
        yield from _terms(value.left)
        yield from _terms(value.right)
    else:
        yield value


def _hits(loop: ast.For) -> str | None:
    """What counts as `for i in range(len(b)): if a[i].item() == b[i].item(): n += 1` does, in one operator."""
    match loop:
        case ast.For(
            target=ast.Name(id=index),
            iter=ast.Call(
                func=ast.Name(id="range"), args=[ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=length)])]
            ),
            body=[
                ast.If(
                    test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]),
                    body=[ast.AugAssign(target=ast.Name(id=count), op=ast.Add(), value=ast.Constant(value=1))],
                    orelse=[],
                )
            ],
            orelse=[],
        ):
            names = {_indexed(left, index), _indexed(right, index)}
            if None not in names and length in names and len(names) == 2:
                (other,) = names - {length}
                return f"{count} += ({other}.view_as({length}) == {length}).sum()"
        case _:
            pass
    return None


def _indexed(node: ast.expr, index: str) -> str | None:
    """The name of what `name[index].item()` takes from."""
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Subscript(value=ast.Name(id=name), slice=ast.Name(id=at)), attr="item"),
            args=[],
        ):
            return name if at == index else None
        case _:
            return None


def _instead(text: str, statement: ast.stmt, new: str) -> str | None:
    """The text with one line in a statement's place."""
    if (found := _alone(text, statement)) is None:
        return None
    lines, first, last, indent = found
    return "".join([*lines[:first], f"{indent}{new}\n", *lines[last + 1 :]])
