"""Library functions that read a file or decode bytes and return arrays or tensors: one row per library."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from types import ModuleType
from typing import Any, cast

import numpy as np
import torch

from hasten.data.memo.calls import (
    Call,
    Function,
    RowOfTable,
    belongs,
    describe,
    is_exact_array,
    is_exact_tensor,
    is_plain_torch,
    memoized,
    releases,
)
from hasten.data.memo.keys import identity_of_path
from hasten.data.memo.memo import current


def _row(
    module: str,
    distributions: Iterable[str],
    functions: dict[str, Call],
    *,
    home: str | None = None,
    places: Iterable[tuple[str, str, str]] = (),
    companions: tuple[str, ...] = (),
) -> RowOfTable:
    """Return a table row for functions given by name.

    Args:
        module: the module that exposes the functions.
        distributions: the distributions from which the module may come.
        functions: how to memoize each function, by name.
        home: the module that defines them, where they are replaced too.
        places: further places to replace: a function's name, a module that imported it, and its name there.
        companions: distributions that the library uses for decoding.
    """

    def install(patches: Any, found: ModuleType, release: bytes) -> None:
        package = module.partition(".")[0]
        release += releases(*companions)
        for name, call in functions.items():
            original = getattr(found, name, None)
            if not callable(original) or not belongs(original, package):
                continue
            call = _with_torchvision_warnings(found, name, call) if package == "torchvision" else call
            replacement = memoized(original, f"{module}.{name}", release, call)
            for where, there in (
                (module, name),
                (home, name),
                *((place, there) for which, place, there in places if which == name),
            ):
                owner = sys.modules.get(where) if where else None
                if owner is not None and vars(owner).get(there) is original:
                    patches.set(owner, there, replacement)
            if package == "torchvision":
                _leave_alone(patches, "torchvision.transforms.v2.functional._augment", name, original)

    return module, tuple(distributions), install


def _leave_alone(patches: Any, module: str, name: str, original: Function) -> None:
    """Restore the original in a module whose calls never repeat."""

    def restore(found: ModuleType) -> None:
        if name in vars(found):
            setattr(found, name, original)

    patches.after_import(module, restore)


# OpenCV

_OPENCV = ("opencv-python-headless", "opencv-python", "opencv-contrib-python", "opencv-contrib-python-headless")
_OPENCV_SETTINGS = (
    "OPENCV_IO_MAX_IMAGE_PIXELS",
    "OPENCV_IO_MAX_IMAGE_WIDTH",
    "OPENCV_IO_MAX_IMAGE_HEIGHT",
    "OPENCV_IO_ENABLE_OPENEXR",
    "OPENCV_IO_ENABLE_JASPER",
    "OPENCV_IMGCODECS_WEBP_MAX_FILE_SIZE",
    "OPENCV_IMGCODECS_AVIF_MAX_FILE_SIZE",
)


def _opencv_state() -> Any:
    cv2: Any = sys.modules["cv2"]
    return cv2.useOptimized(), [os.environ.get(name) for name in _OPENCV_SETTINGS]


def _is_pages(value: Any, source: Any) -> bool:
    return type(value) is tuple and len(value) == 2 and value[0] is True and all(map(is_exact_array, value[1]))


# torchvision


def _torch_state() -> Any:
    return () if is_plain_torch() else None


def _with_torchvision_warnings(found: ModuleType, name: str, call: Call) -> Call:
    """On a hit, issue as many deprecation warnings as the function does, from the same place."""
    home: Any = sys.modules.get("torchvision.io.image", found)
    warn = getattr(home, "_warn_deprecated", lambda: None)

    def on_hit(source: Any) -> None:
        nested = {"read_image": 2, "decode_image": int(not isinstance(source, torch.Tensor))}
        for _ in range(1 + nested.get(name, 0)):
            warn()

    return replace(call, on_hit=on_hit)


# NumPy

START_OF_NPY = 4096  # bytes; the header of an array without fields ends within them


def _is_npy(value: Any, source: Any) -> bool:
    if not is_exact_array(value):
        return False
    try:
        with open(source, "rb") as file:
            return starts_as_npy(file.read(START_OF_NPY))
    except OSError:
        return False


def starts_as_npy(start: bytes) -> bool:
    """Whether a file is a .npy file, not a pickle, whose header needs no repair; a repair would issue a warning."""
    shape = start.partition(b"'shape'")[2].partition(b")")[0]
    return start.startswith(np.lib.format.MAGIC_PREFIX) and b"L" not in shape


def _maps_nothing(source: Any, others: tuple[Any, ...], named: dict[str, Any]) -> bool:
    return (others[0] if others else named.get("mmap_mode")) is None


# PyTorch


def _loads_weights(source: Any, others: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Whether `torch.load` runs no code from the file, and loads it to the CPU or to its saved location."""
    arguments = {**dict(zip(("map_location", "pickle_module"), others)), **named}
    if len(others) > 2 or arguments.keys() - {"map_location", "pickle_module", "weights_only", "mmap"}:
        return False
    if arguments.get("pickle_module") is not None or arguments.get("mmap") or arguments.get("weights_only") is False:
        return False
    return str(arguments.get("map_location")) in ("None", "cpu")


def _load_state() -> Any:
    """Return what `torch.load` depends on; None if it does not behave as usual."""
    settings = getattr(getattr(torch.utils, "serialization", None), "config", None)
    local = getattr(torch.serialization, "_serialization_tls", None)
    is_forced = "TORCH_FORCE_WEIGHTS_ONLY_LOAD" in os.environ or "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD" in os.environ
    if (
        is_forced
        or not is_plain_torch()
        or getattr(getattr(settings, "load", None), "mmap", False)
        or getattr(local, "skip_data", False)
    ):
        return None
    allowed = torch.serialization.get_safe_globals()
    return sorted(map(str, allowed)), str(torch.serialization.get_default_load_endianness())


def _is_tree_of_tensors(value: Any, source: Any) -> bool:
    """Whether a value consists of dicts, lists and tuples of plain values and tensors, without shared objects."""
    seen: set[int] = set()

    def is_storable(node: Any) -> bool:
        if type(node) is torch.Tensor:
            if not is_exact_tensor(node) or node.requires_grad:
                return False
            places = {id(node), node.untyped_storage()._cdata}  # pyright: ignore[reportPrivateUsage]
        elif type(node) in (dict, list, tuple):
            places = {id(node)} if node != () else set[int]()
        else:
            return describe(node) is not None
        if places & seen:
            return False
        seen.update(places)
        children = cast(
            "list[Any]", list(node.values()) if type(node) is dict else [] if type(node) is torch.Tensor else node
        )
        return all(map(is_storable, children))

    return is_storable(value) and not isinstance(value, (str, int, float, bool, type(None)))


# Audio


def _is_sound(value: Any, source: Any) -> bool:
    return type(value) is tuple and len(value) == 2 and is_exact_array(value[0]) and type(value[1]) is int


def _is_sound_tensor(value: Any, source: Any) -> bool:
    return type(value) is tuple and len(value) == 2 and is_exact_tensor(value[0]) and type(value[1]) is int


def _asks_for_samples(source: Any, others: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Whether no argument is passed that some release ignores with a warning, or that selects a decoder."""
    return len(others) <= 2 and not named.keys() - {"frame_offset", "num_frames", "channels_first"}


def _audio_state() -> Any:
    torchaudio: Any = sys.modules["torchaudio"]
    backend = getattr(torchaudio, "get_audio_backend", lambda: None)
    return (backend(), os.environ.get("TORCHAUDIO_USE_BACKEND_DISPATCHER")) if is_plain_torch() else None


# imageio

_ONE_FILE = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".jp2")


def _is_read_by_pillow(source: Any, others: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Whether imageio reads a single file with Pillow; other plugins may read further files next to it."""
    suffix = os.path.splitext(os.fspath(source))[1].lower() if isinstance(source, (str, os.PathLike)) else ""
    return suffix in _ONE_FILE and not others and not named.keys() - {"index", "mode", "rotate"}


def _pillow_state() -> Any:
    from imageio.config import known_extensions
    from PIL import Image, ImageFile

    first = [[one.priority[:1] for one in known_extensions.get(suffix, ())] for suffix in _ONE_FILE]
    return Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, first


def _is_small_image(value: Any, source: Any) -> bool:
    """Whether an array is an image below Pillow's size limit, above which Pillow warns."""
    from PIL import Image

    return is_exact_array(value) and value.size <= (Image.MAX_IMAGE_PIXELS or sys.maxsize)


# TurboJPEG


def _install_turbojpeg(patches: Any, found: Any, release: bytes) -> None:
    """Replace the method that decodes; the shared library that it loaded is part of the key."""
    kind, original = found.TurboJPEG, found.TurboJPEG.decode
    if not belongs(original, "turbojpeg"):
        return

    @functools.wraps(original)
    def decode(self: Any, *arguments: Any, **named: Any) -> Any:
        if type(self) is not kind or current() is None:
            return original(self, *arguments, **named)
        key = release + _loaded_library("turbojpeg")
        return memoized(functools.partial(original, self), "turbojpeg.decode", key, Call("bytes"))(
            *arguments, **named
        )

    patches.set(kind, "decode", decode)


@functools.cache
def _loaded_library(name: str) -> bytes:
    """Return the identity of the shared library of this name in this process."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
            paths = sorted({line.split(maxsplit=5)[-1].rstrip() for line in file if f"lib{name}" in line})
    except OSError:
        paths = []
    return b"".join(identity_of_path(path) or path.encode(errors="surrogateescape") for path in paths)


_IMAGE = Call("bytes", keeps=lambda value, source: is_exact_tensor(value), state=_torch_state)

ROWS: tuple[RowOfTable, ...] = (
    _row(
        "cv2",
        _OPENCV,
        {
            "imread": Call("path", state=_opencv_state),
            "imreadmulti": Call("path", keeps=_is_pages, state=_opencv_state),
            "imdecode": Call("bytes", state=_opencv_state),
        },
    ),
    _row(
        "torchvision.io",
        ("torchvision",),
        {
            "read_image": replace(_IMAGE, source="path"),
            "decode_image": replace(_IMAGE, source="either"),
            "decode_jpeg": _IMAGE,
            "decode_png": _IMAGE,
            "decode_webp": _IMAGE,
            "decode_gif": _IMAGE,
        },
        home="torchvision.io.image",
    ),
    _row(
        "numpy",
        ("numpy",),
        {"load": Call("path", keeps=_is_npy, fits=_maps_nothing)},
        home="numpy.lib._npyio_impl",
        places=(("load", "numpy.lib.npyio", "load"),),
    ),
    _row(
        "torch",
        ("torch",),
        {"load": Call("path", keeps=_is_tree_of_tensors, fits=_loads_weights, state=_load_state)},
        home="torch.serialization",
    ),
    _row("soundfile", ("soundfile",), {"read": Call("path", keeps=_is_sound)}),
    _row(
        "torchaudio",
        ("torchaudio",),
        {"load": Call("path", keeps=_is_sound_tensor, fits=_asks_for_samples, state=_audio_state)},
        companions=("torchcodec", "soundfile"),
    ),
    _row(
        "imageio.v3",
        ("imageio",),
        {"imread": Call("path", keeps=_is_small_image, fits=_is_read_by_pillow, state=_pillow_state)},
        places=(("imread", "skimage.io._plugins.imageio_plugin", "imageio_imread"),),
        companions=("pillow",),
    ),
    ("turbojpeg", ("PyTurboJPEG",), _install_turbojpeg),
    _row("simplejpeg", ("simplejpeg",), {"decode_jpeg": Call("bytes")}, home="simplejpeg._jpeg"),
)
