import pytest
from training_process import Process


@pytest.fixture
def process(monkeypatch):
    monkeypatch.setattr("hasten.patches._warned", set())
    process = Process()
    yield process
    process.patches.undo()


@pytest.fixture
def put_on(process):
    """Apply an optimization of the catalog, by its name."""
    return process.put_on
