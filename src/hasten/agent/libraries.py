"""Which functions of which libraries belong to which stage of loading: read, decode, transform.

They are timed from the moment the script imports them; hasten imports none of these libraries itself.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
from types import ModuleType

from hasten.agent.stages import Function, clock
from hasten.patches import Patches

MOST_FILES = 256  # files remembered by one process

_files: dict[str, None] = {}  # in the order in which they were read
_taken = 0

# module -> functions, by stage. A function within another of the same stage counts for the outer one.
# First the functions whose results a cache of library calls keeps, as hasten.data.memo has them in its table.
KEPT_READ = {
    "numpy": ("load",),
    "numpy.lib._npyio_impl:NpzFile": ("__getitem__",),
    "h5py:Dataset": ("__getitem__",),
    "torch": ("load",),
}
KEPT_DECODE = {
    "cv2": ("imread", "imreadmulti", "imdecode"),
    "torchvision.io": ("read_image", "decode_image", "decode_jpeg", "decode_png", "decode_webp", "decode_gif"),
    "torchvision.io.image": ("read_image", "decode_image", "decode_jpeg", "decode_png", "decode_webp", "decode_gif"),
    "simplejpeg": ("decode_jpeg",),
    "turbojpeg:TurboJPEG": ("decode",),
    "imageio.v3": ("imread",),
    "tifffile": ("imread",),
    "pydicom.dataset": ("pixel_array",),
    "nibabel.arrayproxy:ArrayProxy": ("_get_scaled",),
    "soundfile": ("read",),
    "torchaudio": ("load",),
}
KEPT_FORMATS = ("JPEG", "MPO", "PNG", "BMP", "PPM", "JPEG2000")  # of Pillow
KEPT_TRANSFORM = (
    "Image.convert",
    "Image.resize",
    "Resize",
)  # of images that Pillow decoded; the last is torchvision's
READ = {
    "numpy": ("fromfile", "loadtxt", "genfromtxt"),
    "h5py:File": ("__init__",),
    "os": ("read", "pread"),
    "pandas": ("read_csv", "read_parquet", "read_pickle"),
    "torchvision.io": ("read_file",),
    "pydicom": ("dcmread",),
}
DECODE = {
    "torchvision.io": ("read_video",),
    "imageio.v2": ("imread",),
    "librosa": ("load",),
    "pickle": ("load", "loads"),
    "json": ("load", "loads"),
    "zlib": ("decompress",),
}
TRANSFORM = {
    "PIL.Image:Image": (
        "resize",
        "convert",
        "rotate",
        "crop",
        "transform",
        "filter",
        "thumbnail",
        "transpose",
    ),
    "cv2": (
        "resize",
        "cvtColor",
        "GaussianBlur",
        "medianBlur",
        "warpAffine",
        "warpPerspective",
        "remap",
        "flip",
    ),
    "scipy.ndimage": ("zoom", "rotate", "gaussian_filter", "map_coordinates", "affine_transform", "shift"),
    "skimage.transform": ("resize", "rescale", "rotate", "warp"),
}
NAMES = {"PIL.Image:Image": "Image", "cv2": "cv2", "scipy.ndimage": "ndimage", "skimage.transform": "skimage"}
LIBRARIES = {
    "cv2": "OpenCV",
    "torchvision.io": "torchvision",
    "torchvision.io.image": "torchvision",
    "h5py:File": "HDF5 file",
}


def _library(place: str) -> str:
    return LIBRARIES.get(place, place.partition(":")[0].partition(".")[0])


# Stages, with what they say in detail, whose results can be kept.
KEPT = frozenset(
    (stage, _library(place)) for stage, table in (("read", KEPT_READ), ("decode", KEPT_DECODE)) for place in table
) | {("decode", f"Pillow {name}") for name in KEPT_FORMATS}


def install(patches: Patches) -> None:
    """Have the libraries' functions timed, those loaded now and those loaded later."""
    for stage, table, is_kept in (
        ("read", KEPT_READ, True),
        ("decode", KEPT_DECODE, True),
        ("read", READ, False),
        ("decode", DECODE, False),
        ("transform", TRANSFORM, False),
    ):
        for place, names in table.items():
            details = {name: _detail(stage, place, name, is_kept=is_kept) for name in names}
            action = functools.partial(_wrap_all, patches, stage, place.partition(":")[2], details)
            patches.after_import(place.partition(":")[0], action)
    patches.after_import("PIL.ImageFile", functools.partial(_wrap_pillow, patches))
    for module in ("torchvision.transforms.transforms", "albumentations.core.composition"):
        patches.after_import(module, functools.partial(_wrap_compose, patches, "__call__"))
    patches.after_import("torchvision.transforms.v2._container", functools.partial(_wrap_compose, patches, "forward"))
    for module in (builtins, io):
        patches.wrap(module, "open", _timed_open)


def _detail(stage: str, place: str, name: str, *, is_kept: bool) -> str:
    """What a function is called: by its library, where that does not take it for one whose results can be kept."""
    if stage == "transform":
        return f"{NAMES[place]}.{name}"
    library = _library(place)
    return library if is_kept or (stage, library) not in KEPT else f"{library}.{name}"


def _wrap_all(patches: Patches, stage: str, owner: str, details: dict[str, str], module: ModuleType) -> None:
    target = getattr(module, owner) if owner else module
    for name, detail in details.items():
        size = _size_of if stage in ("decode", "read") else None
        patches.wrap(target, name, functools.partial(_make, stage, detail, size))


def _make(stage: str, detail: str, size: object, function: Function) -> Function:
    return clock.timed(function, stage, detail, size=size)  # type: ignore[arg-type]


def _size_of(result: object) -> int:
    if isinstance(result, (bytes, bytearray, memoryview)):
        return len(result)
    size = getattr(result, "nbytes", 0)
    return size if isinstance(size, int) else 0


def _wrap_pillow(patches: Patches, module: ModuleType) -> None:
    kind = module.ImageFile

    def make(original: Function) -> Function:
        @functools.wraps(original)
        def load(self: object) -> object:
            # `tile` says what is still to be decoded; a second load() costs nothing.
            if not clock.active or not getattr(self, "tile", None):
                return original(self)
            clock.push("decode")
            try:
                return original(self)
            finally:
                width, height = self.size  # type: ignore[attr-defined]
                bands = len(self.getbands())  # type: ignore[attr-defined]
                clock.pop(("decode", f"Pillow {self.format}"), num_bytes=width * height * bands)  # type: ignore[attr-defined]

        return load

    patches.wrap(kind, "load", make)


def _wrap_compose(patches: Patches, name: str, module: ModuleType) -> None:
    compose = module.Compose

    def make(original: Function) -> Function:
        @functools.wraps(original)
        def call(self: object, *arguments: object, **settings: object) -> object:
            space = self.__dict__
            transforms = space.get("transforms")
            if not clock.active or not isinstance(transforms, (list, tuple)):
                return original(self, *arguments, **settings)
            space["transforms"] = [
                t if isinstance(t, compose) or not callable(t) else _TimedTransform(t) for t in transforms
            ]
            try:
                return original(self, *arguments, **settings)
            finally:
                space["transforms"] = transforms

        return call

    patches.wrap(compose, name, make)


class _TimedTransform:
    """A transform of a Compose for the length of one call; passes for the transform itself."""

    def __init__(self, transform: Function) -> None:
        name = getattr(transform, "__name__", type(transform).__name__)
        self.__dict__.update(_inner=transform, _call=clock.timed(_plain(transform), "transform", name))

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        return type(self._inner)

    def __getattr__(self, name: str) -> object:
        return getattr(self.__dict__["_inner"], name)

    def __call__(self, *arguments: object, **settings: object) -> object:
        call: Function = self.__dict__["_call"]
        return call(*arguments, **settings)


def _plain(transform: Function) -> Function:
    # functools.wraps would copy a module's whole __dict__ onto the wrapper.
    return lambda *arguments, **settings: transform(*arguments, **settings)


def _timed_open(original: Function) -> Function:
    @functools.wraps(original)
    def open(
        file: object,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: object = None,
    ) -> object:
        plain = clock.active and isinstance(file, (str, os.PathLike)) and opener is None
        if not plain or buffering != -1 or mode.strip("bt") != "r":
            return original(file, mode, buffering, encoding, errors, newline, closefd, opener)
        _remember(os.fspath(file))  # type: ignore[arg-type]
        clock.push("read")
        try:
            reader = _TimedReader(original(file, "rb", 0))  # type: ignore[arg-type]
        finally:
            clock.pop(("read", "file"))
        if "b" in mode:
            return reader
        text = io.TextIOWrapper(reader, encoding, errors, newline)
        text.mode = mode  # type: ignore[misc]
        return text

    return open


class _TimedReader(io.BufferedReader):
    """A file opened while a batch is timed; still a BufferedReader for `isinstance`."""

    def read(self, size: int | None = -1, /) -> bytes:
        if not clock.active or clock.is_open("read"):
            return super().read(size)
        clock.push("read")
        data = b""
        try:
            data = super().read(size)
            return data
        finally:
            clock.pop(("read", "file"), num_bytes=len(data))

    def readinto(self, buffer: object, /) -> int:
        if not clock.active or clock.is_open("read"):
            return super().readinto(buffer)  # type: ignore[arg-type]
        clock.push("read")
        number = 0
        try:
            number = super().readinto(buffer)  # type: ignore[arg-type]
            return number
        finally:
            clock.pop(("read", "file"), num_bytes=number)


def _remember(path: str | bytes) -> None:
    if len(_files) < MOST_FILES and isinstance(path, str):
        _files[os.path.abspath(path)] = None


def take_files() -> list[str]:
    """Files read since the last call that were not returned before."""
    global _taken
    fresh = list(_files)[_taken:]
    _taken += len(fresh)
    return fresh
