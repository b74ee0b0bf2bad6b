"""The ranks of one job, compared: who waits for whom, what they exchange, and whether they share the samples.

A collective ends on all ranks at once. So the rank that waited least in it came last, and what another rank waited longer is
waiting for that one: no clocks need to be aligned. What the last one waited is the exchange itself.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from hasten.launch.recorder import Recorded
from hasten.raw_run import MARKED, RawLoader, RawRun
from hasten.raw_run import Exchange as Waited
from hasten.records import (
    RARE,
    Exchange,
    Interval,
    Late,
    Phase,
    RankData,
    RankFile,
    RankRow,
    Ranks,
    RankSteps,
    SamplingFault,
    from_json,
    to_json,
)
from hasten.stats import mean_interval

FILE = "ranks.json"  # in a run's folder
MOST_STEPS = 2000  # of a rank, the last ones
FEWEST_STEPS = 5
LATE = 0.05  # share of the step from which a rank's own time is longer than the others'
MOSTLY = 0.6  # share of the steps in which it is last by that much
ALONE = 0.5  # of the time that another rank spends on validation or a checkpoint: less counts as none
SURE = 8  # samples of one index that two ranks have both seen
EQUAL = 0.95  # share of them that are equal where the ranks have the same dataset
WHOLE = 0.9  # share of the dataset that a rank takes where nothing is split
FEW = 0.02  # share of the indices that padding may repeat


def steps_of(recorded: Recorded) -> RankSteps | None:
    """What one rank's record says of its steps; None if it trains alone."""
    raw, group = recorded.raw, recorded.raw.group
    if group is None or group.world_size < 2:
        return None
    numbered = [(n, s) for n, s in enumerate(recorded.steps) if s.counted and s.name == MARKED][-MOST_STEPS:]
    counted = recorded.measured or [step for _, step in numbered]
    seen: dict[Phase, None] = dict.fromkeys(phase for _, step in numbered for phase in step.phases)
    rare: dict[Phase, float] = {p: statistics.fmean(s.phases.get(p, 0.0) for s in counted) for p in RARE if counted}
    sizes = [s.num_samples for s in counted if s.num_samples is not None]
    train = next((loader for n, loader in enumerate(raw.loaders) if recorded.roles.get(n) == "train"), None)
    return RankSteps(
        rank=raw.rank,
        world_size=group.world_size,
        host=group.host,
        node=group.node,
        job=group.job,
        backend=group.backend,
        indices=tuple(number for number, _ in numbered),
        seconds=tuple(step.seconds for _, step in numbered),
        phases={phase: tuple(step.phases.get(phase, 0.0) for _, step in numbered) for phase in seen},
        rare={phase: seconds for phase, seconds in rare.items() if seconds},
        samples_per_step=statistics.fmean(sizes) if sizes else None,
        num_threads=raw.facts.num_threads,
        num_workers=train.settings.num_workers if train is not None else 0,
        run_delay=recorded.facts().run_delay,
        omp_threads=group.omp_threads,
        is_elastic=group.is_elastic,
        exchanges=_exchanges(recorded),
        data=_data(train) if train is not None else None,
    )


def steps_of_all(raws: Sequence[RawRun]) -> list[RankSteps]:
    """The steps of every rank whose record is here; none of a process that trained alone."""
    trained = [raw for raw in raws if raw.first_step_at is not None]
    return [steps for raw in trained if (steps := steps_of(Recorded(raw, []))) is not None]


def lost_ranks(trained: Sequence[RawRun]) -> list[int]:
    """The ranks of the job of which there is no record."""
    world_size = max((raw.group.world_size for raw in trained if raw.group is not None), default=0)
    return sorted(set(range(world_size)) - {raw.rank for raw in trained})


def _exchanges(recorded: Recorded) -> tuple[Exchange, ...]:
    found: dict[int, list[float]] = defaultdict(list)
    for span in recorded.marked_spans():
        if isinstance(span.detail, Waited) and span.detail.place >= 0:
            found[span.detail.place].append(span.end - span.start)
    steps = max(1, len(recorded.marked))
    return tuple(
        Exchange(where=recorded.place(place), calls=len(waits) / steps, seconds=sum(waits) / steps)
        for place, waits in found.items()
    )


def _data(loader: RawLoader) -> RankData:
    settings = loader.settings
    drawn = None
    if settings.num_batches is not None and settings.batch_size is not None:
        drawn = settings.num_batches * settings.batch_size
    return RankData(
        num_samples=settings.num_samples,
        num_drawn=drawn,
        orders=tuple(tuple(order) for order in loader.indices[:3]),
        samples={index: tuple(marks) for index, marks in loader.samples.items()},
    )


def save_ranks(ranks: Sequence[RankSteps], folder: Path) -> None:
    """Keep what is compared beside the run, so that hosts can be joined later. Raises OSError."""
    if ranks:
        (folder / FILE).write_bytes(to_json(RankFile(ranks=tuple(ranks))))


def load_ranks(folder: Path) -> tuple[RankSteps, ...]:
    """The ranks of a saved run; none if it trained alone. Raises RecordError."""
    path = folder / FILE
    return from_json(RankFile, path.read_bytes(), source=str(path)).ranks if path.is_file() else ()


def compare(ranks: Sequence[RankSteps]) -> Ranks:
    """What the ranks of one job say together. Raises ValueError if there are none."""
    if not ranks:
        raise ValueError("no ranks to compare")
    ranks = sorted(ranks, key=lambda r: r.rank)
    common = sorted(set.intersection(*(set(r.indices) for r in ranks)))
    columns = [_Columns(r, common) for r in ranks]
    step = statistics.fmean(x for c in columns for x in c.seconds) if common else 0.0
    transfers = [min(waits) for waits in zip(*(c.waits for c in columns))]
    transfer = statistics.fmean(transfers) if transfers else 0.0
    late = _late(columns, step) if len(common) >= FEWEST_STEPS else None
    hosts = {(r.host, r.node) for r in ranks}
    first = ranks[0]
    return Ranks(
        world_size=first.world_size,
        backend=first.backend,
        num_steps=len(common),
        step_seconds=step,
        rows=tuple(c.row(transfers) for c in columns) if common else (),
        missing=tuple(sorted(set(range(first.world_size)) - {r.rank for r in ranks})),
        num_hosts=len(hosts),
        late=late,
        imbalance=_imbalance(columns, late) if len(common) >= FEWEST_STEPS else 0.0,
        transfer=transfer,
        exchanges=_shared(ranks),
        only=_only(ranks),
        sampling=_sampling(ranks),
        repeats_order=_repeats(ranks),
        threads_per_rank=max(r.num_threads for r in ranks),
        ranks_per_host=max(sum((r.host, r.node) == host for r in ranks) for host in hosts),
        forced_threads=all(r.is_elastic and r.omp_threads == "1" for r in ranks),
    )


class _Columns:
    """One rank in the steps that all of them made."""

    def __init__(self, rank: RankSteps, common: Sequence[int]) -> None:
        self.rank = rank
        at = {index: n for n, index in enumerate(rank.indices)}
        places = [at[index] for index in common]
        self.seconds = [rank.seconds[n] for n in places]
        self.phases: dict[Phase, list[float]] = {
            phase: [column[n] for n in places] for phase, column in rank.phases.items()
        }
        self.waits = self.phases.get("communication", [0.0] * len(common))
        rare = [sum(self.phases[p][n] for p in RARE if p in self.phases) for n in range(len(common))]
        self.own = [s - w - r for s, w, r in zip(self.seconds, self.waits, rare)]
        """Seconds of each step without waiting, and without what does not belong to every step."""

    def means(self) -> dict[Phase, float]:
        """Mean seconds of the phases of every step; `script` is what is in no other."""
        means: dict[Phase, float] = {}
        for phase in self.phases:
            means[phase] = statistics.fmean(self.phases[phase])
        rare: tuple[Phase, ...] = (*RARE, "communication")
        for phase in rare:
            means.pop(phase, None)
        means["script"] = means.get("script", 0.0) + max(0.0, statistics.fmean(self.own) - sum(means.values()))
        return means

    def row(self, transfers: Sequence[float]) -> RankRow:
        """The rank's line in the table."""
        transfer = statistics.fmean(transfers)
        rare: dict[Phase, float] = {}
        for phase in RARE:
            if phase in self.phases:
                rare[phase] = statistics.fmean(self.phases[phase])
        return RankRow(
            rank=self.rank.rank,
            host=self.rank.host,
            phases={**self.means(), **rare, "communication": transfer},
            waiting=max(0.0, statistics.fmean(self.waits) - transfer),
            samples_per_step=self.rank.samples_per_step,
        )


def _late(columns: Sequence[_Columns], step: float) -> Late | None:
    """The ranks whose own time is longer than the median's, if they are last in most steps."""
    # A wait for a core is the machine's: it has fewer of them than the ranks have threads.
    means = [statistics.fmean(c.own) - (c.rank.run_delay or 0.0) for c in columns]
    median = sorted(means)[(len(means) - 1) // 2]
    behind = [c for c, mean in zip(columns, means) if mean - median >= LATE * step]
    others = [c for c in columns if c not in behind]
    if not behind or len(behind) > len(columns) / 2:
        return None
    steps = range(len(columns[0].own))
    saved = [max(c.own[k] for c in columns) - max(c.own[k] for c in others) for k in steps]
    interval = mean_interval(saved)
    share = sum(s >= LATE * step for s in saved) / len(
        saved
    )  # where ranks take turns, noise decides who is last of two
    if interval.low <= 0 or interval.value < LATE * step or share < MOSTLY:
        return None
    excess: dict[Phase, float] = {}
    usual = [c.means() for c in others]
    for phase, seconds in _mean_of([c.means() for c in behind]).items():
        excess[phase] = seconds - statistics.median(m.get(phase, 0.0) for m in usual)
    phase = max(excess, key=lambda p: excess[p])
    return Late(
        ranks=tuple(c.rank.rank for c in behind),
        phase=phase,
        excess=excess[phase],
        saved=Interval(*interval),
        share=share,
    )


def _mean_of(means: Sequence[dict[Phase, float]]) -> dict[Phase, float]:
    phases: dict[Phase, None] = dict.fromkeys(phase for m in means for phase in m)
    return {phase: statistics.fmean(m.get(phase, 0.0) for m in means) for phase in phases}


def _imbalance(columns: Sequence[_Columns], late: Late | None) -> float:
    """What the last of each step takes longer than the mean of all, beyond waits for a core and beyond ranks always late."""
    others = [c for c in columns if late is None or c.rank.rank not in late.ranks]
    if len(others) < 2:
        return 0.0
    spread = statistics.fmean(max(own) - statistics.fmean(own) for own in zip(*(c.own for c in others)))
    delays = [c.rank.run_delay for c in others if c.rank.run_delay is not None]
    return max(0.0, spread - max(delays, default=0.0))


def _shared(ranks: Sequence[RankSteps]) -> tuple[Exchange, ...]:
    """The script's own exchanges, as long as on the rank that waits least: the rest is waiting for others."""
    places: dict[tuple[str, int], list[Exchange]] = defaultdict(list)
    for rank in ranks:
        for exchange in rank.exchanges:
            places[exchange.where.file, exchange.where.line].append(exchange)
    least = [min(known, key=lambda e: e.seconds) for known in places.values() if len(known) == len(ranks)]
    return tuple(sorted(least, key=lambda e: -e.seconds))


def _only(ranks: Sequence[RankSteps]) -> dict[Phase, tuple[int, ...]]:
    found: dict[Phase, tuple[int, ...]] = {}
    for phase in ("validation", "checkpoint"):
        longest = max(r.rare.get(phase, 0.0) for r in ranks)
        doing = tuple(r.rank for r in ranks if longest and r.rare.get(phase, 0.0) >= ALONE * longest)
        if doing and len(doing) <= len(ranks) / 2:
            found[phase] = doing
    return found


# ------------------------------------------------------------------------------------------------- the samples


def _sampling(ranks: Sequence[RankSteps]) -> SamplingFault | None:
    """How ranks share samples that they should split: seen by indices, and sure by the samples' own bytes."""
    known = [r.data for r in ranks if r.data is not None and r.data.orders and len(r.data.orders[0]) >= SURE]
    if len(known) < 2 or len({d.num_samples for d in known}) > 1 or known[0].num_samples is None:
        return None  # datasets of their own
    for one, other in combinations(known, 2):
        common = [i for i in one.samples if i in other.samples]
        if len(common) < SURE or not _are_equal(one, other, common):
            continue
        length = min(len(one.orders[0]), len(other.orders[0]))
        if one.orders[0][:length] == other.orders[0][:length]:
            return "same"
        if min(one.num_drawn or 0, other.num_drawn or 0) >= WHOLE * known[0].num_samples:
            return "whole"
        if len(common) > FEW * length:
            return "overlap"
    return None


def _are_equal(one: RankData, other: RankData, common: Sequence[str]) -> bool:
    """Whether one of the tensors is the same for the same index: augmented images differ, their labels do not."""
    pairs = [(one.samples[i], other.samples[i]) for i in common]
    width = min(min(len(a), len(b)) for a, b in pairs)
    return any(sum(a[n] == b[n] for a, b in pairs) >= EQUAL * len(pairs) for n in range(width))


def _repeats(ranks: Sequence[RankSteps]) -> bool:
    """Whether ranks that split the samples shuffle every epoch alike."""
    for rank in ranks:
        orders = rank.data.orders if rank.data is not None else ()
        if len(orders) < 2:
            return False
        length = min(len(orders[0]), len(orders[1]))
        first = orders[0][:length]
        if length < SURE or first != orders[1][:length] or list(first) == sorted(first):
            return False
    return True
