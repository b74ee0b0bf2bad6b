"""`hasten.Loader`: a DataLoader that takes torch's arguments and returns the same batches.

For datasets or platforms it does not support, it falls back to torch's own iterator and warns once.
"""

from __future__ import annotations

import os
import socket
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.context import BaseContext
from typing import Any, Generic, Literal, TypeVar

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    default_collate,
    default_convert,
)
from torch.utils.data.dataloader import _BaseDataLoaderIter  # pyright: ignore[reportPrivateUsage]

from hasten.data.epoch.batches import BatchIterator
from hasten.data.epoch.columns import columns_of
from hasten.data.epoch.in_memory import InMemoryIterator
from hasten.data.epoch.resume import from_state, to_state
from hasten.data.epoch.staffing import usable_cores
from hasten.data.epoch.state import LoaderOptions, LoaderState
from hasten.data.epoch.stats import LoaderStats
from hasten.data.images.pixels import PixelRule
from hasten.data.layout.tree import map_tensors
from hasten.data.memo.budget import Forecast, parse_budget
from hasten.data.workers.ray_pool import find_ray
from hasten.devices import accelerator
from hasten.errors import DeviceError

T = TypeVar("T", covariant=True)
OWN = (
    "device",
    "cache",
    "disk_cache",
    "pixels",
    "workers",
    "on_error",
    "max_error_rate",
)  # arguments beyond DataLoader's
UNREAD = {
    "device": None,
    "cache": None,
    "disk_cache": None,
    "workers": "auto",
    "on_error": "raise",
}  # by torch's iterator
REPLACES = {  # an argument, and those of a DataLoader that it contradicts
    "shuffle": ("sampler", "batch_sampler"),
    "sampler": ("batch_sampler",),
    "batch_size": ("batch_sampler",),
    "batch_sampler": ("batch_size", "sampler", "drop_last"),
}


class Loader(DataLoader[T], Generic[T]):
    """A drop-in replacement for `torch.utils.data.DataLoader`: same arguments, same samples in the same order.

    Batches are equal bit for bit where a sample depends on its index alone. Random transforms draw other numbers than with
    DataLoader: they draw from generators seeded by (seed, epoch, index), so batches do not depend on `num_workers`. The
    seed is drawn as DataLoader draws it: from `generator`, or from torch's global generator.

    Args:
        num_workers: a number, or "auto": start with one worker per core, then adjust the number of workers and of
            prefetched batches during the epoch according to whether the workers or the training loop wait.
        device: the device the batches should be on. On a CUDA device, the next batch is copied while this one trains.
        cache: memory for what libraries read, decode and resize: bytes, "8 GiB", "50%" of available memory, or "auto"
            (half of it). All workers share one copy. None disables the cache. Your dataset's own code always runs.
        disk_cache: the same on the local disk, reused from one run to the next.
        pixels: "identical" returns Pillow's exact pixels; "close" stays within 1/255 of them and takes less time; "any"
            decodes with whatever is fastest.
        workers: "processes"; "threads", if you know that the dataset and its transforms are thread-safe; or "auto": use
            threads if every part is known to be thread-safe and releases the interpreter lock long enough. "ray": one
            worker for each CPU of the running Ray cluster, or `num_workers` of them; the training process's own node
            lends its CPUs only if there are no others, or too few for `num_workers`.
        on_error: what to do with a sample that raises. "raise" propagates the exception; "replace" substitutes another
            sample of the same batch, always the same one, and counts it.
        max_error_rate: the fraction of replaced samples above which SampleRateError is raised.

    All other arguments are DataLoader's own.

    Raises:
        ValueError: if an argument is not valid.
        ImportError: if `workers` is "ray" and Ray is not installed.
        DeviceError: at `iter()`, if torch does not see `device`.
        ClusterError: at `iter()` or for the first batch, if the Ray cluster cannot build the same samples.
    """

    def __init__(
        self,
        dataset: Dataset[T],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: BaseContext | str | None = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        device: torch.device | str | None = None,
        cache: int | str | None = None,
        disk_cache: int | str | None = None,
        pixels: PixelRule = "identical",
        workers: Literal["auto", "processes", "threads", "ray"] = "auto",
        on_error: Literal["raise", "replace"] = "raise",
        max_error_rate: float = 0.05,
    ) -> None:
        if isinstance(num_workers, str) and num_workers != "auto":
            raise ValueError(f"num_workers={num_workers!r} is not valid: use a number, or 'auto'")
        if workers == "ray":
            if cache is not None or disk_cache is not None:
                raise ValueError(
                    "cache= and disk_cache= are of this machine, workers='ray' of others: leave one of them out"
                )
            num_workers = num_workers or "auto"
            find_ray()
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            1 if workers == "ray" else usable_cores() if num_workers == "auto" else num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        _check("pixels", pixels, ("identical", "close", "any"))
        _check("workers", workers, ("auto", "processes", "threads", "ray"))
        _check("on_error", on_error, ("raise", "replace"))
        for budget in (cache, disk_cache):
            if budget not in (None, "auto"):
                parse_budget(budget, whole=0)
        if not 0.0 <= max_error_rate <= 1.0:
            raise ValueError(f"max_error_rate={max_error_rate!r} is not valid: use a number from 0 to 1")
        # Frameworks that recreate a loader read each argument from the attribute with its name.
        try:
            self.device = None if device is None else torch.device(device)
        except RuntimeError as error:
            raise ValueError(f"device={device!r} is not valid: {str(error).partition(chr(10))[0]}") from None
        self.cache = cache
        self.disk_cache = disk_cache
        self.pixels: PixelRule = pixels
        self.workers: Literal["auto", "processes", "threads", "ray"] = workers
        self.on_error: Literal["raise", "replace"] = on_error
        self.max_error_rate = max_error_rate
        if workers == "ray" and num_workers != "auto":
            self.num_workers = num_workers  # not before, as torch compares it with this machine's cores
        self.adjusts_workers = num_workers == "auto"
        """Whether `num_workers` is "auto"."""
        self._state = LoaderState()
        self._reason = _why_not(self)
        if isinstance(dataset, IterableDataset):
            _check_iterable(self)

    @classmethod
    def from_dataloader(cls, loader: DataLoader[T], **options: Any) -> Loader[T]:
        """Make a Loader of the same dataset, sampler, workers and collate function as a DataLoader.

        Args:
            loader: the DataLoader; it is not changed. Of a Loader, its own options are taken over, too.
            **options: arguments of Loader that are added, or that replace the DataLoader's own. What contradicts them is
                left out: the sampler if you give `shuffle`, for example.

        Raises:
            TypeError: if `loader` is not a DataLoader, or of a class with an `__iter__` of its own.
            ValueError: if an argument is not valid, or `dataset` is replaced but not a sampler that knows the old one.

        Example:
            >>> from torch.utils.data import DataLoader
            >>> loader = Loader.from_dataloader(DataLoader(list(range(6)), batch_size=3), cache="1 GiB")
            >>> [batch.tolist() for batch in loader]
            [[0, 1, 2], [3, 4, 5]]
        """
        if not isinstance(loader, DataLoader):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"from_dataloader needs a torch.utils.data.DataLoader, not {type(loader).__name__}")
        if type(loader).__iter__ not in (DataLoader.__iter__, Loader.__iter__):
            raise TypeError(f"{type(loader).__name__} has an __iter__ of its own, which a Loader would not call")
        arguments = arguments_of(loader)
        if "dataset" in options and not {"shuffle", "sampler", "batch_sampler"} & {*options}:
            arguments |= _order_of_another(arguments)
        for given, replaced in REPLACES.items():
            if given in options:
                for name in replaced:
                    arguments.pop(name, None)
        if options.get("num_workers", 1) == 0:
            arguments.update(prefetch_factor=None, persistent_workers=False, timeout=0, multiprocessing_context=None)
        return cls(**{**arguments, **options})

    def _options(self) -> LoaderOptions:
        device = self.device
        if device is not None and device.type != "cpu" and not accelerator.is_available(device):
            raise DeviceError(f"device='{device}' is not available to torch: leave device out")
        return LoaderOptions(
            device=None if device is None or device.type == "cpu" else device,
            cache=self.cache or None,
            disk_cache=self.disk_cache or None,
            pixels=self.pixels,
            workers=self.workers,
            on_error=self.on_error,
            max_error_rate=self.max_error_rate,
            adjusts_workers=self.adjusts_workers,
        )

    def __iter__(self) -> _BaseDataLoaderIter:
        if self._state.owner != os.getpid():  # persistent workers belong to the parent, not to a forked child
            self._iterator, self._state = None, LoaderState()
        return super().__iter__()

    def _get_iterator(self) -> _BaseDataLoaderIter:
        if self._reason is not None:
            warnings.warn(f"hasten.Loader falls back to torch's own DataLoader: {self._reason}", stacklevel=4)
            self._reason = None  # warn once
        if isinstance(self.dataset, IterableDataset):
            return super()._get_iterator()
        if self.workers != "ray":
            self.check_worker_number_rationality()
        columns = columns_of(self.dataset) if self._collates_plainly() else None
        if columns is not None:
            return InMemoryIterator(self, self._options(), self._state, columns)
        return BatchIterator(self, self._options(), self._state)

    def __getstate__(self) -> dict[str, Any]:
        # Open resources stay in this object: a copy of a loader, or one in another process, starts from scratch.
        return vars(self) | {"_iterator": None, "_state": LoaderState()}

    def _collates_plainly(self) -> bool:
        return self.batch_sampler is not None and self.collate_fn is default_collate and self.worker_init_fn is None

    @property
    def forecast(self) -> Forecast | None:
        """Forecast of what the cache will hold; None before the first samples are built, or without a cache."""
        return self._state.forecast

    def numpy(self) -> Iterator[Any]:
        """Iterate over an epoch's batches with NumPy arrays in place of tensors; they are views of the same memory."""
        for batch in self:
            yield map_tensors(batch, lambda tensor: tensor.numpy())

    def stats(self) -> LoaderStats:
        """Return this loader's counts since it was created.

        Cache counts start at the creation of the cache, which all loaders of a dataset share.
        """
        return self._state.counts.stats(
            num_workers=self.num_workers, cache=self._state.cache_counts(), cluster=self._state.cluster
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the epoch: after the batch last returned to the training loop."""
        return to_state(self._state.position)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a saved position at the next `iter()`, without building the samples before it.

        The number of workers may differ from the saved run's.

        Where the sampler has an `epoch`, as DistributedSampler does, it is set to the saved one.

        Raises:
            StateError: if `state` is not valid; at `iter()`, if the sampler does not repeat the order of the saved epoch.
        """
        self._state.resumed = from_state(state, batch_size=self.batch_size)
        if isinstance(self.dataset, IterableDataset):
            warnings.warn("an iterable dataset cannot be resumed by its loader: the epoch starts over", stacklevel=2)

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch number to the sampler, the batch sampler and the dataset if they define `set_epoch`."""
        for part in (self.sampler, self.batch_sampler, getattr(self.batch_sampler, "sampler", None), self.dataset):
            set_epoch = getattr(part, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)


def arguments_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """The arguments that a DataLoader was made with, as they are now."""
    default: object = default_convert if loader.batch_sampler is None else default_collate
    arguments: dict[str, Any] = {
        "dataset": loader.dataset,
        "num_workers": "auto" if isinstance(loader, Loader) and loader.adjusts_workers else loader.num_workers,
        "collate_fn": None if loader.collate_fn is default else loader.collate_fn,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context,
        "generator": loader.generator,
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": loader.persistent_workers,
        "pin_memory_device": getattr(loader, "pin_memory_device", ""),
        "in_order": getattr(loader, "in_order", True),
    }
    if isinstance(loader, Loader):
        arguments.update({name: getattr(loader, name) for name in OWN})
    if isinstance(loader.dataset, IterableDataset):
        return {**arguments, "batch_size": loader.batch_size, "drop_last": loader.drop_last}
    batches: object = loader.batch_sampler
    if type(batches) is BatchSampler and batches.sampler is loader.sampler:
        sizes = {"batch_size": batches.batch_size, "drop_last": batches.drop_last}
        return {**arguments, **sizes, "sampler": loader.sampler}
    if batches is not None:
        return {**arguments, "batch_sampler": batches}
    return {**arguments, "batch_size": None, "sampler": loader.sampler}


def _order_of_another(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments that order another dataset as the one they are of. Raises ValueError if only its sampler knows how."""
    sampler = arguments.pop("sampler", None)
    if "batch_sampler" in arguments or type(sampler) not in (RandomSampler, SequentialSampler, type(None)):
        name = type(arguments.get("batch_sampler", sampler)).__name__
        raise ValueError(f"{name} is made for the old dataset: give sampler= or shuffle= for the new one")
    return {"shuffle": True} if type(sampler) is RandomSampler else {}


def _check_iterable(loader: Loader[Any]) -> None:
    given = [name for name, default in UNREAD.items() if getattr(loader, name) != default]
    if given:
        names = ", ".join(f"{name}=" for name in given)
        raise ValueError(
            f"{names} cannot be used with an iterable dataset, which torch's own DataLoader reads: leave it out"
        )


def _check(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name}={value!r} is not valid: use one of {', '.join(map(repr, known))}")


def _why_not(loader: Loader[Any]) -> str | None:
    if isinstance(loader.dataset, IterableDataset):
        return None
    if loader.num_workers and loader.workers not in ("threads", "ray") and not hasattr(socket, "AF_UNIX"):
        return f"worker processes need Unix sockets, which {sys.platform} does not have; try workers='threads'"
    return None
