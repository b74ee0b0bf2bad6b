"""Chains of operations on Pillow images, with results that are computed lazily.

`Image.open` opens the file and reads its header as always, and the image remembers its source. `load`, `convert` and `resize`
then look up their result by a key: the source's identity, everything that decoding depends on, and the operations so far. On a
hit the result is an `Image` without pixels, which are read when they are needed; a crop is taken from the stored bytes before
anything is unpacked. An operation with varying arguments (a random crop) ends the chain, and the result before it is stored.

Only the last value of a chain is worth storing. If the result of an operation is usually operated on again, a note that says
so is stored instead of the result. An image that was deferred because of such a note, and whose pixels are needed after all, is
computed from its source, which is held open until then. A thread has at most a few such deferred images, and they are computed
before any file is opened for writing.

An image is a link of a chain as long as it lacks Pillow's internal image object: code that requests that object receives it, may
write to it, and ends the chain. Deferring a load leaves an opened file in the state in which loading leaves it. Changes by
loading beyond the usual are detected by comparison; such images are not memoized. Decoding errors are raised at the same place
as without a cache, because only images that were decoded before are deferred.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any

from hasten.data.memo.calls import belongs
from hasten.data.memo.codec import Raw
from hasten.data.memo.image_link import Link, Pixels, always, found_in, meta_of, note_key, num_bytes_of
from hasten.data.memo.image_source import Source, source_of
from hasten.data.memo.image_state import (
    TAG,
    file_module,
    finish_load,
    info_of,
    load_and_compare,
    transparency_of,
    truncated_images,
    without_transparency,
)
from hasten.data.memo.keys import key_of
from hasten.data.memo.memo import Memo, current, using

LINK_MODES = frozenset(("L", "RGB"))
"""Modes whose images may be links of a chain."""
PACKED_MODES = frozenset(("L", "RGB", "RGBA", "LA", "P", "I;16", "I", "F", "1", "CMYK"))

Function = Callable[..., Any]

# Guards an image's state (the tag, or Pillow's object). It is never held for long.
_states = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_states.acquire, after_in_parent=_states.release, after_in_child=_states.release)


class Chains:
    """Replacements for Pillow's functions, and what is known about the chains of this process."""

    def __init__(self, module: ModuleType, version: bytes) -> None:
        self.module: Any = module
        self.version = version
        self.originals: dict[str, Function] = {}
        self.attribute = "_im" if isinstance(vars(module.Image).get("im"), property) else "im"
        self.continued: dict[tuple[str, ...], int] = {}
        """How often the result of these operations was operated on again, minus how often it was not."""
        self.deferred = threading.local()
        self._seen: tuple[Function, ...] = ()
        self._is_unpatched = False
        self.alive: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    # Sources

    def opened(self, image: Any, fp: Any) -> None:
        """Remember the source of an image that was just opened."""
        source = source_of(image, fp)
        if source is not None and self.is_unpatched():
            image.__dict__[TAG] = source

    def is_unpatched(self) -> bool:
        """Whether Pillow's functions are its own, without wrappers from other code."""
        kind = self.module.Image
        now = kind.convert, kind.resize, kind.crop, kind.load, kind.tobytes, file_module().ImageFile.load
        if now != self._seen:
            self._seen, self._is_unpatched = now, all(belongs(function, "PIL") for function in now)
        return self._is_unpatched

    def link_of(self, image: Any) -> Link | None:
        """Return the image as a link of a chain; None if it is not one."""
        tag = image.__dict__.get(TAG)
        if isinstance(tag, Source):
            return self._first_link(image, tag)
        if tag is None or tag.key is None or self.attribute in image.__dict__:
            return None
        return tag

    def _first_link(self, image: Any, source: Source) -> Link | None:
        space = image.__dict__
        if space.get(self.attribute) is not None or not image.tile or image.tell() or not source.is_read_by(image.fp):
            return None
        tiles = [tuple(tile) for tile in image.tile]
        if image.format == "JPEG2000":
            _, _, _, arguments = tiles[0]
            if image._reduce or image.layers or len(tiles) > 1 or any(arguments[1:3]):
                return None
            tiles = []  # they contain the descriptor
        palette = image.palette
        state = (
            type(image).__name__,
            image.mode,
            image.size,
            tiles,
            image.decoderconfig,
            None if palette is None else (palette.mode, palette.rawmode, bytes(palette.palette or b"")),
            image.info.get("transparency", Ellipsis),
            file_module().LOAD_TRUNCATED_IMAGES,
            image._exclusive_fp,
        )
        opened = {"kind": type(image), "_mode": image.mode, "_size": image.size, "decoderconfig": image.decoderconfig}
        if tiles:
            opened["tile"] = list(image.tile)
        opened["truncated"] = file_module().LOAD_TRUNCATED_IMAGES
        key = key_of(source.identity, self.version, repr(state).encode())
        return Link(key, (), source, image.mode, image.size, opened)

    # Operations

    def operate(self, image: Any, name: str, arguments: tuple[Any, ...]) -> Any:
        """Return the result of an operation on an image."""
        original = self.originals[name]
        memo = current()
        link = None if memo is None else self.link_of(image)
        if memo is None or link is None or image.mode == "P":  # loading a palette changes the image
            return original(image, *arguments)
        described = repr((name, arguments, image.info.get("transparency", Ellipsis)))
        following = link._replace(
            key=key_of(link.key or b"", described.encode()),
            names=(*link.names, name),
            operations=(*link.operations, (name, arguments)),
            pixels=None,
            core=None,
            waiting=(),
        )
        found = self._deferred_result(memo, image, link, following)
        if found is not None:
            return found
        if isinstance(image.__dict__.get(TAG), Source):
            loaded = self._loaded(image, link)
            if loaded is None:
                return original(image, *arguments)
            link, following = self._hold_core(image, loaded), following._replace(position=loaded.position)
        if link.names:
            self._note_continued(memo, link, image)
        return self._computed(memo, image, link, following, original, arguments)

    def _deferred_result(self, memo: Memo, image: Any, link: Link, following: Link) -> Any | None:
        """Return the result as a deferred image, if the store has it; leaves an opened image as loading leaves it."""
        is_available = link.pixels is not None or link.core is not None
        found = found_in(
            memo, following, notes=not is_available
        )  # cheaper to compute from those than from the source
        if found is None:
            return None
        following, transparency = found
        if isinstance(image.__dict__.get(TAG), Source):
            link = self._defer(image, link._replace(position=following.position))
        source = link.source if following.pixels is None else link.source._replace(file=None)
        info = info_of(image)
        if transparency is None:
            info.pop("transparency", None)
        else:
            info["transparency"] = tuple(transparency) if isinstance(transparency, list) else transparency
        return self._without_pixels(info, following._replace(source=source))

    def _defer(self, image: Any, link: Link) -> Link:
        """Leave an opened image as loading would leave it, and defer its pixels."""
        if link.pixels is None:
            link = link._replace(source=link.source.held(image.fp))
        finish_load(image, link.position)
        with _states:
            image.__dict__.pop(self.attribute, None)
            image.__dict__[TAG] = link
        self._track(image, link)
        return link

    def _without_pixels(self, info: dict[Any, Any], link: Link) -> Any:
        image = self.module.Image()
        image._mode, image._size, image.info = link.mode, link.size, info
        del image.__dict__[self.attribute]
        image.__dict__[TAG] = link
        self._track(image, link)
        return image

    def _note_continued(self, memo: Memo, link: Link, image: Any) -> None:
        self._count(link, 2)
        if link.key is None or link.key in memo or note_key(link.key) in memo:
            return
        memo.note(note_key(link.key), Raw(meta_of(link, image), b""))

    def _count(self, link: Link, change: int) -> None:
        self.continued[link.names] = max(-8, min(8, self.continued.get(link.names, 0) + change))

    def _loaded(self, image: Any, link: Link, load: Function | None = None) -> Link | None:
        """Load an opened image and return its link; None if loading changed more than its pixels."""
        began = time.perf_counter()
        with using(None):
            changes, position = load_and_compare(image, load)
        link = link._replace(position=position, seconds=time.perf_counter() - began)
        image.__dict__.pop(TAG, None)
        return None if changes or not link.source.is_unchanged() else link

    def _hold_core(self, image: Any, link: Link) -> Link:
        """Take over an image's pixels, which only Pillow has seen, until they are requested."""
        with _states:
            core = image.__dict__.pop(self.attribute)
            link = link._replace(source=link.source._replace(file=None), pixels=None, core=core)
            image.__dict__[TAG] = link
        self._track(image, link)
        return link

    def _computed(
        self, memo: Memo, image: Any, link: Link, following: Link, original: Function, arguments: tuple[Any, ...]
    ) -> Any:
        info = dict(image.info)
        began = time.perf_counter()
        with using(None):
            result = original(image, *arguments)
        if self.attribute in image.__dict__ and TAG not in image.__dict__:
            self._hold_core(image, link)
        transparency = transparency_of(result)
        is_as_expected = without_transparency(info) == without_transparency(result.info) and info == image.info
        if not is_as_expected or transparency is Ellipsis or type(result) is not self.module.Image:
            return result
        if not link.source.is_unchanged() or result.mode not in LINK_MODES:
            return result
        seconds = link.seconds + time.perf_counter() - began
        following = following._replace(mode=result.mode, size=result.size, seconds=seconds)
        self._count(following, -1)
        if self.continued[following.names] < 0:
            self._store(memo, result, following)
        self._hold_core(result, following)
        return result

    def _store(self, memo: Memo, image: Any, link: Link) -> None:
        """Store the pixels of an image."""
        if link.key is None or not memo.takes(num_bytes_of(image)):
            return
        with using(None):
            raw = Raw(meta_of(link, image), self.originals["tobytes"](image))
        memo.put(link.key, raw, seconds=link.seconds, source_bytes=link.source.num_bytes)

    # Pixels

    def pixels(self, image: Any, link: Link) -> Pixels:
        """Return the result of `load` for an image without pixels."""
        found = Pixels(self.materialize, image)
        image.__dict__[TAG] = link._replace(waiting=(*link.waiting, weakref.ref(found)))
        return found

    def materialize(self, image: Any) -> Any:
        """Return Pillow's internal image object for a deferred image."""
        with _states:
            link = image.__dict__.get(TAG)
            if self.attribute in image.__dict__ or not isinstance(link, Link):
                image.__dict__.pop(TAG, None)
                return image.__dict__[self.attribute]
        began = time.perf_counter()
        core = self.core_of(link)
        seconds = time.perf_counter() - began
        with _states:
            core = image.__dict__.setdefault(self.attribute, core)
            link = image.__dict__.pop(TAG, link)
        for pixels in filter(None, (one() for one in link.waiting)):
            pixels.access = core.pixel_access(image.readonly)
        memo = current()
        if memo is not None:  # requested by the script, not by Pillow for an operation
            self._count(link, -2)
            if link.core is None and link.pixels is None:
                self._store(memo, image, link._replace(seconds=seconds))
        return core

    def core_of(self, link: Link) -> Any:
        """Return Pillow's internal image object for a link."""
        if link.core is not None:
            return link.core
        with using(None):
            if link.pixels is not None:
                core = self._unpacked(link.mode, link.size, link.pixels)
                if link.is_intact():
                    return core
            with truncated_images(link.opened["truncated"]):
                image = self._reopened(link)
                for name, arguments in link.operations:
                    image = self.originals[name](image, *arguments)
                image.load()
            if (image.mode, image.size) != (link.mode, link.size):
                raise OSError("an image file was changed after it was opened")
            return getattr(image, self.attribute)

    def _reopened(self, link: Link) -> Any:
        """Open the file's image again in its state before loading. Its size was checked when it was first opened."""
        image = link.opened["kind"](link.source.open(), "")
        for name, value in link.opened.items():
            if name not in ("kind", "truncated"):
                setattr(image, name, list(value) if name == "tile" else value)
        return image

    def _unpacked(self, mode: str, size: tuple[int, int], pixels: Any) -> Any:
        """Return an internal image object with the stored bytes."""
        return getattr(self.module.frombytes(mode, size, pixels), self.attribute)

    def load(self, image: Any, original: Function) -> Any:
        """Implement `ImageFile.load`."""
        tag, memo = image.__dict__.get(TAG), current()
        if memo is not None and isinstance(tag, Link) and self.attribute not in image.__dict__:
            return self.pixels(image, tag)
        link = self._first_link(image, tag) if memo is not None and isinstance(tag, Source) else None
        if memo is None or link is None or link.key is None or image.mode not in PACKED_MODES:
            return original(image)
        link = link._replace(key=key_of(link.key, b"load"), names=("load",))
        if image.mode not in LINK_MODES:
            return self._load_packed(memo, image, link, original)
        found = found_in(memo, link)
        if found is not None:
            return self.pixels(image, self._defer(image, found[0]))
        loaded = self._loaded(image, link, original)
        if loaded is None:
            return self.originals["load"](image)
        self._count(loaded, -1)
        if self.continued[loaded.names] < 0:
            self._store(memo, image, loaded)
        return self.pixels(image, self._hold_core(image, loaded))

    def _load_packed(self, memo: Memo, image: Any, link: Link, original: Function) -> Any:
        """Load an image whose mode ends the chain."""
        found = found_in(memo, link, notes=False, views=False)
        if found is None:
            loaded = self._loaded(image, link, original)
            if loaded is None:
                return self.originals["load"](image)
            self._store(memo, image, loaded)
            return self.originals["load"](image)
        link, _ = found
        image.__dict__.pop(TAG, None)
        if image.mode == "P":
            image.load_prepare()
            self.module.Image.frombytes(image, link.pixels)
        else:
            image.__dict__[self.attribute] = self._unpacked(image.mode, image.size, link.pixels)
        finish_load(image, link.position)
        return self.originals["load"](image)

    def crop(self, image: Any, box: Any) -> Any | None:
        """Crop an image whose pixels are still packed, without unpacking; None if Pillow must crop."""
        link = image.__dict__.get(TAG)
        if not isinstance(link, Link) or link.pixels is None or self.attribute in image.__dict__:
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
        pixels = link.pixels.reshape(height, width, -1)[upper:lower, left:right].copy().reshape(-1)
        if not link.is_intact():
            return None
        size = right - left, lower - upper
        part = link._replace(key=None, size=size, pixels=pixels, is_intact=always, waiting=())
        return self._without_pixels(info_of(image), part)

    # Deferred images

    def _track(self, image: Any, link: Link) -> None:
        self.alive[id(image)] = image
        if link.pixels is None and link.core is None and link.source.data is None:
            self.deferred.__dict__.setdefault("made", deque()).append(weakref.ref(image))

    def compute_deferred(self, *, most: int = 0) -> None:
        """Compute the live deferred images of this thread, except for the last `most`."""
        made = self.deferred.__dict__.get("made", ())
        while len(made) > most:
            self._compute(made.popleft()())

    def compute_all_deferred(self) -> None:
        """Compute the deferred images of all threads."""
        for image in self.alive.valuerefs():  # a list: other threads may add images
            self._compute(image())

    def _compute(self, image: Any) -> None:
        if image is not None and isinstance(image.__dict__.get(TAG), Link):
            with contextlib.suppress(Exception):  # raised again where the pixels are requested
                self.materialize(image)
