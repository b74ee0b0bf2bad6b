import numpy as np
import pytest
from PIL import Image

from hasten.workloads.folders import (
    ImageError,
    choose,
    open_image,
    read_classes,
    read_images,
    read_unlabelled,
)


def put_image(path, *, size=8, grey=100):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (size, size), grey).save(path)


def test_the_nih_layout_is_read(tmp_path):
    for name in ["images_001/images/a.png", "images_002/images/b.png"]:
        put_image(tmp_path / name)
    (tmp_path / "Data_Entry_2017.csv").write_text(
        "Image Index,Finding Labels,Follow-up #,Patient Age\n"
        "a.png,Cardiomegaly|Emphysema,0,058Y\nb.png,No Finding,1,058Y\nc.png,Hernia,2,058Y\n"
    )
    images = read_images(tmp_path)
    assert images.labels == ["Cardiomegaly", "Emphysema", "Hernia", "No Finding"]
    assert images.targets == [[1, 1, 0, 0], [0, 0, 0, 1]]
    assert [path.name for path in images.paths] == ["a.png", "b.png"]
    assert images.num_missing == 1
    with pytest.raises(ImageError, match="2 usable images, 1 more are named and missing; at least 8"):
        choose(images)


def test_a_labels_file_of_one_column_a_label_is_read(tmp_path):
    for name in "ab":
        put_image(tmp_path / "images" / f"{name}.png")
    (tmp_path / "labels.csv").write_bytes(
        b"\xef\xbb\xbfImage Index,Mass,Age,Edema,fold\r\na.png,1,58,-1,train\r\nb.png,0.0,41,1.0,val\r\n\r\n"
    )
    images = read_images(tmp_path)
    assert images.labels == ["Mass", "Edema"]
    assert images.targets == [[1, 0], [0, 1]]
    assert images.folds == ["train", "val"]
    assert images.num_missing == 0


def test_a_labels_file_may_have_another_name_and_name_paths(tmp_path):
    for name in ["x/a.png", "y/a.png"]:
        put_image(tmp_path / name)
    (tmp_path / "truth.csv").write_text("file,Mass\ny/a.png,1\nx/a.png,0\n")
    images = read_images(tmp_path)
    assert images.paths == [tmp_path / "y/a.png", tmp_path / "x/a.png"]
    assert images.folds == []


def test_class_folders_are_read(tmp_path):
    for name in ["cat/1.png", "cat/deep/2.png", "dog/3.jpg", "stray.png", "cat/.hidden.png", "cat/notes.txt"]:
        put_image(tmp_path / name) if not name.endswith("txt") else (tmp_path / name).write_text("")
    images = read_images(tmp_path)
    assert images.labels == ["cat", "dog"]
    assert sorted(images.targets) == [[0, 1], [1, 0], [1, 0]]


def test_class_folders_below_train_and_val_keep_their_fold(tmp_path):
    for name in ["train/cat/1.png", "train/dog/2.png", "val/dog/3.png"]:
        put_image(tmp_path / name)
    images = read_images(tmp_path)
    assert images.labels == ["cat", "dog"]
    assert images.folds == ["train", "train", "val"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no image below it"),
        ({"a.png": None}, "no labels: neither Data_Entry_2017.csv nor labels.csv nor two class folders"),
        ({"cat/a.png": None}, "nor two class folders"),
        ({"a.png": None, "labels.csv": b""}, "expected a header and rows"),
        ({"a.png": None, "labels.csv": b"name,Mass\n"}, "expected a header and rows"),
        ({"a.png": None, "labels.csv": b"name;Mass\na.png;1\n"}, "by commas"),
        ({"a.png": None, "labels.csv": b"name,age\na.png,58\n"}, "no column of 0 and 1"),
        ({"a.png": None, "labels.csv": b"name,Mass\nb.png,1\nc.png,0\n"}, "none of the 2 images it names"),
        ({"a.png": None, "labels.csv": b"name,Mass\n\xff\xfe\x00,1\n"}, "not a readable .csv"),
    ],
)
def test_wrong_folders_are_told_in_one_line(tmp_path, files, message):
    for name, data in files.items():
        put_image(tmp_path / name) if data is None else (tmp_path / name).write_bytes(data)
    with pytest.raises(ImageError, match=message) as caught:
        read_images(tmp_path)
    assert str(caught.value).startswith(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_an_image_of_two_labels_has_no_class(tmp_path):
    for name in "ab":
        put_image(tmp_path / f"{name}.png")
    (tmp_path / "labels.csv").write_text("name,Mass,Edema\na.png,1,1\nb.png,0,1\n")
    assert len(read_images(tmp_path).paths) == 2
    with pytest.raises(ImageError, match=r"a.png: 2 labels; this script sorts images into classes"):
        read_classes(tmp_path)


def test_images_without_labels_are_taken_as_they_lie(tmp_path):
    for name in ["train/1.png", "deep/test/2.png"]:
        put_image(tmp_path / name)
    images = read_unlabelled(tmp_path)
    assert images.labels == [] and sorted(images.folds) == ["train", "val"]
    put_image(tmp_path / "stray.png")
    assert read_unlabelled(tmp_path).folds == []


def test_a_photograph_is_turned_upright_as_its_camera_was_held(tmp_path):
    photograph, exif = Image.new("RGB", (8, 4), "black"), Image.Exif()
    photograph.paste("white", (0, 0, 4, 4))
    exif[0x0112] = 6  # held upright, the sensor's top on the right
    photograph.save(tmp_path / "a.png", exif=exif)
    upright = np.asarray(open_image(tmp_path / "a.png"))
    assert upright.shape == (8, 4, 3) and upright[0].min() == 255 and upright[-1].max() == 0


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ImageError, match="no such folder"):
        read_images(tmp_path / "nowhere")


def test_the_subset_is_the_same_each_time_and_keeps_to_the_folds(tmp_path):
    rows = [f"{k}.png,{k % 2},{'val' if k % 4 == 3 else 'train'}" for k in range(40)]
    for k in range(40):
        put_image(tmp_path / f"{k}.png")
    (tmp_path / "labels.csv").write_text("\n".join(["name,Odd,fold", *rows]))
    images = read_images(tmp_path)
    train, val = choose(images, num_images=20)
    assert (train, val) == choose(images, num_images=20)
    assert len(set(train + val)) == 20
    assert all(images.folds[i] == "train" for i in train)
    assert all(images.folds[i] == "val" for i in val)
    assert len(choose(images, num_images=1000)[0]) == 30


def test_without_folds_every_eighth_image_is_for_validation(tmp_path):
    for k in range(16):
        put_image(tmp_path / "ab"[k % 2] / f"{k}.png")
    train, val = choose(read_images(tmp_path), num_images=100)
    assert (len(train), len(val)) == (14, 2)


def test_too_few_images_are_told(tmp_path):
    for k in range(4):
        put_image(tmp_path / "ab"[k % 2] / f"{k}.png")
    with pytest.raises(ImageError, match="4 usable images; at least 8 are needed"):
        choose(read_images(tmp_path), num_images=100)


def test_too_few_images_that_are_asked_for_are_told(tmp_path):
    for k in range(16):
        put_image(tmp_path / "ab"[k % 2] / f"{k}.png")
    with pytest.raises(ImageError, match="5 images were asked for; at least 8 are needed"):
        choose(read_images(tmp_path), num_images=5)


def test_a_name_that_two_images_have_is_told(tmp_path):
    for folder in ("images", "thumbnails"):
        put_image(tmp_path / folder / "a.png")
    put_image(tmp_path / "b.png")
    (tmp_path / "labels.csv").write_text("file,Mass\na.png,1\nb.png,0\n")
    with pytest.raises(ImageError, match=r"a\.png is more than one image; name it with its folder"):
        read_images(tmp_path)


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "P", "1", "I", "I;16", "F", "CMYK"])
def test_a_film_of_any_mode_shows_its_bright_half_bright(tmp_path, mode):
    depth = {"I": 4000, "I;16": 4000, "F": 1.0}.get(mode, 255)
    pixels = np.zeros((8, 8))
    pixels[:, 4:] = depth
    if mode in ("I", "F", "I;16"):
        kind = {"I": np.int32, "F": np.float32, "I;16": np.uint16}[mode]
        film = Image.fromarray(pixels.astype(kind))
    else:
        film = Image.fromarray(pixels.astype(np.uint8)).convert("RGB").convert(mode)
    assert film.mode == mode
    ending = "tif" if mode in ("F", "CMYK", "I") else "png"
    film.save(tmp_path / f"film.{ending}")
    seen = np.asarray(open_image(tmp_path / f"film.{ending}").convert("RGB"))
    assert seen.shape == (8, 8, 3)
    assert seen[:, :4].max() < 5
    assert seen[:, 4:].min() > 250


def test_an_even_deep_film_is_black_not_an_error(tmp_path):
    Image.fromarray(np.full((8, 8), 700, np.uint16)).save(tmp_path / "film.png")
    assert np.asarray(open_image(tmp_path / "film.png")).max() == 0


@pytest.mark.parametrize("keep", [0, 10, 60, 300])
def test_a_torn_film_is_named_in_one_line(tmp_path, keep):
    path = tmp_path / "film.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ImageError, match="cannot be read") as caught:
        open_image(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
