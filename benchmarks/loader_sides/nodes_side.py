"""torchdata.nodes: threads. Options: `lean`."""

import torch
from torch.utils.data import RandomSampler, SequentialSampler, default_collate
from torchdata.nodes import Batcher, Loader, Mapper, ParallelMapper, Prefetcher, SamplerWrapper

from loader_sides.images import LeanPhotos, image_folder, lean_collate
from loader_sides.job import Epoch, Job


def open_side(job: Job) -> Epoch:
    lean = job.options.get("lean", False)
    dataset: torch.utils.data.Dataset = LeanPhotos(job) if lean else image_folder(job)
    order = RandomSampler(dataset) if job.shuffle else SequentialSampler(dataset)
    samples = ParallelMapper(
        SamplerWrapper(order), dataset.__getitem__, num_workers=job.workers, method="thread", prebatch=8
    )
    batches = Mapper(Batcher(samples, job.batch_size, drop_last=False), lean_collate if lean else default_collate)
    loader = Loader(Prefetcher(batches, 2))
    return lambda: loader
