"""Which sides run in which workload, each in its own best configuration. Imports no side."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from loader_sides.job import Transform


@dataclass(frozen=True, kw_only=True)
class Side:
    """A row of a table."""

    name: str
    module: str
    needs: str
    """The package without which it cannot run."""
    options: dict[str, Any] = field(default_factory=dict)
    data: str | None = None
    """In place of the workload's data set."""
    workers: int | None = None
    """Fixed; None: the best number is searched for, from 1 to twice the cores."""
    environment: str = "main"
    """`main`, or `streaming`, whose numpy is older."""
    images: bool = True
    """Its output can be compared with Pillow's."""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A table."""

    title: str
    data: str
    batch_size: int
    sides: tuple[Side, ...]
    transform: Transform = "random_crop"
    images: bool = True
    workers: int | None = None
    """For all sides."""
    bound: float | None = None
    """Samples a second if no worker ever waited for another's slow sample."""


def torch_side(name: str = "torch", **fields: Any) -> Side:
    return Side(name=name, module="torch_side", needs="torch", **fields)


def hasten(pixels: str, *, cache: int | str = 0, name: str = "", **fields: Any) -> Side:
    options = {"pixels": pixels, "cache": cache}
    return Side(
        name=name or f"hasten {pixels}", module="hasten_side", needs="hasten:Loader", options=options, **fields
    )


def monai(*, cache_rate: float, threads: bool) -> Side:
    return Side(
        name=f"monai {'threads' if threads else 'processes'}",
        module="monai_side",
        needs="monai",
        options={"cache_rate": cache_rate, "threads": threads},
    )


def converted_note(options: dict[str, Any]) -> str:
    return "converted: decoded pixels" if options.get("decoded") else "converted: the same JPEG files"


def litdata(**options: Any) -> Side:
    note = converted_note(options)
    return Side(name="litdata", module="litdata_side", needs="litdata", options=options, note=note)


def streaming(**options: Any) -> Side:
    return Side(
        name="streaming",
        module="streaming_side",
        needs="streaming",
        options=options,
        environment="streaming",
        note=converted_note(options),
    )


def floor(name: str, what: str, *, needs: str) -> Side:
    return Side(name=name, module="floor_side", needs=needs, options={"what": what}, workers=0, images=False)


def ffcv(*, raw: bool, note: str) -> Side:
    return Side(name="ffcv", module="ffcv_side", needs="ffcv", options={"raw": raw}, note=note)


LEAN = "simplejpeg, torch's resize of bytes, floats once a batch"
TORCH_0 = torch_side("torch, 0 workers", workers=0)
TORCH_BESIDE_STREAMING = torch_side("torch beside streaming", environment="streaming")

PHOTOS_COLD = (
    TORCH_0,
    torch_side(),
    torch_side("torch lean", data="lean_photos", note=LEAN),
    torch_side("stateful", options={"stateful": True}),
    Side(name="nodes", module="nodes_side", needs="torchdata"),
    Side(name="nodes lean", module="nodes_side", needs="torchdata", options={"lean": True}, note=LEAN),
    Side(name="spdl", module="spdl_side", needs="spdl.pipeline", note=f"{LEAN}; no order kept"),
    Side(name="grain", module="grain_side", needs="grain", note=f"{LEAN}; batches cross epochs"),
    Side(name="dali", module="dali_side", needs="nvidia.dali", note="its own crop and resize; batches cross epochs"),
    Side(
        name="webdataset",
        module="webdataset_side",
        needs="webdataset",
        note="converted: the same JPEG files; a buffer of 512 is shuffled",
    ),
    ffcv(raw=False, note="converted: written anew at quality 90; its own crop and resize"),
    litdata(),
    streaming(),
    TORCH_BESIDE_STREAMING,
    monai(cache_rate=0.0, threads=False),
    monai(cache_rate=0.0, threads=True),
    Side(name="hf datasets", module="hf_side", needs="datasets"),
    hasten("identical"),
    hasten("close"),
)

PHOTOS_SECOND_EPOCH = (
    torch_side(),
    monai(cache_rate=1.0, threads=False),
    monai(cache_rate=1.0, threads=True),
    ffcv(raw=True, note="converted: raw pixels; its own crop and resize"),
    litdata(decoded=True),
    streaming(decoded=True),
    TORCH_BESIDE_STREAMING,
    hasten("identical", cache="4 GiB"),
    hasten("close", cache="4 GiB"),
)

CENTER_SECOND_EPOCH = (
    torch_side(),
    monai(cache_rate=1.0, threads=False),
    monai(cache_rate=1.0, threads=True),
    hasten("identical", cache="4 GiB"),
    hasten("close", cache="4 GiB"),
    floor("copy of float32", "copy_float", needs="numpy"),
    floor("copy of uint8", "copy_uint8", needs="numpy"),
)

HALF = "half"
"""Stands for half of the bytes of the decoded photographs, in `cache` and `cache_bytes`."""

HALF_CACHE = (
    torch_side(),
    monai(cache_rate=0.5, threads=False),
    monai(cache_rate=0.5, threads=True),
    litdata(decoded=True, cache_bytes=HALF),
    streaming(decoded=True, cache_bytes=HALF),
    hasten("close", cache=0, name="hasten, no cache"),
    hasten("close", cache=HALF, name="hasten, half"),
    hasten("close", cache="4 GiB", name="hasten, whole"),
)

XRAYS = (
    TORCH_0,
    torch_side(),
    hasten("identical"),
    hasten("close"),
    hasten("identical", cache="4 GiB", name="hasten identical, second epoch"),
    hasten("close", cache="4 GiB", name="hasten close, second epoch"),
    floor("decode: pillow", "pillow", needs="PIL"),
    floor("decode: cv2", "cv2", needs="cv2"),
    floor("decode: torchvision", "torchvision", needs="torchvision"),
    floor("decode: imagecodecs", "imagecodecs", needs="imagecodecs"),
)

UNEVEN_BOUND = 2 / (0.99 * 0.5e-3 + 0.01 * 50e-3)  # two workers over the mean seconds of a sample

TORCH_AND_HASTEN = (torch_side(), hasten("identical", name="hasten"))

WORKLOADS = {
    "photos_cold": Workload(
        title="photographs, random crop to 224, flip, normalised; every epoch decodes",
        data="photos",
        batch_size=64,
        sides=PHOTOS_COLD,
    ),
    "photos_second_epoch": Workload(
        title="the same, epochs after the first; what can be kept fits in memory",
        data="photos",
        batch_size=64,
        sides=PHOTOS_SECOND_EPOCH,
    ),
    "center_second_epoch": Workload(
        title="photographs, short side to 256, centre 224, normalised; epochs after the first",
        data="photos",
        batch_size=64,
        transform="center",
        sides=CENTER_SECOND_EPOCH,
    ),
    "half_cache": Workload(
        title="photographs, random crop; room for half of the decoded bytes",
        data="photos",
        batch_size=64,
        sides=HALF_CACHE,
    ),
    "xray": Workload(
        title="X-ray images, gray PNG 1024 x 1024, opened as RGB, to 224 x 224, normalised",
        data="xray",
        batch_size=16,
        transform="squash",
        sides=XRAYS,
    ),
    "tensors": Workload(
        title="TensorDataset in memory, 200 000 x 64 floats and a label, shuffled",
        data="tensors",
        batch_size=512,
        images=False,
        sides=(TORCH_0, floor("slicing", "slicing", needs="torch"), hasten("identical", name="hasten", workers=0)),
    ),
    "float_batches": Workload(
        title="ready floats 3 x 224 x 224, carried to a batch of 256",
        data="float_batches",
        batch_size=256,
        images=False,
        workers=2,
        sides=TORCH_AND_HASTEN,
    ),
    "uneven": Workload(
        title="0.5 ms of CPU a sample, one in a hundred 50 ms",
        data="uneven_spin",
        batch_size=32,
        images=False,
        workers=2,
        bound=UNEVEN_BOUND,
        sides=TORCH_AND_HASTEN,
    ),
    "uneven_sleep": Workload(
        title="0.5 ms of waiting a sample, one in a hundred 50 ms",
        data="uneven_sleep",
        batch_size=32,
        images=False,
        workers=2,
        bound=UNEVEN_BOUND,
        sides=TORCH_AND_HASTEN,
    ),
    "numpy_dataset": Workload(
        title="300 microseconds of plain Python a sample",
        data="python_only",
        batch_size=64,
        images=False,
        sides=(TORCH_0, *TORCH_AND_HASTEN),
    ),
}
