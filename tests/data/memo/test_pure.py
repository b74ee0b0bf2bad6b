"""Functions marked as pure by the user."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch

import hasten
from hasten.data.memo import keys, pure
from hasten.data.memo.memo import Memo
from hasten.data.memo.pure import mark
from hasten.data.memo.ram import RamTier
from hasten.data.memo.table import memoizing


@pytest.fixture
def memo(monkeypatch):
    monkeypatch.setattr(keys, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(pure, "NUM_CHECKED", 0)
    memo = Memo(RamTier(8 << 20))
    with memoizing(memo):
        yield memo
    memo.close()


def counted(result):
    calls = []

    @hasten.pure
    def function(*arguments, **named):
        calls.append(arguments)
        return result(*arguments, **named)

    return function, calls


def test_a_second_call_with_equal_arguments_is_skipped(memo):
    function, calls = counted(lambda array, scale: array * scale)
    first = function(np.arange(5.0), scale=2)
    second = function(np.arange(5.0), scale=2)
    third = function(np.arange(5.0), scale=3)
    assert len(calls) == 2 and np.array_equal(first, second) and not np.array_equal(first, third)
    second[:] = 0
    assert np.array_equal(function(np.arange(5.0), scale=2), first)


def test_a_file_argument_is_identified_by_its_content(memo, tmp_path):
    path = tmp_path / "numbers.txt"
    path.write_text("1 2")
    function, calls = counted(lambda path: [float(word) for word in Path(path).read_text().split()])
    assert function(str(path)) == function(str(path)) == [1.0, 2.0]
    time.sleep(0.01)
    path.write_text("3 4")
    assert function(str(path)) == [3.0, 4.0]
    assert len(calls) == 2


def test_without_a_cache_the_function_runs_unchanged():
    function, calls = counted(lambda number: number + 1)
    assert function(3) == function(3) == 4 and len(calls) == 2


@pytest.mark.parametrize(
    "argument", [object(), {1, 2}, lambda: 0, torch.ones(2, requires_grad=True)], ids=lambda a: type(a).__name__
)
def test_calls_with_unsupported_arguments_are_not_cached(memo, argument):
    function, calls = counted(lambda value: 7)
    assert function(argument) == function(argument) == 7 and len(calls) == 2


def test_equal_arguments_of_different_types_differ(memo):
    function, calls = counted(lambda value: repr(value))
    for value in (1, 1.0, True, "1", (1,), [1], np.int64(1), torch.tensor(1), np.array(1), None, b"1", {"a": 1}):
        function(value)
    assert len(calls) == 12


def test_values_that_cannot_be_stored_are_computed_each_time(memo):
    function, calls = counted(lambda value: {value})
    assert function(1) == function(1) == {1} and len(calls) == 2


def test_an_exception_propagates_and_is_not_cached(memo):
    function, calls = counted(lambda value: 1 / value)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            function(0)
    assert len(calls) == 2


def test_a_plan_names_functions_by_module_and_name(memo, monkeypatch):
    import textwrap as module

    from hasten.patches import Patches

    calls = []
    monkeypatch.setattr(module, "dedent", lambda text: calls.append(text) or text.strip())
    patches = Patches()
    mark(patches, ["textwrap:dedent", "textwrap:nothing"])
    assert module.dedent(" a") == module.dedent(" a") == "a" and len(calls) == 1
    patches.undo()
    module.dedent(" a")
    assert len(calls) == 2


def test_a_function_that_returns_another_result_is_no_longer_cached(memo, monkeypatch, caplog):
    monkeypatch.setattr(pure, "NUM_CHECKED", 8)
    monkeypatch.setattr(time, "monotonic_ns", iter(range(100)).__next__)
    function, _ = counted(lambda name: time.monotonic_ns())
    assert function("a") == 0
    assert function("a") == 1 and "returned another result" in caplog.text
    assert [function("a"), function("a")] == [2, 3]


def test_only_the_first_results_are_compared(memo, monkeypatch):
    monkeypatch.setattr(pure, "NUM_CHECKED", 8)
    function, calls = counted(lambda name: name.upper())
    assert {function("a") for _ in range(100)} == {"A"}
    assert len(calls) == 1 + 8


def test_a_file_is_identified_by_its_name_too(memo, tmp_path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "dog").mkdir()
    np.save(tmp_path / "cat" / "x.npy", np.arange(3))
    (tmp_path / "dog" / "x.npy").hardlink_to(tmp_path / "cat" / "x.npy")
    time.sleep(0.02)
    function, _ = counted(lambda path: (type(path).__name__, Path(path).parent.name))
    paths = [str(tmp_path / name / "x.npy") for name in ("cat", "dog")]
    assert [function(path) for path in (*paths, Path(paths[0]), *paths)] == [
        ("str", "cat"),
        ("str", "dog"),
        ("PosixPath", "cat"),
        ("str", "cat"),
        ("str", "dog"),
    ]


def test_a_folder_is_read_every_time(memo, tmp_path):
    function, calls = counted(lambda folder: len(list(Path(folder).iterdir())))
    assert function(str(tmp_path)) == 0
    (tmp_path / "file").touch()
    assert function(str(tmp_path)) == function(tmp_path) == 1 and len(calls) == 3


def test_local_functions_differ_by_their_closures(memo):
    def times(factor):
        @hasten.pure
        def function(number):
            return number * factor

        return function

    assert times(2)(5) == 10 and times(3)(5) == 15 and times(np.zeros(1))(5) == 0


ODD = [
    torch.ones(3, dtype=torch.complex64).conj(),
    torch.ones(3).to(torch.float8_e4m3fn),
    torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    torch.nn.Parameter(torch.ones(2)),
    torch.ones(2).to_sparse(),
]


@pytest.mark.parametrize("tensor", ODD, ids=lambda tensor: f"{tensor.layout} {tensor.dtype}")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_unusual_tensors_are_supported_as_arguments_and_results(memo, tensor):
    function, calls = counted(lambda given: given)
    assert function(tensor) is tensor and function(tensor) is tensor and len(calls) == 2


def test_arrays_with_other_fields_or_order_are_different_arguments(memo):
    function, _ = counted(lambda array: (array.dtype, array.strides))
    array = np.arange(6.0).reshape(2, 3)
    for one in (array, np.asfortranarray(array), array.view([("a", "f4"), ("b", "i4")])):
        assert function(one) == function(one) == (one.dtype, one.strides)


def test_results_that_share_memory_or_carry_attributes_are_computed_each_time(memo):
    twice, calls = counted(lambda: (lambda array: (array, array[1:]))(np.arange(4)))
    twice()
    first, second = twice()
    first[1] = 9
    assert second[0] == 9 and len(calls) == 2
    named = torch.ones(2)
    named.label = "x"
    function, _ = counted(lambda: named)
    assert function().label == function().label == "x"


def test_a_tensor_from_the_cache_is_like_any_other(memo):
    function, calls = counted(lambda number: torch.arange(number))
    with torch.no_grad():
        function(5)
        cached = function(5)
    assert len(calls) == 1 and not cached._is_view()
    assert cached.resize_(2).tolist() == [0, 1] and cached.detach_() is cached
    array, _ = counted(lambda: np.arange(4.0))
    array()
    own = array()
    assert own.flags.owndata and own.base is None
