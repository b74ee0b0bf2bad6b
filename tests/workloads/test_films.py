import csv
import io
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hasten.errors import DataError, DirectoryError
from hasten.workloads import films, writing
from hasten.workloads.anatomy import FINDINGS, draw_film, draw_labels
from hasten.workloads.films import make_films
from hasten.workloads.writing import default_folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_films_and_their_labels_are_made(tmp_path):
    folder = make_films(tmp_path / "films", num_images=8, size=64)
    rows = list(csv.DictReader((folder / "labels.csv").open()))
    assert [row["Image Index"] for row in rows] == [path.name for path in sorted((folder / "images").iterdir())]
    assert set(rows[0]) == {"Image Index", *FINDINGS, "fold"}
    assert len(FINDINGS) == 15
    assert [row["fold"] for row in rows] == ["train"] * 7 + ["val"]
    for path in (folder / "images").iterdir():
        with Image.open(path) as film:
            assert (film.size, film.mode) == ((64, 64), "L")


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tmp_path):
    one, same, other = (
        contents(make_films(tmp_path / str(k), num_images=3, size=64, seed=seed)) for k, seed in enumerate([5, 5, 6])
    )
    assert one == same
    assert one["film_00000.png"] != other["film_00000.png"]


def test_a_film_of_full_size_is_as_large_a_file_as_a_real_one():
    rng = np.random.default_rng(0)
    film, encoded = draw_film(rng, draw_labels(rng), size=1024), io.BytesIO()
    Image.fromarray(film).save(encoded, format="PNG", compress_level=4)
    assert 350_000 < len(encoded.getvalue()) < 450_000


def test_progress_counts_up_to_the_number_asked_for(tmp_path):
    seen = []
    make_films(tmp_path, num_images=4, size=64, on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(k, 4) for k in range(5)]


def test_films_that_are_there_are_not_made_again(tmp_path, monkeypatch):
    make_films(tmp_path, num_images=4, size=64)
    monkeypatch.setattr(films, "encode_film", lambda *args, **kwargs: pytest.fail("made again"))
    seen = []
    make_films(tmp_path, num_images=4, size=64, on_progress=lambda done, total: seen.append(done))
    assert seen == [4]


def test_interrupted_making_goes_on_where_it_stopped(tmp_path):
    def stop(done, total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_films(tmp_path / "films", num_images=40, size=64, on_progress=stop)
    made = {path.name for path in (tmp_path / "films" / "images").iterdir()}
    assert 3 <= len(made) < 40
    assert not any(name.endswith(".part") for name in made)
    assert not (tmp_path / "films" / "labels.csv").exists()
    make_films(tmp_path / "films", num_images=40, size=64)
    assert contents(tmp_path / "films") == contents(make_films(tmp_path / "whole", num_images=40, size=64))


def test_a_torn_film_or_one_of_another_size_is_made_anew(tmp_path):
    whole = contents(make_films(tmp_path / "whole", num_images=4, size=64))
    folder = make_films(tmp_path / "films", num_images=4, size=64)
    first, second, third, _ = sorted((folder / "images").iterdir())
    first.write_bytes(whole[first.name][:-40])
    second.write_bytes(b"")
    Image.new("L", (32, 32)).save(third)
    assert contents(make_films(folder, num_images=4, size=64)) == whole


def test_two_makers_at_once_leave_the_same_films_as_one(tmp_path):
    makers = [
        threading.Thread(target=make_films, args=[tmp_path / "both"], kwargs={"num_images": 24, "size": 64})
        for _ in range(2)
    ]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert contents(tmp_path / "both") == contents(make_films(tmp_path / "one", num_images=24, size=64))


def test_a_killed_makers_leftovers_go_and_a_living_ones_stay(tmp_path, monkeypatch):
    folder = make_films(tmp_path, num_images=1, size=64) / "images"
    fresh = folder / ".film_00000.png.1-1.part"
    fresh.write_bytes(b"half")
    make_films(tmp_path, num_images=1, size=64)
    assert fresh.exists()
    monkeypatch.setattr(writing, "DEAD_AFTER_SECONDS", -1.0)
    make_films(tmp_path, num_images=1, size=64)
    assert not fresh.exists()


def test_a_full_disk_is_told_before_the_first_film(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(writing.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(DataError, match=r"needs 2 MB and .* has 0 MB free.*pass --data DIR") as caught:
        make_films(tmp_path, num_images=4)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "images").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_told_in_one_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DirectoryError, match=r"cannot write images to .*pass --data DIR") as caught:
        make_films(tmp_path / "file" / "films", num_images=1, size=64)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("num_images", "size"), [(0, 64), (-1, 64), (4, 8)])
def test_a_senseless_request_is_refused(tmp_path, num_images, size):
    with pytest.raises(DataError, match="at least one film, of at least 32 px"):
        make_films(tmp_path, num_images=num_images, size=size)


def test_every_set_has_a_folder_of_its_own_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder("films-8") == tmp_path / "hasten" / "films-8"
    one, other = make_films(num_images=1, size=32), make_films(num_images=2, size=32)
    assert one != other and one.parent == tmp_path / "hasten"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert default_folder("films-8").parent == Path.home() / ".cache" / "hasten"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert default_folder("films-8").parent == Path.home() / "Library" / "Caches" / "hasten"


def test_every_finding_can_be_learned_by_a_straight_line():
    """The mean difference of 32 px films with and without it tells new films apart."""
    num_films, scores = 360, {}
    films, labels = [], []
    for index in range(num_films):
        rng = np.random.default_rng([7, index])
        labels.append(draw_labels(rng) | (np.arange(15) == index % 15))
        films.append(draw_film(rng, labels[-1], size=64).reshape(32, 2, 32, 2).mean((1, 3)).ravel())
    x, y = np.array(films), np.array(labels)
    x = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
    train, test = slice(0, 260), slice(260, None)
    centred = x - x[train].mean(0)
    # Ridge regression in its dual form: more pixels than films.
    gram = centred[train] @ centred[train].T
    weights = centred[train].T @ np.linalg.solve(gram + 20 * np.eye(260), y[train] - y[train].mean(0))
    outputs = centred[test] @ weights
    for k, name in enumerate(FINDINGS):
        positive, negative = outputs[y[test][:, k], k], outputs[~y[test][:, k], k]
        scores[name] = np.mean(positive[:, None] > negative[None, :])
    assert min(scores.values()) > 0.75, scores


def test_making_films_needs_no_torch():
    code = "import sys, hasten.workloads.catalog; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
