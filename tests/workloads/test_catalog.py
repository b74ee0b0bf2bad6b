import ast
import re
from pathlib import Path

import pytest
from PIL import Image

from hasten.errors import DataError
from hasten.workloads.catalog import WORKLOADS, describe_data
from hasten.workloads.films import make_films
from hasten.workloads.photographs import make_thumbnails

XRAY, EFFICIENT = WORKLOADS["xray"], WORKLOADS["efficient"]


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


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_images_that_a_workload_makes_are_kept_and_fit_it(tmp_path, monkeypatch, workload):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    folder = workload.prepare(num_images=80 if workload.name != "xray" else 8)
    assert folder.parent == tmp_path / "hasten"
    num_images, num_labels = describe_data(workload, folder, num_images=40)
    assert num_images >= 8 and (num_labels > 1 or workload.name == "superres")


def test_the_scripts_arguments_name_the_data(films):
    arguments = XRAY.arguments(films, num_images=64)
    assert arguments == ["--data", str(films), "--images", "64", "--draws", "112120", "--epochs", "1000"]
    assert EFFICIENT.arguments(films, num_images=9, num_epochs=12)[-2:] == ["--epochs", "12"]


def test_good_data_are_counted(films):
    assert describe_data(XRAY, films, num_images=8) == (8, 15)


def test_films_of_many_labels_are_not_for_a_script_that_sorts(films):
    with pytest.raises(DataError, match="labels; this script sorts images into classes"):
        describe_data(EFFICIENT, films, num_images=8)


def test_a_folder_that_is_not_there_is_refused():
    with pytest.raises(DataError, match=r"nowhere: no such folder"):
        describe_data(XRAY, Path("nowhere"), num_images=8)


@pytest.mark.parametrize("data", [b"<html>not found</html>", b""])
def test_a_file_that_is_no_image_is_refused_by_name(tmp_path, data):
    folder = make_films(tmp_path, num_images=8, size=64)
    (folder / "images" / "film_00003.png").write_bytes(data)
    with pytest.raises(DataError, match=r"film_00003.png: cannot be read \(not an image\)") as caught:
        describe_data(XRAY, folder, num_images=8)
    assert "\n" not in str(caught.value)


def test_every_thumbnail_lies_in_the_folder_of_its_class(tmp_path):
    folder = make_thumbnails(tmp_path, num_images=160)
    names = {path.parent.name for path in folder.glob("train/*/*.jpg")}
    assert len(names) == 10 and names == {path.parent.name for path in folder.glob("val/*/*.jpg")}
    with Image.open(next(folder.rglob("*.jpg"))) as image:
        assert image.size == (48, 48)
