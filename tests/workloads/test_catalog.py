import ast
import re
from pathlib import Path

import pytest

from hasten.errors import DataError
from hasten.workloads.catalog import WORKLOADS, describe_data
from hasten.workloads.images import make_films


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    return make_films(tmp_path_factory.mktemp("films"), num_images=8, size=64)


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_a_script_is_there_and_imports_nothing_of_hasten(workload):
    tree = ast.parse(workload.script.read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in names if re.match(r"(hasten|torchvision)\b", name)]
    assert ast.get_docstring(tree)


def test_prepared_films_lie_in_the_users_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("hasten.workloads.catalog.default_folder", lambda *, num_images: tmp_path / str(num_images))
    monkeypatch.setattr(
        "hasten.workloads.catalog.make_films",
        lambda folder, *, num_images, on_progress: make_films(folder, num_images=num_images, size=64),
    )
    folder = WORKLOADS["xray"].prepare(num_images=8)
    assert folder == tmp_path / "8"
    assert describe_data(folder) == (8, 15)


def test_the_scripts_arguments_name_the_data(films):
    arguments = WORKLOADS["xray"].arguments(films, num_images=64)
    assert arguments == ["--data", str(films), "--images", "64", "--draws", "112120", "--epochs", "1000"]


def test_good_data_are_counted(films):
    assert describe_data(films) == (8, 15)


def test_a_folder_that_is_not_there_is_refused():
    with pytest.raises(DataError, match=r"nowhere: no such folder"):
        describe_data(Path("nowhere"))


def test_a_file_that_is_no_image_is_refused_by_name(tmp_path):
    folder = make_films(tmp_path, num_images=8, size=64)
    (folder / "images" / "film_00003.png").write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match=r"film_00003.png: cannot be read \(not an image\)") as caught:
        describe_data(folder)
    assert "\n" not in str(caught.value)
