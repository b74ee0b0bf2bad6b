"""What each loader's batches cost to make, from the lines that its workers wrote.

In: the raw record's loaders and the stage lines. Out: LoaderFacts. Refuses to judge.
"""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from hasten.records import CacheTier, LoaderFacts, Role, Stage, StageName, Where

Raw = Mapping[str, Any]
MOST_SAMPLES = 2000
MOST_FILES = 64
FETCHING = 30e-6  # seconds a sample: more is work, not fetching


def loader_facts(
    raw: Raw, stages: Sequence[Raw], roles: Mapping[int, Role], window: tuple[float, float]
) -> tuple[LoaderFacts, ...]:
    """The loaders that gave batches, with the work measured in `window` (of the run's clock)."""
    lines: dict[int, list[Raw]] = defaultdict(list)
    owner = {pid: n for n, facts in enumerate(raw["loaders"]) for pid in facts.get("pids", ())}
    for line in stages:
        number = line["loader"] if line["loader"] is not None else owner.get(line["pid"])
        if number is not None and line["end"] <= window[1]:
            lines[number].append(line)
    ready: dict[int, list[int]] = defaultdict(list)
    for kind, start, _end, detail in raw["spans"]:
        if kind == "next" and window[0] <= start <= window[1] and detail[2] is not None:
            ready[detail[0]].append(detail[2])
    return tuple(
        _facts(facts, roles[n], _measured(lines[n], window), ready[n])
        for n, facts in enumerate(raw["loaders"])
        if n in roles
    )


def _measured(lines: Sequence[Raw], window: tuple[float, float]) -> list[Raw]:
    inside = [line for line in lines if line["start"] >= window[0]]
    # Few slow batches may all have begun before the window; the first is not told apart from its start-up.
    return inside if len(inside) >= 2 else list(lines)[1:] or list(lines)


def _facts(facts: Raw, role: Role, lines: Sequence[Raw], ready: Sequence[int]) -> LoaderFacts:
    place = facts.get("where")
    files = list(dict.fromkeys(f for line in lines for f in line["files"]))
    samples = [s for line in lines for s in line["seconds"]]
    decoded = _decoded(lines)
    number = sum(line["samples"] for line in lines)
    cache = facts.get("cache") or {}
    return LoaderFacts(
        name=facts["name"],
        role=role,
        num_workers=facts["num_workers"],
        batch_size=facts["batch_size"],
        num_batches=facts["num_batches"],
        num_samples=facts["num_samples"],
        prefetch_factor=facts.get("prefetch_factor"),
        persistent_workers=facts.get("persistent_workers", False),
        made_anew=facts.get("made_anew", False),
        pin_memory=facts.get("pin_memory", False),
        start_method=facts.get("start_method"),
        in_memory=_in_memory(lines),
        where=Where(file=place[0], line=place[1], function=place[2]) if place else None,
        stages=_stages(lines),
        num_measured_batches=len(lines),
        num_measured_samples=number,
        batch_work_seconds=tuple(seconds for line in lines for seconds in line["batches"])[:MOST_SAMPLES],
        batch_delay=_delay(lines),
        sample_seconds=tuple(samples[:: max(1, len(samples) // MOST_SAMPLES)]),
        queue_ready=tuple(ready[:MOST_SAMPLES]),
        bytes_per_batch=facts.get("bytes_per_batch"),
        dtypes=tuple(facts.get("dtypes", ())),
        files=tuple(files[:MOST_FILES]),
        file_bytes=_mean_size(files[:MOST_FILES]),
        decoded_bytes_per_sample=decoded / number if decoded and number else None,
        cache=tuple(
            CacheTier(name=name, num_hits=hits, num_bytes=size, budget_bytes=budget, seconds_saved=saved)
            for name, hits, size, budget, saved in cache.get("tiers", ())
        ),
        num_cache_misses=cache.get("misses"),
    )


def _stages(lines: Sequence[Raw]) -> tuple[Stage, ...]:
    total: dict[tuple[StageName, str], list[float]] = defaultdict(lambda: [0.0] * 4)
    for line in lines:
        for name, detail, *figures in line["stages"]:
            total[name, detail] = [a + b for a, b in zip(total[name, detail], figures)]
    stages = [
        Stage(
            name=name,
            detail=detail,
            num_calls=int(calls),
            seconds=seconds,
            cpu_seconds=cpu,
            num_bytes=int(num_bytes),
        )
        for (name, detail), (calls, seconds, cpu, num_bytes) in total.items()
    ]
    return tuple(sorted(stages, key=lambda s: -s.seconds))


def _delay(lines: Sequence[Raw]) -> float | None:
    known = [line["delay"] for line in lines if line.get("delay") is not None]
    return statistics.fmean(known) if known else None


def _decoded(lines: Sequence[Raw]) -> float:
    return sum(stage[5] for line in lines for stage in line["stages"] if stage[0] == "decode")


def _in_memory(lines: Sequence[Raw]) -> bool:
    """Whether samples only come out of what the dataset holds: no file, no decoding, and cheap."""
    if not lines or any(stage[0] in ("read", "decode") for line in lines for stage in line["stages"]):
        return False
    samples = [s for line in lines for s in line["seconds"]]
    held, size = lines[-1]["held"], lines[-1]["sample_bytes"]
    return bool(samples) and held > 16 * size > 0 and statistics.median(samples) < FETCHING


def _mean_size(files: Sequence[str]) -> int | None:
    sizes = [os.path.getsize(f) for f in files if os.path.isfile(f)]
    return round(statistics.fmean(sizes)) if sizes else None
