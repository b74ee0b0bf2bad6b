"""Remote objects: the bytes are the server's, downloaded once per host, whatever fails on the way."""

import contextlib
import gc
import io
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
from PIL import Image
from remote_server import Server
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from hasten.data.loader import Loader
from hasten.data.memo import download, ledger, remote, remote_calls
from hasten.data.memo.memo import open_memo
from hasten.data.memo.remote_calls import building_samples
from hasten.data.memo.table import memoizing as memoizing_libraries
from hasten.data.workers import builder
from hasten.data.workers.read_ahead import ReadAhead

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="remote objects are held on POSIX systems")
forking = multiprocessing.get_context("fork")


@pytest.fixture
def server():
    with Server() as running:
        yield running


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(download, "BACKOFF_SECONDS", 0.01)
    yield tmp_path / "cache" / "memo"
    fsspec.get_filesystem_class("http").clear_instance_cache()


@pytest.fixture
def disk():
    """Opens caches on disk, as each run does."""
    opened = []

    def new(budget="1 GiB"):
        opened.append(open_memo(ram="16 MB", disk=budget))
        return opened[-1]

    yield new
    for memo in opened:
        memo.close()


@contextlib.contextmanager
def memoizing(memo):
    with memoizing_libraries(memo), building_samples():
        yield


def read(url, **options):
    with fsspec.open(url, "rb", **options) as file:
        return file.read()


def held(folder):
    """The files that hold objects."""
    stores = [store for store in folder.glob("*") if store.is_dir()]
    return [path for store in stores for path in store.glob("*.bin")]


def leftovers(folder):
    return [path for path in folder.rglob(".*") if path.is_file()]


class Objects(Dataset):
    """Reads one object for each sample."""

    def __init__(self, paths, fs=None):
        self.paths = paths
        self.fs = fs

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        data = read(self.paths[index]) if self.fs is None else self.fs.open(self.paths[index]).read()
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)


# What is read


def test_the_bytes_are_the_servers_and_come_once(server, disk):
    urls = server.fill(5)
    memo = disk()
    with memoizing(memo):
        for _ in range(3):
            assert [read(url) for url in urls] == list(server.objects.values())
    assert set(server.bodies.values()) == {1} and len(server.bodies) == 5
    counts = memo.counts().remote
    assert (counts.num_downloads, counts.num_hits, counts.num_retries, counts.num_direct) == (5, 15, 0, 0)


def test_every_way_to_read_a_whole_object_is_served_from_the_disk(server, disk):
    [url] = server.fill(1)
    data = server.objects["0.bin"]
    before = fsspec.filesystem("http")
    with memoizing(disk()):
        after = fsspec.filesystem("http", skip_instance_cache=True)
        ways = [
            lambda fs: fs.open(url).read(),
            lambda fs: fs.open(url, "rb", block_size=1000).read(),
            lambda fs: fs.open(url, "r").read().encode(),
            lambda fs: fs.cat_file(url),
            lambda fs: fs.read_bytes(url),
        ]
        for fs in (before, after):
            assert [way(fs) for way in ways] == [data] * len(ways)
    assert server.bodies["0.bin"] == 1


def test_only_what_samples_are_built_of_is_served(server, disk):
    """A checkpoint, for example, is rewritten while the script runs."""
    [url] = server.fill(1)
    with memoizing_libraries(disk()):
        for data in (b"one", b"other"):
            server.objects["0.bin"] = data
            assert read(url) == fsspec.filesystem("http").cat_file(url) == data


def test_a_part_of_an_object_is_read_directly(server, disk):
    [url] = server.fill(1)
    with memoizing(disk()):
        fs = fsspec.filesystem("http")
        assert fs.cat_file(url, start=10, end=20) == server.objects["0.bin"][10:20]
        assert fs.cat_file(url, 10, 20) == server.objects["0.bin"][10:20]
    assert server.requests["GET", "0.bin"] == 2


def test_an_open_file_has_the_attributes_of_fsspecs(server, disk):
    [url] = server.fill(1)
    plain = fsspec.filesystem("http").open(url)
    with memoizing(disk()), fsspec.filesystem("http").open(url) as file:
        assert (file.size, file.path, file.tell()) == (plain.size, plain.path, 0)
        assert file.info() == plain.fs.info(url) and file.fs is plain.fs
        assert file.seekable() and file.readable() and not file.writable()
        assert pickle.loads(pickle.dumps(file)).read() == file.read() == server.objects["0.bin"]


def test_nothing_of_ours_is_left_in_fsspec(server, disk):
    kind = fsspec.spec.AbstractFileSystem
    fs = fsspec.filesystem("http")
    before = (kind.open, type(kind).__call__, fs.cat_file)
    with memoizing(disk()):
        new = fsspec.filesystem("https", skip_instance_cache=True)
        assert (kind.open, type(kind).__call__, fs.cat_file) != before and hasattr(new.cat_file, "is_hastens")
    assert (kind.open, type(kind).__call__, fs.cat_file) == before and not hasattr(new.cat_file, "is_hastens")


def test_files_of_other_file_systems_are_left_alone(tmp_path, disk, folder):
    (tmp_path / "x.bin").write_bytes(b"x" * 10)
    with memoizing(disk()), fsspec.open(str(tmp_path / "x.bin"), "rb") as file:
        assert not isinstance(file, remote_calls.RemoteFile) and file.read() == b"x" * 10
        fsspec.filesystem("memory").pipe_file("/y", b"y")
        assert read("memory://y") == b"y"
    assert held(folder) == []


def test_writing_is_left_alone(disk):
    with memoizing(disk()):
        with fsspec.open("memory://z", "wb") as file:
            file.write(b"z")
        assert read("memory://z") == b"z"


def test_the_image_of_a_remote_object_is_cached_too(server, disk):
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(buffer, "PNG")
    server.objects["a.png"] = buffer.getvalue()
    memo = disk()
    with memoizing(memo):
        read(f"{server.url}/a.png")
        time.sleep(2.1)  # a file that has just been written is not quiet
        for _ in range(3):
            with fsspec.open(f"{server.url}/a.png") as file:
                assert np.array(Image.open(file).convert("RGB")).shape == (64, 64, 3)
    memory, on_disk = memo.counts().tiers
    assert memory.num_hits == 2 and on_disk.num_fills == 0, "the disk is left to the objects"


# Identity


def test_the_next_run_asks_whether_an_object_is_the_same_and_downloads_nothing(server, disk):
    urls = server.fill(4)
    for _ in range(2):
        with memoizing(disk()):
            assert [read(url) for url in urls] == list(server.objects.values())
    assert set(server.bodies.values()) == {1}
    assert all(server.requests["HEAD", f"{number}.bin"] == 2 for number in range(4))


def test_an_object_that_has_changed_is_downloaded_again_by_the_next_run(server, disk, folder):
    [url] = server.fill(1)
    with memoizing(disk()):
        assert read(url) == server.objects["0.bin"]
    server.objects["0.bin"] = server.objects["0.bin"][::-1]
    with memoizing(disk()):
        assert read(url) == server.objects["0.bin"]
    assert server.bodies["0.bin"] == 2 and len(held(folder)) == 1, "the old one is removed"


def test_an_object_without_identity_is_not_held(server, disk, folder):
    [url] = server.fill(1)
    server.has_etag = False
    memo = disk()
    with memoizing(memo):
        assert read(url) == read(url) == server.objects["0.bin"]
    assert held(folder) == [] and memo.counts().remote.num_direct == 2
    assert server.requests["HEAD", "0.bin"] == 3, "the file system asks itself each time, the cache only once"


@pytest.mark.parametrize(
    ("info", "is_held"),
    [
        ({"size": 3, "ETag": '"x"'}, True),  # s3, http
        ({"size": 3, "LastModified": "now"}, True),
        ({"size": 3, "Last-Modified": "now"}, True),
        ({"size": 3, "etag": "x", "generation": "1"}, True),  # gs
        ({"size": 3, "blob_id": "x", "last_commit": None}, True),  # hf
        ({"size": 3, "ETag": ""}, False),
        ({"size": None, "ETag": "x"}, False),
        ({"size": 3, "name": "x"}, False),
        ({"size": 0, "ETag": "x", "type": "directory"}, False),
    ],
)
def test_what_identifies_an_object_is_what_its_file_system_says_without_a_download(info, is_held):
    assert (download.identity_of(info) is not None) == is_held


def test_equal_paths_at_two_endpoints_are_two_objects(disk, folder):
    with Server() as one, Server() as other:
        one.objects["0.bin"], other.objects["0.bin"] = b"one", b"two"
        with memoizing(disk()):
            assert [read(f"{server.url}/0.bin") for server in (one, other)] == [b"one", b"two"]


def test_a_damaged_file_is_replaced(server, disk, folder):
    [url] = server.fill(1)
    with memoizing(disk()):
        read(url)
        os.truncate(held(folder)[0], 7)
        assert read(url) == server.objects["0.bin"]
    assert server.bodies["0.bin"] == 2


# Budget


def test_the_budget_is_filled_and_held(server, disk, folder):
    urls = server.fill(20, 10_000)
    memo = disk("200 kB")
    with memoizing(memo):
        for _ in range(2):
            assert [read(url) for url in urls] == list(server.objects.values())
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert 100_000 < size <= 200_000
    kept = [name for name, number in server.bodies.items() if number == 1]
    assert len(kept) == len(held(folder)) and 5 <= len(kept) <= 15
    assert memo.counts().tiers[1].num_bytes <= 200_000


def test_room_is_waited_for_while_other_processes_reserve_theirs(server, disk, monkeypatch):
    urls = server.fill(4)
    memo = disk()
    locked, turns = ledger.locked, iter(range(10_000))

    @contextlib.contextmanager
    def often_busy(descriptor):
        with locked(descriptor) as acquired:
            yield acquired and next(turns) % 3 == 2

    monkeypatch.setattr(ledger, "locked", often_busy)
    with memoizing(memo):
        assert [read(url) for url in urls] == list(server.objects.values())
    assert memo.counts().remote.num_downloads == 4


def test_an_object_that_is_too_large_is_read_directly(server, disk, folder, monkeypatch):
    [url] = server.fill(1, 5000)
    monkeypatch.setattr(remote, "LARGEST", 4999)
    with memoizing(disk()):
        assert read(url) == server.objects["0.bin"]
    assert held(folder) == []


def test_a_disk_that_cannot_be_written_is_said_once(server, disk, folder, monkeypatch, caplog):
    urls = server.fill(2)
    memo = disk()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ledger.Ledger, "reserve", full)
    with memoizing(memo):
        assert [read(url) for url in urls] == list(server.objects.values())
    assert caplog.text.count("read directly from here on") == 1 and "No space left" in caplog.text


# Faults


def test_errors_and_broken_connections_are_survived_and_counted(server, disk):
    urls = server.fill(30)
    server.fails = lambda method, name, number: method == "GET" and number == 1 and name in ("3.bin", "4.bin")
    server.breaks = lambda name, number: name == "7.bin" and number < 3
    memo = disk()
    with memoizing(memo):
        assert [read(url) for url in urls] == list(server.objects.values())
    counts = memo.counts().remote
    assert (counts.num_retries, counts.num_direct, counts.num_downloads) == (4, 0, 30)
    assert set(server.bodies.values()) == {1}


def test_a_stall_counts_as_a_failed_read(server, disk, monkeypatch):
    monkeypatch.setattr(remote, "STALL_SECONDS", 0.3)
    [url] = server.fill(1, 200_000)
    server.stalls = lambda name, number: 5.0 if number == 1 else 0.0
    memo = disk()
    with memoizing(memo):
        assert read(url) == server.objects["0.bin"]
    assert memo.counts().remote.num_retries == 1 and server.requests["GET", "0.bin"] == 2


@pytest.mark.parametrize("fault", ["missing", "broken"])
def test_the_users_own_exception_comes_after_the_last_attempt(server, disk, folder, fault):
    [url] = server.fill(1)
    if fault == "missing":
        server.objects.clear()
    else:
        server.fails = lambda *_: True
    with pytest.raises(Exception) as plain:
        read(url)
    memo = disk()
    with memoizing(memo), pytest.raises(Exception) as ours:
        read(url)
    assert (type(ours.value), str(ours.value)) == (type(plain.value), str(plain.value))
    assert memo.counts().remote.num_retries == (0 if fault == "missing" else download.ATTEMPTS - 1)
    assert held(folder) == leftovers(folder) == []


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (TimeoutError(), True),
        (ConnectionResetError(), True),
        (OSError(5, "EIO"), True),
        (OSError(116, "ESTALE"), True),
        (OSError(28, "ENOSPC"), False),
        (FileNotFoundError("x"), False),
        (PermissionError("x"), False),
        (ValueError("x"), False),
    ],
)
def test_only_what_may_pass_is_tried_again(error, passes):
    assert download.is_transient(error) == passes


def test_the_users_random_numbers_stay_as_they_are(server, disk):
    import random

    urls = server.fill(3)
    server.fails = lambda method, name, number: method == "GET" and number == 1
    states = random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()
    with memoizing(disk()):
        for url in urls:
            read(url)
    assert states == (random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist())


# Several processes


def _read_all(urls, expected, seed, budget="1 GiB"):
    gc.freeze()  # collecting the parent's file systems would close its connections
    memo = open_memo(ram=None, disk=budget, host_key=b"ranks")
    with memoizing(memo):
        order = np.random.default_rng(seed).permutation(len(urls))
        assert all(read(urls[at]) == expected[at] for at in order)
    os._exit(0)


def run_ranks(urls, expected, budget="1 GiB"):
    ranks = [forking.Process(target=_read_all, args=(urls, expected, rank, budget)) for rank in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert [rank.exitcode for rank in ranks] == [0] * 4


def test_four_ranks_download_each_object_once(server):
    urls = server.fill(40, 20_000)
    server.delay = 0.005
    run_ranks(urls, list(server.objects.values()))
    assert [number for (method, _), number in server.requests.items() if method == "GET"] == [1] * 40


def test_the_ranks_together_never_exceed_the_budget_with_what_they_download(server, folder):
    urls = server.fill(32, 50_000)
    server.delay = 0.02
    expected = list(server.objects.values())
    most = []
    is_over = threading.Event()

    def watch():
        while not is_over.wait(0.002):
            most.append(sum(size(path) for path in folder.rglob("*")))

    def size(path):
        try:
            return path.stat().st_blocks * 512 if path.is_file() else 0
        except OSError:
            return 0

    watcher = threading.Thread(target=watch)
    watcher.start()
    run_ranks(urls, expected, "600 kB")
    is_over.set()
    watcher.join()
    assert 400_000 < max(most) <= 600_000 and len(held(folder)) >= 8


def test_a_process_killed_in_mid_download_leaves_no_torn_file(server, disk, folder):
    [url] = server.fill(1, 300_000)
    server.stalls = lambda name, number: 30.0 if number == 1 else 0.0
    victim = forking.Process(target=_read_all, args=([url], [server.objects["0.bin"]], 0))
    victim.start()
    while not server.requests["GET", "0.bin"] or not any(path.suffix == ".part0" for path in leftovers(folder)):
        time.sleep(0.01)
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    assert held(folder) == [] and leftovers(folder) != []
    with memoizing(disk()):
        assert read(url) == server.objects["0.bin"]
    assert len(held(folder)) == 1 and leftovers(folder) == []


def test_a_file_system_made_before_a_fork_works_in_the_workers(server):
    urls = server.fill(16)
    fs = fsspec.filesystem("http")
    fs.cat_file(urls[0])  # its thread runs in this process only
    loader = Loader(Objects(urls, fs), batch_size=4, num_workers=2, disk_cache="1 GiB")
    batches = [batch.numpy().tobytes() for batch in loader]
    assert b"".join(batches) == b"".join(server.objects.values())
    assert sum(server.bodies.values()) == 17


SPAWNED = pytest.param({"multiprocessing_context": "spawn"}, marks=pytest.mark.slow)


@pytest.mark.parametrize("options", [{"workers": "threads"}, SPAWNED], ids=str)
def test_threads_and_spawned_workers_share_the_files_too(server, options, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[3])  # a spawned worker imports this module by its name
    urls = server.fill(24)
    loader = Loader(Objects(urls), batch_size=4, num_workers=2, disk_cache="1 GiB", **options)
    for _ in range(2):
        assert b"".join(batch.numpy().tobytes() for batch in loader) == b"".join(server.objects.values())
    assert sum(server.bodies.values()) == 24 and loader.stats().cache.remote.num_hits == 48


def test_an_epoch_is_resumed_in_its_middle(server):
    urls = server.fill(40)

    def new():
        return Loader(Objects(urls), batch_size=4, num_workers=1, shuffle=True, disk_cache="1 GiB")

    torch.manual_seed(5)
    loader = new()
    batches = []
    for number, batch in enumerate(loader):
        batches.append(batch.tolist())
        if number == 3:
            state = loader.state_dict()
    resumed = new()
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == batches[4:]


# Read-ahead


@pytest.mark.parametrize("workers", [0, 2])
def test_objects_are_fetched_ahead_in_the_samplers_order(server, workers):
    urls = server.fill(80)
    server.delay = 0.01
    expected = [torch.stack(batch).tolist() for batch in _batches(server, urls, 4)]
    loader = Loader(Objects(urls), batch_size=4, num_workers=workers, disk_cache="1 GiB")
    assert [batch.tolist() for batch in loader] == expected
    counts = loader.stats().cache.remote
    assert counts.num_ahead >= 40 and counts.num_downloads == 80 and server.most_open > 4
    assert set(server.bodies.values()) == {1}
    assert [batch.tolist() for batch in loader] == expected
    assert sum(server.bodies.values()) == 80 and loader.stats().cache.remote.num_hits == 160


def _batches(server, urls, size):
    samples = [torch.frombuffer(bytearray(server.objects[url.rpartition("/")[2]]), dtype=torch.uint8) for url in urls]
    return [samples[at : at + size] for at in range(0, len(samples), size)]


def test_the_order_is_torchs_with_and_without_reading_ahead(server):
    urls = server.fill(40)
    orders = []
    for kind, options in ((DataLoader, {}), (Loader, {"disk_cache": "1 GiB", "num_workers": 2}), (Loader, {})):
        loader = kind(
            Objects(urls), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3), **options
        )
        orders.append([[batch.tolist() for batch in loader] for _ in range(2)])
    assert orders[0] == orders[1] == orders[2]


class Guessable(Dataset):
    """Has its paths in one of several ways."""

    def __init__(self, urls, how):
        self.names = [url.rpartition("/")[2] for url in urls]
        self.root = urls[0].rpartition("/")[0]
        self.kind = how
        if how == "samples":
            self.samples = [(url, at) for at, url in enumerate(urls)]
        if how == "records":
            self.records = [{"label": at, "file": Path(name)} for at, name in enumerate(self.names)]
        if how == "array":
            self.array = np.array([name.partition(".")[0] + ".b" for name in self.names])
        if how != "names":
            self.list_of_other_things = self.names[::-1]
            del self.names

    def __len__(self):
        return 60

    def __getitem__(self, index):
        if self.kind == "samples":
            return len(read(self.samples[index][0]))
        if self.kind == "records":
            return len(read(f"{self.root}/{self.records[index]['file']}"))
        if self.kind == "array":
            return len(read(f"{self.root}/{self.array[index]}in"))
        return len(read(f"{self.root}/{self.names[index]}"))


@pytest.mark.parametrize("how", ["names", "samples", "records", "array"])
@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: ConcatDataset([Subset(one, range(30, 60)), one])])
def test_the_dataset_shows_where_its_paths_are(server, how, wrap):
    urls = server.fill(60)
    server.delay = 0.002
    loader = Loader(wrap(Guessable(urls, how)), batch_size=4, num_workers=1, disk_cache="1 GiB", shuffle=True)
    assert sum(batch.sum().item() for batch in loader) == 2000 * len(loader.dataset)
    counts = loader.stats().cache.remote
    assert counts.num_downloads == 60 and counts.num_ahead > 20


class Misleading(Dataset):
    """Opens what its list says for the first samples only."""

    def __init__(self, urls):
        self.paths = urls

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        at = index if index < 8 else (index * 7 + 3) % 30 + 30
        return torch.frombuffer(bytearray(read(self.paths[at])), dtype=torch.uint8)


def test_a_wrong_guess_costs_some_bytes_and_ends(server):
    urls = server.fill(400)
    dataset = Misleading(urls)
    expected = [dataset[index].tolist() for index in range(200)]
    server.bodies.clear()
    server.delay = 0.02
    loader = Loader(Subset(dataset, range(200)), batch_size=4, num_workers=1, disk_cache="1 GiB")
    assert [row.tolist() for batch in loader for row in batch] == expected
    assert set(server.bodies.values()) == {1} and sum(server.bodies.values()) < 150


def test_a_dataset_without_lists_is_read_as_it_is(server):
    urls = server.fill(20)

    class Computed(Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, index):
            return len(read(f"{url}/{index}.bin"))

    url = server.url
    loader = Loader(Computed(), batch_size=4, disk_cache="1 GiB")
    assert len(list(loader)) == 5 and loader.stats().cache.remote.num_ahead == 0
    assert len(urls) == sum(server.bodies.values())


def test_leaving_an_epoch_gives_up_what_was_fetched_ahead(server, folder):
    urls = server.fill(200)
    server.delay = 0.05
    for workers in (0, 2):
        loader = Loader(Objects(urls), batch_size=4, num_workers=workers, disk_cache="1 GiB", shuffle=True)
        for number, _ in enumerate(loader):
            if number == 2:
                break
        del loader
    assert leftovers(folder) == [], "no unfinished file"


def test_nothing_is_fetched_ahead_once_an_epoch_has_found_all_of_it(server, folder, monkeypatch):
    epochs = []
    monkeypatch.setattr(
        builder, "ReadAhead", lambda *given, **named: epochs.append("ahead") or ReadAhead(*given, **named)
    )
    loader = Loader(Objects(server.fill(20)), batch_size=4, disk_cache="1 GiB", shuffle=True)
    for _ in range(4):
        epochs.append("epoch")
        list(loader)
    assert epochs == ["epoch", "ahead", "epoch", "ahead", "epoch", "epoch"], (
        "the first downloads, the second finds all"
    )
    next(iter(loader))
    list(loader)
    assert epochs[-1] == "ahead", "an epoch that was left has not shown that all is there"


def test_a_sample_that_raises_keeps_its_own_exception(server):
    urls = server.fill(8)
    del server.objects["5.bin"]
    loader = Loader(Objects(urls), batch_size=2, num_workers=1, disk_cache="1 GiB")
    with pytest.raises(FileNotFoundError, match=r"5\.bin"):
        list(loader)
