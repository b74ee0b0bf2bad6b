"""What every record is, and how it becomes JSON and comes back."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from hasten.errors import RecordError

RECORD_VERSION = 1


class Record(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=False):
    """A frozen record. Inheritance here is msgspec's, for its JSON codec."""


AnyRecord = TypeVar("AnyRecord", bound=Record)


def to_json(record: Record) -> bytes:
    """Encode a record as one line of JSON."""
    return msgspec.json.encode(record)


def from_json(kind: type[AnyRecord], data: bytes, *, source: str = "the record") -> AnyRecord:
    """Decode and validate a record.

    Raises RecordError, naming `source`, when the bytes are not such a record or are of a newer version.
    """
    try:
        version = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).get("version")
        newer = version is not None and msgspec.json.decode(version, type=int) > RECORD_VERSION
    except msgspec.MsgspecError as error:
        raise RecordError(f"{source} is torn or not a hasten record ({error}); measure again") from None
    if newer:
        raise RecordError(f"{source} was written by a newer hasten; run `pip install --upgrade hasten`")
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise RecordError(f"{source} is not a hasten {kind.__name__} ({error}); measure again") from None
