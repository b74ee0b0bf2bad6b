"""A Pillow image as a link of a chain of operations, and its entry in the store."""

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
    """Return True: used for bytes that are not shared and cannot change."""
    return True


class Link(NamedTuple):
    """An image as a link of a chain; with key None, the chain ends here."""

    key: bytes | None
    names: tuple[str, ...]
    """Names of the operations so far."""
    source: Source
    mode: str
    size: tuple[int, int]
    opened: dict[str, Any]
    """State of an opened image before loading, which `draft` may have changed."""
    operations: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    seconds: float = 0.0
    """Time that the operations took."""
    position: int | None = None
    """Position after loading in a file that Pillow does not own."""
    is_intact: Callable[[], bool] = always
    """Whether the stored bytes are unchanged; call it after copying them."""
    pixels: np.ndarray[Any, Any] | None = None
    """The stored bytes, if available, or"""
    core: Any = None
    """Pillow's internal object, if available."""
    waiting: tuple[weakref.ref[Pixels], ...] = ()
    """Objects that `load` returned for the image."""


class Pixels:
    """The result of `load` for an image whose pixels are deferred; it computes them when it is used."""

    __slots__ = ("__weakref__", "_image", "_materialize", "access")

    def __init__(self, materialize: Callable[[Any], Any], image: Any) -> None:
        self._materialize, self._image = materialize, image
        self.access: Any = None

    def __getitem__(self, place: Any) -> Any:
        return self._pixel_access()[place]

    def __setitem__(self, place: Any, value: Any) -> None:
        self._pixel_access()[place] = value

    def _pixel_access(self) -> Any:
        if self.access is None:
            core = self._materialize(self._image)
            self.access = self.access or core.pixel_access(self._image.readonly)
        return self.access


def meta_of(link: Link, image: Any) -> dict[str, Any]:
    """Return the metadata stored with an image's pixels. A loaded image has the transparency of its file."""
    transparency = transparency_of(image)
    known = None if transparency is Ellipsis else transparency
    return {"mode": link.mode, "size": list(link.size), "transparency": known, "position": link.position}


def num_bytes_of(image: Any) -> int:
    """Return a lower bound for the bytes of an image's pixels."""
    width, height = image.size
    return width * height * len(image.getbands())


def note_key(key: bytes) -> bytes:
    """Return the key for the note that a value is usually operated on again."""
    return bytes((key[0] ^ 1,)) + key[1:]


def found_in(memo: Memo, link: Link, *, notes: bool = True, views: bool = True) -> tuple[Link, Any] | None:
    """Look up a link in the store.

    Args:
        memo: the store.
        link: the link to look up.
        notes: whether a note about the image suffices if there are no pixels.
        views: whether the pixels may be a view of the store: call `is_intact` after copying them.

    Returns:
        The link with what the store has of it, and its transparency; None if the store has nothing.
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
        except (ValueError, KeyError, AttributeError, TypeError):  # foreign data, or released in the meantime
            continue
        found = link._replace(mode=mode, size=size, position=position, pixels=None, core=None)
        return (found if is_note else found._replace(pixels=raw.data, is_intact=is_intact)), transparency
    return None
