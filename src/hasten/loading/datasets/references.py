"""What a function refers to: which globals it reads, which attributes it asks for, what it writes.

In: a code object. Out: names. Refuses to know what the names stand for.
"""

from __future__ import annotations

import dis
import functools
import types
from dataclasses import dataclass

MUTATING = """
    add append appendleft clear difference_update discard extend insert intersection_update pop popitem popleft remove
    reverse rotate setdefault sort symmetric_difference_update update
"""
"""Methods by which containers are written to."""


@dataclass(frozen=True)
class References:
    """The names in a code object and in those that are nested in it, sorted."""

    globals: tuple[str, ...]
    names: tuple[str, ...]
    """Attributes, and strings that could be names of attributes."""
    modules: tuple[str, ...]
    """Imported inside the function."""
    written: tuple[str, ...]
    """What outlives a call: globals, attributes, variables of the function around it; methods that write to them."""
    description: bytes
    """The instructions and constants. The same for the same source under the same Python."""


@functools.lru_cache(maxsize=4096)
def references_of(code: types.CodeType) -> References:
    """The names in a function's code. Comprehensions, lambdas and inner functions count as part of it."""
    found: dict[str, set[str]] = {"globals": set(), "names": set(), "modules": set(), "written": set()}
    described: list[object] = []
    _read(code, found, described, code.co_freevars)
    return References(
        *(tuple(sorted(found[kind])) for kind in ("globals", "names", "modules", "written")),
        description=repr(described).encode(errors="surrogatepass"),
    )


def _read(code: types.CodeType, found: dict[str, set[str]], described: list[object], outer: tuple[str, ...]) -> None:
    before: dis.Instruction | None = None
    for instruction in dis.get_instructions(code):
        kind = _kind(instruction.opname, instruction.argval, outer)
        if kind is not None:
            found[kind].add(str(instruction.argval))
        if kind == "names" and instruction.argval in MUTATING.split() and _outlives(before, outer):
            found["written"].add(str(instruction.argval))
        before = instruction
    described += [
        code.co_name,
        code.co_code.hex(),
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
    ]
    described += [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags]
    described.append(getattr(code, "co_exceptiontable", b""))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _read(constant, found, described, outer)
            continue
        described.append(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)
        if isinstance(constant, str) and constant.isidentifier():
            found["names"].add(constant)


def _outlives(load: dis.Instruction | None, outer: tuple[str, ...]) -> bool:
    """Whether what an instruction loads is more than a local variable."""
    return load is not None and (_kind(load.opname, load.argval, outer) is not None or load.argval in outer)


def _kind(opname: str, name: object, outer: tuple[str, ...]) -> str | None:
    if opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
        return "globals"
    if opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"):
        return "names"
    if opname == "IMPORT_NAME":
        return "modules"
    if opname in ("STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL"):
        return "written"
    return "written" if opname in ("STORE_DEREF", "DELETE_DEREF") and name in outer else None
