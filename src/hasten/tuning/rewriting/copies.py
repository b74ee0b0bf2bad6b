"""Numbers that a loop copies one by one into a tensor are copied in one assignment.

In: a file's text, its tree and a line. Out: the text changed, or None. Refuses loops that do more.
"""

from __future__ import annotations

import ast

from hasten.tuning.rewriting.text import around, imports_torch, instead, names_in


def copied_at_once(text: str, tree: ast.Module, line: int) -> str | None:
    """The text with numbers that a loop copies one by one into a tensor copied in one assignment."""
    held_by = list(around(tree, line))
    for node in reversed(held_by):
        if isinstance(node, ast.For) and (copy := _copy(node, text)) is not None:
            function = next((n for n in reversed(held_by) if isinstance(n, ast.FunctionDef)), tree)
            into, names, new = copy
            if imports_torch(tree) and _is_of_torch(function, into) and not _read_elsewhere(function, node, names):
                return instead(text, node, new)
    return None


def _is_of_torch(function: ast.AST, name: str) -> bool:
    """Whether a name stands for what one of torch's functions made."""
    values = [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets)
    ]
    return len(values) == 1 and isinstance(values[0], ast.Call) and ast.unparse(values[0].func).startswith("torch.")


def _read_elsewhere(function: ast.AST, loop: ast.For, names: set[str]) -> bool:
    inner = {id(node) for node in ast.walk(loop)}
    return any(
        isinstance(node, ast.Name) and node.id in names and id(node) not in inner for node in ast.walk(function)
    )


def _copy(loop: ast.For, text: str) -> tuple[str, set[str], str] | None:
    """Into what, by which names, and what does the same in one assignment.

    Of `for i, x in enumerate(xs): rows[n, i] = x`; or with `range(len(xs))` and `xs[i]`.
    """
    element = ""
    match loop:
        case ast.For(
            body=[ast.Assign(targets=[ast.Subscript(value=ast.Name(id=into)) as target], value=value)], orelse=[]
        ):
            pass
        case _:
            return None
    match loop:
        case ast.For(
            target=ast.Tuple(elts=[ast.Name(id=index), ast.Name(id=element)]),
            iter=ast.Call(func=ast.Name(id="enumerate"), args=[ast.Name(id=source)], keywords=[]),
        ) if isinstance(value, ast.Name) and value.id == element:
            pass
        case ast.For(
            target=ast.Name(id=index),
            iter=ast.Call(
                func=ast.Name(id="range"), args=[ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=source)])]
            ),
        ) if ast.unparse(value) == f"{source}[{index}]":
            pass
        case _:
            return None
    places = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
    *before, last = places
    # With a single index an element may be a row, and a list of rows is no tensor yet.
    if not before or ast.unparse(last) != index or any({index, element} & names_in(place) for place in before):
        return None
    slices = [ast.get_source_segment(text, place) or "" for place in before]
    new = f"{into}[{', '.join([*slices, f': len({source})'])}] = torch.as_tensor({source}, dtype={into}.dtype)"
    return into, {index, element}, new
