"""A disk that is full when everything has been measured."""

import errno
from pathlib import Path

import pytest
from runs import run

from hasten import cli
from hasten.measurement import measure as measuring


@pytest.fixture
def full_disk(monkeypatch, tmp_path):
    def write_bytes(self, data):
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("", encoding="utf-8")
    monkeypatch.setattr(measuring._Measuring, "run", lambda self, name: run())
    monkeypatch.setattr(Path, "write_bytes", write_bytes)


def test_what_was_measured_is_shown_all_the_same(full_disk, capsys):
    assert cli.main(["diagnose", "train.py"]) == 2
    shown = capsys.readouterr()
    assert "Step " in shown.out
    assert shown.err.splitlines()[-1] == "hasten: this result is not saved: No space left on device"
    assert [*Path(".hasten/runs").iterdir()] == []
