"""Patches of Pillow's functions, so that images are decoded, converted and resized once; see `image_chain`."""

from __future__ import annotations

import builtins
import functools
import io
import operator
from types import ModuleType
from typing import Any

from hasten.data.memo.calls import unwrapped
from hasten.data.memo.image_chain import Chains
from hasten.data.memo.image_link import Link
from hasten.data.memo.image_state import TAG, file_module
from hasten.data.memo.memo import current

MAX_DEFERRED = 32  # per thread, each with an open file: a script may open a whole batch before it resizes an image


def install(patches: Any, module: ModuleType, version: bytes) -> None:
    """Patch Pillow's functions; `module` is PIL.Image."""
    chains = Chains(module, version)
    kind: Any = module.Image  # type: ignore[attr-defined]
    originals = chains.originals
    for name in ("convert", "resize", "crop", "tobytes", "load", "save"):
        originals[name] = getattr(kind, name)
    originals["open"] = module.open  # type: ignore[attr-defined]
    if not chains.is_unpatched():
        return  # other code has replaced them
    chains.version += b"".join(unwrapped(original)[1] for original in originals.values())

    @functools.wraps(originals["open"])
    def open(*arguments: Any, **named: Any) -> Any:
        if current() is None:
            return originals["open"](*arguments, **named)
        chains.compute_deferred(most=MAX_DEFERRED)
        image = originals["open"](*arguments, **named)
        chains.opened(image, arguments[0] if arguments else named["fp"])
        return image

    @functools.wraps(originals["save"])
    def save(self: Any, *arguments: Any, **named: Any) -> Any:
        chains.compute_deferred()  # saving may write to their files
        return originals["save"](self, *arguments, **named)

    @functools.wraps(originals["convert"])
    def convert(self: Any, *arguments: Any, **named: Any) -> Any:
        if TAG in self.__dict__ and not named and arguments in (("RGB",), ("L",)):
            return chains.operate(self, "convert", arguments)
        return originals["convert"](self, *arguments, **named)

    @functools.wraps(originals["resize"])
    def resize(self: Any, *arguments: Any, **named: Any) -> Any:
        if TAG in self.__dict__ and self.mode in ("RGB", "L") and (plain := _plain_resize(arguments, named)):
            return chains.operate(self, "resize", plain)
        return originals["resize"](self, *arguments, **named)

    @functools.wraps(originals["crop"])
    def crop(self: Any, *arguments: Any, **named: Any) -> Any:
        found = (
            chains.crop(self, arguments[0]) if TAG in self.__dict__ and len(arguments) == 1 and not named else None
        )
        return originals["crop"](self, *arguments, **named) if found is None else found

    @functools.wraps(originals["tobytes"])
    def tobytes(self: Any, *arguments: Any, **named: Any) -> Any:
        link = self.__dict__.get(TAG)
        if isinstance(link, Link) and link.pixels is not None and chains.attribute not in self.__dict__:
            is_whole = (self.mode, self.size) == (link.mode, link.size)
            if is_whole and not arguments and not named:
                data = link.pixels.tobytes()
                if link.is_intact():
                    return data
        return originals["tobytes"](self, *arguments, **named)

    @functools.wraps(originals["load"])
    def load(self: Any) -> Any:
        tag = self.__dict__.get(TAG)
        if isinstance(tag, Link) and chains.attribute not in self.__dict__ and current() is not None:
            return chains.pixels(self, tag)
        if isinstance(tag, Link):
            chains.materialize(self)
        elif tag is not None and self.__dict__.get(chains.attribute) is not None:
            self.__dict__.pop(TAG, None)
        return originals["load"](self)

    def missing(self: Any, name: str) -> Any:
        if name == chains.attribute and (TAG in self.__dict__ or name in self.__dict__):
            return chains.materialize(self)
        return object.__getattribute__(self, name)  # raises the same error as without the patch

    for name, replacement in (
        ("convert", convert),
        ("resize", resize),
        ("crop", crop),
        ("tobytes", tobytes),
        ("save", save),
        ("load", load),
        ("__getattr__", missing),
    ):
        patches.set(kind, name, replacement)
    patches.set(module, "open", open)
    _install_load(patches, chains)
    for place in (builtins, io):
        patches.wrap(place, "open", functools.partial(_computing_deferred, chains))
    patches.on_undo(chains.compute_all_deferred)


def _install_load(patches: Any, chains: Chains) -> None:
    kind = file_module().ImageFile
    original = kind.load

    @functools.wraps(original)
    def load(self: Any) -> Any:
        return chains.load(self, original)

    patches.set(kind, "load", load)


def _computing_deferred(chains: Chains, original: Any) -> Any:
    """Wrap `open` to compute deferred images first, as a file opened for writing may be the source of one."""

    @functools.wraps(original)
    def open(file: Any, mode: Any = "r", *arguments: Any, **named: Any) -> Any:
        if mode != "r" and mode != "rb":
            chains.compute_all_deferred()
        return original(file, mode, *arguments, **named)

    return open


def _plain_resize(arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[int, int], int | None] | None:
    """Return the arguments as integers; None if Pillow must check them."""
    given = {**dict(zip(("size", "resample", "box", "reducing_gap"), arguments)), **named}
    size, resample = given.pop("size", None), given.pop("resample", None)
    is_plain = given.keys() <= {"box", "reducing_gap"} and all(one is None for one in given.values())
    if not is_plain or len(arguments) > 4 or any(name in named for name in ("size", "resample")[: len(arguments)]):
        return None
    if not isinstance(size, (tuple, list)) or len(size) != 2:
        return None
    try:
        width, height = map(operator.index, size)
        how = None if resample is None else operator.index(resample)
    except TypeError:
        return None
    return ((width, height), how) if width > 0 and height > 0 else None
