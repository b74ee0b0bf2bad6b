"""The made images: as large as real ones, labeled, the same each time, and there completely or not at all."""

import csv
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hasten.errors import DirectoryError
from hasten.workloads import images
from hasten.workloads.images import PHOTOS, SCENES, THUMBNAILS, XRAYS, draw, make_images

SMALL_XRAYS = replace(XRAYS, size=(64, 64))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("kind", "mode", "suffix", "smallest", "largest"),
    [
        (XRAYS, "L", ".png", 380_000, 440_000),
        (PHOTOS, "RGB", ".jpg", 18_000, 30_000),
        (THUMBNAILS, "RGB", ".jpg", 900, 1_500),
        (SCENES, "RGB", ".jpg", 45_000, 60_000),
    ],
    ids=lambda value: value.name if isinstance(value, images.ImageSet) else "",
)
def test_an_image_is_as_large_as_a_real_one(tmp_path, kind, mode, suffix, smallest, largest):
    folder = make_images(kind, num_images=2, folder=tmp_path / "made")
    paths = [path for path in folder.rglob("*") if path.suffix == suffix]
    assert len(paths) == 2
    for path in paths:
        with Image.open(path) as image:
            assert (image.size, image.mode) == (kind.size, mode)
        assert smallest < path.stat().st_size < largest


def test_an_xray_image_has_its_labels_in_a_table(tmp_path):
    folder = make_images(SMALL_XRAYS, num_images=9, folder=tmp_path / "made")
    rows = list(csv.DictReader((folder / "labels.csv").open()))
    assert [row["image"] for row in rows] == sorted(path.name for path in (folder / "images").iterdir())
    assert [row["split"] for row in rows] == ["train"] * 8 + ["val"]
    for number, row in enumerate(rows):
        assert [label for label in range(15) if row[f"label{label}"] == "1"] == SMALL_XRAYS.labels_of(number)


def test_every_class_has_a_folder_in_both_splits(tmp_path):
    folder = make_images(THUMBNAILS, num_images=90, folder=tmp_path / "made")
    names = {path.name for path in folder.glob("train/*")}
    assert len(names) == 10 and names == {path.name for path in folder.glob("val/*")}


def test_the_same_images_are_made_each_time(tmp_path):
    one, other = (contents(make_images(SMALL_XRAYS, num_images=4, folder=tmp_path / name)) for name in "ab")
    assert one == other and len(set(one.values())) == 5


def test_progress_counts_up_to_the_number_of_images(tmp_path):
    seen = []
    make_images(
        THUMBNAILS, num_images=4, folder=tmp_path / "made", on_progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(number, 4) for number in range(1, 5)]


def test_images_that_are_there_are_not_made_again(tmp_path, monkeypatch):
    folder = make_images(THUMBNAILS, num_images=4, folder=tmp_path / "made")
    monkeypatch.setattr(images, "draw", lambda *args: pytest.fail("made again"))
    assert make_images(THUMBNAILS, num_images=4, folder=folder) == folder


def test_an_interrupt_leaves_nothing(tmp_path):
    def stop(done, total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_images(THUMBNAILS, num_images=40, folder=tmp_path / "made", on_progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_two_processes_can_make_the_same_images_at_once(tmp_path):
    def make_them_first(done, total):
        if not (tmp_path / "made").exists():
            make_images(THUMBNAILS, num_images=4, folder=tmp_path / "made")

    make_images(THUMBNAILS, num_images=4, folder=tmp_path / "made", on_progress=make_them_first)
    assert [path.name for path in tmp_path.iterdir()] == ["made"] and len(contents(tmp_path / "made")) == 4


def test_a_folder_that_cannot_be_written_is_an_error_of_one_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DirectoryError, match=r"cannot write images to .*pass --data DIR") as caught:
        make_images(THUMBNAILS, num_images=1, folder=tmp_path / "file" / "made")
    assert "\n" not in str(caught.value)


def test_every_set_has_a_folder_of_its_own_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one, other = make_images(THUMBNAILS, num_images=1), make_images(THUMBNAILS, num_images=2)
    assert one != other and one.parent == other.parent == tmp_path / "hasten"


def test_each_label_can_be_told_from_the_others_whatever_its_phase():
    """By the strength of its frequency, averaged over images with the label and over images without it."""
    kind = replace(XRAYS, size=(64, 64), grain=0.0)
    pixels = np.stack([draw(kind, number) for number in range(200)]).astype(float)
    strengths = np.abs(np.fft.fft2(pixels - pixels.mean((1, 2), keepdims=True)))
    for label in range(15):
        has_label = np.array([label in kind.labels_of(number) for number in range(200)])
        strength = strengths[:, 2 + label // 5, 2 + label % 5]
        assert strength[has_label].mean() > 1.3 * strength[~has_label].mean(), label


def test_making_images_needs_no_torch():
    code = "import sys, hasten.workloads.catalog; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
