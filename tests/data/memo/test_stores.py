"""Stored values are exact, whichever processes fill, read, damage or shrink the stores."""

import contextlib
import errno
import gc
import json
import math
import multiprocessing
import os
import random
import resource
import shutil
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hasten.data.layout.sharing import locked
from hasten.data.memo import counters as counters_module
from hasten.data.memo import ledger, ram
from hasten.data.memo.codec import Encoded, NotStorableError, Raw, decode, encode
from hasten.data.memo.counters import Counters
from hasten.data.memo.disk import DiskTier, memo_folder
from hasten.data.memo.keys import identity_of_bytes, identity_of_path, key_of
from hasten.data.memo.memo import Memo, current, get_or_compute, key_of_host, open_memo, use_in_process, using
from hasten.data.memo.ram import MAPPED_FROM, RamTier

linux = pytest.mark.skipif(sys.platform != "linux", reason="memfd, SIGKILL and record locks as Linux has them")
posix = pytest.mark.skipif(sys.platform == "win32", reason="memory is shared through a descriptor")
forking = multiprocessing.get_context("fork") if sys.platform != "win32" else None


@pytest.fixture(autouse=True)
def no_pressure(monkeypatch):
    monkeypatch.setattr(ram, "available_memory", lambda: 1 << 50)


# Values as bytes


def stored(value):
    """Encode and decode a value."""
    data = b"".join(bytes(piece) for piece in encode(value).pieces)
    assert encode(value).size == len(data)
    return decode(np.frombuffer(bytearray(data), np.uint8))


def assert_equal(one, other):
    """Whether two values are identical, including types, bits, strides and flags."""
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        assert (one.dtype, one.shape, one.flags.writeable) == (other.dtype, other.shape, other.flags.writeable)
        assert one.tobytes("A") == other.tobytes("A")
        assert (
            one.flags.c_contiguous == other.flags.c_contiguous and one.flags.f_contiguous == other.flags.f_contiguous
        )
    elif isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        assert one.numel() == 0 or bits_of(one) == bits_of(other)
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for pair in zip(one, other):
            assert_equal(*pair)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        assert_equal(list(one.values()), list(other.values()))
    elif isinstance(one, (float, np.floating, np.complexfloating)):
        assert repr(one) == repr(other)
    else:
        assert one == other or (one != one and other != other)


def bits_of(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?"),
    hnp.complex_number_dtypes(endianness="?"),
    hnp.datetime64_dtypes(endianness="?"),
    hnp.timedelta64_dtypes(endianness="?"),
    hnp.byte_string_dtypes(endianness="?", min_len=1),
    hnp.unicode_string_dtypes(endianness="?", min_len=1),
)
NAMES_OF_TENSORS = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint16",
    "uint32",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "float8_e4m3fn",
    "float8_e5m2",
]
TENSORS = [getattr(torch, name) for name in NAMES_OF_TENSORS if hasattr(torch, name)]


@st.composite
def arrays(draw):
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    dtype = draw(DTYPES)
    array = np.zeros(shape, dtype)
    if array.nbytes and dtype.kind != "U":  # not all bytes are text
        data = draw(st.binary(min_size=array.nbytes, max_size=array.nbytes))
        data = bytes(byte % 2 for byte in data) if dtype.kind == "b" else data
        array = np.frombuffer(bytearray(data), dtype).reshape(shape)
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    array.flags.writeable = draw(st.booleans())
    return array


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from(TENSORS))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    seed = draw(st.integers(0, 2**32))
    size = math.prod(shape) * dtype.itemsize
    data = torch.from_numpy(
        np.random.default_rng(seed).integers(0, 2 if dtype == torch.bool else 256, size + 8, np.uint8)
    )
    tensor = data[: max(size, dtype.itemsize)].clone().view(dtype)[: math.prod(shape)].reshape(shape)
    return tensor.permute(draw(st.permutations(range(tensor.ndim))))


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters()),
    st.binary(),
    arrays(),
    tensors(),
    st.sampled_from(
        [np.float32(1.5), np.int8(-3), np.bool_(True), np.float64("nan"), np.datetime64("2020-01-01"), np.str_("x")]
    ),
)
VALUES = st.recursive(
    LEAVES,
    lambda parts: st.one_of(
        st.lists(parts, max_size=3),
        st.lists(parts, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), parts, max_size=3),
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(VALUES)
@example({"array": 1, "raw": [2], "": None})
@example((math.inf, -math.inf, -0.0, 5e-324, 1 << 200, "\ud800", b"\0", (), [], {}))
@example((np.asfortranarray(np.arange(6).reshape(2, 3)), np.arange(24).reshape(2, 3, 4).transpose(1, 2, 0)))
@example((torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.zeros(0, 3), torch.tensor(2.5)))
def test_stored_values_round_trip(value):
    try:
        found = stored(value)
    except NotStorableError:
        assert has_gaps(value)
    else:
        assert_equal(found, value)


def has_gaps(value):
    """Whether an array of the value is not contiguous, which is possible for an empty one."""
    if isinstance(value, (list, tuple, dict)):
        return any(map(has_gaps, value.values() if isinstance(value, dict) else value))
    if isinstance(value, torch.Tensor):
        return torch.empty_like(value).stride() != value.stride()
    return isinstance(value, np.ndarray) and min(value.shape, default=1) <= 1


NOT_STORABLE = {
    "object": lambda: object(),
    "function": lambda: len,
    "set": lambda: {1},
    "objects": lambda: np.array([object()]),
    "records": lambda: np.zeros(2, [("a", "i4")]),
    "gaps": lambda: np.arange(10)[::2],
    "backwards": lambda: np.arange(10)[::-1],
    "broadcast": lambda: np.broadcast_to(np.arange(3), (2, 3)),
    "masked": lambda: np.ma.array([1, 2], mask=[0, 1]),
    "matrix": lambda: np.asmatrix([[1]]),
    "with a gradient": lambda: torch.ones(2, requires_grad=True),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "expanded": lambda: torch.ones(1).expand(5),
    "every second": lambda: torch.ones(6)[::2],
    "sparse": lambda: torch.ones(2, 2).to_sparse(),
    "conjugate": lambda: torch.ones(2, dtype=torch.complex64).conj(),
    "negated": lambda: torch.ones(2, dtype=torch.complex64).conj().imag,
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
    "elsewhere": lambda: torch.ones(2, device="meta"),
    "numbered": lambda: {1: 2},
    "ordered": lambda: __import__("collections").OrderedDict(a=1),
    "named": lambda: os.stat(".").__reduce__()[0],
    "many digits": lambda: 10**5000,
    "deep": lambda: nested(100_000),
    "in itself": lambda: (lambda one: one.append(one) or one)([]),
}


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("make", NOT_STORABLE.values(), ids=NOT_STORABLE)
@pytest.mark.filterwarnings("ignore")
def test_values_that_cannot_be_stored_exactly_raise(make):
    with pytest.raises(NotStorableError):
        encode([1, make()])


def read_or_refused(data):
    with contextlib.suppress(ValueError):
        decode(np.frombuffer(bytearray(data), np.uint8))


def framed(header, body=bytes(256)):
    data = struct.pack("<I", len(header)) + header
    return data + bytes(-len(data) % 64) + body


NAMES = ["value", "float", "bytes", "array", "tensor", "scalar", "raw", "tuple", "list", "dict"]
FIELDS = ["dtype", "shape", "strides", "stride", "meta", "readonly"]
NUMBERS = st.one_of(st.integers(-9, 70), st.sampled_from([1 << 31, 1 << 62, 1 << 70, -(1 << 62), 1e300, math.nan]))
WORDS = st.one_of(
    st.sampled_from(
        ["<f4", "|u1", "O", "V8", "float32", "quint8", "bool", "M8", "i4,O", "f4,f4", "S0", "", "0x1p9999"]
    ),
    st.text(max_size=3),
)
PLAIN = st.one_of(st.none(), st.booleans(), NUMBERS, WORDS, st.lists(NUMBERS, max_size=3))
TREES = st.recursive(
    PLAIN,
    lambda parts: st.one_of(
        st.lists(parts, max_size=3),
        st.dictionaries(st.sampled_from(NAMES), parts, max_size=2),
        st.builds(
            lambda name, value, fields: {name: value, **fields},
            st.sampled_from(NAMES),
            st.one_of(NUMBERS, parts),
            st.dictionaries(st.sampled_from(FIELDS), PLAIN, max_size=4),
        ),
    ),
    max_leaves=5,
)


@settings(max_examples=300, deadline=None)
@given(TREES)
@example({"array": 0, "dtype": "O", "shape": [3], "strides": [8]})
@example({"array": 0, "dtype": "|u1", "shape": [1 << 40], "strides": [1]})
@example({"array": 24, "dtype": "O", "shape": [3], "strides": [8]})
@example({"array": 8, "dtype": "|u1", "shape": [8], "strides": [1000]})
@example({"tensor": 8, "dtype": "float32", "shape": [1 << 40], "stride": [1]})
@example({"tensor": 8, "dtype": "float32", "shape": [2], "stride": [-1]})
@example({"tensor": 0, "dtype": "float32", "shape": [1 << 60], "stride": [1]})
@example({"raw": -64, "meta": {}})
@example({})
def test_any_header_is_decoded_or_rejected(tree):
    read_or_refused(framed(json.dumps(tree).encode()))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_decoded_or_rejected(data):
    read_or_refused(data)
    read_or_refused(framed(data))


def test_every_truncation_and_flipped_bit_is_decoded_or_rejected():
    data = b"".join(bytes(piece) for piece in encode([np.arange(9.0), torch.arange(4), (1, "x")]).pieces)
    for at in range(len(data)):
        read_or_refused(data[:at])
        for bit in range(0, 8, 3):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            read_or_refused(damaged)


def test_a_deeply_nested_header_is_rejected():
    with pytest.raises(ValueError, match="not a stored value"):
        decode(np.frombuffer(bytearray(framed(b'{"list":[' * 60_000)), np.uint8))


# Keys


def test_a_key_separates_its_parts():
    keys = [
        key_of(b"ab", b"c"),
        key_of(b"a", b"bc"),
        key_of(b"abc"),
        key_of(b"abc", b""),
        key_of(identity_of_bytes(b"abc")),
    ]
    assert len({*keys}) == 5 and {len(key) for key in keys} == {16}


def test_a_file_is_identified_by_times_that_cannot_be_set(tmp_path, monkeypatch):
    monkeypatch.setattr("hasten.data.memo.keys.QUIET_SECONDS", 0.01)
    path = tmp_path / "file"
    path.write_bytes(b"old")
    assert identity_of_path(path) is None  # it has just changed
    time.sleep(0.02)
    before, status = identity_of_path(path), os.stat(path)
    assert before == identity_of_path(str(path)) is not None
    path.write_bytes(b"new")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    time.sleep(0.02)
    assert os.stat(path).st_mtime_ns == status.st_mtime_ns and identity_of_path(path) not in (None, before)
    os.symlink(path, tmp_path / "link")
    assert identity_of_path(tmp_path / "link") == identity_of_path(path)
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path, tmp_path / "pipe", tmp_path / "none", None, "\0"):
        assert identity_of_path(other) is None


# Tiers


def key(number, salt=b""):
    return key_of(b"%d" % number, salt)


def value_of(number, size=100_000):
    rng = np.random.default_rng(number)
    return {"image": rng.integers(0, 256, size + int(rng.integers(0, 5000)), np.uint8), "label": number}


def put(tier, number, size=100_000):
    return tier.write(key(number), encode(value_of(number, size)))


def is_held(tier, number, size=100_000):
    """Whether the tier has the value; if so, verify it."""
    memory = tier.read(key(number))
    if memory is None:
        return False
    assert_equal(decode(memory), value_of(number, size))
    return True


def num_held(tier, count, size=100_000):
    return sum(is_held(tier, number, size) for number in range(count))


def run(*bodies, kill_after=None):
    """Run functions in forked processes at once; return their exit codes."""
    processes = [forking.Process(target=body) for body in bodies]
    for process in processes:
        process.start()
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(processes[0].pid, signal.SIGKILL)
    for process in processes:
        process.join(60)
        assert process.exitcode is not None, "hangs"
    return [process.exitcode for process in processes]


@pytest.fixture(params=["ram", "disk"])
def tier(request, tmp_path):
    return RamTier(32 << 20) if request.param == "ram" else DiskTier(32 << 20, root=tmp_path / "memo", script="x")


@pytest.mark.parametrize("size", [0, 100, 100_000, MAPPED_FROM + 5])
def test_a_tier_returns_what_was_written(tier, size):
    assert not is_held(tier, 3, size) and key(3) not in tier
    assert put(tier, 3, size)
    assert is_held(tier, 3, size) and key(3) in tier
    assert not is_held(tier, 4, size) and key(4) not in tier


def test_stored_values_are_never_overwritten(tier):
    assert put(tier, 3) and not put(tier, 3)
    before = tier.num_bytes
    assert not tier.write(key(3), encode("another")) and tier.num_bytes == before
    assert is_held(tier, 3)


@pytest.mark.parametrize("size", [100, MAPPED_FROM])
def test_each_reader_gets_separate_memory(tier, size):
    put(tier, 1, size)
    for _ in range(2):
        decode(tier.read(key(1)))["image"][:] = 7
        tier.read(key(1))[:] = 9
        assert is_held(tier, 1, size)


def test_a_full_tier_takes_nothing_more_and_evicts_nothing(tier, tmp_path):
    filled = [number for number in range(400) if put(tier, number)]
    assert 250 < len(filled) < 340
    assert filled == list(range(len(filled)))  # nothing was evicted for later values
    assert num_held(tier, 400) == len(filled)
    assert tier.num_bytes <= tier.budget
    folder = tmp_path / "memo"
    on_disk = sum(path.lstat().st_blocks * 512 for path in [folder, *folder.rglob("*")] if path.exists())
    assert on_disk <= tier.budget


def test_a_value_that_is_too_large_is_skipped_and_smaller_ones_still_fit(tier):
    assert not put(tier, 0, 40 << 20)
    assert put(tier, 1, 1000)


@linux
def test_many_processes_fill_a_tier_concurrently(tier):
    def work():
        order = list(range(150))
        random.Random(os.getpid()).shuffle(order)
        for number in order:
            if not is_held(tier, number, 60_000):
                put(tier, number, 60_000)

    assert run(*[work] * 4) == [0] * 4
    assert num_held(tier, 150, 60_000) == 150
    assert tier.num_bytes <= tier.budget


@linux
def test_many_processes_never_exceed_a_budget_that_is_too_small(tier):
    def work():
        for number in range(os.getpid() % 7, 300):
            put(tier, number, 200_000)
            assert tier.num_bytes <= tier.budget

    assert run(*[work] * 3) == [0] * 3
    assert 50 < num_held(tier, 300, 200_000) < 170


@linux
def test_threads_fill_a_tier_concurrently(tier):
    failed = []

    def work(seed):
        try:
            order = list(range(60))
            random.Random(seed).shuffle(order)
            for number in order:
                size = MAPPED_FROM if number % 20 == 0 else 2000
                if not is_held(tier, number, size):
                    put(tier, number, size)
                assert is_held(tier, number, size) or number in order  # another thread's may not be stored yet
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert all(is_held(tier, number, MAPPED_FROM if number % 20 == 0 else 2000) for number in range(60))


@linux
def test_killed_processes_neither_block_others_nor_leave_partial_values(tier):
    def victim():
        for number in range(1000):
            put(tier, number, 30_000)

    for attempt in range(10):
        codes = run(victim, lambda attempt=attempt: put(tier, 999 - attempt, 30_000), kill_after=0.003 * attempt)
        assert codes[1] == 0
    assert num_held(tier, 1000, 30_000) >= 10
    assert tier.num_bytes <= tier.budget
    assert put(tier, 2000, 30_000) and is_held(tier, 2000, 30_000)


@linux
def test_a_process_stopped_while_holding_the_lock_blocks_no_other(tier):
    descriptor = tier._lock.descriptor if isinstance(tier, RamTier) else tier._ledger._descriptor
    taken = forking.Event()

    def hold():
        with locked(descriptor) as ours:
            assert ours
            taken.set()
            signal.pause()

    holder = forking.Process(target=hold)
    holder.start()
    assert taken.wait(30)
    assert not put(tier, 1)
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    assert put(tier, 1)


@linux
def test_nothing_is_left_open_once_nobody_holds_a_tier(tmp_path):
    def one():
        tiers = [RamTier(8 << 20), DiskTier(8 << 20, root=tmp_path / "memo", script="x")]
        for tier in tiers:
            for size in (1000, MAPPED_FROM):
                put(tier, size, size)
                assert is_held(tier, size, size)

    one()
    gc.collect()
    before, maps = len(os.listdir("/proc/self/fd")), Path("/proc/self/maps").read_text().count("hasten")
    one()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
    assert Path("/proc/self/maps").read_text().count("hasten") == maps == 0


class TestMemory:
    """Tests for the memory tier only."""

    pytestmark = [linux]

    def test_the_budget_holds_by_the_kernels_count_for_all_sizes(self):
        tier = RamTier(8 << 20)
        rng = random.Random(1)
        for number in range(2000):
            put(tier, number, rng.choice([10, 500, 9000, 200_000, MAPPED_FROM + 1]))
            assert os.fstat(tier._file.descriptor).st_blocks * 512 <= 8 << 20

    def test_a_large_value_is_a_private_mapping(self):
        tier = RamTier(16 << 20)
        put(tier, 1, MAPPED_FROM)
        put(tier, 2, MAPPED_FROM - 10_000)
        gc.collect()  # tiers of earlier tests
        before = Path("/proc/self/maps").read_text().count("memfd:hasten")
        large, small = decode(tier.read(key(1)))["image"], decode(tier.read(key(2)))["image"]
        assert Path("/proc/self/maps").read_text().count("memfd:hasten") == before + 1
        large[0] ^= 1
        assert large[0] != decode(tier.read(key(1)))["image"][0] and is_held(tier, 1, MAPPED_FROM)
        del large, small
        gc.collect()
        assert Path("/proc/self/maps").read_text().count("memfd:hasten") == before

    def test_a_mapping_outlives_shrinking_and_its_tier(self, monkeypatch):
        tier = RamTier(16 << 20)
        put(tier, 1, 2 * MAPPED_FROM)
        put(tier, 2, 500_000)
        held = decode(tier.read(key(1)))
        monkeypatch.setattr(ram, "spare_memory", lambda: 1 << 40)
        monkeypatch.setattr(ram, "available_memory", lambda: 0)
        assert tier.shrink() > 400_000
        assert is_held(tier, 1, 2 * MAPPED_FROM) and not is_held(tier, 2, 500_000)
        assert_equal(held, value_of(1, 2 * MAPPED_FROM))
        del tier
        gc.collect()
        assert_equal(held, value_of(1, 2 * MAPPED_FROM))
        held["image"][:] = 1

    def test_a_mapping_survives_a_fork_and_stays_private(self):
        tier = RamTier(16 << 20)
        put(tier, 1, MAPPED_FROM)
        held = decode(tier.read(key(1)))

        def child():
            assert_equal(held, value_of(1, MAPPED_FROM))
            held["image"][:] = 5
            assert is_held(tier, 1, MAPPED_FROM)

        assert run(child) == [0]
        assert_equal(held, value_of(1, MAPPED_FROM))

    @pytest.mark.parametrize("why", ["too many", "refused"])
    def test_values_are_copied_if_nothing_can_be_mapped(self, why, monkeypatch):
        tier = RamTier(16 << 20)
        put(tier, 1, MAPPED_FROM)
        if why == "too many":
            monkeypatch.setattr(ram, "MAX_MAPPED", 1)
        else:
            monkeypatch.setattr(ram, "_Mapping", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOMEM, "no")))
        held = [tier.read(key(1)) for _ in range(3)]
        held[2][-2000:] = 0
        assert is_held(tier, 1, MAPPED_FROM) and len(held) == 3
        del held

    def test_released_memory_is_a_miss_and_is_really_freed(self, monkeypatch):
        tier = RamTier(64 << 20)
        for number in range(40):
            assert put(tier, number, 900_000)
        before = tier.num_bytes
        monkeypatch.setattr(ram, "spare_memory", lambda: 21 << 20)
        monkeypatch.setattr(ram, "available_memory", lambda: 1 << 20)
        assert 19 << 20 <= tier.shrink() <= 24 << 20
        assert tier.num_bytes <= before - (19 << 20)
        assert 13 <= num_held(tier, 100, 900_000) <= 20
        assert not put(tier, 50, 900_000) and not tier.takes(900_000)
        assert tier.num_bytes <= before - (19 << 20)  # looking up released values has not allocated their pages again

    def test_a_value_released_while_it_is_read_is_a_miss(self, monkeypatch):
        tier = RamTier(8 << 20)
        put(tier, 1)
        monkeypatch.setattr(ram, "spare_memory", lambda: 1 << 40)
        monkeypatch.setattr(ram, "available_memory", lambda: 0)
        real = os.preadv

        def slow(*arguments):
            tier.shrink()
            return real(*arguments)

        monkeypatch.setattr(os, "preadv", slow)
        assert tier.read(key(1)) is None

    def test_a_value_whose_memory_is_released_while_it_is_written_is_not_stored(self, monkeypatch):
        tier = RamTier(8 << 20)
        monkeypatch.setattr(ram, "spare_memory", lambda: 1 << 40)
        monkeypatch.setattr(ram, "available_memory", lambda: 0)
        real = ram.write_at

        def slow(descriptor, pieces, offset):
            tier.shrink()
            real(descriptor, pieces, offset)

        monkeypatch.setattr(ram, "write_at", slow)
        assert not put(tier, 1) and tier.read(key(1)) is None
        assert tier.num_bytes < 200_000

    def test_memory_that_runs_out_in_writing_leaves_no_value(self, monkeypatch):
        tier = RamTier(8 << 20)

        def full(descriptor, pieces, offset):
            raise OSError(errno.ENOMEM, "Cannot allocate memory")

        monkeypatch.setattr(ram, "write_at", full)
        with pytest.raises(OSError, match="Cannot allocate"):
            put(tier, 1)
        monkeypatch.undo()
        assert tier.read(key(1)) is None and key(1) not in tier

    def test_memory_is_checked_while_the_tier_is_filled(self, monkeypatch):
        monkeypatch.setattr(ram, "CHECK_EVERY", 1 << 20)
        monkeypatch.setattr(ram, "spare_memory", lambda: 1 << 20)
        tier = RamTier(32 << 20)
        monkeypatch.setattr(ram, "available_memory", lambda: (8 << 20) - tier.num_bytes)
        for number in range(300):
            put(tier, number)
        assert 5 << 20 < tier.num_bytes < 9 << 20

    def test_a_budget_below_the_table_size_raises(self):
        with pytest.raises(OSError, match="8000 bytes of shared memory are too few to store values"):
            RamTier(8000)

    def test_a_deleted_tier_frees_its_memory(self):
        before = len(os.listdir("/proc/self/fd"))
        tier = RamTier(8 << 20)
        put(tier, 1)
        del tier
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == before

    def test_tiers_with_the_same_host_key_share_values(self):
        name = b"tiers %d" % os.getpid()
        one, other = (RamTier(1 << 20, host_key=name) for _ in range(2))
        apart = RamTier(1 << 20, host_key=name + b"!")
        assert put(one, 1) and not put(other, 1)
        del one
        assert is_held(other, 1) and not is_held(apart, 1)

    def test_colliding_keys_are_distinguished(self):
        tier = RamTier(1 << 20)
        keys = [bytes(8) + bytes([number]) * 8 for number in range(20)]
        for number, one in enumerate(keys):
            assert tier.write(one, encode(number))
        assert [decode(tier.read(one)) for one in keys] == list(range(20))
        assert tier.read(bytes(7) + b"\1" + bytes(8)) is None

    def test_a_crowded_table_takes_no_more(self, monkeypatch):
        tier = RamTier(1 << 20)
        keys = [bytes(8) + number.to_bytes(8, "little") for number in range(100)]
        assert [tier.write(one, encode(number)) for number, one in enumerate(keys)] == [True] * 64 + [False] * 36
        assert tier.read(keys[99]) is None and decode(tier.read(keys[63])) == 63


class TestDisk:
    """Tests for the disk tier only."""

    @pytest.fixture
    def root(self, tmp_path):
        return tmp_path / "memo"

    @pytest.fixture
    def filled(self, root):
        tier = DiskTier(64 << 20, root=root, script="x")
        for number in range(10):
            assert put(tier, number, 20_000)
        return tier

    def path(self, tier, number):
        return tier._folder / key(number).hex()

    def test_values_outlive_the_tier(self, filled, root):
        other = DiskTier(64 << 20, root=root, script="x")
        assert num_held(other, 10, 20_000) == 10
        assert other.num_bytes == filled.num_bytes > 0

    @pytest.mark.parametrize("seed", range(3))
    def test_a_damaged_file_is_never_used_and_is_recreated(self, filled, seed):
        rng = random.Random(seed)
        for _ in range(50):
            number = rng.randrange(10)
            path = self.path(filled, number)
            good = path.read_bytes()
            data = bytearray(good)
            at = rng.randrange(len(data)) if rng.random() < 0.7 else rng.randrange(200)
            damage = rng.choice(["flip", "cut", "garbage", "zeros", "more"])
            if damage == "flip":
                data[at] ^= 1 << rng.randrange(8)
            elif damage == "cut":
                del data[at:]
            elif damage == "more":
                data += rng.randbytes(rng.choice((1, 64, 5000)))
            else:
                length = min(len(data) - at, rng.choice((8, 512, 5000)))
                data[at : at + length] = rng.randbytes(length) if damage == "garbage" else bytes(length)
            path.write_bytes(data)
            if not is_held(filled, number, 20_000):  # the padding of the header may be anything
                assert not path.exists()
                assert put(filled, number, 20_000)
            else:
                assert bytes(data) == good or at < 64
            assert is_held(filled, number, 20_000)

    def test_a_file_with_another_key_is_never_used(self, filled):
        filled.write(key(5, b"other"), encode("other"))
        foreign = (filled._folder / key(5, b"other").hex()).read_bytes()
        swapped = self.path(filled, 6).read_bytes()
        for content in (foreign, swapped, b"", b"hello"):
            self.path(filled, 5).write_bytes(content)
            assert not is_held(filled, 5, 20_000)
            assert put(filled, 5, 20_000) and is_held(filled, 5, 20_000)

    @linux
    def test_a_pipe_a_link_and_a_folder_in_a_files_place_do_no_harm(self, filled, tmp_path):
        path = self.path(filled, 5)
        good = tmp_path / "good"
        shutil.copy(path, good)
        for replace in (os.mkfifo, lambda name: os.symlink(good, name)):
            path.unlink()
            replace(path)
            assert not is_held(filled, 5, 20_000)
            assert put(filled, 5, 20_000) and is_held(filled, 5, 20_000)
        path.unlink()
        path.mkdir()
        assert not is_held(filled, 5, 20_000) and not put(filled, 5, 20_000)

    @linux
    def test_a_value_of_another_user_is_not_read(self, filled, monkeypatch):
        monkeypatch.setattr(ledger.os, "geteuid", lambda: 12345)
        assert not is_held(filled, 5, 20_000)

    @pytest.mark.parametrize("damage", [b"", b"x", b"\xff" * 24, bytes(24)])
    def test_a_damaged_byte_count_is_recounted(self, filled, root, damage):
        before = filled.num_bytes
        (root / "ledger").write_bytes(damage)
        assert put(filled, 20, 20_000)
        assert before < filled.num_bytes < before + 40_000

    def test_temporary_files_of_dead_processes_are_removed_when_room_is_short(self, filled, monkeypatch):
        left = filled._folder / ".dead.1.1"
        left.write_bytes(b"x")
        os.utime(left, (0, 0))
        monkeypatch.setattr(filled._ledger, "_budget", filled.num_bytes)
        monkeypatch.setattr(ledger, "STALE", -1.0)
        assert not put(filled, 20, 20_000)
        assert not left.exists()

    def test_the_least_recently_used_store_is_removed_unless_it_is_open(self, root):
        stores = [DiskTier(1 << 20, root=root, script=name) for name in ("oldest", "open", "new")]
        for age, store in enumerate(stores[:2]):
            for number in range(15):
                assert put(store, number, 20_000)
            os.utime(store._folder, (age, age))
        oldest = stores[0]._folder
        del store
        stores[0] = None
        for number in range(100, 140):
            put(stores[2], number, 20_000)
            assert stores[2].num_bytes <= 1 << 20
        if sys.platform != "win32":
            assert not oldest.exists()
        assert num_held(stores[1], 15, 20_000) == 15
        assert sum(is_held(stores[2], number, 20_000) for number in range(100, 140)) > 15

    def test_folders_that_are_not_stores_are_never_removed(self, root):
        kept = [root / "patients", root / ("a" * 32)]  # the second has a store's name, but no marker file
        for folder in kept:
            folder.mkdir(parents=True, mode=0o700)
            (folder / ".hidden").write_bytes(b"precious")
            os.utime(folder / ".hidden", (0, 0))
            os.utime(folder, (0, 0))
        root.chmod(0o700)
        tier = DiskTier(200_000, root=root, script="x")
        for number in range(30):
            put(tier, number, 20_000)
        assert all((folder / ".hidden").read_bytes() == b"precious" for folder in kept)

    @linux
    def test_a_file_too_large_for_the_disk_raises_and_leaves_nothing_behind(self, filled):
        def work():
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            before = sorted(os.listdir(filled._folder)), filled.num_bytes
            with pytest.raises(OSError) as raised:
                put(filled, 20, 20_000)
            assert raised.value.errno == errno.EFBIG
            assert (sorted(os.listdir(filled._folder)), filled.num_bytes) == before
            assert num_held(filled, 10, 20_000) == 10

        assert run(work) == [0]

    def test_a_disk_that_fills_up_while_a_value_is_written_leaves_nothing_behind(self, filled, monkeypatch):
        before = sorted(os.listdir(filled._folder)), filled.num_bytes
        monkeypatch.setattr(os, "replace", full_disk)
        with pytest.raises(OSError, match="No space left"):
            put(filled, 20, 20_000)
        assert (sorted(os.listdir(filled._folder)), filled.num_bytes) == before

    @linux
    def test_a_folder_that_others_can_write_to_raises(self, root):
        root.mkdir()
        root.chmod(0o777)
        with pytest.raises(PermissionError, match="other users can write to it"):
            DiskTier(1 << 20, root=root, script="x")
        root.chmod(0o700)
        DiskTier(1 << 20, root=root, script="x")
        assert stat.S_IMODE(root.stat().st_mode) == 0o700

    def test_the_user_can_choose_the_folder(self, monkeypatch, tmp_path):
        monkeypatch.setenv("HASTEN_CACHE", str(tmp_path))
        assert memo_folder() == tmp_path / "memo"
        monkeypatch.delenv("HASTEN_CACHE")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
        if sys.platform == "linux":
            assert memo_folder() == tmp_path / "x" / "hasten" / "memo"


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


# The memo of both


class Counting:
    """Computes values and counts how often."""

    def __init__(self, size=10_000):
        self.size, self.computed = size, []

    def compute(self, number):
        self.computed.append(number)
        return [np.full(self.size, number, np.int64), number]

    def get(self, memo, number):
        with using(memo):
            array, found = get_or_compute(key(number), lambda: self.compute(number))
        assert (array == number).all() and found == number
        return found

    def epoch(self, memo, count=50, seed=0):
        order = list(range(count))
        random.Random(seed).shuffle(order)
        assert [self.get(memo, number) for number in order] == order


@pytest.fixture
def made(tmp_path):
    memos = []

    def make(*, ram=0, disk=0):
        memo = Memo(
            RamTier(ram) if ram else None,
            DiskTier(disk, root=tmp_path / "memo", script="x") if disk else None,
        )
        memos.append(memo)
        return memo

    yield make
    for memo in memos:
        memo.close()


@posix
def test_nothing_is_computed_twice_if_all_values_fit(made):
    values, memo = Counting(), made(ram=16 << 20)
    for seed in range(3):
        values.epoch(memo, seed=seed)
    assert sorted(values.computed) == list(range(50))
    counts = memo.counts()
    assert (counts.num_misses, counts.tiers[0].num_hits, counts.tiers[0].num_fills) == (50, 100, 50)
    assert counts.hit_rate == pytest.approx(2 / 3)
    assert counts.tiers[0].seconds_saved == pytest.approx(2 * counts.seconds_computing)
    assert 50 * 80_000 <= counts.value_bytes <= 50 * 81_000


@posix
def test_a_memo_of_half_the_values_saves_half_the_work(made):
    values, memo = Counting(), made(ram=2 << 20)
    values.epoch(memo)
    held = memo.counts().tiers[0].num_fills
    assert 22 <= held <= 27
    values.computed.clear()
    values.epoch(memo, seed=1)
    assert len(values.computed) == 50 - held


@posix
def test_disk_takes_what_memory_cannot_and_each_value_is_stored_once(made):
    values, memo = Counting(), made(ram=2 << 20, disk=7 << 20)
    values.epoch(memo)
    values.computed.clear()
    values.epoch(memo, seed=1)
    in_ram, on_disk = memo.counts().tiers
    assert values.computed == [] and in_ram.num_fills + on_disk.num_fills == 50 == in_ram.num_hits + on_disk.num_hits


@posix
def test_a_large_disk_gets_all_values_and_fills_memory_in_the_next_run(made):
    values, memo = Counting(), made(ram=2 << 20, disk=64 << 20)
    values.epoch(memo)
    assert memo.counts().tiers[1].num_fills == 50
    values.computed.clear()
    again = made(ram=2 << 20, disk=64 << 20)
    values.epoch(again)
    in_ram, on_disk = again.counts().tiers
    assert values.computed == [] and on_disk.num_hits == 50 and in_ram.num_fills > 20
    values.epoch(again)
    assert again.counts().tiers[0].num_hits == in_ram.num_fills


@posix
def test_writing_to_a_value_does_not_change_the_cache(made):
    values = Counting()
    for memo in (made(ram=16 << 20), made(disk=64 << 20), made(ram=4 << 20, disk=64 << 20)):
        for _ in range(3):
            with using(memo):
                get_or_compute(key(3), lambda: values.compute(3))[0][:] = -1
            values.get(memo, 3)


@posix
def test_values_that_cannot_be_stored_are_computed_each_time(made):
    memo, calls = made(ram=1 << 20), []
    with using(memo):
        for _ in range(2):
            assert callable(get_or_compute(key(3), lambda: calls.append(1) or len))
    assert len(calls) == 2 and memo.counts().tiers[0].num_fills == 0 and memo.counts().num_misses == 2


@posix
def test_an_error_while_computing_propagates_and_is_not_cached(made):
    memo = made(ram=1 << 20)
    with using(memo):
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                get_or_compute(key(3), lambda: 1 // 0)
        assert get_or_compute(key(3), lambda: 5) == 5


@posix
def test_a_source_that_changed_while_computing_is_not_cached(made):
    memo = made(ram=1 << 20)
    with using(memo):
        assert get_or_compute(key(3), lambda: 5, is_unchanged=lambda: False) == 5
        assert get_or_compute(key(3), lambda: 6, is_unchanged=lambda: True) == 6
        assert get_or_compute(key(3), lambda: 7) == 6
        assert get_or_compute(None, lambda: 8) == 8


@posix
def test_calls_within_a_computation_are_not_memoized_themselves(made):
    memo, seen = made(ram=1 << 20), []
    with using(memo):
        get_or_compute(key(3), lambda: seen.append(current()) or 1)
        assert current() is memo
    assert seen == [None]


@posix
def test_a_memo_applies_to_the_process_or_a_thread(made):
    memo, other, seen = made(ram=1 << 20), made(ram=1 << 20), []
    assert current() is None
    use_in_process(memo)
    try:
        with using(other):
            thread = threading.Thread(target=lambda: seen.append(current()))
            thread.start()
            thread.join()
            with using(None):
                seen.append(current())
            seen.append(current())
        seen.append(current())
    finally:
        use_in_process(None)
    assert seen == [memo, None, other, memo] and current() is None


def test_a_failing_disk_is_abandoned_with_one_warning(made, monkeypatch, caplog):
    values, memo = Counting(), made(disk=64 << 20)
    values.epoch(memo, count=5)
    monkeypatch.setattr(os, "replace", full_disk)
    values.epoch(memo)
    values.epoch(memo)
    [warned] = caplog.messages
    assert "disk cache stores no more values" in warned and "No space" in warned
    assert memo.counts().tiers[0].num_fills == 5 and memo.counts().tiers[0].num_hits == 10


def test_a_read_only_disk_is_still_read(made, monkeypatch, caplog):
    values = Counting()
    values.epoch(made(disk=64 << 20), count=5)
    real = os.open

    def read_only(path, flags, *mode, **more):
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, "Read-only file system")
        return real(path, flags, *mode, **more)

    monkeypatch.setattr(os, "open", read_only)
    memo = made(disk=64 << 20)
    values.epoch(memo)
    [warned] = caplog.messages
    assert "stores no more values" in warned and "cannot be written" in warned
    assert (memo.counts().tiers[0].num_hits, memo.counts().num_misses) == (5, 45)


@posix
def test_a_tier_that_cannot_be_opened_is_left_out(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path / "file"))
    memo = open_memo(ram=100, disk=1 << 20)
    assert [one.partition(":")[0] for one in caplog.messages] == [
        "the ram cache is off",
        "the disk cache is off",
    ]
    values = Counting()
    values.epoch(memo)
    values.epoch(memo)
    assert memo.counts().num_misses == 100 and memo.counts().hit_rate == 0
    memo.close()


@posix
def test_a_missing_home_folder_is_not_an_error(monkeypatch, caplog):
    monkeypatch.setattr("hasten.data.memo.memo.memo_folder", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    open_memo(ram=None, disk="auto").close()
    assert caplog.messages == ["the disk cache is off: no home; set HASTEN_CACHE to another folder"]


@posix
def test_notes_are_not_counted(made):
    memo = made(ram=1 << 20)
    memo.note(key(1), Raw({"continued": True}, b""))
    counts = memo.counts()
    assert (counts.num_misses, counts.tiers[0].num_fills) == (0, 0) and memo.get(key(1)).meta == {"continued": True}


@posix
def test_forked_workers_share_one_copy_and_are_counted_together(made):
    values, memo = Counting(), made(ram=16 << 20)

    def work(first):
        for number in range(first, 50, 4):
            values.get(memo, number)

    for _ in range(2):
        assert run(*[lambda first=first: work(first) for first in range(4)]) == [0] * 4
    counts = memo.counts()
    assert (counts.num_misses, counts.tiers[0].num_hits) == (50, 50)
    values.epoch(memo)
    assert values.computed == []


SPAWNED = """
import multiprocessing, sys
import numpy as np
from pathlib import Path
from hasten.data.memo.disk import DiskTier
from hasten.data.memo.keys import key_of
from hasten.data.memo.memo import Memo, get_or_compute, use_in_process
from hasten.data.memo.ram import RamTier

def work(memo):
    use_in_process(memo)
    for number in range(40):
        array = get_or_compute(key_of(b"%d" % number), lambda: np.full(20_000, number))
        assert (array == number).all()
        array[:] = 0

if __name__ == "__main__":
    memo = Memo(RamTier(4 << 20), DiskTier(14 << 20, root=Path(sys.argv[1]), script="x"))
    worker = multiprocessing.get_context("spawn").Process(target=work, args=(memo,))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    work(memo)
    counts = memo.counts()
    print(counts.num_misses, [tier.num_hits > 0 for tier in counts.tiers], sum(tier.num_hits for tier in counts.tiers))
"""


@pytest.mark.contract
@pytest.mark.slow
@posix
def test_a_spawned_worker_shares_the_one_copy_and_is_counted_too(tmp_path):
    script = tmp_path / "spawned.py"
    script.write_text(SPAWNED, encoding="utf-8")
    command = [sys.executable, str(script), str(tmp_path / "memo")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout.strip(), done.stderr) == ("40 [True, True] 40", "")


def test_threads_share_a_memo(made):
    values, memo, failed = Counting(), made(ram=16 << 20, disk=64 << 20), []

    def work(seed):
        try:
            for again in range(3):
                values.epoch(memo, seed=seed + again)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    counts = memo.counts()
    assert counts.num_misses + sum(tier.num_hits for tier in counts.tiers) == 6 * 3 * 50
    assert counts.num_misses == len(values.computed)


@posix
def test_a_memo_that_is_closed_while_threads_use_it_raises_nothing():
    values, failed = Counting(100), []
    memo = Memo(RamTier(16 << 20))
    stop = threading.Event()

    def work(seed):
        try:
            while not stop.is_set():
                values.epoch(memo, seed=seed)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    memo.close()
    time.sleep(0.05)
    stop.set()
    for thread in threads:
        thread.join()
    assert failed == []


@posix
def test_a_memo_that_is_closed_while_a_value_is_written_writes_to_no_other_file(made, monkeypatch, tmp_path, caplog):
    memo = made(ram=16 << 20)
    opened = []

    def close_first(*arguments):
        if not opened:
            memo.close()
            opened.append(
                os.open(tmp_path / "checkpoint", os.O_RDWR | os.O_CREAT)
            )  # the first descriptor that is free
        write_at(*arguments)

    write_at = ram.write_at
    monkeypatch.setattr(ram, "write_at", close_first)
    assert memo.put(key(1), list(range(100)), seconds=0.1)
    os.close(opened[0])
    assert (tmp_path / "checkpoint").read_bytes() == b"" and not caplog.records


@posix
def test_a_memo_that_is_closed_between_two_tiers_stores_no_more(made, monkeypatch, caplog):
    memo = made(ram=16 << 20, disk=1 << 30)
    assert memo._duplicates
    first = memo._tiers[0]
    write = first.write

    def close_after(key, encoded):
        is_stored = write(key, encoded)
        memo.close()
        return is_stored

    monkeypatch.setattr(first, "write", close_after)
    assert memo.put(key(1), 1, seconds=0.1)
    assert not caplog.records


@posix
def test_a_share_of_the_disk_counts_what_the_cache_already_takes(monkeypatch, tmp_path):
    monkeypatch.setenv("HASTEN_CACHE", os.fspath(tmp_path))
    earlier = DiskTier(1 << 30, script="earlier")
    assert put(earlier, 1, 400_000)
    taken = earlier.num_bytes
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    memo = open_memo(ram=None, disk="50%")
    assert memo.counts().tiers[0].budget == (1_000_000 + taken) // 2
    memo.close()


@posix
def test_released_values_are_recomputed(made, monkeypatch):
    values, memo = Counting(), made(ram=16 << 20)
    values.epoch(memo)
    monkeypatch.setattr(ram, "available_memory", lambda: 0)
    monkeypatch.setattr(ram, "spare_memory", lambda: 1 << 30)
    assert memo.shrink() > 3 << 20
    values.epoch(memo)
    assert memo.counts().num_misses == 100


@posix
def test_a_value_that_cannot_be_read_is_recomputed(made):
    values, memo = Counting(), made(ram=16 << 20)
    memo._tiers[0].write(key(3), Encoded([b"nonsense"], 8))
    assert values.get(memo, 3) == 3 and memo.counts().num_misses == 1


@posix
def test_counters_keep_the_counts_of_dead_processes_and_reuse_their_rows(monkeypatch):
    monkeypatch.setattr(counters_module, "ROWS", 4)
    counters = Counters(["a", "b"])

    def count():
        counters.add(a=1, b=0.5)
        os._exit(0)

    for _ in range(12):
        if not (process := os.fork()):
            count()
        os.waitpid(process, 0)
    counters.add(a=1)
    assert (counters.total("a"), counters.total("b")) == (13, 6)
    counters.close()
    assert counters.total("a") == 13


@posix
def test_a_memo_leaves_no_descriptor_open(tmp_path):
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("nothing to count them by")

    def one():
        memo = Memo(RamTier(4 << 20), DiskTier(4 << 20, root=tmp_path / "memo", script="x"))
        Counting().epoch(memo)
        memo.close()

    one()
    before = os.listdir("/proc/self/fd")
    one()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_memo_without_tiers_computes_everything():
    values, memo = Counting(), Memo()
    values.epoch(memo)
    values.epoch(memo)
    assert memo.counts().num_misses == 100 and memo.counts().tiers == ()
    memo.close()


def test_the_ranks_of_a_host_agree_on_a_key(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert key_of_host() is None
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_PORT", "1")
    one = key_of_host()
    monkeypatch.setenv("MASTER_PORT", "2")
    assert None not in (one, key_of_host()) and one != key_of_host()
