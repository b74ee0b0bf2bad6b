"""Objects that read an array on access: NumPy archives, TIFF, DICOM, NIfTI and HDF5 files.

The object is created as always. When it decodes, the result is looked up by the identity of its open file, or by the digest of
its compressed bytes, together with everything in the object that decoding depends on.
"""

from __future__ import annotations

import functools
import io
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from hasten.data.memo.arrays import START_OF_NPY, starts_as_npy
from hasten.data.memo.calls import (
    RowOfTable,
    belongs,
    cached_call,
    describe,
    from_open_file,
    from_path,
    is_exact_array,
    is_plain_path,
    releases,
)
from hasten.data.memo.keys import identity_of_bytes, identity_of_open, identity_of_path, key_of
from hasten.data.memo.memo import current

SMALLEST = 4096  # bytes of an HDF5 dataset; below, reading is as fast as a lookup
MAX_OPEN = 4096  # HDF5 files whose identity is remembered

_thread = threading.local()


# NumPy archives


def _install_npz(patches: Any, found: ModuleType, release: bytes) -> None:
    kind: Any = np.lib.npyio.NpzFile
    original = kind.__getitem__
    if not belongs(original, "numpy"):
        return

    @functools.wraps(original)
    def __getitem__(self: Any, key: Any) -> Any:
        member = _member_of(self, key) if current() is not None and type(self) is kind else None
        if member is None:
            return original(self, key)
        descriptor, name, described = member

        def keeps(value: Any) -> bool:
            with self.zip.open(name) as file:
                return is_exact_array(value) and starts_as_npy(file.read(START_OF_NPY))

        return from_open_file(descriptor, (release, described.encode()), lambda: original(self, key), keeps=keeps)

    patches.set(kind, "__getitem__", __getitem__)


def _member_of(archive: Any, key: Any) -> tuple[int, str, str] | None:
    """Return an open archive's descriptor, a member's name, and text that identifies the member in the file."""
    file = getattr(archive.zip, "fp", None)
    if type(key) is not str or type(file) is not io.BufferedReader:
        return None
    name = archive._files.get(key) if hasattr(archive, "_files") else None
    options = describe((archive.allow_pickle, tuple(sorted((archive.pickle_kwargs or {}).items()))))
    if name is None or options is None:
        return None
    info = archive.zip.getinfo(name)
    limit = getattr(archive, "max_header_size", None)
    place = (name, info.header_offset, info.CRC, info.compress_type, info.compress_size, info.file_size, limit)
    return file.fileno(), name, f"npz {place} {options}"


# TIFF


def _install_tiff(patches: Any, found: ModuleType, release: bytes) -> None:
    tifffile: Any = found
    original, original_array = tifffile.imread, tifffile.TiffFile.asarray
    if not belongs(original, "tifffile") or not belongs(original_array, "tifffile"):
        return
    release += releases("imagecodecs")

    @functools.wraps(original)
    def imread(*arguments: Any, **named: Any) -> Any:
        call = (
            describe((arguments[1:], tuple(sorted(named.items())))) if current() is not None and arguments else None
        )
        if (
            call is None
            or not is_plain_path(arguments[0])
            or named.keys() & {"mode", "omexml", "imread", "container", "out"}
        ):
            return original(*arguments, **named)
        _thread.tiff_call = call
        try:
            return original(*arguments, **named)
        finally:
            _thread.tiff_call = None

    @functools.wraps(original_array)
    def asarray(self: Any, *arguments: Any, **named: Any) -> Any:
        call, _thread.tiff_call = getattr(_thread, "tiff_call", None), None
        if call is None or type(self) is not tifffile.TiffFile or not _is_one_file(self):
            return original_array(self, *arguments, **named)
        parts = (release, call.encode(), self.filehandle.extension.encode(errors="surrogateescape"))
        return from_open_file(self.filehandle.fileno(), parts, lambda: original_array(self, *arguments, **named))

    for place, name in (("tifffile", "imread"), ("tifffile.tifffile", "imread"), (_SKIMAGE, "tifffile_imread")):
        owner = sys.modules.get(place)
        if owner is not None and vars(owner).get(name) is original:
            patches.set(owner, name, imread)
    patches.set(tifffile.TiffFile, "asarray", asarray)


_SKIMAGE = "skimage.io._plugins.tifffile_plugin"


def _is_one_file(tiff: Any) -> bool:
    """Whether an open TIFF file does not refer to other files."""
    if any(getattr(tiff, name, False) for name in ("is_mmstack", "is_micromanager", "is_ndtiff")):
        return False
    metadata = tiff.ome_metadata if tiff.is_ome else ""
    return isinstance(metadata, str) and "FileName" not in metadata and "BinaryOnly" not in metadata


# DICOM

_DECODERS = (
    "pylibjpeg",
    "pylibjpeg-libjpeg",
    "pylibjpeg-openjpeg",
    "pylibjpeg-rle",
    "python-gdcm",
    "pillow",
    "pyjpegls",
)
_WARNERS = (
    "pixels.common",
    "pixels.processing",
    "pixels.utils",
    "pixels.decoders.base",
    "pixels.decoders.rle",
    "encaps",
)


def _install_dicom(patches: Any, found: ModuleType, release: bytes) -> None:
    dataset: Any = found
    original: Any = getattr(dataset, "pixel_array", None)  # since pydicom 3
    if not belongs(original, "pydicom"):
        return
    release += releases(*_DECODERS)
    _count_warnings(patches)

    @functools.wraps(original)
    def pixel_array(src: Any, **options: Any) -> Any:
        key = None
        if current() is not None and type(src) in (dataset.Dataset, dataset.FileDataset):
            key = _key_of_pixels(src, options)
        if key is None:
            return original(src, **options)
        before = _num_warnings()
        return cached_call(
            key_of(key, release),
            lambda: original(src, **options),
            keeps=lambda value: is_exact_array(value) and _num_warnings() == before,
            source_bytes=len(src.PixelData),
        )

    patches.set(dataset, "pixel_array", pixel_array)


def _key_of_pixels(dataset: Any, options: dict[str, Any]) -> bytes | None:
    """Return the key of a dataset's decoded pixels; None if they are uncompressed or unusual."""
    from pydicom import config
    from pydicom.pixels.decoders.base import get_decoder
    from pydicom.pixels.utils import _IMAGE_PIXEL  # pyright: ignore[reportPrivateUsage]

    syntax: Any = getattr(getattr(dataset, "file_meta", None), "TransferSyntaxUID", None)
    if not getattr(syntax, "is_encapsulated", False) or 0x7FE00010 not in dataset or 0x7FE00001 in dataset:
        return None
    try:
        decoder: Any = get_decoder(syntax)
        elements = describe(
            tuple((tag, _plain(dataset[tag].value)) for tag in sorted(_IMAGE_PIXEL) if tag in dataset)
        )
    except (NotImplementedError, ValueError):
        return None
    plugins = decoder._available
    element, called = dataset[0x7FE00010], describe(tuple(sorted(options.items())))
    is_usual = all(plugin.__module__.startswith("pydicom.") for plugin in plugins.values())
    if called is None or elements is None or not is_usual or type(element.value) is not bytes:
        return None
    mode = str(config.settings.reading_validation_mode)
    state = repr((str(syntax), elements, called, list(plugins), element.VR, mode, dataset.original_encoding))
    return key_of(identity_of_bytes(element.value), b"dicom", state.encode())


def _plain(value: Any) -> Any:
    """Return the value of an element as a plain value: pydicom's numbers and strings are subclasses."""
    for kind in (int, str):
        if isinstance(value, kind):
            return kind(value)
    return value


def _num_warnings() -> int:
    return getattr(_thread, "num_warnings", 0)


def _count_warnings(patches: Any) -> None:
    """Count the warnings issued while decoding in this thread: a result that caused a warning must cause it again."""
    for name in _WARNERS:
        module = sys.modules.get(f"pydicom.{name}")
        warn = getattr(module, "warn_and_log", None)
        if module is not None and belongs(warn, "pydicom"):
            patches.set(module, "warn_and_log", _counting(warn))


def _counting(warn: Any) -> Callable[..., None]:
    @functools.wraps(warn)
    def warn_and_log(msg: str, category: Any = None, stacklevel: int = 1) -> None:
        _thread.num_warnings = _num_warnings() + 1
        warn(msg, category, stacklevel + 1)

    return warn_and_log


# NIfTI


def _install_nifti(patches: Any, found: ModuleType, release: bytes) -> None:
    kind: Any = found.ArrayProxy
    original = kind._get_scaled
    if not belongs(original, "nibabel"):
        return
    release += releases("numpy")

    @functools.wraps(original)
    def _get_scaled(self: Any, dtype: Any, slicer: Any) -> Any:
        described = None
        if current() is not None and type(self) is kind and _is_whole(slicer):
            described = _describe_proxy(self, dtype)
        if described is None:
            return original(self, dtype, slicer)
        return from_path(self.file_like, (release, described.encode()), lambda: original(self, dtype, slicer))

    patches.set(kind, "_get_scaled", _get_scaled)


def _describe_proxy(proxy: Any, dtype: Any) -> str | None:
    if not is_plain_path(proxy.file_like) or proxy._keep_file_open or hasattr(proxy, "_opener"):
        return None
    target_dtype = None if dtype is None else np.dtype(dtype)
    scaling = tuple(
        one.item() if type(one) is np.ndarray and not one.ndim else one for one in (proxy._slope, proxy._inter)
    )
    types = tuple(np.asanyarray(one).dtype for one in (proxy._slope, proxy._inter))
    return describe(
        (
            tuple(map(int, proxy._shape)),
            proxy._dtype,
            int(proxy._offset),
            scaling,
            types,
            str(proxy.order),
            str(proxy._mmap),
            target_dtype,
        )
    )


def _is_whole(index: Any) -> bool:
    """Whether an index selects the whole array: (), ... or :."""
    if type(index) is tuple:
        return not index or (len(index) == 1 and _is_whole(index[0]) and index[0] != ())
    return index is Ellipsis or (type(index) is slice and index == slice(None))


# HDF5


def _install_hdf5(patches: Any, found: ModuleType, release: bytes) -> None:
    h5py: Any = found
    open_file, read = h5py.File.__init__, h5py.Dataset.__getitem__
    if not belongs(open_file, "h5py") or not belongs(read, "h5py"):
        return
    release += str(h5py.version.hdf5_version).encode()
    identities: dict[int, bytes] = {}

    @functools.wraps(open_file)
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:
        name = arguments[0] if arguments else named.get("name")
        before = identity_of_path(name) if current() is not None and is_plain_path(name) else None
        open_file(self, *arguments, **named)
        if before is not None and _identity_of_hdf5(self.id) == before and _is_only_read(h5py, self):
            identities[h5py.h5o.get_info(self.id).fileno] = before
            if len(identities) > MAX_OPEN:
                identities.pop(next(iter(identities)), None)

    @functools.wraps(read)
    def __getitem__(self: Any, args: Any, new_dtype: Any = None) -> Any:
        place = None
        if current() is not None and new_dtype is None and type(self) is h5py.Dataset and _is_whole(args):
            place = _place_of(h5py, self, identities)
        if place is None:
            return read(self, args) if new_dtype is None else read(self, args, new_dtype=new_dtype)
        descriptor, described = place
        return from_open_file(descriptor, (release, described.encode()), lambda: read(self, args))

    patches.set(h5py.File, "__init__", __init__)
    patches.set(h5py.Dataset, "__getitem__", __getitem__)


def _identity_of_hdf5(file: Any) -> bytes | None:
    try:
        return identity_of_open(file.get_vfd_handle())
    except (OSError, ValueError, RuntimeError, NotImplementedError, TypeError):  # another driver
        return None


def _is_only_read(h5py: Any, file: Any) -> bool:
    """Whether the file was opened read-only, and was not open in this process before."""
    is_read = file.mode == "r" and file.driver == "sec2" and not file.swmr_mode
    return is_read and h5py.h5f.get_obj_count(file.id, h5py.h5f.OBJ_FILE) == 1


def _place_of(h5py: Any, dataset: Any, identities: dict[int, bytes]) -> tuple[int, str] | None:
    """Return the descriptor of a dataset's file, and text that identifies the dataset in the file.

    Returns None if the dataset is uncompressed, is stored elsewhere, or its file has changed since it was opened: HDF5 caches
    parts of the file.
    """
    info = h5py.h5o.get_info(dataset.id) if dataset.id else None
    known = identities.get(info.fileno) if info is not None else None
    if info is None or known is None or not dataset.chunks or dataset.is_virtual or dataset.external:
        return None
    dtype, filters = dataset.dtype, [dataset._dcpl.get_filter(at)[0] for at in range(dataset._dcpl.get_nfilters())]
    if dtype.hasobject or dtype.metadata or dtype.names or dataset.nbytes < SMALLEST:
        return None
    if not filters or not all(map(h5py.h5z.filter_avail, filters)):
        return None
    descriptor = h5py.h5i.get_file_id(dataset.id).get_vfd_handle()
    if identity_of_open(descriptor) != known:
        return None
    return descriptor, f"hdf5 {info.addr} {dataset.shape} {dtype.str}"


ROWS: tuple[RowOfTable, ...] = (
    ("numpy", ("numpy",), _install_npz),
    ("tifffile", ("tifffile",), _install_tiff),
    ("pydicom.dataset", ("pydicom",), _install_dicom),
    ("nibabel.arrayproxy", ("nibabel",), _install_nifti),
    ("h5py", ("h5py",), _install_hdf5),
)
