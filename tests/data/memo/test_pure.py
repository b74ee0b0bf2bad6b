"""Functions that the user vouches for."""

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


def test_a_second_call_with_equal_arguments_is_not_made(memo):
    function, calls = counted(lambda array, scale: array * scale)
    first = function(np.arange(5.0), scale=2)
    second = function(np.arange(5.0), scale=2)
    third = function(np.arange(5.0), scale=3)
    assert len(calls) == 2 and np.array_equal(first, second) and not np.array_equal(first, third)
    second[:] = 0
    assert np.array_equal(function(np.arange(5.0), scale=2), first)


def test_a_file_that_is_an_argument_counts_by_its_content(memo, tmp_path):
    path = tmp_path / "numbers.txt"
    path.write_text("1 2")
    function, calls = counted(lambda path: [float(word) for word in Path(path).read_text().split()])
    assert function(str(path)) == function(path) == [1.0, 2.0]
    time.sleep(0.01)
    path.write_text("3 4")
    assert function(str(path)) == [3.0, 4.0]
    assert len(calls) == 2


def test_without_a_cache_it_is_the_function_itself():
    function, calls = counted(lambda number: number + 1)
    assert function(3) == function(3) == 4 and len(calls) == 2


@pytest.mark.parametrize("argument", [object(), {1, 2}, lambda: 0, torch.ones(2, requires_grad=True)], ids=str)
def test_arguments_that_cannot_be_compared_make_a_plain_call(memo, argument):
    function, calls = counted(lambda value: 7)
    assert function(argument) == function(argument) == 7 and len(calls) == 2


def test_arguments_of_other_types_are_not_the_same(memo):
    function, calls = counted(lambda value: repr(value))
    for value in (1, 1.0, True, "1", (1,), [1], np.int64(1), torch.tensor(1), np.array(1), None, b"1", {"a": 1}):
        function(value)
    assert len(calls) == 12


def test_what_cannot_be_stored_is_computed_each_time(memo):
    function, calls = counted(lambda value: {value})
    assert function(1) == function(1) == {1} and len(calls) == 2


def test_an_exception_passes_and_is_not_kept(memo):
    function, calls = counted(lambda value: 1 / value)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            function(0)
    assert len(calls) == 2


def test_a_plan_names_functions_by_module_and_name(memo, monkeypatch):
    import textwrap as module

    from hasten.agent.patches import Patches

    calls = []
    monkeypatch.setattr(module, "dedent", lambda text: calls.append(text) or text.strip())
    patches = Patches()
    mark(patches, ["textwrap:dedent", "textwrap:nothing"])
    assert module.dedent(" a") == module.dedent(" a") == "a" and len(calls) == 1
    patches.undo()
    module.dedent(" a")
    assert len(calls) == 2


def test_a_function_that_gives_another_result_is_cached_no_longer(memo, monkeypatch):
    monkeypatch.setattr(pure, "NUM_CHECKED", 8)
    numbers = iter(range(100))
    function, _ = counted(lambda name: next(numbers))
    assert function("a") == 0
    with pytest.warns(UserWarning, match="gave another result"):
        assert function("a") == 1
    assert [function("a"), function("a")] == [2, 3]


def test_only_the_first_results_are_compared(memo, monkeypatch):
    monkeypatch.setattr(pure, "NUM_CHECKED", 8)
    function, calls = counted(lambda name: name.upper())
    assert {function("a") for _ in range(100)} == {"A"}
    assert len(calls) == 1 + 8
