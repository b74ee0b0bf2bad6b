"""Looks through all that a value consists of and all the code that using it may run.

In: any object, such as a dataset or a transform. Out: a digest, which changes when anything that matters changes, and
the reasons to doubt that it does the same every time. Refuses to know what the object is for, and never runs it.

Which methods may run is found as a compiler finds it (rapid type analysis, Bacon and Sweeney, OOPSLA 1996): those of
the classes that were met whose names are used by code that was met. Code of trusted libraries is not read, but every
name that the user's code uses is held against a list of names that speak of chance. What cannot be read and is not
known is doubted.
"""

from __future__ import annotations

import hashlib
import random
import sys
import types
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hasten.loading.datasets.classes import (
    attributes,
    content,
    full_name,
    is_readable,
    overrides,
    states,
    type_and_text,
)
from hasten.loading.datasets.parts import SCALARS, is_plain, parts_of, plain_bytes
from hasten.loading.datasets.references import references_of
from hasten.loading.datasets.trusted import SETTLED_FUNCTIONS, SETTLED_TRANSFORMS, is_doubtful_name, is_trusted_module
from hasten.loading.images.known import name_of

MOST_VISITS = 100_000
MOST_BYTES = 1 << 30  # half a second's hashing, at each epoch's start

GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)

_BUILDERS = frozenset(("__init__", "__new__", "__post_init__", "__init_subclass__"))
_UNUSED = """
    __hash__ __repr__ __str__ __format__ __del__ __reduce__ __reduce_ex__ __getstate__ __setstate__ __getnewargs__
    __setattr__ __delattr__ __dir__ __sizeof__ __class_getitem__ __subclasshook__
"""
"""Special methods that nobody calls while a sample is made, unless by name."""

_DESCRIPTORS = (
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)


@dataclass(frozen=True)
class Survey:
    """What was found."""

    digest: bytes
    """Of all that was seen. Where nothing is doubted: equal digests, equal behaviour, in every run of a script."""
    doubts: tuple[str, ...]
    """Why it may give different results for the same arguments; none where it certainly does not."""
    generators: tuple[object, ...]
    """The generators of random numbers that were met."""
    is_complete: bool
    """Everything was seen."""


def survey(value: object, *, without: Collection[str] = ()) -> Survey:
    """Look through `value`; `without` are attributes of its own that are left out."""
    walk = _Walk()
    is_complete = False
    try:
        if without:
            walk.visit_object(value, {name: one for name, one in vars(value).items() if name not in without})
        else:
            walk.visit(value)
        walk.follow_names()
        is_complete = True
    except (_Enough, RecursionError):
        walk.doubt("it is too large to be looked through")
    except Exception as error:  # to read an object may run code of its class
        walk.doubt(f"to look through it raised {type(error).__name__}: {error}")
    return Survey(walk.hash.digest(), tuple(walk.doubts), tuple(walk.generators), is_complete)


def digest_of(value: object) -> bytes | None:
    """A digest of a value that holds no code of the user's; None where not all of it is known."""
    found = survey(value)
    return None if found.doubts else found.digest


class _Enough(Exception):
    """More than MOST_VISITS or MOST_BYTES."""


class _Walk:
    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self.doubts: dict[str, None] = {}
        self.generators: list[object] = []
        self._seen: dict[int, tuple[int, object]] = {}  # with the object, so that its id is not given away again
        self._num_visits = 0
        self._num_bytes = 0
        self._names: set[str] = set()
        self._owners: list[type | types.ModuleType] = []
        self._looked: set[tuple[int, str]] = set()
        self._reader = ""
        """The function that is being read, for the doubts."""

    def doubt(self, reason: str) -> None:
        self.doubts[f"{self._reader}: {reason}" if self._reader else reason] = None

    def visit(self, value: Any) -> None:
        """Look through a value, once."""
        self._num_visits += 1
        if self._num_visits > MOST_VISITS:
            raise _Enough
        kind: type[Any] = type(value)
        self._emit(f"{kind.__module__}.{kind.__qualname__}")
        if kind in SCALARS:
            self._emit(value if kind is bytes else repr(value))
            return
        if id(value) in self._seen:
            self._emit(f"again {self._seen[id(value)][0]}")
            return
        self._seen[id(value)] = len(self._seen), value
        if kind in (list, tuple, dict, set, frozenset):
            self._visit_container(value)
        elif not self._visit_code(value):
            self._visit_instance(value)

    def visit_object(self, value: object, state: dict[str, Any]) -> None:
        """Look through an object of the user's class, of whose attributes only `state` counts."""
        self._seen[id(value)] = len(self._seen), value
        if self._is_users(type(value)):
            self._own(type(value))
        self.visit(state)

    def follow_names(self) -> None:
        """Visit what the names that were met stand for in the classes and modules that were met, until none is new."""
        before = -1
        while before != len(self._looked):
            before = len(self._looked)
            for owner in list(self._owners):
                for name in sorted(self._names & vars(owner).keys()):
                    self._look(owner, name)

    def _look(self, owner: type | types.ModuleType, name: str) -> None:
        if (id(owner), name) not in self._looked:
            self._looked.add((id(owner), name))
            self._emit(f"{owner.__name__}.{name}")
            self.visit(vars(owner)[name])

    def _emit(self, text: str | bytes | memoryview) -> None:
        data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
        size = memoryview(data).nbytes
        self._num_bytes += size
        if self._num_bytes > MOST_BYTES:
            raise _Enough
        self.hash.update(b"%d:" % size)  # so that no two rows of texts read alike
        self.hash.update(data)

    # Data

    def _visit_container(self, value: Any) -> None:
        self._emit(str(len(value)))
        if isinstance(value, (set, frozenset)):
            if is_plain(value):
                self.visit(sorted(value, key=type_and_text))
            else:
                self.doubt(f"a {type(value).__name__} of objects is in no certain order")
                self._emit(f"at {id(value)}")
        elif len(value) > 100 and is_plain([value]):
            self._emit(plain_bytes(value))
        else:
            for one in value.items() if isinstance(value, dict) else value:
                self.visit(one)

    def _visit_instance(self, value: Any) -> None:
        kind: type[Any] = type(value)
        parts = parts_of(value)
        if isinstance(value, GENERATORS):
            self.generators.append(value)
            self.doubt(f"it holds a {full_name(kind)}")
            self._emit(f"at {id(value)}")
        elif parts is not None:
            self._own(kind)
            for part in parts:
                self._emit(part) if isinstance(part, memoryview) else self.visit(part)
        elif name_of(value) in SETTLED_TRANSFORMS:
            self.visit(vars(value))
        elif is_trusted_module(kind.__module__) or not self._is_users(kind):
            self.doubt(f"{full_name(kind)} is not known to do the same every time")
            self._emit(f"at {id(value)}")
            self.visit(attributes(value))  # what it does may be known all the same, by its attributes
        else:
            self._own(kind)
            for state in states(value):
                self.visit(state)

    # Code

    def _visit_code(self, value: Any) -> bool:
        """Whether it was code: a function, a class or a module."""
        if isinstance(value, types.FunctionType):
            self._visit_function(value)
        elif isinstance(value, types.BuiltinFunctionType):
            if value.__self__ is None or isinstance(value.__self__, types.ModuleType):
                self._trust(value.__module__, value.__name__)
            else:
                self._name(value.__name__)
                self.visit(value.__self__)
        elif isinstance(value, type):
            if is_trusted_module(value.__module__):
                self._trust(value.__module__, value.__qualname__)
            elif self._is_users(value):
                self._own(value, is_called=True)
        elif isinstance(value, types.ModuleType):
            self._visit_module(value)
        elif isinstance(value, _DESCRIPTORS):
            self._name(value.__name__)
            self.visit(value.__objclass__)
        elif type(value).__module__ == "numpy" and type(value).__name__ == "_ArrayFunctionDispatcher":
            self._trust(value.__module__, value.__name__)
        else:
            return False
        return True

    def _visit_function(self, function: types.FunctionType) -> None:
        # Not its __module__, which functools.wraps copies from another.
        module = str(function.__globals__.get("__name__"))
        if module.startswith("hasten.") and "__wrapped__" in vars(function):
            self.visit(
                vars(function)["__wrapped__"]
            )  # hasten's own wrappers, where it measures: they do what it does
            return
        self._emit(f"{module}.{function.__qualname__}")
        if is_trusted_module(module) or f"{module}.{function.__qualname__}" in SETTLED_FUNCTIONS:
            self._trust(module, function.__qualname__)
            return
        outside, self._reader = self._reader, function.__qualname__
        refers = references_of(function.__code__)
        self._emit(refers.description)
        if refers.written and function.__name__ not in _BUILDERS:
            self.doubt(f"it writes to {', '.join(refers.written)}")
        for name in (*refers.globals, *refers.names):
            self._name(name)
        self._names.update(set(refers.names) - _BUILDERS)  # those of a class that is called are taken up with it
        for name in refers.globals:
            if name in function.__globals__:
                self._emit(name)
                self.visit(function.__globals__[name])
        for name in refers.modules:
            self._visit_import(name, refers.names)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            # `super()` finds its class in a cell, and does not make another object of it.
            self._own(content(cell)) if name == "__class__" else self.visit(content(cell))
        self.visit((function.__defaults__, function.__kwdefaults__, vars(function)))
        self._reader = outside

    def _visit_import(self, name: str, names: tuple[str, ...]) -> None:
        for one in (name, *(f"{name}.{inner}" for inner in names)):
            if one in sys.modules:
                self.visit(sys.modules[one])
            elif one == name:
                self._name(name)
                if not is_trusted_module(name):
                    self.doubt(f"the module {name} cannot be read")

    def _visit_module(self, module: types.ModuleType) -> None:
        name = module.__name__
        if is_trusted_module(name):
            self._trust(name, "")
        elif name.partition(".")[0] in sys.stdlib_module_names:
            self.doubt(f"the module {name} may do another thing every time")
        else:
            self._owners.append(module)

    def _is_users(self, kind: type) -> bool:
        """Whether all of a class can be read: it and those it derives from are the user's, or known to hide nothing."""
        for base in kind.__mro__:
            if is_trusted_module(base.__module__):
                self._trust(base.__module__, base.__qualname__)
                is_transform = base.__module__.startswith("torchvision.transforms.")
                if is_transform and base.__name__ not in SETTLED_TRANSFORMS | {"Transform"}:
                    self.doubt(f"{full_name(base)} is not known to do the same every time")
            elif not is_readable(base):
                self.doubt(f"{full_name(base)} cannot be read")
                return False
        return True

    def _own(self, kind: type, *, is_called: bool = False) -> None:
        """Take up a class of the user's, with what is called without a name: special methods, and overridden ones."""
        for base in kind.__mro__:
            if is_trusted_module(base.__module__):
                continue
            if base not in self._owners:
                self._owners.append(base)
                self._emit(full_name(base))
            for name in sorted(vars(base)):
                special = name.startswith("__") and name.endswith("__") and callable(vars(base)[name])
                if (
                    (special and name not in _BUILDERS and name not in _UNUSED.split())
                    or (is_called and name in _BUILDERS)
                    or overrides(base, name)
                ):
                    self._look(base, name)

    def _trust(self, module: str | None, name: str) -> None:
        if module is None or not (is_trusted_module(module) or f"{module}.{name}" in SETTLED_FUNCTIONS):
            self.doubt(f"{module}.{name} cannot be read")
        for part in f"{module}.{name}".split("."):
            self._name(part)
        self._emit(f"{module}.{name}")

    def _name(self, name: str) -> None:
        if is_doubtful_name(name):
            self.doubt(f"it uses {name}")
