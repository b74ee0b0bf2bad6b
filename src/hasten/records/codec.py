"""The base class of all records, and their JSON encoding."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

from hasten.errors import RecordError

RECORD_VERSION = 2

# The name of a result and of its folder. It becomes part of a path, so it must not contain separators.
Name = Annotated[str, msgspec.Meta(pattern=r"\A[0-9A-Za-z][0-9A-Za-z._-]*\Z", max_length=100)]


class Record(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=False):
    """The base class of all records: a frozen msgspec struct."""


AnyRecord = TypeVar("AnyRecord", bound=Record)


def to_json(record: Record) -> bytes:
    """Encode a record as one line of JSON."""
    return encode(record)


def encode(value: object) -> bytes:
    """Encode records, and containers of them, as one line of JSON.

    File names may contain bytes that are not valid text; they are written as escapes.
    """
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_text_only(msgspec.to_builtins(value)))


def _text_only(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_text_only(key): _text_only(inner) for key, inner in value.items()}
    return [_text_only(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def from_json(kind: type[AnyRecord], data: bytes, *, source: str = "the record") -> AnyRecord:
    """Decode and validate a record.

    Raises RecordError, naming `source`, if the bytes are not such a record, or of another version.
    """
    try:
        text = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).get("version")
        version = RECORD_VERSION if text is None else msgspec.json.decode(text, type=int)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RecordError(f"{source} is corrupt or not a hasten record ({error}); measure again") from None
    if version > RECORD_VERSION:
        raise RecordError(f"{source} was written by a newer hasten; upgrade hasten")
    if version < RECORD_VERSION:
        raise RecordError(f"{source} was written by an older hasten; measure again")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RecordError(f"{source} is not a hasten {kind.__name__} ({error}); measure again") from None
