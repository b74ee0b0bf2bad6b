"""An image of Pillow's as a link of a chain of operations, and what the store knows of it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hasten.data.memo.codec import decode
from hasten.data.memo.image_source import Source
from hasten.data.memo.image_state import transparency_of
from hasten.data.memo.memo import Memo


def always() -> bool:
    """Of bytes that nobody else holds."""
    return True


class Link(NamedTuple):
    """An image as a link of a chain; key None: the chain ends with it."""

    key: bytes | None
    names: tuple[str, ...]
    """Of the operations so far."""
    source: Source
    mode: str
    size: tuple[int, int]
    opened: dict[str, Any]
    """What an opened image was like before it was loaded, which `draft` may have changed."""
    operations: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    seconds: float = 0.0
    """What they took."""
    position: int | None = None
    """Where loading leaves a file that is not Pillow's own."""
    is_intact: Callable[[], bool] = always
    """Whether the stored bytes are still there; asked after they were copied."""
    pixels: np.ndarray[Any, Any] | None = None
    """The stored bytes, or"""
    core: Any = None
    """Pillow's own object, where they are at hand."""
    waiting: tuple[weakref.ref[Pixels], ...] = ()
    """What `load` has returned for the image."""


class Pixels:
    """What `load` returns for an image whose pixels nobody has asked for yet: it asks for them when it is used."""

    __slots__ = ("__weakref__", "_image", "_materialize", "access")

    def __init__(self, materialize: Callable[[Any], Any], image: Any) -> None:
        self._materialize, self._image = materialize, image
        self.access: Any = None

    def __getitem__(self, place: Any) -> Any:
        return self._asked()[place]

    def __setitem__(self, place: Any, value: Any) -> None:
        self._asked()[place] = value

    def _asked(self) -> Any:
        if self.access is None:
            core = self._materialize(self._image)
            self.access = self.access or core.pixel_access(self._image.readonly)
        return self.access


def meta_of(link: Link, image: Any) -> dict[str, Any]:
    """What is stored beside an image's pixels. An image that was loaded has its transparency from its file."""
    transparency = transparency_of(image)
    known = None if transparency is Ellipsis else transparency
    return {"mode": link.mode, "size": list(link.size), "transparency": known, "position": link.position}


def num_bytes_of(image: Any) -> int:
    """Bytes of an image's pixels at least."""
    width, height = image.size
    return width * height * len(image.getbands())


def note_key(key: bytes) -> bytes:
    """Under which it is noted that a value is usually operated on again."""
    return bytes((key[0] ^ 1,)) + key[1:]


def found_in(memo: Memo, link: Link, *, notes: bool = True, views: bool = True) -> tuple[Link, Any] | None:
    """A link with what the store has of it, and its transparency.

    Args:
        memo: the store.
        link: what to look for.
        notes: whether a note of what the image is like will do, where there are no pixels.
        views: whether the pixels may lie where they are stored: ask `is_intact` after copying them.
    """
    assert link.key is not None
    for key in (link.key, note_key(link.key))[: 2 if notes else 1]:
        is_note = key is not link.key
        viewed = memo.view(key, counted=not is_note) if views else None
        if viewed is not None:
            memory, is_intact = viewed
        else:
            place = memo.find(key)
            if place is None:
                continue
            memory, is_intact = place[1], always
            if not is_note:
                memo.hit(place[0])
        try:
            raw = decode(memory, is_own=viewed is None)
            mode, size, position = raw.meta["mode"], tuple(raw.meta["size"]), raw.meta["position"]
            transparency = raw.meta["transparency"]
        except (ValueError, KeyError, AttributeError, TypeError):  # not ours, or given back meanwhile
            continue
        found = link._replace(mode=mode, size=size, position=position, pixels=None, core=None)
        return (found if is_note else found._replace(pixels=raw.data, is_intact=is_intact)), transparency
    return None
