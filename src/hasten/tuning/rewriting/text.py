"""The user's source with one thing replaced, everything else to the letter.

In: a file's text, and nodes of its tree. Out: the text changed, or None where it cannot be done cleanly. Refuses to know
what is worth replacing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator


def around(tree: ast.AST, line: int) -> Iterator[ast.AST]:
    """The statements that hold a line, from the outside to the inside; functions begin anew."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.stmt, ast.ExceptHandler)) and node.lineno <= line <= (
            node.end_lineno or node.lineno
        ):
            yield node
            yield from around(node, line)


def called(call: ast.Call) -> str:
    """The name that is called, without what it is an attribute of."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def names_in(node: ast.AST) -> set[str]:
    """Every name in it."""
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def imports_torch(tree: ast.Module) -> bool:
    """Whether `torch` is torch in it."""
    imports = [node for node in tree.body if isinstance(node, ast.Import)]
    return any(name.name == "torch" and name.asname is None for node in imports for name in node.names)


def lines_of(text: str) -> list[str]:
    """Lines with their ends, as Python's own parser counts them: str.splitlines ends one at a form feed too."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def stretch(text: str, node: ast.expr | ast.stmt) -> tuple[int, int]:
    """Where a node begins and ends in the text."""
    lines = lines_of(text)

    def at(line: int, column: int) -> int:
        return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())

    return at(node.lineno, node.col_offset), at(node.end_lineno or node.lineno, node.end_col_offset or 0)


def replaced(text: str, node: ast.expr, new: str) -> str:
    """The text with an expression replaced."""
    begin, end = stretch(text, node)
    return text[:begin] + new + text[end:]


def guarded(text: str, statement: ast.stmt, condition: str) -> str | None:
    """The text with a statement under a condition."""
    if (found := _alone(text, statement)) is None or _has_long_strings(statement):
        return None
    lines, first, last, indent = found
    step = "\t" if indent.endswith("\t") else "    "
    body = [step + line if line.strip() else line for line in lines[first : last + 1]]
    return "".join([*lines[:first], f"{indent}{condition}\n", *body, *lines[last + 1 :]])


def _has_long_strings(statement: ast.stmt) -> bool:
    """Whether to indent it would change a string."""
    strings = [node for node in ast.walk(statement) if isinstance(node, (ast.Constant, ast.JoinedStr))]
    return any(node.lineno != node.end_lineno for node in strings)


def instead(text: str, statement: ast.stmt, new: str) -> str | None:
    """The text with one line in a statement's place."""
    if (found := _alone(text, statement)) is None:
        return None
    lines, first, last, indent = found
    return "".join([*lines[:first], f"{indent}{new}\n", *lines[last + 1 :]])


def after(text: str, statement: ast.stmt, new: str) -> str | None:
    """The text with one more line behind a statement."""
    if (found := _alone(text, statement)) is None:
        return None
    lines, _, last, indent = found
    return "".join([*lines[: last + 1], f"{indent}{new}\n", *lines[last + 1 :]])


def _alone(text: str, statement: ast.stmt) -> tuple[list[str], int, int, str] | None:
    """The text's lines, the first and the last of the statement's, and its indent; None where another shares them."""
    lines = lines_of(text)
    first, last = statement.lineno - 1, (statement.end_lineno or statement.lineno) - 1
    indent = lines[first][: statement.col_offset]
    behind = lines[last].encode()[statement.end_col_offset or 0 :].strip()
    return None if indent.strip() or behind.startswith(b";") else (lines, first, last, indent)
