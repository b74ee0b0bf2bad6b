"""The workloads of `hasten speedtest`: their scripts are plain, and data that do not fit are refused."""

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hasten.errors import DataError
from hasten.folders import BUNDLED
from hasten.workloads.catalog import WORKLOADS, describe_data
from hasten.workloads.images import XRAYS, make_images

XRAY, EFFICIENT = WORKLOADS["xray"], WORKLOADS["efficient"]


@pytest.fixture(scope="module")
def xrays(tmp_path_factory):
    return make_images(replace(XRAYS, size=(64, 64)), num_images=16, folder=tmp_path_factory.mktemp("xrays") / "made")


@pytest.mark.parametrize("script", [workload.script for workload in WORKLOADS.values()], ids=WORKLOADS)
def test_a_script_imports_nothing_of_hasten(script):
    tree = ast.parse(script.read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in names if re.match(r"(hasten|torchvision)\b", name)]
    assert ast.get_docstring(tree)


def test_every_script_beside_the_reader_is_a_workload():
    assert {path.stem for path in BUNDLED.glob("*.py")} == {"image_folder", *WORKLOADS}


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_made_images_are_kept_and_fit_their_workload(tmp_path, monkeypatch, workload):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    number = 8 if workload.name == "xray" else 90
    folder = workload.prepare(num_images=number)
    assert folder.parent == tmp_path / "hasten"
    num_images, num_labels = describe_data(workload, folder, num_images=number)
    assert num_images == number and num_labels == {"xray": 15, "superres": 0}.get(workload.name, 10)


def test_the_arguments_of_a_script_name_its_data(xrays):
    arguments = XRAY.arguments(xrays, num_images=64)
    assert arguments == ["--data", str(xrays), "--images", "64", "--draws", "112120", "--epochs", "1000"]
    assert EFFICIENT.arguments(xrays, num_images=9, num_epochs=12)[-2:] == ["--epochs", "12"]


def test_images_without_class_folders_are_refused_by_a_script_that_needs_classes(xrays):
    with pytest.raises(DataError, match="no two folders of images, one for each class"):
        describe_data(EFFICIENT, xrays, num_images=8)


def test_a_missing_folder_is_refused():
    with pytest.raises(DataError, match=r"nowhere: no such folder"):
        describe_data(XRAY, Path("nowhere"), num_images=8)


@pytest.mark.parametrize(
    ("row", "message"), [("a.png,1,later", "train or val, not 'later'"), ("a.png,many,val", "'many'"), ("a.png", "")]
)
def test_a_table_that_cannot_be_read_is_named(tmp_path, row, message):
    (tmp_path / "labels.csv").write_text(f"image,label0,split\n{row}\n")
    (tmp_path / "a.png").touch()
    with pytest.raises(DataError, match=rf"labels\.csv: .*{message}"):
        describe_data(XRAY, tmp_path, num_images=8)


@pytest.mark.parametrize("data", [b"<html>not found</html>", b""])
def test_a_file_that_is_no_image_is_named(tmp_path, data):
    folder = make_images(replace(XRAYS, size=(64, 64)), num_images=8, folder=tmp_path / "made")
    (folder / "images" / "00003.png").write_bytes(data)
    with pytest.raises(DataError, match=r"00003.png: cannot be read \(not an image\)") as caught:
        describe_data(XRAY, folder, num_images=8)
    assert "\n" not in str(caught.value)
