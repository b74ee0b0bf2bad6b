"""Records survive being written and read, and what is no record is refused in one line."""

import json
import typing

import msgspec
import pytest
from runs import run

import hasten.records
from hasten.errors import RecordError
from hasten.records import (
    RECORD_VERSION,
    Interval,
    Intervention,
    Machine,
    Record,
    Run,
    Step,
    from_json,
    to_json,
)

KINDS = sorted(
    (k for k in vars(hasten.records).values() if isinstance(k, type) and issubclass(k, Record) and k is not Record),
    key=lambda k: k.__name__,
)


def example(kind):
    """A value of any type that records are made of, nothing in it left at its default."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Record):
        hints = typing.get_type_hints(kind, include_extras=True)
        given = {f.name: example(hints[f.name]) for f in msgspec.structs.fields(kind)}
        return kind(**{**given, **({"version": RECORD_VERSION} if "version" in given else {})})
    if origin is tuple:
        return (example(inner[0]), example(inner[0]))
    if origin is dict:
        return {"forward": example(inner[1])}
    if origin is typing.Annotated:  # a name
        return "20261123-a"
    if origin is typing.Literal:
        return inner[0]
    if inner:  # a union: the first that is not None
        return example(next(k for k in inner if k is not type(None)))
    return {bool: True, int: 1, float: 0.1 + 0.2, str: 'épaule\n"droite"'}[kind]


def small_run(**changes):
    machine = {f.name: example(typing.get_type_hints(Machine)[f.name]) for f in msgspec.structs.fields(Machine)}
    given = {
        "on": Machine(**machine),
        "steps": (Step(index=0, start=1.0, seconds=0.25, marked=True, phases={"forward": 0.1}),),
    }
    return run(**{**given, **changes})


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_a_record_comes_back_from_json_as_it_was(kind):
    record = example(kind)
    assert from_json(kind, to_json(record)) == record


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_a_record_is_one_line_of_plain_json(kind):
    line = to_json(example(kind))
    assert b"\n" not in line
    assert isinstance(json.loads(line), dict)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_a_record_cannot_be_changed(kind):
    record = example(kind)
    with pytest.raises(AttributeError):
        setattr(record, msgspec.structs.fields(kind)[0].name, None)


def test_a_name_that_is_no_text_is_kept_as_an_escape():
    line = to_json(small_run(command=("train\udcff.py",), notes=("\udcff",)))
    run = from_json(Run, line)
    assert run.command == ("train\\udcff.py",) and run.notes == ("\\udcff",)


def test_not_measured_and_measured_as_nothing_stay_apart():
    run = small_run(overhead=None, interventions=(Intervention(name="replay", baseline_seconds=0.0),))
    (tried,) = from_json(Run, to_json(run)).interventions
    assert tried.baseline_seconds == 0.0
    assert tried.candidate_seconds is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"7",
        b'"run"',
        b"\xff\xfe\x00",
        b"{}",
        b'{"version": "one"}',
        b'{"version": 2, "steps": 3}',
        b"PK\x03\x04",
        b"\x00" * 64,
    ],
)
def test_torn_or_foreign_bytes_are_refused_in_one_line(data):
    with pytest.raises(RecordError) as caught:
        from_json(Run, data, source=".hasten/runs/x/run.json")
    message = str(caught.value)
    assert message.startswith(".hasten/runs/x/run.json ")
    assert "\n" not in message
    assert message.endswith("measure again")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_run_cut_off_anywhere_is_refused(share):
    data = to_json(small_run())
    with pytest.raises(RecordError, match="corrupt"):
        from_json(Run, data[: int(share * len(data))])


def test_a_record_of_another_kind_is_refused():
    with pytest.raises(RecordError, match="not a hasten Run"):
        from_json(Run, to_json(Interval(value=1, low=0, high=2)))


def test_a_run_of_an_older_hasten_says_to_measure_again():
    older = msgspec.structs.replace(small_run(), version=RECORD_VERSION - 1)
    with pytest.raises(RecordError, match="older hasten; measure again"):
        from_json(Run, to_json(older))


def test_a_run_of_a_newer_hasten_says_to_upgrade():
    newer = msgspec.structs.replace(small_run(), version=RECORD_VERSION + 1)
    with pytest.raises(RecordError, match="newer hasten; upgrade hasten") as caught:
        from_json(Run, to_json(newer))
    assert "\n" not in str(caught.value)


def test_a_field_that_a_later_version_adds_is_passed_over():
    data = json.loads(to_json(small_run()))
    data["colour"] = "green"
    assert from_json(Run, json.dumps(data).encode()) == small_run()


def test_the_records_that_are_handed_out_are_all_named():
    assert {k.__name__ for k in KINDS} <= set(hasten.records.__all__)


@pytest.mark.parametrize(
    "change",
    [
        {"ended_by": "magic"},
        {"steps": [{"index": 0, "start": 0.0, "seconds": 1.0, "marked": False, "phases": {"coffee": 1.0}}]},
    ],
    ids=str,
)
def test_a_word_that_is_none_of_the_known_is_refused_when_a_record_is_read(change):
    plain = msgspec.to_builtins(run())
    with pytest.raises(RecordError, match="is not a hasten Run"):
        from_json(Run, msgspec.json.encode({**plain, **change}), source="run.json")
