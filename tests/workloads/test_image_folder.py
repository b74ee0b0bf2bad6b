"""How the case studies find their images."""

import sys

import pytest
from PIL import Image

from hasten.folders import BUNDLED


@pytest.fixture
def reader(monkeypatch):
    monkeypatch.syspath_prepend(str(BUNDLED))
    import image_folder

    yield image_folder
    sys.modules.pop("image_folder")


def put(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8)).save(folder / name)


def names_of(samples):
    return sorted((path.name, target) for path, target in samples)


def test_class_folders_are_read(reader, tmp_path):
    put(tmp_path, *(f"{label}/{number}.png" for label in ("cat", "dog/deep") for number in range(8)))
    put(tmp_path, "stray.png", "cat/.hidden.png")
    (tmp_path / "cat" / "notes.txt").touch()
    train, val, labels = reader.image_folder(tmp_path)
    assert labels == ["cat", "dog"] and (len(train), len(val)) == (14, 2)
    assert names_of(train + val) == sorted((f"{n}.png", target) for n in range(8) for target in (0, 1))


@pytest.mark.parametrize("name", ["val", "test"])
def test_folders_of_both_splits_are_kept_apart(reader, tmp_path, name):
    put(tmp_path, "train/cat/1.png", "train/dog/2.png", f"{name}/dog/3.png")
    train, val, labels = reader.image_folder(tmp_path)
    assert labels == ["cat", "dog"]
    assert (names_of(train), names_of(val)) == ([("1.png", 0), ("2.png", 1)], [("3.png", 1)])


def test_a_table_gives_an_image_several_labels(reader, tmp_path):
    put(tmp_path, "images/a.png", "images/deep/b.png")
    (tmp_path / "labels.csv").write_text(
        "image,mass,edema,split\na.png,1,1,train\nb.png,0,1,val\nmissing.png,1,0,val\n"
    )
    train, val, labels = reader.labels_file(tmp_path)
    assert labels == ["mass", "edema"]
    assert (names_of(train), names_of(val)) == ([("a.png", [1.0, 1.0])], [("b.png", [0.0, 1.0])])


def test_without_a_table_a_class_is_the_only_label(reader, tmp_path):
    put(tmp_path, "train/cat/1.png", "train/dog/2.png", "val/dog/3.png")
    train, val, _ = reader.labels_file(tmp_path)
    assert (names_of(train), names_of(val)) == (
        [("1.png", [1.0, 0.0]), ("2.png", [0.0, 1.0])],
        [("3.png", [0.0, 1.0])],
    )


def test_images_without_labels_lie_anywhere(reader, tmp_path):
    put(tmp_path, *(f"{folder}/{number}.png" for folder in ("x", "y/z") for number in range(4)))
    train, val, labels = reader.unlabeled(tmp_path)
    assert (len(train), len(val), labels) == (7, 1, []) and train[0][1] is None


def test_the_same_images_are_chosen_each_time(reader, tmp_path):
    put(tmp_path, *(f"{split}/{label}/{n}.png" for split in ("train", "val") for label in "ab" for n in range(20)))
    train, val, _ = reader.image_folder(tmp_path, 16)
    assert (train, val) == reader.image_folder(tmp_path, 16)[:2]
    assert (len(train), len(val)) == (14, 2) and {target for _, target in train} == {0, 1}
    assert len(reader.image_folder(tmp_path, 1000)[0]) == 40


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "no two folders of images"),
        (["a.png"], "no two folders of images"),
        (["cat/a.png"], "no two folders of images"),
        (["cat/a.png", "dog/a.png"], "too few images"),
    ],
)
def test_a_folder_that_will_not_do_is_named(reader, tmp_path, names, message):
    put(tmp_path, *names)
    with pytest.raises(FileNotFoundError, match=message) as caught:
        reader.image_folder(tmp_path)
    assert str(caught.value).startswith(str(tmp_path))
