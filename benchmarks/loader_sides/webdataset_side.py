"""WebDataset: the same JPEG files in eight tar files, decoded by Pillow, the classic transform."""

from __future__ import annotations

from pathlib import Path

import webdataset
from torch.utils.data import default_collate
from webdataset.autodecode import imagehandler

from loader_sides.conversion import converted
from loader_sides.images import image_folder
from loader_sides.job import Epoch, Job

NUM_SHARDS = 8


def write(folder: Path, samples: list[tuple[str, int]]) -> None:
    for shard in range(NUM_SHARDS):
        some = samples[shard * len(samples) // NUM_SHARDS : (shard + 1) * len(samples) // NUM_SHARDS]
        with webdataset.TarWriter(str(folder / f"{shard}.tar")) as tar:
            for number, (path, label) in enumerate(some):
                tar.write({"__key__": f"{shard}{number:06d}", "jpg": Path(path).read_bytes(), "cls": label})


def open_side(job: Job) -> Epoch:
    folder = image_folder(job)
    shards = converted(job, "webdataset", lambda place: write(place, folder.samples))
    names = [str(shards / f"{number}.tar") for number in range(NUM_SHARDS)]
    dataset = webdataset.WebDataset(names, shardshuffle=NUM_SHARDS if job.shuffle else False)
    dataset = dataset.shuffle(512) if job.shuffle else dataset
    dataset = dataset.decode(imagehandler("pilrgb")).to_tuple("jpg", "cls").map_tuple(folder.transform, int)
    loader = webdataset.WebLoader(
        dataset.batched(job.batch_size, collation_fn=default_collate),
        batch_size=None,
        num_workers=min(job.workers, NUM_SHARDS),
        persistent_workers=True,
    )
    return lambda: loader
