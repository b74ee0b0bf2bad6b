"""What is looked up in a table in each step, and never changes, is looked up once.

In: a file's text, its tree and a line. Out: the text changed, or None. Refuses names that anything may alter.
"""

from __future__ import annotations

import ast

from hasten.tuning.rewriting.text import after, around, called, imports_torch, names_in, replaced, stretch

READING = "len set sorted enumerate list tuple dict zip max min range str Counter print"
MUTATING = "append extend insert pop popitem remove clear update setdefault sort reverse add discard"


def looked_up_once(text: str, tree: ast.Module, line: int) -> str | None:
    """The text with slices of a sequence, looked up in a table element by element, cut from what was looked up once.

    Both must be names of the module that are bound once and never altered.
    """
    held_by = list(around(tree, line))
    if not held_by or not imports_torch(tree):
        return None
    for node in ast.walk(held_by[-1]):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) != "torch.tensor" or len(node.args) != 1:
            continue
        found = None if node.keywords else _lookups(node.args[0], text)
        if found is None:
            continue
        table, sequence, cut, over = found
        bound = [_bound_once(tree, name) for name in (table, sequence)]
        known = f"{sequence}_{table}"
        if None in bound or known in names_in(tree):
            return None
        last = max((statement for statement in bound if statement is not None), key=lambda s: s.lineno)
        cuts, lookup = (
            f"torch.stack([{known}[{cut}] {over}])",
            f"{known} = torch.tensor([{table}[x] for x in {sequence}])",
        )
        if last.lineno < node.lineno:  # the lower one first: it may be of several lines
            return after(replaced(text, node, cuts), last, lookup)
        below = after(text, last, lookup)
        return replaced(below, node, cuts) if below is not None else None
    return None


def _lookups(value: ast.expr, text: str) -> tuple[str, str, str, str] | None:
    """Of `[[table[x] for x in sequence[a:b]] for s in starts]`: table, sequence, "a:b", "for s in starts"."""
    match value:
        case ast.ListComp(
            elt=ast.ListComp(
                elt=ast.Subscript(value=ast.Name(id=table), slice=ast.Name(id=looked_up)),
                generators=[
                    ast.comprehension(
                        target=ast.Name(id=element),
                        iter=ast.Subscript(value=ast.Name(id=sequence), slice=ast.Slice(step=None) as cut),
                        ifs=[],
                        is_async=0,
                    )
                ],
            ) as inner,
            generators=[ast.comprehension()],
        ) if looked_up == element:
            over = text[stretch(text, inner)[1] : stretch(text, value)[1] - 1].strip()
            return table, sequence, ast.get_source_segment(text, cut) or "", over
        case _:
            return None


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(word.value for word in call.keywords)]


def _bound_once(tree: ast.Module, name: str) -> ast.stmt | None:
    """The module's statement that binds a name, where nothing else binds it or alters what it stands for."""
    bindings = [
        node
        for node in tree.body
        if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == [name]
    ]
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=bound, ctx=ast.Store() | ast.Del()) | ast.arg(arg=bound) if bound == name:
                if not bindings or node is not getattr(bindings[0], "targets", [None])[0]:
                    return None
            case ast.Subscript(value=ast.Name(id=owner), ctx=ast.Store() | ast.Del()) if owner == name:
                return None
            case ast.Call() if called(node) not in READING.split() and name in map(ast.unparse, _given(node)):
                return None  # who knows what it does to it
            case ast.Attribute(value=ast.Name(id=owner), attr=method) if owner == name and method in MUTATING.split():
                return None
            case _:
                pass
    return bindings[0] if len(bindings) == 1 else None
