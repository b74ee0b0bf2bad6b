"""Replace functions of other packages, and restore every one of them."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import cast

_ABSENT = object()


class Patches:
    """A stack of replacements that can be undone."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []
        self._finder: _Finder | None = None

    def set(self, owner: object, name: str, replacement: object) -> None:
        """Set an attribute. Undo restores its value, or removes it if it was inherited."""
        space = cast("dict[str, object]", getattr(owner, "__dict__", {}))
        before = space.get(name, _ABSENT)

        def restore() -> None:
            # Other code may have patched it since; that patch must stay.
            if cast("dict[str, object]", owner.__dict__).get(name) is not replacement:
                return
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        setattr(owner, name, replacement)
        self._undo.append(restore)

    def wrap(self, owner: object, name: str, make: Callable[[Callable[..., object]], object]) -> bool:
        """Replace a function with `make(function)`; return False if the owner has no such function."""
        original = getattr(owner, name, None)
        if not callable(original):
            return False
        self.set(owner, name, make(original))
        return True

    def on_undo(self, action: Callable[[], object]) -> None:
        """Call `action` on undo."""
        self._undo.append(action)

    def after_import(self, module: str, action: Callable[[ModuleType], object]) -> None:
        """Call `action(module)` after the module is imported, or now if it already is."""
        loaded = sys.modules.get(module)
        if loaded is not None and getattr(getattr(loaded, "__spec__", None), "_initializing", False) is False:
            _quietly(action, loaded)
            return
        if self._finder is None:
            finder = self._finder = _Finder()
            sys.meta_path.insert(0, finder)
            self._undo.append(lambda: sys.meta_path.remove(finder) if finder in sys.meta_path else None)
        self._finder.actions.setdefault(module, []).append(action)

    def undo(self) -> None:
        """Undo everything, last first."""
        while self._undo:
            self._undo.pop()()
        self._finder = None


def _quietly(action: Callable[[ModuleType], object], module: ModuleType) -> None:
    try:
        action(module)
    except Exception as error:
        warn(f"cannot instrument {module.__name__} ({error!r})")


_warned: set[str] = set()


def warn(message: str) -> None:
    """Print a warning of hasten to standard error, once; the script continues."""
    if message not in _warned:
        _warned.add(message)
        sys.stderr.write(f"hasten: {message}\n")


class _Finder(importlib.abc.MetaPathFinder):
    """Uses the other finders to find a module, and runs the actions after the module has been executed."""

    def __init__(self) -> None:
        self.actions: dict[str, list[Callable[[ModuleType], object]]] = {}
        self._busy: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.actions or fullname in self._busy:
            return None
        self._busy.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._busy.discard(fullname)
        loader = spec.loader if spec is not None else None
        if spec is None or loader is None or not hasattr(loader, "exec_module"):
            return None
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            # Restore the loader's own method before other code sees it, unless another finder has replaced it since.
            if loader.__dict__.get("exec_module") is exec_module:
                delattr(loader, "exec_module")
            for action in self.actions.pop(fullname, []):
                _quietly(action, module)

        loader.exec_module = exec_module
        return spec
