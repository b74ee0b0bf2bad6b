"""Values that many records hold: a place in the source, an estimate."""

from __future__ import annotations

from hasten.records.codec import Record


class Where(Record, frozen=True):
    """A place in the user's source."""

    file: str
    line: int
    function: str = ""
    source: str = ""  # the line itself, stripped


class Interval(Record, frozen=True):
    """An estimate with its 95% interval."""

    value: float
    low: float
    high: float
