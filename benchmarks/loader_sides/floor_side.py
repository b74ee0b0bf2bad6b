"""What the work costs with no loader at all: lower bounds to hold the sides against.

Options: `what`: a memory copy of the batches ("copy_float", "copy_uint8"), the rows of a tensor taken directly
("slicing"), or a bare decode of each X-ray image in this one process ("pillow", "cv2", "torchvision", "imagecodecs").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from loader_sides.datasets import make_tensors
from loader_sides.images import SIZE, image_folder
from loader_sides.job import Epoch, Job


def open_side(job: Job) -> Epoch:
    what = job.options["what"]
    if what == "slicing":
        return slicing(job)
    if what.startswith("copy"):
        return copying(job, np.float32 if what == "copy_float" else np.uint8)
    return decoding(
        job, {"pillow": pillow, "cv2": cv2, "torchvision": torchvision, "imagecodecs": imagecodecs}[what]()
    )


def slicing(job: Job) -> Epoch:
    inputs, labels = make_tensors(job).tensors

    def one_epoch() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        order = torch.randperm(len(inputs))
        for start in range(0, len(order), job.batch_size):
            some = order[start : start + job.batch_size]
            yield inputs[some], labels[some]

    return one_epoch


def copying(job: Job, dtype: type) -> Epoch:
    """From images that lie ready, one after another, into one batch that is used again."""
    num_images = len(image_folder(job).samples)
    images = np.ones((num_images, 3, SIZE, SIZE), dtype)
    batch, labels = np.ones((job.batch_size, 3, SIZE, SIZE), dtype), np.zeros(num_images, np.int64)

    def one_epoch() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, num_images, job.batch_size):
            some = images[start : start + job.batch_size]
            np.copyto(batch[: len(some)], some)
            yield batch[: len(some)], labels[start : start + len(some)]

    return one_epoch


def decoding(job: Job, decode: Callable[[bytes], np.ndarray]) -> Epoch:
    """Each X-ray image by itself: no resize, no floats, no batch."""
    samples = image_folder(job).samples

    def one_epoch() -> Iterator[tuple[np.ndarray, list[int]]]:
        for path, label in samples:
            yield decode(Path(path).read_bytes()), [label]

    return one_epoch


def pillow() -> Callable[[bytes], np.ndarray]:
    import io

    return lambda data: np.asarray(Image.open(io.BytesIO(data)))


def cv2() -> Callable[[bytes], np.ndarray]:
    import cv2

    cv2.setNumThreads(1)
    return lambda data: cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)


def torchvision() -> Callable[[bytes], np.ndarray]:
    from torchvision.io import decode_png

    return lambda data: decode_png(torch.frombuffer(bytearray(data), dtype=torch.uint8))


def imagecodecs() -> Callable[[bytes], np.ndarray]:
    import imagecodecs

    return imagecodecs.png_decode
