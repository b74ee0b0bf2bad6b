"""Pillow images that are decoded, converted and resized once.

`Image.open` opens the file and reads its header as ever, and the image remembers where it came from. `load`, `convert` and
`resize` then look for their result under a key: the source's identity, all that decoding depends on, and the operations so
far. On a hit the result is an `Image` without pixels, which get there when somebody asks for them; a crop is cut out of the
stored bytes before anything is unpacked. Where an operation has arguments that vary (a random crop), the chain ends, and
what lies before is what is stored.

Only the last value of a chain is worth its bytes. Where the result of an operation is usually operated on again, a
note takes its place that says so; an image that was promised on the strength of such a note, and is asked for pixels after
all, is computed from its source. This happens before the thread opens another image, so no promise outlives a sample.

An image is a link of a chain as long as it lacks Pillow's own image object: whoever asks for that object gets it, may write
to it, and ends the chain. An opened file is left as loading leaves it, and what loading changes beyond the usual is found by
comparing; such images are not memoized. What decoding raises is raised where it is without a memo, for only what was decoded
before is promised.
"""

from __future__ import annotations

import contextlib
import functools
import io
import operator
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from hasten.data.memo.codec import Raw, decode
from hasten.data.memo.keys import identity_of_bytes, identity_of_status, key_of
from hasten.data.memo.memo import Memo, current, using

TAG = "_hasten_memo"
FORMATS = frozenset(("JPEG", "MPO", "PNG", "BMP", "PPM", "JPEG2000"))
"""Whose `load` changes little else of an image than its pixels, or is seen to change it."""
PACKED_MODES = frozenset(("L", "RGB", "RGBA", "LA", "P", "I;16", "I", "F", "1", "CMYK"))
CHANGED_BY_LOAD = frozenset(
    ("_im", "im", "tile", "fp", "_readonly", "readonly", "map", "png", "_text", "_PngImageFile__idat", "_ended", TAG)
)

Function = Callable[..., Any]
Stamp = tuple[int, int, int, int]

# Which of an image's states is in force, the tag or Pillow's object, changes under this lock. It is never held for long.
_states = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_states.acquire, after_in_parent=_states.release, after_in_child=_states.release)


class _HeldFile:
    """A file that stays readable when its name is taken away. It has no position, so processes can share it."""

    def __init__(self, fp: Any) -> None:
        self._descriptor = os.dup(fp.fileno())

    def read(self, stamp: Stamp) -> bytes:
        """The whole file. Raises OSError where it was written to."""
        data, at = bytearray(stamp[2]), 0
        before = _stamp_of(os.fstat(self._descriptor))
        while at < len(data) and (num_read := os.preadv(self._descriptor, [memoryview(data)[at:]], at)):
            at += num_read
        if not before == _stamp_of(os.fstat(self._descriptor)) == stamp or at < len(data):
            raise OSError("an image file was written to while an image of it was in use")
        return bytes(data)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


@dataclass(frozen=True)
class _Source:
    """Where an image file comes from."""

    identity: bytes
    stamp: Stamp
    data: bytes | None
    """The file, where it lies in memory."""
    path: Any
    num_bytes: int
    formats: Any
    """Of `Image.open`."""
    file: _HeldFile | None = None

    def is_read_by(self, fp: Any) -> bool:
        """Whether an open file is this source, unchanged."""
        if fp is None or fp.closed:
            return False
        if self.data is not None:
            return type(fp) is io.BytesIO and fp.getvalue() == self.data
        return identity_of_status(os.fstat(fp.fileno())) == self.identity

    def is_unchanged(self) -> bool:
        """Whether the file of that name is still this source."""
        try:
            return self.data is not None or identity_of_status(os.stat(self.path)) == self.identity
        except OSError:
            return False

    def held(self, fp: Any) -> _Source:
        """The same, independent of `fp`, which is about to be closed."""
        if self.data is not None or self.file is not None or not hasattr(os, "preadv"):
            return self
        try:
            return replace(self, file=_HeldFile(fp))
        except OSError:  # too many open files
            return self

    def open(self) -> io.BytesIO:
        """The file again. Raises OSError where it was written to."""
        if self.data is not None:
            return io.BytesIO(self.data)
        if self.file is not None:
            return io.BytesIO(self.file.read(self.stamp))
        with open(self.path, "rb") as file:
            data = file.read()
            if _stamp_of(os.fstat(file.fileno())) != self.stamp:
                raise OSError(f"{self.path} was changed while an image of it was in use")
        return io.BytesIO(data)


@dataclass(frozen=True)
class _Link:
    """An image as a link of a chain; key None: the chain ends with it."""

    key: bytes | None
    names: tuple[str, ...]
    """Of the operations so far."""
    source: _Source
    mode: str
    size: tuple[int, int]
    opened: dict[str, Any]
    """What an opened image was like before it was loaded, which `draft` may have changed."""
    operations: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    seconds: float = 0.0
    """What they took."""
    position: int | None = None
    """Where loading leaves a file that is not Pillow's own."""
    pixels: np.ndarray[Any, Any] | None = None
    """The stored bytes, or"""
    core: Any = None
    """Pillow's own object, where they are at hand."""


class _Chains:
    """What Pillow's functions become, and what has been learned about the chains of this process."""

    def __init__(self, module: ModuleType, version: bytes) -> None:
        self.module: Any = module
        self.version = version
        self.originals: dict[str, Function] = {}
        self.attribute = "_im" if isinstance(vars(module.Image).get("im"), property) else "im"
        self.continued: dict[tuple[str, ...], int] = {}
        """How often the result of these operations was operated on again, less how often it was not."""
        self.promises = threading.local()
        self.alive: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    # Where an image comes from

    def opened(self, image: Any, fp: Any, formats: Any) -> None:
        source = _source_of(image, fp, formats)
        if source is not None:
            image.__dict__[TAG] = source

    def link_of(self, image: Any) -> _Link | None:
        tag = image.__dict__.get(TAG)
        if isinstance(tag, _Source):
            return self._first_link(image, tag)
        if tag is None or tag.key is None or self.attribute in image.__dict__:
            return None
        return tag

    def _first_link(self, image: Any, source: _Source) -> _Link | None:
        space = image.__dict__
        if space.get(self.attribute) is not None or not image.tile or image.tell() or not source.is_read_by(image.fp):
            return None
        tiles = [tuple(tile) for tile in image.tile]
        if image.format == "JPEG2000":
            _, _, _, arguments = tiles[0]
            if image._reduce or image.layers or len(tiles) > 1 or any(arguments[1:3]):
                return None
            tiles = []  # they name the descriptor
        palette = image.palette
        state = (
            type(image).__name__,
            image.mode,
            image.size,
            tiles,
            image.decoderconfig,
            None if palette is None else (palette.mode, palette.rawmode, bytes(palette.palette or b"")),
            image.info.get("transparency"),
            _file_module().LOAD_TRUNCATED_IMAGES,
            image._exclusive_fp,
        )
        opened = {"_mode": image.mode, "_size": image.size, "decoderconfig": image.decoderconfig}
        if tiles:
            opened["tile"] = list(image.tile)
        opened["truncated"] = _file_module().LOAD_TRUNCATED_IMAGES
        key = key_of(source.identity, self.version, repr(state).encode())
        return _Link(key, (), source, image.mode, image.size, opened)

    # Operations

    def operate(self, image: Any, name: str, arguments: tuple[Any, ...]) -> Any:
        """The result of an operation on an image."""
        original = self.originals[name]
        memo = current()
        link = None if memo is None else self.link_of(image)
        if memo is None or link is None or image.mode == "P":  # to load a palette changes it
            return original(image, *arguments)
        described = repr((name, arguments, image.info.get("transparency")))
        following = replace(
            link,
            key=key_of(link.key or b"", described.encode()),
            names=(*link.names, name),
            operations=(*link.operations, (name, arguments)),
            pixels=None,
            core=None,
        )
        found = self._promised(memo, image, link, following)
        if found is not None:
            return found
        if link.operations:
            self._note_continued(memo, link, image)
        return self._computed(memo, image, link, following, original, arguments)

    def _promised(self, memo: Memo, image: Any, link: _Link, following: _Link) -> Any | None:
        """The result as a promise, if the store has it; an image that was opened is then left as loading leaves it."""
        place = memo.find(following.key or b"")
        if place is None:
            return None
        try:
            raw = decode(place[1])
            mode, size, position = raw.meta["mode"], tuple(raw.meta["size"]), raw.meta["position"]
            pixels = None if raw.meta.get("continued") else raw.data
            transparency = raw.meta["transparency"]
        except (ValueError, KeyError, AttributeError, TypeError):
            return None
        is_at_hand = link.pixels is not None or link.core is not None
        if pixels is None and is_at_hand:
            return None  # sooner computed from those than from the source
        if pixels is not None:
            memo.hit(place[0])
        if isinstance(image.__dict__.get(TAG), _Source):
            link = self._defer(image, replace(link, position=position))
        source = link.source if pixels is None else replace(link.source, file=None)
        info = _info_of(image)
        if transparency is None:
            info.pop("transparency", None)
        else:
            info["transparency"] = tuple(transparency) if isinstance(transparency, list) else transparency
        following = replace(following, source=source, mode=mode, size=size, position=position, pixels=pixels)
        return self._without_pixels(info, following)

    def _defer(self, image: Any, link: _Link) -> _Link:
        """Leave an image that was opened as loading would leave it, and promise its pixels."""
        link = replace(link, source=link.source.held(image.fp))
        self._let_go(image, link.position)
        with _states:
            image.__dict__.pop(self.attribute, None)
            image.__dict__[TAG] = link
        self._keep_account(image, link)
        return link

    def _without_pixels(self, info: dict[Any, Any], link: _Link) -> Any:
        image = self.module.Image()
        image._mode, image._size, image.info = link.mode, link.size, info
        del image.__dict__[self.attribute]
        image.__dict__[TAG] = link
        self._keep_account(image, link)
        return image

    def _note_continued(self, memo: Memo, link: _Link, image: Any) -> None:
        self.continued[link.names] = min(8, self.continued.get(link.names, 0) + 2)
        if link.key is not None and link.key not in memo and (transparency := _transparency(image)) is not Ellipsis:
            memo.note(link.key, Raw({**_meta(link, transparency), "continued": True}, b""))

    def _computed(
        self, memo: Memo, image: Any, link: _Link, following: _Link, original: Function, arguments: tuple[Any, ...]
    ) -> Any:
        info = dict(image.info)
        is_first = isinstance(image.__dict__.get(TAG), _Source)
        began = time.perf_counter()
        with using(None):
            if is_first:
                changes, following = self._load_and_compare(image, following)
                if changes:
                    return original(image, *arguments)
            result = original(image, *arguments)
        if not is_first:  # nobody but Pillow's own operation has seen its pixels
            with _states:
                if self.attribute in image.__dict__ and TAG not in image.__dict__:
                    core = image.__dict__.pop(self.attribute)
                    image.__dict__[TAG] = replace(
                        link, source=replace(link.source, file=None), pixels=None, core=core
                    )
        transparency = _transparency(result)
        is_as_expected = _without_transparency(info) == _without_transparency(result.info) and info == image.info
        if not is_as_expected or transparency is Ellipsis or type(result) is not self.module.Image:
            return result
        if not link.source.is_unchanged():
            return result
        seconds = link.seconds + time.perf_counter() - began
        following = replace(following, mode=result.mode, size=result.size, seconds=seconds)
        self.continued[following.names] = max(-8, self.continued.get(following.names, 0) - 1)
        if result.mode not in ("RGB", "L") or following.key is None:
            return result
        if self.continued[following.names] < 0:
            raw = Raw(_meta(following, transparency), self.originals["tobytes"](result))
            memo.put(following.key, raw, seconds=seconds, source_bytes=link.source.num_bytes)
        source = replace(following.source, file=None)
        following = replace(following, source=source, core=result.__dict__.pop(self.attribute))
        result.__dict__[TAG] = following
        self._keep_account(result, following)
        return result

    # Pixels

    def materialize(self, image: Any) -> Any:
        """Pillow's own image object, for an image that was promised."""
        with _states:
            link = image.__dict__.get(TAG)
            if self.attribute in image.__dict__ or not isinstance(link, _Link):
                image.__dict__.pop(TAG, None)
                return image.__dict__[self.attribute]
        core = self._core_of(link)
        with _states:
            core = image.__dict__.setdefault(self.attribute, core)
            image.__dict__.pop(TAG, None)
        return core

    def _core_of(self, link: _Link) -> Any:
        if link.core is not None:
            return link.core
        with using(None):
            if link.pixels is not None:
                return self._unpacked(link.mode, link.size, link.pixels)
            with _truncated_images(link.opened["truncated"]):
                image = self._opened_again(link)
                for name, arguments in link.operations:
                    image = self.originals[name](image, *arguments)
                image.load()
            if (image.mode, image.size) != (link.mode, link.size):
                raise OSError("an image file is not what it was when it was opened")
            return getattr(image, self.attribute)

    def _opened_again(self, link: _Link) -> Any:
        image = self.originals["open"](link.source.open(), "r", link.source.formats)
        for name, value in link.opened.items():
            if name != "truncated":
                setattr(image, name, list(value) if name == "tile" else value)
        return image

    def _unpacked(self, mode: str, size: tuple[int, int], pixels: Any) -> Any:
        """A core image of stored bytes."""
        return getattr(self.module.frombytes(mode, size, pixels), self.attribute)

    def load(self, image: Any, original: Function) -> Any:
        """`ImageFile.load`."""
        tag = image.__dict__.get(TAG)
        memo = current() if isinstance(tag, _Source) else None
        link = None if memo is None else self._first_link(image, tag)
        if memo is None or link is None or link.key is None or image.mode not in PACKED_MODES:
            return original(image)
        key = key_of(link.key, b"load")
        with contextlib.suppress(KeyError, ValueError, AttributeError, TypeError):
            raw = memo.get(key)
            position, pixels = raw.meta["position"], raw.data
            return self._loaded(image, position, pixels)
        began = time.perf_counter()
        with using(None):
            changes, link = self._load_and_compare(image, link, original)
        seconds = time.perf_counter() - began
        if not changes and link.source.is_unchanged():
            raw = Raw({"position": link.position}, self.originals["tobytes"](image))
            memo.put(key, raw, seconds=seconds, source_bytes=link.source.num_bytes)
        return self.originals["load"](image)

    def _load_and_compare(self, image: Any, link: _Link, load: Function | None = None) -> tuple[bool, _Link]:
        """Load an image; whether that changed more than a promise leaves changed, and the link with the file's position."""
        before, info = dict(image.__dict__), dict(image.info)
        state = image.mode, image.size, list(getattr(image, "private_chunks", ()))
        png = getattr(image, "png", None)
        text = None if png is None else dict(png.im_text)
        fp = image.fp
        image.load() if load is None else load(image)
        names = {*before} ^ {*image.__dict__} | {
            name for name, value in before.items() if image.__dict__.get(name) is not value
        }
        changes = (
            not names <= CHANGED_BY_LOAD
            or image.info != info
            or state != (image.mode, image.size, list(getattr(image, "private_chunks", ())))
            or (png is not None and (before.get("_text") is not None or image.__dict__.get("_text") != text))
            or bool(image.tile or image.fp is not None or getattr(image, "map", None))
        )
        position = None if image._exclusive_fp else fp.tell()
        return changes, replace(link, position=position)

    def _let_go(self, image: Any, position: int | None) -> None:
        """What loading does to an image beside its pixels."""
        png = getattr(image, "png", None)
        if png is not None:
            image._text = png.im_text
            png.close()
            image.png = None
        image.tile = []
        image.map = None
        image.__dict__["_readonly" if "_readonly" in image.__dict__ else "readonly"] = 0
        if not image._exclusive_fp:
            if position is not None:
                image.fp.seek(position)
        elif image._close_exclusive_fp_after_loading:
            image.fp.close()
        image.fp = None

    def _loaded(self, image: Any, position: int | None, pixels: Any) -> Any:
        core = None if image.mode == "P" else self._unpacked(image.mode, image.size, pixels)
        image.__dict__.pop(TAG, None)
        if core is None:
            image.load_prepare()
            self.module.Image.frombytes(image, pixels)
        else:
            image.__dict__[self.attribute] = core
        self._let_go(image, position)
        return self.originals["load"](image)

    def crop(self, image: Any, box: Any) -> Any | None:
        """The part of an image whose pixels are still packed, packed as well; None where Pillow is to cut."""
        link = image.__dict__.get(TAG)
        if not isinstance(link, _Link) or link.pixels is None or self.attribute in image.__dict__:
            return None
        if current() is None or not isinstance(box, (tuple, list)):
            return None
        try:
            left, upper, right, lower = map(int, map(round, box))
        except (TypeError, ValueError, OverflowError):
            return None
        width, height = image.size
        if (width, height) != link.size or not (0 <= left < right <= width and 0 <= upper < lower <= height):
            return None
        if tuple(box) != (0, 0, width, height):
            self.module._decompression_bomb_check((right - left, lower - upper))
        rows = link.pixels.reshape(height, width, -1)[upper:lower, left:right]
        pixels = np.ascontiguousarray(rows).reshape(-1)
        part = replace(link, key=None, size=(right - left, lower - upper), pixels=pixels)
        return self._without_pixels(_info_of(image), part)

    # Promises

    def _keep_account(self, image: Any, link: _Link) -> None:
        self.alive[id(image)] = image
        if link.pixels is None and link.core is None and link.source.data is None:
            self.promises.__dict__.setdefault("made", []).append(weakref.ref(image))

    def settle(self) -> None:
        """Keep the promises of this thread that somebody still holds, before their files may have changed."""
        made = self.promises.__dict__.get("made")
        while made:
            self._settle(made.pop()())

    def settle_all(self) -> None:
        """Keep the promises of all threads."""
        for image in list(self.alive.values()):
            self._settle(image)

    def _settle(self, image: Any) -> None:
        if image is not None and isinstance(image.__dict__.get(TAG), _Link):
            with contextlib.suppress(OSError):  # it is raised where the pixels are asked for
                self.materialize(image)


@contextlib.contextmanager
def _truncated_images(allowed: bool) -> Any:
    """Have decoding take truncated files or not, as it did when an image was opened."""
    module = _file_module()
    before = module.LOAD_TRUNCATED_IMAGES
    if before == allowed:
        yield
        return
    module.LOAD_TRUNCATED_IMAGES = allowed
    try:
        yield
    finally:
        module.LOAD_TRUNCATED_IMAGES = before


def _stamp_of(status: os.stat_result) -> Stamp:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _source_of(image: Any, fp: Any, formats: Any) -> _Source | None:
    if image.format not in FORMATS or not type(image).__module__.startswith("PIL."):
        return None
    formats = None if formats is None else tuple(formats)
    if type(fp) is io.BytesIO:
        data = fp.getvalue()
        return _Source(identity_of_bytes(data), (0, 0, 0, 0), data, None, len(data), formats)
    if type(fp) is io.BufferedReader:
        path: Any = fp.name
    elif isinstance(fp, (str, bytes, os.PathLike)):
        path = os.fspath(fp)
    else:
        return None
    if not isinstance(path, (str, bytes)):
        return None
    try:
        status = os.fstat(image.fp.fileno())
        path = os.path.abspath(path)
    except (OSError, AttributeError, ValueError):
        return None
    identity = identity_of_status(status)
    if identity is None:
        return None
    return _Source(identity, _stamp_of(status), None, path, status.st_size, formats)


def _meta(link: _Link, transparency: Any) -> dict[str, Any]:
    return {"mode": link.mode, "size": list(link.size), "transparency": transparency, "position": link.position}


def _transparency(image: Any) -> Any:
    """As JSON has it; Ellipsis where it has it not."""
    found = image.info.get("transparency")
    if found is None or type(found) is int:
        return found if found is not None or "transparency" not in image.info else Ellipsis
    if type(found) is tuple and all(type(one) is int for one in found):
        return list(found)
    return Ellipsis


def _without_transparency(info: dict[Any, Any]) -> dict[Any, Any]:
    return {name: value for name, value in info.items() if name != "transparency"}


def _info_of(image: Any) -> dict[Any, Any]:
    return image._copy_info() if hasattr(image, "_copy_info") else image.info.copy()


def _file_module() -> Any:
    from PIL import ImageFile

    return ImageFile


def install(patches: Any, module: ModuleType, version: bytes) -> None:
    """Put it in the place of Pillow's functions; `module` is PIL.Image."""
    chains = _Chains(module, version)
    kind: Any = module.Image  # type: ignore[attr-defined]
    originals = chains.originals
    for name in ("convert", "resize", "crop", "tobytes", "load", "save"):
        originals[name] = getattr(kind, name)
    originals["open"] = module.open  # type: ignore[attr-defined]

    @functools.wraps(originals["open"])
    def open(*arguments: Any, **named: Any) -> Any:
        if current() is None:
            return originals["open"](*arguments, **named)
        chains.settle()
        image = originals["open"](*arguments, **named)
        fp = arguments[0] if arguments else named["fp"]
        formats = arguments[2] if len(arguments) > 2 else named.get("formats")
        chains.opened(image, fp, formats)
        return image

    @functools.wraps(originals["save"])
    def save(self: Any, *arguments: Any, **named: Any) -> Any:
        chains.settle()  # it may write to their files
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
        pixels = link.pixels if isinstance(link, _Link) and chains.attribute not in self.__dict__ else None
        is_plain = (
            not arguments and not named and link is not None and (self.mode, self.size) == (link.mode, link.size)
        )
        if pixels is not None and is_plain:
            return pixels.tobytes()
        return originals["tobytes"](self, *arguments, **named)

    @functools.wraps(originals["load"])
    def load(self: Any) -> Any:
        tag = self.__dict__.get(TAG)
        if isinstance(tag, _Link):
            chains.materialize(self)
        elif tag is not None and self.__dict__.get(chains.attribute) is not None:
            self.__dict__.pop(TAG, None)
        return originals["load"](self)

    def missing(self: Any, name: str) -> Any:
        if name == chains.attribute and (TAG in self.__dict__ or name in self.__dict__):
            return chains.materialize(self)
        return object.__getattribute__(self, name)  # for the very error that Python raises

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
    patches.on_undo(chains.settle_all)


def _install_load(patches: Any, chains: _Chains) -> None:
    kind = _file_module().ImageFile
    original = kind.load

    @functools.wraps(original)
    def load(self: Any) -> Any:
        return chains.load(self, original)

    patches.set(kind, "load", load)


def _plain_resize(arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[int, int], int | None] | None:
    """The arguments as whole numbers; None where Pillow is to judge them."""
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
