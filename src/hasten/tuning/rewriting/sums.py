"""Values that are read only to be summed up stay tensors: no sync until the sum is told.

In: a file's text, its tree and a line. Out: the text changed, or None. Refuses values that anything else reads.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.tuning.rewriting.text import around, called, instead, replaced, stretch


def in_tensors(text: str, tree: ast.Module, line: int) -> str | None:
    """The text with what is read at `line`, and only summed up, left in tensors: no sync until the sum is told."""
    held_by = list(around(tree, line))  # outermost first
    for node in reversed(held_by):
        if isinstance(node, ast.For) and (hits := _hits(node)) is not None:
            return instead(text, node, hits)
    match held_by[-1:]:
        case [ast.AugAssign(target=ast.Name() | ast.Attribute(), op=ast.Add()) as sum_]:
            reads = [term for term in _terms(sum_.value) if isinstance(term, ast.Call) and called(term) == "item"]
            source = ast.get_source_segment(text, reads[0]) or "" if len(reads) == 1 and not reads[0].args else ""
            if source and "numpy" not in source:
                kept = replaced(text, reads[0], source[: source.rindex(".")] + ".detach()")
                return _not_in_place(kept, sum_)
        case _:
            pass
    return None


def _not_in_place(text: str, sum_: ast.AugAssign) -> str:
    """The text with `total = total + x` for `total += x`: what has kept the sum so far must not see it grow."""
    begin, end = stretch(text, sum_.target)
    name, behind = text[begin:end], text[end:]
    return text[:end] + behind.replace("+=", f"= {name} +", 1)


def _terms(value: ast.expr) -> Iterator[ast.expr]:
    """What is added, subtracted, multiplied and divided; nothing that stands within a call, a list or a text."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
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
                return f"{count} = {count} + ({other}.view_as({length}) == {length}).sum()"
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
