"""The cache as a fix: library calls of the script, whoever makes its batches; and images resized by another library."""

import os
import subprocess
import sys

import fsspec
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from training_process import Process

from hasten.data.memo import keys
from hasten.data.memo.memo import current

sys.path.append(os.path.join(os.path.dirname(__file__), os.pardir, "data"))

from remote_server import Server


@pytest.fixture
def put_on(monkeypatch, tmp_path):
    monkeypatch.setattr(keys, "QUIET_SECONDS", 0.0)
    monkeypatch.setenv("HASTEN_MEMO", tmp_path.name)
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path / "cache"))
    process = Process()

    yield process.put_on
    process.patches.undo()
    assert current() is None


class Images(Dataset):
    def __init__(self, folder):
        self.paths = []
        rng = np.random.default_rng(0)
        for number in range(12):
            self.paths.append(folder / f"{number}.png")
            Image.fromarray(rng.integers(0, 256, (40, 50, 3), np.uint8)).save(self.paths[-1])

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        image = Image.open(self.paths[index]).convert("RGB").resize((24, 20), Image.Resampling.BILINEAR)
        left = int(torch.randint(0, 5, ()))
        return torch.from_numpy(np.array(image.crop((left, 0, left + 16, 16)))), index


def epochs(dataset, **arguments):
    torch.manual_seed(1)
    loader = DataLoader(dataset, 4, shuffle=True, **arguments)
    return [part.clone() for _ in range(3) for batch in loader for part in batch]


@pytest.mark.parametrize("arguments", [{}, {"num_workers": 2}], ids=str)
def test_torchs_own_loader_gives_the_same_batches_with_a_cache(put_on, tmp_path, arguments):
    dataset = Images(tmp_path)
    expected = epochs(dataset, **arguments)
    assert put_on("cache", "16 MiB") == {"cache": "on"}
    assert all(map(torch.equal, epochs(dataset, **arguments), expected))
    counts = current().counts()
    assert counts.num_misses <= 14 and counts.num_hits >= 22


def test_memory_and_disk_together_are_one_cache(put_on, tmp_path):
    dataset = Images(tmp_path)
    put_on("cache", "16 MiB")
    states = put_on("disk_cache", "64 MiB")
    epochs(dataset)
    assert states == {"cache": "on", "disk_cache": "on"}, "both still are, after batches were looked at"
    assert [tier.name for tier in current().counts().tiers] == ["ram", "disk"]
    assert [tier.num_fills for tier in current().counts().tiers][1] >= 12
    put_on("cache", "17 MiB")  # another memory, the same disk
    epochs(dataset)
    assert current().counts().tiers[1].num_hits >= 12


class Remote(Dataset):
    def __init__(self, urls):
        self.urls = urls

    def __len__(self):
        return len(self.urls)

    def __getitem__(self, index):
        with fsspec.open(self.urls[index], "rb") as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)


@pytest.mark.skipif(sys.platform == "win32", reason="remote objects are held on POSIX systems")
@pytest.mark.parametrize("arguments", [{}, {"num_workers": 2}], ids=str)
def test_torchs_own_loader_downloads_a_remote_object_once(put_on, arguments):
    with Server() as server:
        dataset = Remote(server.fill(12))
        expected = epochs(dataset, **arguments)
        server.bodies.clear()
        states = put_on("disk_cache", "64 MiB")
        assert all(map(torch.equal, epochs(dataset, **arguments), expected))
        assert states == {"disk_cache": "on"}, "it is not refused, though no library's call is cached"
        assert list(server.bodies.values()) == [1] * 12


def test_functions_of_the_plan_are_cached_as_well(put_on):
    put_on("cache", "16 MiB")
    assert put_on("pure", "colorsys:rgb_to_hsv")["pure"] == "on"
    import colorsys

    assert colorsys.rgb_to_hsv(0.5, 0.4, 0.3) == colorsys.rgb_to_hsv(0.5, 0.4, 0.3)
    assert current().counts().num_hits == 1


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_images_are_resized_within_one_of_pillow(put_on, mode):
    rng = np.random.default_rng(1)
    for shape in ((40, 50), (7, 300), (33, 33)):
        noise = rng.integers(0, 2, (*shape, 3) if mode == "RGB" else shape, np.uint8) * np.uint8(255)
        image = Image.fromarray(noise)
        image.info["dpi"] = (72, 72)
        sizes = [(20, 20), (64, 50), (1, 1), (33, 32)]
        expected = [np.asarray(image.resize(size, Image.Resampling.BILINEAR)).astype(int) for size in sizes]
        assert put_on("resize", True) == {"resize": "on"}
        for size, pixels in zip(sizes, expected):
            found = image.resize(size, Image.Resampling.BILINEAR)
            assert found.mode == mode and found.info == image.info and type(found) is Image.Image
            assert np.abs(np.asarray(found).astype(int) - pixels).max() <= 1


def test_other_ways_to_resize_stay_pillows(put_on):
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (40, 50, 3), np.uint8))
    cases = [
        ((20, 20), Image.Resampling.BICUBIC),
        ((20, 20),),
        ((20, 20), Image.Resampling.BILINEAR, (1.5, 0, 40, 30)),
        ((50, 40), Image.Resampling.BILINEAR),
    ]
    expected = [image.resize(*case) for case in cases]
    put_on("resize", True)
    assert [image.resize(*case) for case in cases] == expected
    with pytest.raises(ValueError, match="height and width"):
        image.resize((0, 5), Image.Resampling.BILINEAR)


def test_another_way_to_resize_is_another_key(put_on, tmp_path):
    dataset = Images(tmp_path)
    put_on("disk_cache", "64 MiB")
    plain = epochs(dataset)
    misses = current().counts().num_misses
    put_on("resize", True)
    states = put_on("disk_cache", "64 MiB")
    assert states["disk_cache"] == "on" and misses
    assert all(map(torch.equal, epochs(dataset)[1::2], plain[1::2]))


STORE = """
import os
from hasten.data.memo.memo import open_memo

memo = open_memo(ram="16 MiB", disk=None, host_key=os.environ["HASTEN_MEMO"].encode())
assert memo.put(b"0123456789abcdef", 7, seconds=1.0)
print("stored", flush=True)
input()
"""


@pytest.mark.slow
def test_processes_that_are_not_forked_share_the_memory_of_the_run(put_on):
    put_on("cache", "16 MiB")
    with subprocess.Popen([sys.executable, "-c", STORE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"stored\n"
        assert b"0123456789abcdef" in current()
        process.stdin.write(b"\n")
