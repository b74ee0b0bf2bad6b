"""A stretch of a shared file that a process may lend: what is written there is its own, noticed, and undone."""

import os
import sys

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


def test_a_write_is_noticed_on_its_page_and_undone(file):
    view = PrivateView(file, PAGE, 3 * PAGE)
    assert view.can_lend and bytes(view.memory[::PAGE]) == b"\1\2\3"
    assert not view.is_written(0, 3 * PAGE)
    view.memory[2 * PAGE - 1] = 99
    assert view.is_written(0, 3 * PAGE) and view.is_written(PAGE, 10)
    assert not view.is_written(0, PAGE) and not view.is_written(2 * PAGE, PAGE)
    view.forget(PAGE, 10)
    assert not view.is_written(0, 3 * PAGE) and view.memory[2 * PAGE - 1] == 2


def test_a_write_is_seen_by_no_other_view(file):
    view, other = PrivateView(file, 0, PAGE), PrivateView(file, 0, PAGE)
    view.memory[0] = 99
    assert other.memory[0] == 0 and not other.is_written(0, PAGE) and os.pread(file.descriptor, 1, 0) == b"\0"


def test_what_is_made_its_own_outlives_the_files_memory(file):
    view = PrivateView(file, 0, 4 * PAGE)
    view.own(PAGE, PAGE + 1)
    file.free(0, 4 * PAGE)
    assert bytes(view.memory[::PAGE]) == b"\0\1\2\0"


def test_a_child_process_notices_its_own_writes_and_not_its_parents(file):
    view = PrivateView(file, 0, 2 * PAGE)
    assert view.can_lend
    pid = os.fork()
    if pid == 0:
        told = []
        try:
            told.append(view.is_written(0, 2 * PAGE))
            view.memory[0] = 99
            told += [view.is_written(0, PAGE), view.is_written(PAGE, PAGE)]
        finally:
            os._exit(42 if told == [False, True, False] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
    assert not view.is_written(0, 2 * PAGE) and view.memory[0] == 0


def test_where_the_kernel_does_not_tell_nothing_is_lent(file, monkeypatch):
    view_module._writes_are_told.cache_clear()
    monkeypatch.setattr(view_module.os, "open", failing)
    view = PrivateView(file, 0, PAGE)
    assert not view.can_lend
    assert view.is_written(0, PAGE)  # for all that is known
    monkeypatch.undo()
    view_module._writes_are_told.cache_clear()
    assert view.can_lend


def failing(*_):
    raise PermissionError
