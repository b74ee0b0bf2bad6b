"""torch's DataLoader, and torchdata's StatefulDataLoader, which has its face.

Options: `stateful`; `workers` to hold the number of workers instead of searching for the best.
"""

from torch.utils.data import DataLoader

from loader_sides.datasets import make_dataset
from loader_sides.job import Epoch, Job


def open_side(job: Job) -> Epoch:
    if job.options.get("stateful"):
        from torchdata.stateful_dataloader import StatefulDataLoader as DataLoaderClass
    else:
        DataLoaderClass = DataLoader
    collate = None
    if job.data == "lean_photos":
        from loader_sides.images import lean_collate as collate
    loader = DataLoaderClass(
        make_dataset(job),
        batch_size=job.batch_size,
        shuffle=job.shuffle,
        num_workers=job.workers,
        persistent_workers=job.workers > 0,
        collate_fn=collate,
    )
    return lambda: loader
