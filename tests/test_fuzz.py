"""Files that were torn, mixed up or written by somebody else: one line, or nothing, and nothing else happens.

Each file is changed 10,000 times: bytes flipped, cut out, doubled, put elsewhere, replaced by what breaks parsers. What reads it
may raise a HastenError, and nothing else; it runs nothing, and removes and makes nothing.
"""

import contextlib
import os
import random
import time

import numpy as np
import pytest
from pages import full_run, search

from hasten import protocol
from hasten.agent.status import STATES
from hasten.data.memo.codec import decode, encode
from hasten.data.memo.disk import DiskTier
from hasten.errors import HastenError
from hasten.launch import processes as watching
from hasten.records import Run, Tuning, from_json, to_json
from hasten.tuning.plan import plan_text, read_plan
from hasten.tuning.tune import last_tuning

NUMBER = 10_000
SEED = 20261124
TOKENS = [
    b"\x00", b"\xff\xfe", b"\x1b]0;x\x07", b"../", b"/etc/passwd", b"null", b"-1", b"1e999", b"NaN", b'""', b"[[[[", b"{}",
    b'"id":"/"', b'"runs":[".."]', b"true", b"\n", b"=", b"[fixes]", b'x = "\\ud800"', b"9" * 400, b"cposix\nsystem\n",
]  # fmt: skip


def mutated(data, draw):
    data = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 5))):
        at, length = draw.randrange(len(data) + 1), draw.choice((1, 2, 8, 40))
        kind = draw.randrange(6)
        if kind == 0 and data:
            data[min(at, len(data) - 1)] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del data[at : at + length]
        elif kind == 2:
            data[at:at] = draw.choice(TOKENS)
        elif kind == 3:
            data[at : at + length] = draw.choice(TOKENS)
        elif kind == 4:
            data[at:at] = data[max(0, at - length) : at]
        else:
            del data[at:]
    return bytes(data)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder, beside it one that must stay as it is; nothing may be executed."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/precious").write_text("precious")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def refuse(*_words, **_settings):
        raise AssertionError("something was executed")

    for name in ("system", "posix_spawn", "execv", "execve", "fork"):
        monkeypatch.setattr(os, name, refuse, raising=False)
    yield tmp_path / "work"
    assert sorted(path.name for path in tmp_path.rglob("*") if "outside" in str(path)) == ["outside", "precious"]


def each(data):
    draw = random.Random(SEED)
    return (mutated(data, draw) for _ in range(NUMBER))


def put(path, data):
    """Write a new file: to cut an old one and write it again is a wait for the disk on ext4, 15 ms each time."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def test_a_plan(place):
    text = plan_text(search(full_run())).encode()
    path = place / "hasten.toml"
    for data in each(text):
        put(path, data)
        try:
            read_plan(path)
        except HastenError as error:
            assert str(error)


@pytest.mark.parametrize("kind", [Run, Tuning])
def test_a_record(place, kind):
    whole = full_run()
    small = (
        whole if kind is Tuning else Run(**{f: getattr(whole, f) for f in whole.__struct_fields__ if f != "timeline"})
    )
    record = search(whole) if kind is Tuning else small
    for data in each(to_json(record)[:20_000] if kind is Run else to_json(record)):
        try:
            from_json(kind, data, source="it")
        except HastenError as error:
            assert "it " in str(error)


def test_a_search_that_is_to_be_resumed(place):
    tuning = search(full_run())
    path = place / ".hasten/tunings" / tuning.id / "tuning.json"
    path.parent.mkdir(parents=True)
    for data in each(to_json(tuning)):
        put(path, data)
        try:
            found = last_tuning(place / ".hasten", tuning.command)
        except HastenError:
            continue
        assert found.id == tuning.id


def test_a_status_file(place):
    line = protocol.to_json(
        protocol.Status(state="measuring", num_steps=120, seconds=3.5, num_backwards=240)
    ).encode()
    path = place / "status-17.json"
    for data in each(line):
        put(path, data)
        for status in watching.statuses_in(place):
            assert type(status.num_steps) is type(status.num_backwards) is int and status.state in STATES


def test_a_file_of_the_disk_cache(place):
    tier = DiskTier(1 << 24, root=place / "memo")
    value = (list(range(50)), "a name", 1.5, b"bytes" * 50, {"label": 3})
    key = b"k" * 16
    assert tier.write(key, encode(value))
    path = tier._folder / key.hex()
    good = path.read_bytes()
    began = time.monotonic()
    for data in each(good):
        put(path, data)
        path.chmod(0o600)
        found = tier.read(key)
        assert found is None or decode(found) == value
        assert data != good or found is not None
    assert time.monotonic() - began < 300


def test_a_value_of_the_cache_that_passes_its_checksum(place):
    value = encode((list(range(20)), np.arange(9.0), {"label": 3}))
    good = b"".join(value.pieces)
    for data in each(good):
        with contextlib.suppress(ValueError):
            decode(np.frombuffer(data, np.uint8).copy())
