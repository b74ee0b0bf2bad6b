"""Bytes that are lent are as they were when they are taken back, and what a borrower kept of them is his."""

import gc
import os
import sys
import weakref

import numpy as np
import pytest

from hasten.loading.memory import view as view_module
from hasten.loading.memory.sharing import PAGE, SharedFile, write_at
from hasten.loading.memory.view import PrivateView

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/pagemap")


@pytest.fixture
def file():
    made = SharedFile(4 * PAGE)
    write_at(made.descriptor, [b"".join(bytes([number]) * PAGE for number in range(4))], 0)
    yield made
    made.close()


@pytest.fixture
def untried():
    """Whether writes can be undone is tried anew, then and afterwards."""
    view_module._writes_can_be_undone.cache_clear()
    yield
    view_module._writes_can_be_undone.cache_clear()


def borrowed(view, start, size):
    array = np.ndarray(size, np.uint8, view.lend(start, size))
    return array, [weakref.ref(array)]


def first_bytes(view, count=4):
    return bytes(view.memory[: count * PAGE : PAGE])


def test_what_is_written_is_undone_and_seen_by_no_other_view(file):
    view, other = PrivateView(file, 0, 4 * PAGE), PrivateView(file, 0, 4 * PAGE)
    lent = view.lend(PAGE, PAGE + 1)
    lent[0] = lent[PAGE] = 99
    assert first_bytes(view) == b"\0\x63\x63\3" and first_bytes(other) == b"\0\1\2\3"
    view.take_back(PAGE, PAGE + 1, [])
    assert first_bytes(view) == b"\0\1\2\3"


def test_pages_that_nobody_wrote_to_stay_mapped(file, monkeypatch):
    view = PrivateView(file, 0, 4 * PAGE)
    monkeypatch.setattr(view, "forget", lambda *_: pytest.fail("to map them again takes longer than to ask"))
    assert sum(view.lend(0, 4 * PAGE)) == PAGE * 6
    view.take_back(0, 4 * PAGE, [])


def test_nothing_is_lent_twice_at_once(file):
    view = PrivateView(file, 0, 4 * PAGE)
    assert view.lend(0, PAGE) is not None
    assert view.lend(0, PAGE) is None and view.lend(PAGE, PAGE) is not None
    view.take_back(0, PAGE, [])
    assert view.lend(0, PAGE) is not None


def test_what_a_borrower_keeps_is_his_and_outlives_the_files_memory(file):
    view = PrivateView(file, 0, 4 * PAGE)
    array, roots = borrowed(view, PAGE, PAGE + 1)
    view.take_back(PAGE, PAGE + 1, roots)
    assert view.lend(PAGE, PAGE + 1) is None
    file.free(0, 4 * PAGE)
    assert first_bytes(view) == b"\0\1\2\0" and array.tolist() == [1] * PAGE + [2]


def test_what_nobody_keeps_any_more_is_lent_again_as_it_was(file):
    view = PrivateView(file, 0, 4 * PAGE)
    array, roots = borrowed(view, 0, PAGE)
    view.take_back(0, PAGE, roots)
    array[:] = 99
    del array
    gc.collect()
    assert bytes(view.lend(0, PAGE)) == bytes(PAGE)


def test_nothing_is_lent_while_borrowers_keep_too_much(file, monkeypatch):
    monkeypatch.setattr(view_module, "MOST_KEPT", 2 * PAGE)
    view = PrivateView(file, 0, 4 * PAGE)
    held = []
    for start in (0, PAGE):
        array, roots = borrowed(view, start, PAGE)
        held.append(array)
        del array
        view.take_back(start, PAGE, roots)
    assert view.lend(3 * PAGE, PAGE) is None
    held.pop()
    assert view.lend(3 * PAGE, PAGE) is not None


def test_a_child_process_undoes_its_own_writes_and_not_its_parents(file):
    view = PrivateView(file, 0, 4 * PAGE)
    lent = view.lend(0, PAGE)
    lent[0] = 99
    pid = os.fork()
    if pid == 0:
        seen = []
        try:
            seen.append(first_bytes(view))
            view.lend(PAGE, PAGE)[0] = 98
            view.take_back(PAGE, PAGE, [])
            view.take_back(0, PAGE, [])
            seen.append(first_bytes(view))
        finally:
            os._exit(42 if seen == [b"\x63\1\2\3", b"\0\1\2\3"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
    assert first_bytes(view) == b"\x63\1\2\3"


def test_where_the_kernel_does_not_tell_all_is_dropped(file, untried, monkeypatch):
    monkeypatch.setattr(view_module.os, "open", failing)
    view = PrivateView(file, 0, PAGE)
    view.lend(0, PAGE)[0] = 99
    view.take_back(0, PAGE, [])
    assert first_bytes(view, 1) == b"\0"


def test_where_writes_cannot_be_undone_nothing_is_lent(file, untried, monkeypatch):
    monkeypatch.setattr(PrivateView, "forget", lambda *_: None)
    assert PrivateView(file, 0, PAGE).lend(0, PAGE) is None


def failing(*_):
    raise PermissionError
