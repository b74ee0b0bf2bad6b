"""A measured run saves, but not where the user would find it."""

import os
import pathlib
import shutil

import pytest
import torch

from hasten.measurement.inside import scratch
from hasten.measurement.inside.marks import Marks


@pytest.fixture
def folder(tmp_path, patches, monkeypatch):
    """The user's working directory, with savers redirected."""
    user = tmp_path / "user"
    user.mkdir()
    monkeypatch.chdir(user)
    marks = Marks()
    scratch.install(tmp_path / "scratch", marks, patches)
    user_folder = user
    yield user_folder, tmp_path / "scratch", marks


@pytest.mark.parametrize("kind", [str, pathlib.Path])
def test_a_checkpoint_is_written_to_the_scratch_folder_only(folder, kind):
    user, aside, _ = folder
    torch.save({"a": torch.ones(2)}, kind("model.pt"))
    assert list(user.iterdir()) == []
    assert len(list(aside.iterdir())) == 1


def test_a_path_given_by_name_is_redirected_too(folder):
    user, _, _ = folder
    torch.save(obj=torch.ones(2), f="model.pt")
    assert list(user.iterdir()) == []


def test_what_was_saved_can_be_loaded_by_its_own_name(folder):
    user, _, _ = folder
    torch.save({"a": torch.arange(3)}, "model.pt")
    for name in ("model.pt", user / "model.pt", os.path.join(".", "model.pt")):
        assert torch.equal(torch.load(name)["a"], torch.arange(3))
    assert torch.equal(torch.load(f=str(user / "model.pt"))["a"], torch.arange(3))


def test_a_file_that_was_there_before_is_kept_and_can_be_loaded(folder, patches):
    user, _, _ = folder
    with open(user / "old.pt", "wb") as file:
        torch.save(torch.zeros(1), file)
    before = (user / "old.pt").read_bytes()
    assert torch.equal(torch.load("old.pt"), torch.zeros(1))
    torch.save(torch.ones(1), "old.pt")
    assert (user / "old.pt").read_bytes() == before
    assert torch.equal(torch.load("old.pt"), torch.ones(1))


def test_saving_over_and_over_takes_the_room_of_one_checkpoint(folder):
    _, aside, _ = folder
    for value in range(3):
        torch.save(torch.full((1,), value), "last.pt")
    assert len(list(aside.iterdir())) == 1
    assert torch.load("last.pt").item() == 2


def test_files_of_one_name_in_two_folders_stay_apart(folder):
    for name in ("a/model.pt", "b/model.pt"):
        torch.save(name, name)
    assert [torch.load(n) for n in ("a/model.pt", "b/model.pt")] == ["a/model.pt", "b/model.pt"]


def test_an_open_buffer_is_left_to_the_script(folder):
    import io

    buffer = io.BytesIO()
    torch.save(torch.ones(2), buffer)
    assert buffer.tell() > 0


def test_each_save_is_a_checkpoint_span_even_in_the_time_of_record(folder):
    *_, marks = folder
    assert not marks.full
    torch.save(1, "a.pt")
    torch.save(2, "b.pt")
    assert [kind for kind, *_ in marks.spans] == ["checkpoint", "checkpoint"]


def test_a_save_that_fails_raises_as_before(folder):
    with pytest.raises((AttributeError, TypeError, RuntimeError)):
        torch.save(lambda: None, "model.pt")


def test_the_sizes_that_saving_costs_are_real(folder):
    _, aside, _ = folder
    torch.save(torch.zeros(1000), "model.pt")
    assert next(aside.iterdir()).stat().st_size > 4000


def test_after_undo_saving_writes_where_it_is_told(folder, patches):
    user, _, _ = folder
    patches.undo()
    torch.save(1, "model.pt")
    assert [p.name for p in user.iterdir()] == ["model.pt"]


def test_a_copy_of_a_checkpoint_into_a_folder_lies_under_that_folders_name(folder):
    user, _, _ = folder
    (user / "backup").mkdir()
    torch.save(torch.ones(2), "last.pt")
    shutil.copy("last.pt", "backup/")
    os.makedirs("backup", exist_ok=True)
    assert torch.equal(torch.load("backup/last.pt"), torch.ones(2))
    assert list((user / "backup").iterdir()) == []


def test_copying_by_named_arguments_works_as_before(folder):
    user, _, _ = folder
    (user / "a.txt").write_text("a")
    torch.save(torch.ones(2), "model.pt")
    shutil.copy(src="a.txt", dst="b.txt")
    shutil.move(src="model.pt", dst="best.pt")
    assert (user / "b.txt").read_text() == "a"
    assert os.path.getsize(filename="b.txt") == 1
    assert torch.equal(torch.load("best.pt"), torch.ones(2))
    with pytest.raises(TypeError, match="positional argument"):
        shutil.copy("a.txt")
