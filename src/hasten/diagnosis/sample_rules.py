"""Rules about making samples: which stage of the loader's work is slow, or waits.

A stage gets only what the loader's options leave, and no more than its own work.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hasten import format
from hasten.diagnosis.case import WORTH, Case
from hasten.records import Finding, FindingKind, HotLine, Interval, LoaderFacts, Stage

STAGE_KINDS: dict[str, FindingKind] = {
    "read": "slow_read",
    "decode": "slow_decode",
    "transform": "slow_transform",
    "getitem": "slow_transform",
    "collate": "slow_collate",
}


WAITING = 0.5  # share of the work's time from which it is called waiting
AT_ONCE = "workers that wait need no core of their own"


def samples_wait(train: LoaderFacts) -> bool:
    """Whether samples wait for something other than a core or a disk: a server, a lock, another process."""
    return bool(train.stages) and train.waiting_share > WAITING and longest_wait(train.stages).name != "read"


def longest_wait(stages: Sequence[Stage]) -> Stage:
    """The stage that waits longest, in all."""
    return max(stages, key=lambda s: s.seconds - s.cpu_seconds)


def bounded(case: Case, saved: float) -> Interval | None:
    """The interval of what a cause saves, as sure as what instant data loading saves; None if that was not measured."""
    replay = case.measured("replay")
    if replay is None:
        return None
    half = (replay[1].high - replay[1].low) / 2
    return Interval(value=saved, low=max(0.0, saved - half), high=saved + half)


def cores_to_keep_up(case: Case, train: LoaderFacts) -> str:
    """How many cores loading needs to keep up with the rest of the step; "" if one is enough."""
    rest = case.regular - case.phase("data_wait")
    if not train.num_measured_batches or rest <= 0:
        return ""
    work = sum(s.cpu_seconds for s in train.stages) * case.batches / train.num_measured_batches
    number = math.ceil(work / rest - 0.1)  # ignore less than a tenth of a core
    if number < 2:
        return ""
    in_addition = " in addition to those used for training" if case.on_cpu else ""
    return f"loading a step's samples takes {format.seconds(work)} of CPU time: keeping up needs about {number} cores{in_addition}"


@dataclass(frozen=True, kw_only=True)
class _Cost:
    """One kind of work: its stages, and their seconds per step if done by a single worker."""

    kind: FindingKind
    seconds: float
    stages: tuple[Stage, ...]


# Work that depends on an image's size: storing it smaller, or caching it decoded, saves all of it.
BY_SIZE = ("Image.convert", "Image.resize", "Image.thumbnail", "cv2.resize", "cv2.cvtColor", "Resize")


def _kind_of(stage: Stage, *, images: bool) -> FindingKind | None:
    if images and (stage.name == "read" or stage.detail in BY_SIZE):
        return "slow_decode"
    return STAGE_KINDS.get(stage.name)


def findings(case: Case, train: LoaderFacts, headroom: float) -> Iterator[Finding]:
    """Findings about costly stages, each with the time that the loader would save without it."""
    if not train.num_measured_batches or (case.share("data_wait") < WORTH and not case.crowding):
        return
    per_step = case.batches / train.num_measured_batches
    total = sum(s.seconds for s in train.stages) * per_step
    if total <= 0:
        return
    decoding = sum(s.seconds for s in train.stages if s.name == "decode")
    images = decoding > sum(s.seconds for s in train.stages if s.name == "read")
    for kind in dict.fromkeys(STAGE_KINDS.values()):
        stages = tuple(s for s in train.stages if _kind_of(s, images=images) == kind)
        cost = _Cost(kind=kind, seconds=sum(s.seconds for s in stages) * per_step, stages=stages)
        if cost.seconds < 0.2 * total:
            continue
        if kind in ("slow_transform", "slow_collate") and samples_wait(train) and not case.crowding:
            cost = replace(cost, kind="waiting_samples")
        # Parallel workers: the step takes as long as the loader's work, so it shrinks in proportion. No work costs more
        # than one worker takes for it.
        saved = min(cost.seconds, cost.seconds / total * case.regular) if train.num_workers else cost.seconds
        if case.crowding:  # a share of the time that the workers' cores cost, and no more than they compute
            computing, on_cores = sum(s.cpu_seconds for s in stages), train.cpu_seconds * train.num_measured_batches
            saved = min(computing * per_step, computing / on_cores * headroom) if on_cores else 0.0
        yield _stage_finding(case, train, cost, min(saved, headroom), total)


def _stage_finding(case: Case, train: LoaderFacts, cost: _Cost, saved: float, total: float) -> Finding:
    samples = max(1, train.num_measured_samples)
    of_kind = [s for s in cost.stages if STAGE_KINDS[s.name] == cost.kind] or cost.stages
    first = max(of_kind, key=lambda s: s.seconds)
    name = first.detail or ("other code in __getitem__" if first.name == "getitem" else first.name)
    because = [f"{name} takes {format.seconds(first.seconds / samples)} per sample"]
    others = [s.detail or s.name for s in cost.stages if s is not first and s.seconds > 0.05 * first.seconds]
    with_others = f"with {', '.join(others)} " if others else "it is "
    because.append(f"{with_others}{format.share(cost.seconds / total)} of the loader's work")
    if case.crowding:
        because.append("batches are ready in time, but the workers use cores that training needs")
    elif cost.seconds >= 0.5 * total and (keeping_up := cores_to_keep_up(case, train)):
        because.append(keeping_up)
    line = worker_line(case, cost.kind, first.detail)
    title, remedy = _title_and_remedy(case, train, cost.kind, first, because)
    return Finding(
        kind=cost.kind,
        title=title,
        recoverable=saved,
        interval=bounded(case, saved),
        confirmed_by="replay" if case.measured("replay") else None,
        because=tuple(because),
        remedy=remedy,
        where=line.where if line is not None else train.where,
    )


def _title_and_remedy(case: Case, train: LoaderFacts, kind: str, first: Stage, because: list[str]) -> tuple[str, str]:
    if kind == "slow_read":
        if train.waiting_share > WAITING:
            because.append(
                f"{format.share(train.waiting_share)} of the loader's work is waiting: more workers wait at once"
            )
        read = case.run.file_read
        if read is not None and read.cold_seconds is not None:
            because.append(
                f"the same {read.num_files} files: {format.seconds(read.cold_seconds)} from the disk, {format.seconds(read.warm_seconds)} from memory"
            )
        if first.num_bytes and first.seconds:
            because.append(f"{first.num_bytes / first.seconds / 1e6:.0f} MB/s per worker")
        return (
            "Slow reading",
            "Read less (smaller files, only the rows needed), keep the data in memory, or use a faster disk.",
        )
    if kind == "slow_decode":
        if train.decode_speedup is not None:
            because.append(
                f"the same files with {train.decode_library}: {train.decode_speedup.value:.2f}x faster, same pixels"
            )
        if train.decoded_bytes_per_sample and train.bytes_per_batch and train.batch_size:
            because.append(
                f"{train.decoded_bytes_per_sample / 1e6:.1f} MB are decoded per sample, "
                f"{train.bytes_per_batch / train.batch_size / 1e6:.2f} MB reach the batch"
            )
        gains = train.decode_speedup is not None and train.decode_speedup.low > 1.0
        faster = f"decode with {train.decode_library}, " if gains else ""
        return (
            f"Slow decoding ({first.detail})",
            f"Store the images at the size you train on, {faster}or cache decoded samples.",
        )
    if kind == "waiting_samples":
        because.append(f"{format.share(train.waiting_share)} of that time it waits: no core is at work for it")
        return (
            "Samples wait instead of computing",
            f"Have more samples wait at once (num_workers: {AT_ONCE}), ask for many with one request, or keep the answers.",
        )
    if kind == "slow_collate":
        return "Slow collating", "Let collate_fn stack whole arrays; build each sample's tensors in __getitem__."
    name = first.detail or "__getitem__"
    if first.name == "getitem":
        return "Slow code in __getitem__", "Do it once in advance, vectorize it, or cache its result."
    return (
        f"Slow transform: {name}",
        f"Do {name} once in advance, on smaller images, or on whole batches on the device.",
    )


# Parts of calls that identify a line's kind of work, as common libraries name them.
CALLS = {
    "slow_read": ("open", "read", "load"),
    "slow_decode": ("open", "load", "read", "decode", "convert", "resize", "thumbnail", "image"),
    "slow_collate": ("stack", "cat(", "collate", "from_numpy", "tensor("),
}


def worker_line(case: Case, kind: str, detail: str) -> HotLine | None:
    """The costliest line of the user's code that does this kind of work; None if no line clearly does."""
    lines = [h for h in case.run.hot_lines if h.in_worker or h.phase == "data_wait"]
    inner = [h for h in lines if h.where.function not in ("", "main", "train")]
    return max((h for h in inner or lines if _does(h, kind, detail)), key=lambda h: h.seconds, default=None)


def _does(line: HotLine, kind: str, detail: str) -> bool:
    source = line.where.source.lower()
    if "collate" in line.where.function.lower():  # a collate_fn, by its usual name
        return kind == "slow_collate"
    if kind in CALLS:
        return not source or any(call in source for call in CALLS[kind])
    if not detail:  # other code in __getitem__: not known to be another kind of work
        return not any(call in source for call in ("transform", *CALLS["slow_decode"]))
    return not source or "transform" in source or detail.lower().removeprefix("image.") in source
