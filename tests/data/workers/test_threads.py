"""Threads on request, or in a Python without a global interpreter lock."""

import pytest
from samples import Nested

from hasten.data.epoch.state import LoaderState
from hasten.data.loader import Loader
from hasten.data.memo.folders import FolderSamples


class Folders(FolderSamples):
    def sample(self, index, generator):
        return self.dataset[index]


@pytest.mark.parametrize(
    "has_gil, arguments, threads",
    [
        (True, {}, False),
        (False, {}, True),
        (False, {"workers": "processes"}, False),
        (True, {"workers": "threads"}, True),
        (False, {"worker_init_fn": print}, False),
        (False, {"multiprocessing_context": "fork"}, False),
        (False, {"collate_fn": list}, False),
    ],
    ids=str,
)
def test_thread_safe_samples_use_threads_in_python_without_a_gil(monkeypatch, has_gil, arguments, threads):
    monkeypatch.setattr("hasten.data.epoch.state.has_gil", lambda: has_gil)
    monkeypatch.setattr("hasten.data.epoch.state.folder_samples", Folders)
    monkeypatch.setattr("hasten.data.epoch.state.is_threadable", lambda dataset: True)
    assert uses_threads(Loader(Nested(), 4, num_workers=2, **arguments)) is threads


def test_an_unknown_dataset_uses_processes(monkeypatch):
    monkeypatch.setattr("hasten.data.epoch.state.has_gil", lambda: False)
    assert uses_threads(Loader(Nested(), 4, num_workers=2)) is False


def uses_threads(loader):
    state = LoaderState()
    state.prepare(loader, loader._options())
    return state.uses_threads
