"""Makes the data of the scripts of this folder, from photographs or from synthetic images of natural file sizes."""

from __future__ import annotations

import argparse
import io
import random
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = 10
SCENES, BANDS, SCENE_SIDE = 24, 8, 1024  # 32 MiB each
SLICE_SIDE = 512
SHARDS = 8
FEATURES = 512


class Photographs(Sequence[bytes]):
    """JPEG files: those found in a folder, in an order of no meaning, or synthetic ones."""

    def __init__(self, folder: Path | None, number: int) -> None:
        self._paths = sorted(folder.rglob("*.jp*g")) if folder is not None else []
        if folder is not None and not self._paths:
            raise SystemExit(f"{folder} holds no JPEG files")
        random.Random(0).shuffle(self._paths)
        self._number = min(number, len(self._paths)) if self._paths else number
        self.kind = "photographs" if self._paths else "synthetic"

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: int) -> bytes:  # type: ignore[override]
        if not 0 <= index < self._number:
            raise IndexError(index)
        return self._paths[index].read_bytes() if self._paths else synthetic(index)

    def grey(self, index: int, side: int) -> np.ndarray:
        """A photograph as a square of grey values, 0..255."""
        image = Image.open(io.BytesIO(self[index % len(self)])).convert("L")
        return np.asarray(image.resize((side, side), Image.Resampling.BILINEAR), np.float32)


def synthetic(seed: int, size: tuple[int, int] = (500, 375)) -> bytes:
    """A JPEG file of noise on every scale, about as large as a photograph's: 1/f, like natural images."""
    rng = np.random.default_rng(seed)
    total = np.zeros((size[1], size[0], 3), np.float32)
    cells = 4
    while cells < size[0]:
        noise = rng.normal(0, 60 * (4 / cells) ** 0.75, (cells, cells, 3)).astype(np.float32)
        bands = [
            Image.fromarray(noise[..., band]).resize(size, Image.Resampling.BICUBIC)
            for band in range(noise.shape[-1])
        ]
        total += np.stack([np.asarray(band) for band in bands], -1)
        cells *= 2
    grain = rng.normal(0, 3, (*total.shape[:2], 1))
    file = io.BytesIO()
    Image.fromarray((total + grain + 128).clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=92)
    return file.getvalue()


def labelled(photographs: Photographs) -> Iterator[tuple[int, bytes, int]]:
    for number, data in enumerate(photographs):
        yield number, data, number % CLASSES


def make_hf_arrow(folder: Path, photographs: Photographs) -> None:
    import datasets

    def rows() -> Iterator[dict[str, object]]:
        for _, data, label in labelled(photographs):
            yield {"image": {"bytes": data, "path": None}, "label": label}

    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    datasets.Dataset.from_list(list(rows()), features=features).save_to_disk(str(folder))


def make_tar_shards(folder: Path, photographs: Photographs) -> None:
    for shard in range(SHARDS):
        with tarfile.open(folder / f"{shard:04}.tar", "w") as archive:
            for number in range(shard, len(photographs), SHARDS):
                for suffix, content in (("jpg", photographs[number]), ("cls", str(number % CLASSES).encode())):
                    member = tarfile.TarInfo(f"{number:06}.{suffix}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))


def make_cv2_images(folder: Path, photographs: Photographs) -> None:
    for number, data, label in labelled(photographs):
        (folder / str(label)).mkdir(exist_ok=True)
        (folder / str(label) / f"{number:06}.jpg").write_bytes(data)


def make_numpy_scenes(folder: Path, photographs: Photographs) -> None:
    """As many bands as it takes are photographs; with fewer samples, fewer and smaller scenes."""
    number = min(SCENES, max(2, len(photographs) // 16))
    side = SCENE_SIDE if number == SCENES else SCENE_SIDE // 4
    for scene in range(number):
        bands = [photographs.grey(scene * BANDS + band, side) / 255 for band in range(BANDS)]
        np.save(folder / f"{scene:02}.npy", np.stack(bands))


def make_dicom(folder: Path, photographs: Photographs) -> None:
    """Slices of 16 bits in the range of a CT's, compressed without loss."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, RLELossless, generate_uid

    rng = np.random.default_rng(0)
    for number in range(len(photographs)):
        grain = rng.normal(0, 12, (SLICE_SIDE, SLICE_SIDE))
        pixels = (photographs.grey(number, SLICE_SIDE) * 8 - 1024 + grain).astype(np.int16)
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID = CTImageStorage
        meta.MediaStorageSOPInstanceUID = generate_uid()
        meta.TransferSyntaxUID = ExplicitVRLittleEndian
        found = FileDataset(None, {}, file_meta=meta, preamble=b"\0" * 128)  # type: ignore[arg-type]
        found.SOPClassUID, found.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
        found.Rows, found.Columns, found.SamplesPerPixel = *pixels.shape, 1
        found.PhotometricInterpretation = "MONOCHROME2"
        found.BitsAllocated, found.BitsStored, found.HighBit, found.PixelRepresentation = 16, 16, 15, 1
        found.PixelData = pixels.tobytes()
        found.compress(RLELossless)
        found.save_as(folder / f"{number:06}.dcm", enforce_file_format=True)


def make_mixed(folder: Path, photographs: Photographs) -> None:
    for part in ("photos", "masks", "features"):
        (folder / part).mkdir()
    rng = np.random.default_rng(0)
    for number, data, _ in labelled(photographs):
        (folder / "photos" / f"{number:06}.jpg").write_bytes(data)
        grey = Image.open(io.BytesIO(data)).convert("L")
        grey.point(lambda value: value // 64 * 64).save(folder / "masks" / f"{number:06}.png")
        np.save(folder / "features" / f"{number:06}.npy", rng.normal(size=FEATURES).astype(np.float32))


MAKERS = {
    "hf_arrow": make_hf_arrow,
    "tar_shards": make_tar_shards,
    "cv2_images": make_cv2_images,
    "numpy_scenes": make_numpy_scenes,
    "dicom": make_dicom,
    "mixed": make_mixed,
}


def made(name: str, folder: Path, photographs: Photographs) -> Path:
    """The folder of a script's data, made where it is not there yet."""
    place = folder / f"{name}-{len(photographs)}-{photographs.kind}"
    if not place.exists():
        aside = folder / f".{place.name}"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        MAKERS[name](aside, photographs)
        aside.rename(place)
    return place


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the data of one script, and print where it lies.")
    parser.add_argument("name", choices=MAKERS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--photos", type=Path, help="JPEG files; without it, images are synthetic")
    parser.add_argument("--samples", type=int, default=1200)
    wanted = parser.parse_args()
    print(made(wanted.name, wanted.folder, Photographs(wanted.photos, wanted.samples)))


if __name__ == "__main__":
    main()
