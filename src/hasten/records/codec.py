"""What every record is, and how it becomes JSON and comes back."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

from hasten.errors import RecordError

RECORD_VERSION = 1

# The name of a result, and of its folder. It becomes part of a path: it leads nowhere else.
Name = Annotated[str, msgspec.Meta(pattern=r"\A[0-9A-Za-z][0-9A-Za-z._-]*\Z", max_length=100)]


class Record(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=False):
    """A frozen record. Inheritance here is msgspec's, for its JSON codec."""


AnyRecord = TypeVar("AnyRecord", bound=Record)


def to_json(record: Record) -> bytes:
    """Encode a record as one line of JSON."""
    return encode(record)


def encode(value: object) -> bytes:
    """Encode records, and what holds them, as one line of JSON.

    A file's name may hold bytes that are no text; they are told as escapes, for JSON has no place for them.
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

    Raises RecordError, naming `source`, when the bytes are not such a record or are of a newer version.
    """
    try:
        version = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).get("version")
        newer = version is not None and msgspec.json.decode(version, type=int) > RECORD_VERSION
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RecordError(f"{source} is torn or not a hasten record ({error}); measure again") from None
    if newer:
        raise RecordError(f"{source} was written by a newer hasten; run `pip install --upgrade hasten`")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RecordError(f"{source} is not a hasten {kind.__name__} ({error}); measure again") from None
