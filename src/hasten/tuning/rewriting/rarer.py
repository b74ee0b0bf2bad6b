"""The user's source with something done less often: logging, validating, saving.

In: a file's text, its tree and a line. Out: the text changed, or None. Refuses to guess: what is not understood stays.

Where the line stands under `if step % n == 0`, n grows; where it stands in a loop that counts its rounds, it gets such a
condition. Where it stands in a function that is called at one place, that place is looked at.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.tuning.rewriting.text import around, called, guarded, replaced

REPORTS = """
    print info debug warning log write save log_metric log_metrics add_scalar add_scalars add_histogram
    set_postfix set_postfix_str set_description
"""  # calls that tell or save something, and of which a script needs nothing back
READS = """
    item tolist cpu detach mean sum max min norm numpy format state_dict get_last_lr
    float int len str round dict
"""  # calls that may stand in what they are told
TRAINS = """
    step backward zero_grad update clip_grad_norm_ load_state_dict copy_ lerp_ mul_ add_ update_parameters
"""  # calls that must not become rarer


def rarer(text: str, tree: ast.Module, line: int, factor: int) -> str | None:
    """The text with what stands at `line` done `factor` times more rarely."""
    for place in _places(tree, line):
        changed = _rarer_at(text, tree, place, factor)
        if changed is not None:
            return changed
    return None


def _places(tree: ast.Module, line: int) -> Iterator[int]:
    """The line, and the only call of the function that holds it, and of the one that holds that."""
    seen: set[str] = set()
    while True:
        yield line
        held_by = [node for node in around(tree, line) if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
        if not held_by or not isinstance(held_by[-1], ast.FunctionDef) or held_by[-1].name in seen:
            return
        name = held_by[-1].name
        seen.add(name)
        # Another object's function of the same name, as torch.save is beside save, is not this one.
        kind = ast.Attribute if isinstance(held_by[-2:][0], ast.ClassDef) else ast.Name
        uses = [node for node in ast.walk(tree) if isinstance(node, kind) and _name(node) == name]
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.func in uses]
        if len(calls) != 1 or len(uses) > 1:
            return
        line = calls[0].lineno


def _name(node: ast.Attribute | ast.Name) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id


def _rarer_at(text: str, tree: ast.Module, line: int, factor: int) -> str | None:
    held_by = list(around(tree, line))  # outermost first
    if not held_by or not isinstance(held_by[-1], ast.stmt):
        return None
    for node in reversed(held_by):
        if isinstance(node, ast.If) and (modulo := _modulo(node.test)) is not None and _in_body(node, line):
            if node.orelse or any(_does_more(inner) for inner in node.body):
                return None
            return replaced(text, modulo, _times(text, modulo, factor))
        if isinstance(node, ast.If) and any(isinstance(inner, ast.Mod) for inner in ast.walk(node.test)):
            return None  # it counts in another way
        if isinstance(node, (ast.For, ast.While)):
            break
    loop = next((node for node in reversed(held_by) if isinstance(node, (ast.For, ast.While))), None)
    statement = held_by[-1]
    counter = _counter(loop) if isinstance(loop, ast.For) else None
    if counter is None or not _only_reports(statement):
        return None
    return guarded(text, statement, f"if {counter} % {factor} == 0:")


def _in_body(node: ast.If, line: int) -> bool:
    return node.body[0].lineno <= line <= (node.body[-1].end_lineno or line)


def _only_reports(statement: ast.AST) -> bool:
    """Whether a statement tells something and does nothing else: none of the user's own functions is called in it."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    outer = statement.value
    calls = [node for node in ast.walk(outer) if isinstance(node, ast.Call) and node is not outer]
    return called(outer) in REPORTS.split() and all(called(call) in READS.split() for call in calls)


def _does_more(statement: ast.stmt) -> bool:
    """Whether something is done that training, or its own course, depends on."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and called(node) in TRAINS.split():
            return True
        if isinstance(node, (ast.AugAssign, ast.Break, ast.Continue, ast.Return, ast.Raise)):
            return True
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, (ast.Store, ast.Del)):
            return True
    return False


def _modulo(test: ast.expr) -> ast.expr | None:
    """What follows the % of `a % b == c`, or `not a % b`, perhaps among other conditions."""
    match test:
        case ast.BoolOp(values=values):
            return next((found for value in values if (found := _modulo(value)) is not None), None)
        case ast.Compare(left=ast.BinOp(op=ast.Mod(), right=divisor), ops=[ast.Eq()]):
            return divisor
        case ast.UnaryOp(op=ast.Not(), operand=ast.BinOp(op=ast.Mod(), right=divisor)):
            return divisor
        case _:
            return None


def _times(text: str, node: ast.expr, factor: int) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return str(factor * node.value)
    source = ast.get_source_segment(text, node)
    return f"({factor} * {source})" if isinstance(node, (ast.Name, ast.Attribute)) else f"({factor} * ({source}))"


def _counter(loop: ast.For) -> str | None:
    """The name that counts a loop's rounds: of enumerate, or of a range."""
    name = loop.iter.func.id if isinstance(loop.iter, ast.Call) and isinstance(loop.iter.func, ast.Name) else ""
    if name == "range" and isinstance(loop.target, ast.Name):
        return loop.target.id
    if name == "enumerate" and isinstance(loop.target, ast.Tuple) and isinstance(loop.target.elts[0], ast.Name):
        return loop.target.elts[0].id
    return None
