"""A timeline of a few steps."""

from __future__ import annotations

from hasten.records.codec import Record


class Bar(Record, frozen=True):
    """One bar in one lane. Bars of a lane do not overlap."""

    lane: str  # "main", "worker 1" ..., "device"
    kind: str  # a phase in "main" and "device"; a stage of the loader's work in a worker
    start: float  # seconds since the timeline's start
    seconds: float


class Timeline(Record, frozen=True):
    """Some consecutive steps, with the work of the loader's workers at that time.

    A worker reads, decodes and transforms sample by sample; each of its bars is the time of a stage for a whole batch.
    """

    start: float  # seconds on the run's clock
    seconds: float
    step_ends: tuple[float, ...]  # seconds since the timeline's start
    bars: tuple[Bar, ...]
