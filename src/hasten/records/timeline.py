"""A few real steps, as they lay beside each other in time."""

from __future__ import annotations

from hasten.records.codec import Record


class Bar(Record, frozen=True):
    """One stretch of one lane. Bars of a lane do not overlap."""

    lane: str  # "main", "worker 1" ..., "device"
    kind: str  # a phase in "main" and "device"; a stage of the loader's work in a worker
    start: float  # seconds since the timeline's start
    seconds: float


class Timeline(Record, frozen=True):
    """Some steps that followed each other, with what their loader's workers did meanwhile.

    A worker reads, decodes and transforms sample by sample; its bars are what each stage took of a whole batch.
    """

    start: float  # seconds on the run's clock
    seconds: float
    step_ends: tuple[float, ...]  # seconds since the timeline's start
    bars: tuple[Bar, ...]
