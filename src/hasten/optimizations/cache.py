"""What known libraries read, decode and resize is cached: in memory and on the local disk, under any loader.

Functions of the user's own are cached on the user's word alone.
"""

from __future__ import annotations

import ast
import functools
import os
import uuid
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from hasten.errors import NotApplicableError
from hasten.optimizations.applicable import SLOW_WORK, training_loader
from hasten.optimizations.optimization import Optimization, Proposal
from hasten.protocol import Value

if TYPE_CHECKING:
    from hasten.agent.handle import Handle
    from hasten.agent.models import Models
    from hasten.diagnosis.situation import Situation
    from hasten.records import LoaderFacts, Run, Stage

LOOKED_AFTER = 32  # batches, after which something should have been cached
RUN = "HASTEN_MEMO"  # names the memo that the processes of a run share
_budgets: WeakKeyDictionary[Models, dict[str, Any]] = WeakKeyDictionary()  # of the memo that is in use


def enable(handle: Handle, value: Value) -> None:
    """Library calls are memoized in so much memory."""
    _open(handle, ram=value)


def enable_disk(handle: Handle, value: Value) -> None:
    """The same on the local disk."""
    _open(handle, disk=value)


def enable_pure(handle: Handle, value: Value) -> None:
    """Functions that the user vouches for are memoized as well."""
    if handle.models not in _budgets:
        _open(handle, ram="auto")
    from torch.utils.data import DataLoader

    from hasten.data.memo.pure import mark

    names = str(value).split(",")
    mark(handle.patches, [name for name in names if not name.startswith("__main__:")])
    own = [name for name in names if name.startswith("__main__:")]
    if own:  # the script has defined them when it asks for its first batch
        handle.patches.wrap(DataLoader, "__iter__", lambda original: _marking(original, handle, own))


def _marking(original: Callable[..., Any], handle: Handle, names: list[str]) -> Callable[..., Any]:
    from hasten.data.memo.pure import mark

    @functools.wraps(original)
    def __iter__(self: Any) -> Any:
        mark(handle.patches, names)
        names.clear()
        return original(self)

    return __iter__


def _open(handle: Handle, **budget: Any) -> None:
    from torch.utils.data.dataloader import _BaseDataLoaderIter  # pyright: ignore[reportPrivateUsage]

    try:
        from hasten.data.memo.memo import key_of_host, open_memo, use_in_process
        from hasten.data.memo.table import hold_installed
    except ImportError as error:
        raise NotApplicableError(f"it needs {error.name} in this environment") from None
    is_first = handle.models not in _budgets
    budgets: dict[str, Any] = {**_budgets.get(handle.models, {"ram": None, "disk": None}), **budget}
    key = key_of_host() or os.environ.setdefault(RUN, uuid.uuid4().hex).encode()
    memo = open_memo(**budgets, host_key=key)
    use_in_process(memo)
    _budgets[handle.models] = budgets
    handle.patches.on_undo(memo.close)
    if is_first:
        handle.patches.on_undo(hold_installed())
        handle.patches.on_undo(lambda: use_in_process(None))
        handle.patches.on_undo(lambda: _budgets.pop(handle.models, None))
    handle.patches.wrap(_BaseDataLoaderIter, "__next__", lambda original: _looking(original, handle))


def _looking(original: Callable[..., Any], handle: Handle) -> Callable[..., Any]:
    """Refuse to cache where none of the first batches was made through a library that is known."""
    from hasten.data.memo.memo import current
    from hasten.data.memo.remote_calls import building_samples

    left = LOOKED_AFTER

    def look() -> None:
        nonlocal left
        left = 0
        memo = current()  # of all tiers that are enabled
        counts = memo.counts() if memo is not None else None
        is_remote = counts is not None and counts.remote is not None and counts.remote.num_hits > 0
        if counts is None or not (counts.num_hits or counts.value_bytes or is_remote):
            handle.refuse("no sample is read through a library whose calls can be cached")

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        nonlocal left
        try:
            with building_samples():
                batch = original(self)
        except StopIteration:
            if left:
                look()
            raise
        if left:
            left -= 1
            if not left:
                look()
        return batch

    return __next__


# -------------------------------------------------------------------------------------------------------- proposing


def _kept_seconds(stages: tuple[Stage, ...]) -> float:
    """Seconds of library calls whose results can be kept, and of the reading and resizing that goes with them."""
    from hasten.agent.libraries import KEPT, KEPT_TRANSFORM

    kept = {(s.name, s.detail) for s in stages} & KEPT
    if kept:
        kept |= {("read", "file")}
    if any(detail.startswith("Pillow") for _, detail in kept):
        kept |= {("transform", name) for name in KEPT_TRANSFORM}
    return sum(s.seconds for s in stages if (s.name, s.detail) in kept)


def _memoizable(situation: Situation) -> tuple[LoaderFacts, float] | str:
    """The training loader, and the share (0..1) of its work that library calls are of which results can be kept."""
    train = training_loader(situation)
    if isinstance(train, str):
        return train
    if train.in_memory:
        return "the dataset is in memory already"
    work, kept = sum(s.seconds for s in train.stages), _kept_seconds(train.stages)
    if not work:
        return "what its samples cost is not known"
    if not kept:
        return "no sample is read through a library whose calls can be cached"
    return train, kept / work


def _propose(situation: Situation) -> list[Proposal] | str:
    found = _memoizable(situation)
    if isinstance(found, str):
        return found
    share = min(1.0, situation.diagnosis.cache.fits_share) if situation.diagnosis.cache is not None else 1.0
    # Workers are started for a cache as well.
    waited = max(0.0, situation.headroom - situation.case.phase("epoch_start"))
    saves = waited * 0.9 * share * found[1]
    return [Proposal(value="auto", saves=saves, because="files are read and decoded again in every epoch")]


def _propose_disk(situation: Situation) -> list[Proposal] | str:
    """Where memory does not hold everything, and the disk gives a decoded sample back sooner than it is computed."""
    found = _memoizable(situation)
    if isinstance(found, str):
        return found
    train, kept = found
    need, read = situation.diagnosis.cache, situation.case.run.file_read
    if need is None or need.fits_share >= 0.95:
        return "memory holds everything that can be cached"
    if read is None or not read.num_bytes or not train.num_measured_samples:
        return "how fast the disk is was not measured"
    computing = kept * sum(s.seconds for s in train.stages) / train.num_measured_samples
    reading = need.bytes_per_sample * (read.cold_seconds or read.warm_seconds) / read.num_bytes
    if reading >= computing:
        return "the disk does not give decoded samples back sooner than they are computed"
    waited = max(0.0, situation.headroom - situation.case.phase("epoch_start"))
    left = 1.0 - (need.fits_share if "cache" in situation.settings else 0.0)
    saves = waited * 0.9 * left * kept * (1.0 - reading / computing)
    because = f"{1.0 - need.fits_share:.0%} of the set does not fit in memory"
    return [Proposal(value="auto", saves=saves, because=because)]


def _propose_pure(situation: Situation) -> list[Proposal] | str:
    train = training_loader(situation)
    if isinstance(train, str):
        return train
    shares = own_functions(situation.case.run)
    if not shares:
        return "no function at the top level of a module of yours takes much of a sample's time"
    saves = situation.headroom * 0.9 * sum(shares.values())
    return [Proposal(value=",".join(shares), saves=saves, because="your own code computes the same in every epoch")]


OWN_WORTH = 0.1  # share of the time in the user's lines, below which a function is not named


def own_functions(run: Run) -> dict[str, float]:
    """Share (0..1) of the time that loader workers spend in lines of the script, by "module:function".

    Only functions at the top level of a module, for others have no name that finds them. A `__getitem__` is none of them:
    what it returns may depend on everything. Nor is a function that trains: where library code makes the samples, it is
    what called that.
    """
    trains = {_name_of(run, where.file, where.line) for where in run.facts.where.values()}
    seconds: dict[str, float] = defaultdict(float)
    total = 0.0
    lines = [line for line in run.hot_lines if line.in_worker or line.phase == "data_wait"]
    for line in lines:
        total += line.seconds
        name = _name_of(run, line.where.file, line.where.line)
        if name is not None and name not in trains:
            seconds[name] += line.seconds
    return {name: spent / total for name, spent in sorted(seconds.items()) if spent >= OWN_WORTH * total}


def _name_of(run: Run, file: str, line: int) -> str | None:
    path = Path(run.directory, file)
    module = _module_of(run, path)
    try:
        tree = ast.parse(path.read_text(encoding="utf-8")) if module is not None else None
    except (OSError, SyntaxError, ValueError):
        return None
    functions = [node for node in (tree.body if tree is not None else []) if isinstance(node, ast.FunctionDef)]
    name = next((node.name for node in functions if node.lineno <= line <= (node.end_lineno or 0)), None)
    return None if name is None else f"{module}:{name}"


def _module_of(run: Run, path: Path) -> str | None:
    """Under which name the script's process has the file."""
    first = run.command[0] if run.command else ""
    script = Path(run.directory, first)
    if first.endswith(".py") and os.path.realpath(script) == os.path.realpath(path):
        return "__main__"
    root = script.parent if first.endswith(".py") else Path(run.directory)
    try:
        parts = path.resolve().relative_to(root.resolve()).with_suffix("").parts
    except ValueError:
        return None
    return ".".join(parts) if all(part.isidentifier() for part in parts) else None


KINDS = ("slow_read", "slow_decode", "slow_transform")
CACHE = Optimization(
    name="cache",
    title="what libraries read, decode and resize is cached in so much memory",
    guarantee="identical",
    answers=KINDS,
    propose=_propose,
    enable=enable,
    kind="size",
    words=("auto",),
)
DISK_CACHE = Optimization(
    name="disk_cache",
    title="the same on the local disk, kept from run to run",
    guarantee="identical",
    answers=KINDS,
    propose=_propose_disk,
    enable=enable_disk,
    kind="size",
    words=("auto",),
)
PURE = Optimization(
    name="pure",
    title="functions that you vouch for are cached as well",
    guarantee="identical",
    answers=SLOW_WORK,
    propose=_propose_pure,
    enable=enable_pure,
    kind="names",
    only_by_user=True,
)
