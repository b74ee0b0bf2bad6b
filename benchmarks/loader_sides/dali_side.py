"""NVIDIA DALI on the CPU: its fused decoder and random crop, antialiased triangular resize, normalised floats."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from nvidia.dali import fn, pipeline_def, types

from loader_sides.images import MEAN, SIZE, STD, image_folder
from loader_sides.job import Epoch, Job


def open_side(job: Job) -> Epoch:
    samples = image_folder(job).samples

    @pipeline_def(batch_size=job.batch_size, num_threads=job.workers, device_id=None, seed=1, prefetch_queue_depth=2)
    def photographs() -> tuple[object, object]:
        encoded, labels = fn.readers.file(
            files=[path for path, _ in samples],
            labels=[label for _, label in samples],
            random_shuffle=job.shuffle,
            prefetch_queue_depth=2,
        )
        mirror: object = 0
        if job.transform == "random_crop":
            images = fn.decoders.image_random_crop(
                encoded, device="cpu", random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
            )
            mirror = fn.random.coin_flip()
        else:
            images = fn.decoders.image(encoded, device="cpu")
        small = fn.resize(images, size=[SIZE, SIZE], interp_type=types.INTERP_TRIANGULAR, antialias=True)
        mean, std = [255 * x for x in MEAN], [255 * x for x in STD]
        return fn.crop_mirror_normalize(small, output_layout="CHW", mean=mean, std=std, mirror=mirror), labels

    pipeline = photographs()
    pipeline.build()

    def one_epoch() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Batches are always full: DALI begins the next epoch in the middle of one. They lie in its own memory."""
        for _ in range(math.ceil(len(samples) / job.batch_size)):
            images, labels = pipeline.run()
            yield torch.from_dlpack(images.as_tensor()), torch.from_dlpack(labels.as_tensor()).flatten()

    return one_epoch
