"""hasten's Loader. Options: `pixels`, and `cache` as the Loader takes it."""

from hasten import Loader
from loader_sides.datasets import make_dataset
from loader_sides.job import Epoch, Job


def open_side(job: Job) -> Epoch:
    loader = Loader(
        make_dataset(job),
        batch_size=job.batch_size,
        shuffle=job.shuffle,
        num_workers=job.workers,
        persistent_workers=job.workers > 0,
        **job.options,
    )
    return lambda: loader
