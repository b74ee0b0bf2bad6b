"""What is saved is seen, and can be left out; where it goes is the script's own affair."""

import errno
import io
import os
import shutil
import sys

import pytest
import torch

from hasten.agent import saving
from hasten.agent.marks import Marks


@pytest.fixture
def marks(tmp_path, patches, monkeypatch):
    """The marks of savers that are followed, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    marks = Marks()
    saving.install(marks, patches)
    return marks


def test_each_save_is_a_checkpoint_span_even_in_the_time_of_record(marks):
    assert not marks.full
    torch.save(1, "a.pt")
    torch.save(obj=2, f="b.pt")
    assert [kind for kind, *_ in marks.spans] == ["checkpoint", "checkpoint"]
    assert torch.load("b.pt") == 2


def test_an_open_buffer_is_saved_to(marks):
    buffer = io.BytesIO()
    torch.save(torch.ones(2), buffer)
    assert buffer.tell() > 0 and len(marks.spans) == 1


def test_a_save_that_fails_raises_as_before(marks):
    with pytest.raises((AttributeError, TypeError, RuntimeError)):
        torch.save(lambda: None, "model.pt")


def test_saving_can_be_left_out_and_put_back(marks):
    saving.save_nothing(True)
    torch.save(1, "a.pt")
    saving.save_nothing(False)
    torch.save(1, "b.pt")
    assert os.listdir() == ["b.pt"]


def test_a_framework_is_followed_once_it_is_imported(tmp_path, monkeypatch, patches):
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate/__init__.py").write_text("")
    (tmp_path / "accelerate/accelerator.py").write_text(
        "class Accelerator:\n    def save_state(self, folder):\n        return folder\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "accelerate"]:
        monkeypatch.delitem(sys.modules, name)
    marks = Marks()
    saving.install(marks, patches)
    from accelerate.accelerator import Accelerator

    assert Accelerator().save_state("there") == "there"
    assert [kind for kind, *_ in marks.spans] == ["checkpoint"]
    for name in ("accelerate", "accelerate.accelerator"):
        del sys.modules[name]  # monkeypatch would put it back


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_where_a_rename_crosses_a_layer_it_copies(tmp_path, patches, monkeypatch, kind):
    def refuse(_src, _dst):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "rename", refuse)
    saving.rename_as_on_one_disk(patches)
    source = tmp_path / "source"
    if kind == "folder":
        source.mkdir()
        (source / "inner.txt").write_text("text")
        (tmp_path / "target").mkdir()
    else:
        source.write_text("text")
    os.rename(source, tmp_path / "target")
    assert (tmp_path / "target" / ("inner.txt" if kind == "folder" else "")).read_text() == "text"
    assert not source.exists()
    with pytest.raises(FileNotFoundError):
        os.rename(source, tmp_path / "other")
    shutil.rmtree(tmp_path / "target", ignore_errors=True)
