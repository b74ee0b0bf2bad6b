"""MosaicML Streaming: shards of the JPEG files, or of decoded pixels (`decoded`). Options: `cache_bytes`.

With `cache_bytes` the shards are fetched from their folder into a cache on disk that may hold so much.
"""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import numpy as np
from PIL import Image
from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader

from loader_sides.conversion import converted
from loader_sides.images import image_folder, open_image
from loader_sides.job import Epoch, Job


class Photos(StreamingDataset):
    """Shards of images with the classic transform."""

    def __init__(self, transform: object, **options: object) -> None:
        super().__init__(**options)
        self.transform = transform

    def __getitem__(self, index: int) -> tuple[object, object]:
        kept = super().__getitem__(index)
        image = kept["image"]
        opened = Image.open(io.BytesIO(image)).convert("RGB") if isinstance(image, bytes) else Image.fromarray(image)
        return self.transform(opened), kept["label"]


def open_side(job: Job) -> Epoch:
    clean_stale_shared_memory()
    folder = image_folder(job)
    decoded = job.options.get("decoded", False)

    def write(place: Path) -> None:
        columns = {"image": "ndarray:uint8" if decoded else "bytes", "label": "int"}
        with MDSWriter(out=str(place), columns=columns, size_limit="8mb" if decoded else "2mb") as writer:
            for path, label in folder.samples:
                image = np.asarray(open_image(path)) if decoded else Path(path).read_bytes()
                writer.write({"image": image, "label": label})

    shards = converted(job, f"streaming-{'decoded' if decoded else 'jpeg'}", write)
    place: dict[str, object] = {"local": str(shards)}
    limit = job.options.get("cache_bytes")
    if limit is not None:
        cache = Path(job.scratch) / "streaming-cache"
        shutil.rmtree(cache, ignore_errors=True)
        place = {"local": str(cache), "remote": str(shards), "cache_limit": limit}
    dataset = Photos(folder.transform, shuffle=job.shuffle, batch_size=job.batch_size, **place)
    loader = DataLoader(
        dataset, batch_size=job.batch_size, num_workers=job.workers, persistent_workers=job.workers > 0
    )
    return lambda: loader
