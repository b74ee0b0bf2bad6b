"""hasten's loader in the place of torch's, inside loaders that stay torch's own objects.

`iter(loader)` of a DataLoader is an epoch of a `hasten.Loader` made from it: the same dataset, sampler, generator and
collate function. Loaders whose `__iter__` is not torch's are left alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from hasten.errors import ClusterError, NotApplicableError
from hasten.optimizations.applicable import HANDING_OVER, NO_LOADER, SLOW_WORK, training_loader
from hasten.optimizations.optimization import Optimization, Proposal
from hasten.protocol import Value

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from hasten.agent.handle import Handle
    from hasten.agent.models import Models
    from hasten.diagnosis.situation import Situation

OWN_SHARE = 0.6  # of what is lost between samples and training
LOADER_SHARE = 0.15  # of the headroom: what our loader saves on average where the work itself stays
Function = Callable[..., Any]


@dataclass
class _Ours:
    """What the loaders made in the place of others have in common."""

    settings: dict[str, Any] = field(default_factory=dict)
    only_in_memory: bool = False
    cluster: Value | None = None
    """Number of workers on the Ray cluster, or "auto"."""
    loaders: WeakKeyDictionary[DataLoader[Any], Any] = field(default_factory=WeakKeyDictionary)


def enable(handle: Handle, _value: Value) -> None:
    """Every map-style DataLoader's batches are made by hasten's loader."""
    _take_over(handle).only_in_memory = False


def enable_gathering(handle: Handle, _value: Value) -> None:
    """Batches of a dataset that only indexes arrays in memory are gathered at once."""
    _take_over(handle).only_in_memory = True


def enable_pixels(handle: Handle, value: Value) -> None:
    """How near decoded and resized images must be to Pillow's."""
    _take_over(handle).settings["pixels"] = value


def enable_ray(handle: Handle, value: Value) -> None:
    """So many workers on the running Ray cluster make the batches of one loader at a time."""
    try:
        from hasten.data.workers.ray_pool import connected

        connected()
    except (ImportError, ClusterError) as error:
        raise NotApplicableError(str(error)) from None
    ours = _take_over(handle)
    ours.only_in_memory, ours.cluster = False, value


_of_models: WeakKeyDictionary[Models, _Ours] = WeakKeyDictionary()


def _take_over(handle: Handle) -> _Ours:
    ours = _of_models.get(handle.models)
    if ours is not None:
        return ours
    from torch.utils.data import DataLoader

    try:
        from hasten.data.loader import Loader
    except ImportError as error:
        raise NotApplicableError(f"hasten's loader needs {error.name} in this environment") from None
    ours = _of_models[handle.models] = _Ours()
    handle.models.patches.wrap(DataLoader, "__iter__", lambda original: _iterating(original, ours, Loader))
    handle.models.patches.on_undo(lambda: _of_models.pop(handle.models, None))
    return ours


def _iterating(original: Function, ours: _Ours, kind: type[Any]) -> Function:
    from torch.utils.data import IterableDataset

    from hasten.data.loader import arguments_of

    @functools.wraps(original)
    def __iter__(self: DataLoader[Any]) -> Iterator[Any]:
        if isinstance(self, kind) or isinstance(self.dataset, IterableDataset):
            return original(self)
        given = arguments_of(self)
        known = ours.loaders.get(self)
        if ours.cluster is not None and _may_use_cluster(known):
            given |= {"workers": "ray", "num_workers": ours.cluster}
        if known is None or known[0] != given:  # the script may set another collate_fn between two epochs
            known = ours.loaders[self] = given, _made_of(self, given, ours, kind)
        stand_in = known[1]
        if stand_in is None:
            return original(self)
        iterator = iter(stand_in)
        # Frameworks look for the running epoch here, as they do with torch's own workers that stay.
        self._iterator = iterator if self.persistent_workers and self.num_workers else None  # pyright: ignore
        return iterator

    return __iter__


def _may_use_cluster(known: tuple[dict[str, Any], Any] | None) -> bool:
    """Whether no other loader uses the cluster: two that are open at once would wait for each other's cores."""
    from hasten.data.workers.ray_pool import is_in_use

    uses_it = known is not None and known[0].get("workers") == "ray" and known[1]._iterator is not None
    return uses_it or not is_in_use()


def _made_of(of: DataLoader[Any], given: dict[str, Any], ours: _Ours, kind: type[Any]) -> Any | None:
    """A Loader for the same batches; None where torch's own is to make them."""
    from hasten.data.epoch.columns import columns_of

    if ours.only_in_memory and columns_of(of.dataset) is None:
        return None
    return kind(**given | ours.settings)


def _propose(situation: Situation) -> list[Proposal] | str:
    train = training_loader(situation)
    if isinstance(train, str):
        return train
    # It hands samples out one by one, writes batches once and where the training process reads them, and keeps its workers;
    # a sample of the script's own code costs what it cost.
    found = situation.finding("slow_collate", *HANDING_OVER, "shallow_prefetch", "worker_startup")
    saves = max(LOADER_SHARE * situation.headroom, OWN_SHARE * found.recoverable if found is not None else 0.0)
    return [Proposal(value=True, saves=saves, because="batches are written once, sample by sample")]


def _propose_gathering(situation: Situation) -> list[Proposal] | str:
    train = situation.case.train
    if train is None:
        return NO_LOADER
    if not train.in_memory:
        return "the dataset is not in memory"
    finding = situation.finding("python_bound_data")
    if finding is None:
        return "making batches sample by sample takes no time worth saving"
    return [Proposal(value=True, saves=finding.recoverable, because=finding.title)]


def _propose_pixels(situation: Situation) -> list[Proposal] | str:
    if "loader" not in situation.settings:
        return "hasten's loader is not enabled"
    finding = situation.finding("slow_decode", "slow_transform")
    if finding is None:
        return "decoding and resizing are not what takes the time"
    return [Proposal(value="close", saves=0.3 * finding.recoverable, because=finding.title)]


LOADER = Optimization(
    name="loader",
    title="hasten's loader in the place of torch's",
    guarantee="identical",
    answers=(*SLOW_WORK, *HANDING_OVER, "worker_startup", "shallow_prefetch"),
    propose=_propose,
    enable=enable,
)
GATHER = Optimization(
    name="gather",
    title="data that is in memory already is gathered a batch at a time",
    guarantee="identical",
    answers=("python_bound_data",),
    propose=_propose_gathering,
    enable=enable_gathering,
    on_any_machine=True,
)
PIXELS = Optimization(
    name="pixels",
    title="images within 1/255 of Pillow's, in less time",
    guarantee="precision",
    answers=("slow_decode", "slow_transform"),
    propose=_propose_pixels,
    enable=enable_pixels,
    kind="word",
    words=("identical", "close"),
    needs=("loader",),
)
RAY = Optimization(
    name="ray",
    title="so many workers on the running Ray cluster make batches, through hasten's loader",
    guarantee="identical",
    answers=(),
    propose=lambda _: "it needs a Ray cluster, and is applied only on request",
    enable=enable_ray,
    kind="number",
    words=("auto",),
    excludes=("cache", "disk_cache", "pure", "decode", "resize"),  # they are of this process, and of its workers
)
