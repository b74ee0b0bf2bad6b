"""Objects of an S3 server: the same as over HTTP, with s3fs's own ways to read."""

import sys
import threading
from collections import Counter

import fsspec
import pytest
import torch
from torch.utils.data import Dataset

from hasten.data.loader import Loader
from hasten.data.memo.memo import open_memo
from hasten.data.memo.remote_calls import building_samples
from hasten.data.memo.table import memoizing

pytest.importorskip("s3fs")
pytest.importorskip("moto")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="remote objects are held on POSIX systems")


@pytest.fixture(scope="module")
def s3():
    """An S3 server, its requests counted by (method, path)."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    requests = Counter()
    application = DomainDispatcherApplication(create_backend_app)

    def counting(environ, start):
        requests[environ["REQUEST_METHOD"], environ["PATH_INFO"]] += 1
        return application(environ, start)

    server = make_server("127.0.0.1", 0, counting, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.port}", requests
    server.shutdown()
    thread.join()


@pytest.fixture
def bucket(s3, request, tmp_path, monkeypatch):
    """A new bucket with 24 objects: how to reach it, its objects, and the requests so far."""
    url, requests = s3
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path / "cache"))
    options = {"key": "k", "secret": "s", "endpoint_url": url}
    name = f"b{abs(hash(request.node.name)) % 10**9}"
    objects = {f"{name}/{number}.bin": bytes([number]) * 1500 for number in range(24)}
    fs = fsspec.filesystem("s3", **options)
    fs.mkdir(name)
    for path, data in objects.items():
        fs.pipe_file(path, data)
    requests.clear()
    yield options, objects, requests
    fs.clear_instance_cache()


class Objects(Dataset):
    def __init__(self, paths, options):
        self.paths = paths
        self.options = options

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with fsspec.open(f"s3://{self.paths[index]}", "rb", **self.options) as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)


def num_bodies(requests):
    return sum(number for (method, path), number in requests.items() if method == "GET" and path.endswith(".bin"))


def test_every_way_to_read_gives_the_objects_bytes_after_one_download(bucket):
    options, objects, requests = bucket
    memo = open_memo(ram=None, disk="1 GiB")
    with memoizing(memo), building_samples():
        fs = fsspec.filesystem("s3", **options)
        for path, data in objects.items():
            assert fs.cat_file(path) == fs.open(path).read() == fs.open(f"s3://{path}", "rb").read() == data
            assert fs.cat_file(path, start=3, end=8) == data[3:8]
    memo.close()
    assert num_bodies(requests) == 48 and memo.counts().remote.num_downloads == 24


@pytest.mark.parametrize("workers", [0, 2])
def test_two_runs_of_two_epochs_download_each_object_once(bucket, workers):
    options, objects, requests = bucket
    expected = sorted(objects.values())
    for run in range(2):
        dataset = Objects(list(objects), options)
        loader = Loader(dataset, batch_size=4, shuffle=True, num_workers=workers, disk_cache="1 GiB")
        for _ in range(2):
            assert sorted(row.numpy().tobytes() for batch in loader for row in batch) == expected
        assert num_bodies(requests) == 24
        heads = sum(number for (method, _), number in requests.items() if method == "HEAD")
        assert heads == 24 * (run + 1), "each run asks once whether the object is the same"
    assert loader.stats().cache.remote.num_downloads == 0


def test_an_object_that_has_changed_is_downloaded_again(bucket):
    options, objects, _ = bucket
    path = next(iter(objects))
    for data in (objects[path], b"new"):
        fs = fsspec.filesystem("s3", skip_instance_cache=True, **options)
        fs.pipe_file(path, data)
        memo = open_memo(ram=None, disk="1 GiB")
        with memoizing(memo), building_samples():
            assert fs.cat_file(path) == fs.open(path).read() == data
        memo.close()


def test_a_missing_object_raises_what_s3fs_raises(bucket):
    options, objects, _ = bucket
    memo = open_memo(ram=None, disk="1 GiB")
    with memoizing(memo), building_samples(), pytest.raises(FileNotFoundError):
        fsspec.filesystem("s3", **options).cat_file(next(iter(objects)) + "x")
    assert memo.counts().remote.num_retries == 0
    memo.close()
