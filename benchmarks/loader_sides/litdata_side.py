"""LitData: chunks of the JPEG files, or of decoded pixels (`decoded`). Options: `cache_bytes`, with the chunks elsewhere.

With `cache_bytes` the chunks are fetched from their folder into a cache on disk that may hold so much.
"""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import litdata
import numpy as np
from litdata.streaming.resolver import Dir
from PIL import Image

from loader_sides.conversion import converted
from loader_sides.images import image_folder, open_image
from loader_sides.job import Epoch, Job


def encoded_sample(sample: tuple[str, int]) -> dict[str, object]:
    return {"image": Path(sample[0]).read_bytes(), "label": sample[1]}


def decoded_sample(sample: tuple[str, int]) -> dict[str, object]:
    return {"image": np.asarray(open_image(sample[0])), "label": sample[1]}


class Complete:
    """From what a chunk holds to the sample; travels to the workers."""

    def __init__(self, transform: object) -> None:
        self.transform = transform

    def __call__(self, kept: dict[str, object]) -> tuple[object, object]:
        image = kept["image"]
        opened = Image.open(io.BytesIO(image)).convert("RGB") if isinstance(image, bytes) else Image.fromarray(image)
        return self.transform(opened), kept["label"]


def open_side(job: Job) -> Epoch:
    folder = image_folder(job)
    decoded = job.options.get("decoded", False)

    def write(place: Path) -> None:
        litdata.optimize(
            fn=decoded_sample if decoded else encoded_sample,
            inputs=folder.samples,
            output_dir=str(place),
            chunk_bytes="8MB" if decoded else "2MB",
            num_workers=1,
            reorder_files=False,
            keep_data_ordered=True,
            verbose=False,
        )

    chunks = converted(job, f"litdata-{'decoded' if decoded else 'jpeg'}", write)
    source: str | Dir = str(chunks)
    limit = job.options.get("cache_bytes")
    if limit is not None:
        cache = Path(job.scratch) / "litdata-cache"
        shutil.rmtree(cache, ignore_errors=True)
        source = Dir(path=str(cache), url=f"local:{chunks}")
    dataset = litdata.StreamingDataset(
        source, shuffle=job.shuffle, transform=Complete(folder.transform), max_cache_size=limit
    )
    loader = litdata.StreamingDataLoader(
        dataset, batch_size=job.batch_size, num_workers=job.workers, persistent_workers=True
    )
    return lambda: loader
