"""What each loader's batches cost to make, from the lines that its workers wrote."""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from hasten.raw_run import Drawn, Fetched, RawLoader, RawRun, StageLine
from hasten.records import CacheTier, LoaderFacts, RemoteReads, Role, Stage, StageName, Where

MOST_SAMPLES = 2000
MOST_FILES = 64
FETCHING = 30e-6  # seconds a sample: more is work, not fetching


def loader_facts(
    raw: RawRun, stages: Sequence[StageLine], roles: Mapping[int, Role], window: tuple[float, float]
) -> tuple[LoaderFacts, ...]:
    """The loaders that gave batches, with the work measured in `window` (of the run's clock)."""
    lines: dict[int, list[StageLine]] = defaultdict(list)
    owner = {pid: n for n, loader in enumerate(raw.loaders) for pid in loader.pids}
    for line in stages:
        number = line.loader if line.loader is not None else owner.get(line.pid)
        if number is not None and line.end <= window[1]:
            lines[number].append(line)
    ready: dict[int, list[int]] = defaultdict(list)
    for _kind, start, _end, detail in raw.spans:
        if isinstance(detail, Fetched) and window[0] <= start <= window[1] and detail.ready is not None:
            ready[detail.loader].append(detail.ready)
    return tuple(
        _facts(loader, roles[n], _measured(lines[n], window), ready[n])
        for n, loader in enumerate(raw.loaders)
        if n in roles
    )


def _measured(lines: Sequence[StageLine], window: tuple[float, float]) -> list[StageLine]:
    inside = [line for line in lines if line.start >= window[0]]
    # Few slow batches may all have begun before the window; the first cannot be separated from its start-up.
    return inside if len(inside) >= 2 else list(lines)[1:] or list(lines)


def _facts(loader: RawLoader, role: Role, lines: Sequence[StageLine], ready: Sequence[int]) -> LoaderFacts:
    settings = loader.settings
    files = list(dict.fromkeys(f for line in lines for f in line.files))
    samples = [s for line in lines for s in line.sample_seconds]
    decoded = _decoded(lines)
    number = sum(line.num_samples for line in lines)
    return LoaderFacts(
        name=settings.name,
        role=role,
        num_workers=settings.num_workers,
        batch_size=settings.batch_size,
        num_batches=settings.num_batches,
        num_samples=settings.num_samples,
        prefetch_factor=settings.prefetch_factor,
        persistent_workers=settings.persistent_workers,
        recreated=loader.recreated,
        pin_memory=settings.pin_memory,
        start_method=settings.start_method,
        in_memory=_in_memory(lines),
        where=Where(*settings.where) if settings.where is not None else None,
        stages=_stages(lines),
        num_measured_batches=len(lines),
        num_measured_samples=number,
        batch_work_seconds=tuple(seconds for line in lines for seconds in line.batch_seconds)[:MOST_SAMPLES],
        batch_delay=_delay(lines),
        sample_seconds=tuple(samples[:: max(1, len(samples) // MOST_SAMPLES)]),
        queue_ready=tuple(ready[:MOST_SAMPLES]),
        sampler_seconds=_mean(loader.sampling),
        sampler_start_seconds=_mean(loader.sampling_at_start),
        bytes_per_batch=loader.bytes_per_batch,
        dtypes=loader.dtypes,
        files=tuple(files[:MOST_FILES]),
        file_bytes=_mean_size(files[:MOST_FILES]),
        decoded_bytes_per_sample=decoded / number if decoded and number else None,
        cache=tuple(CacheTier(*tier) for tier in loader.cache),
        num_cache_misses=loader.num_cache_misses,
        remote=None if loader.remote is None else RemoteReads(*loader.remote),
    )


def _stages(lines: Sequence[StageLine]) -> tuple[Stage, ...]:
    total: dict[tuple[StageName, str], list[float]] = defaultdict(lambda: [0.0] * 4)
    for line in lines:
        for name, detail, *figures in line.stages:
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


def _mean(drawn: Drawn) -> float | None:
    return drawn.seconds / drawn.times if drawn.times else None


def _delay(lines: Sequence[StageLine]) -> float | None:
    known = [line.delay for line in lines if line.delay is not None]
    return statistics.fmean(known) if known else None


def _decoded(lines: Sequence[StageLine]) -> float:
    return sum(stage.num_bytes for line in lines for stage in line.stages if stage.name == "decode")


def _in_memory(lines: Sequence[StageLine]) -> bool:
    """Whether samples only come out of what the dataset holds: no file, no decoding, and cheap."""
    if not lines or any(stage.name in ("read", "decode") for line in lines for stage in line.stages):
        return False
    samples = [s for line in lines for s in line.sample_seconds]
    held, size = lines[-1].held_bytes, lines[-1].sample_bytes
    return bool(samples) and held > 16 * size > 0 and statistics.median(samples) < FETCHING


def _mean_size(files: Sequence[str]) -> int | None:
    sizes = [os.path.getsize(f) for f in files if os.path.isfile(f)]
    return round(statistics.fmean(sizes)) if sizes else None
