"""Every dataset, however it behaves, returns the same samples with and without a memo.

HASTEN_EXAMPLES: the number of random datasets; 150 by default.
"""

import contextlib
import functools
import io
import json
import multiprocessing
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Sampler, WeightedRandomSampler
from torchvision.transforms import functional as F

sys.path.append(str(Path(__file__).parent))  # for adversaries.py

import adversaries
from adversaries import (
    QUIET,
    Carried,
    Spec,
    by_handle,
    by_kept_image,
    by_path,
    image_bytes,
    look,
    put_memo_to_use,
    specs,
)

from hasten.data.layout.sharing import PAGE, lock, locked, unlock
from hasten.data.memo import keys
from hasten.data.memo.codec import encode
from hasten.data.memo.disk import DiskTier
from hasten.data.memo.memo import Memo, use_in_process
from hasten.data.memo.ram import MAPPED_FROM, RamTier
from hasten.data.memo.table import memoizing

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and Linux's file times")

NUM_EXAMPLES = int(os.environ.get("HASTEN_EXAMPLES", "150"))
NUM_FILES = 24


@pytest.fixture(autouse=True)
def short_quiet(monkeypatch):
    monkeypatch.setattr(keys, "QUIET_SECONDS", QUIET)
    monkeypatch.setattr("hasten.data.memo.ram.available_memory", lambda: 1 << 50)


@contextlib.contextmanager
def no_noise():
    """Suppress what decoders print about damaged files."""
    sys.stdout.flush()
    held = [os.dup(number) for number in (1, 2)]
    with open(os.devnull, "wb") as nothing, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for number in (1, 2):
                os.dup2(nothing.fileno(), number)
            yield
        finally:
            sys.stdout.flush()
            for number, descriptor in zip((1, 2), held):
                os.dup2(descriptor, number)
                os.close(descriptor)


@pytest.mark.slow
def test_no_random_dataset_gets_a_different_sample():
    counts = {"hits": 0, "misses": 0, "datasets": 0}
    root = Path(tempfile.mkdtemp())

    @settings(max_examples=NUM_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(specs())
    @example(Spec(((5, 0),) * 2, by_path, ("to_rgb", "crop_and_resize"), (), False, False, False, 0))
    @example(Spec(((5, 0),), by_path, ("to_gray", "described", "seen_early"), (), False, False, False, 0))
    @example(Spec(((0, 0),), by_path, ("to_rgb", "thumbnail_in_one", "to_gray"), (), False, True, False, 0))
    @example(Spec(((0, 0),), by_path, ("draft", "to_gray", "resize", "kept_for_later"), (), False, False, False, 0))
    @example(
        Spec(((0, 0),), by_handle, ("to_rgb",), ((1, adversaries.rewrite_alike, 0, 3, True),), False, True, True, 0)
    )
    @example(Spec(((0, 0),), by_kept_image, ("to_rgb", "closed"), (), True, True, True, 0))
    def check(spec):
        counts["datasets"] += 1
        memo = Memo(RamTier(4 << 20))
        try:
            difference = adversaries.run_in_lockstep(spec, root / str(counts["datasets"]), memo)
            assert difference is None, difference
        finally:
            found = memo.counts()
            counts["hits"] += found.tiers[0].num_hits
            counts["misses"] += found.num_misses
            memo.close()
            shutil.rmtree(root / str(counts["datasets"]), ignore_errors=True)

    try:
        with memoizing(Memo()), no_noise():
            check()
    finally:
        shutil.rmtree(root)
    assert counts["hits"] > 3 * counts["datasets"] and counts["misses"] > counts["datasets"], counts


# Scenarios from an audit of caches that store whole samples


class Photos(Dataset):
    """Image files with labels; each scenario changes something of it."""

    def __init__(self, root):
        self.root = Path(root)
        self.root.mkdir()
        self.paths = []
        for number in range(NUM_FILES):
            kind = (0, 5, 1, 15)[number % 4]
            self.paths.append(str(self.root / f"{number}.{adversaries.FILES[kind][0]}"))
            Path(self.paths[-1]).write_bytes(image_bytes(kind, number, (20, 16)))
        time.sleep(QUIET * 1.3)

    def __len__(self):
        return NUM_FILES

    def __getitem__(self, index):
        return self.pixels(index), self.label(index)

    def pixels(self, index):
        image = Image.open(self.paths[index]).convert("RGB").resize((12, 12))
        left = int(torch.randint(0, 4, ()))
        return F.pil_to_tensor(image.crop((left, 0, left + 8, 8)))

    def label(self, index):
        return index


def train(dataset, *, before=None, during=None, num_epochs=3, num_workers=2, sampler=None, **more):
    """Return all batches of a training run."""
    seen = []
    for epoch in range(num_epochs):
        torch.manual_seed(epoch)
        random.seed(epoch)
        if before is not None:
            before(dataset, epoch)
        order = {"shuffle": True} if sampler is None else {"sampler": sampler(dataset)}
        loader = DataLoader(dataset, batch_size=4, num_workers=num_workers, collate_fn=list, **order, **more)
        for step, batch in enumerate(loader):
            seen.append(look(batch))
            if during is not None:
                during(dataset, epoch, step)
    return seen


def num_wrong(plain, memoized):
    assert len(plain) == len(memoized) > 0
    return sum(
        one != other for batches in zip(plain, memoized) for one, other in zip(*(batch[1] for batch in batches))
    )


def assert_none_wrong(make, tmp_path, prepare=None, **more):
    """Return the batches of one training run, on separate files, without and with a memo."""
    memo = Memo(RamTier(8 << 20))
    with memoizing(memo):
        runs = []
        for name, used in (("plain", None), ("memo", memo)):
            use_in_process(used)
            if prepare is not None:
                prepare()
            runs.append(train(make(tmp_path / name), **more))
        counts = memo.counts()
    memo.close()
    assert num_wrong(*runs) == 0
    assert counts.tiers[0].num_hits > NUM_FILES, counts


class InOneFile(Photos):
    """All photos in one file, which is opened at the first sample."""

    def __init__(self, root):
        super().__init__(root)
        self.places, self.files = [], {}
        with open(self.root / "all", "wb") as file:
            for path in self.paths:
                data = Path(path).read_bytes()
                self.places.append((file.tell(), len(data)))
                file.write(data)

    def pixels(self, index):
        file = self.opened()
        offset, size = self.places[index]
        file.seek(offset)
        return F.pil_to_tensor(Image.open(io.BytesIO(file.read(size))).convert("RGB").resize((6, 6)))

    def opened(self):
        path = str(self.root / "all")
        if path not in self.files:
            self.files[path] = open(path, "rb")  # noqa: SIM115
        return self.files[path]


@functools.lru_cache
def opened_once(path):
    return open(path, "rb")


class InOneCachedFile(InOneFile):
    def opened(self):
        return opened_once(str(self.root / "all"))


@pytest.mark.parametrize("kind", [InOneFile, InOneCachedFile])
def test_a01_workers_do_not_share_the_position_of_a_file_opened_late(kind, tmp_path):
    kept = []

    def make(root):
        kept.append(kind(root))
        return kept[-1]

    assert_none_wrong(make, tmp_path)
    assert all(dataset.files == {} for dataset in kept)  # this process has opened nothing
    assert opened_once.cache_info().currsize == 0


PSEUDO = set()


class Decorated(Photos):
    """Labels from a global, reached through decorators of libraries."""

    @torch.no_grad()
    def __getitem__(self, index):
        noise = np.random.randn(), torch.rand(2)
        return self.pixels(index), labeled(index), label_within(index), label_of(index), ufunc_label(index), noise


@torch.inference_mode()
def labeled(index):
    return index in PSEUDO


def label_within(index):
    with pseudo_labels() as labels:
        return index in labels


@contextlib.contextmanager
def pseudo_labels():
    yield PSEUDO


@functools.singledispatch
def label_of(index):
    raise TypeError


@label_of.register
def _(index: int):
    return index in PSEUDO


def ufunc_label(index):
    return bool(np.frompyfunc(lambda index: index in PSEUDO, 1, 1)(index))


def seeded(worker):
    np.random.seed(torch.initial_seed() % 2**32)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a02_decorated_code_runs_each_time(num_workers, tmp_path):
    def before(dataset, epoch):
        PSEUDO.update(range(epoch * 5, epoch * 5 + 5))
        np.random.seed(epoch)

    more = {"worker_init_fn": seeded} if num_workers else {}
    assert_none_wrong(Decorated, tmp_path, PSEUDO.clear, before=before, num_workers=num_workers, **more)
    PSEUDO.clear()


class Staged(Photos):
    epoch = 0

    def label(self, index):
        return index, self.epoch

    def pixels(self, index):
        return F.pil_to_tensor(Image.open(self.paths[index]).convert("RGB").resize((6 + self.epoch % 2, 6)))


EPOCH = multiprocessing.Value("i", 0)


def take_over_epoch(worker):
    torch.utils.data.get_worker_info().dataset.epoch = EPOCH.value


def test_a03_worker_init_fn_takes_effect(tmp_path):
    def before(dataset, epoch):
        EPOCH.value = epoch

    assert_none_wrong(Staged, tmp_path, before=before, num_epochs=5, worker_init_fn=take_over_epoch)


class Corrected(Photos):
    stage = 0

    def __init__(self, root):
        super().__init__(root)
        self.labels = torch.zeros(NUM_FILES, dtype=torch.int64).share_memory_()
        self.transform = lambda image: image.convert("RGB").resize((9, 9))

    def pixels(self, index):
        image = Image.open(self.paths[index])
        return F.pil_to_tensor(image.convert("L") if self.stage else self.transform(image))

    def label(self, index):
        return int(self.labels[index]), self.stage


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a04_state_changed_within_an_epoch_takes_effect_at_once(num_workers, tmp_path):
    def before(dataset, epoch):
        dataset.stage = 0

    def during(dataset, epoch, step):
        if num_workers == 0:  # workers may have prefetched samples
            dataset.labels += step
            dataset.stage = int(step == 3)
            dataset.transform = (lambda image: image.resize((7, 7)).convert("RGB")) if step > 3 else dataset.transform

    def sampler(dataset):
        return WeightedRandomSampler(torch.ones(NUM_FILES), 2 * NUM_FILES, replacement=True)

    assert_none_wrong(Corrected, tmp_path, before=before, during=during, num_workers=num_workers, sampler=sampler)


class FromTables(Photos):
    """Labels from files and a database, of which a few rows change."""

    def __init__(self, root):
        super().__init__(root)
        self.write(1)

    def write(self, seed):
        labels = {str(index): seed if index % 5 == 0 else 0 for index in range(NUM_FILES)}
        (self.root / "labels.json").write_text(json.dumps(labels))
        np.save(self.root / "labels.npy", np.array(list(labels.values())))
        with contextlib.closing(sqlite3.connect(self.root / "labels.db")) as database, database:
            database.execute("create table if not exists labels (id integer primary key, label integer)")
            database.executemany(
                "replace into labels values (?, ?)", [(int(key), label) for key, label in labels.items()]
            )

    def label(self, index):
        with contextlib.closing(sqlite3.connect(self.root / "labels.db")) as database:
            (row,) = database.execute("select label from labels where id = ?", (index,)).fetchone()
        with open(self.root / "labels.json") as file:
            return row, json.load(file)[str(index)], int(np.load(self.root / "labels.npy")[index])


def test_a05_changed_files_and_rows_take_effect_at_once(tmp_path):
    def before(dataset, epoch):
        dataset.write(epoch + 1)
        for index in (2, 7, 11):
            if epoch:
                Path(dataset.paths[index]).write_bytes(image_bytes(0, 100 * epoch + index, (20, 16)))

    def during(dataset, epoch, step):
        time.sleep(0.003)  # so that the files count as unchanged within an epoch
        if step == 2 and epoch:
            os.replace(dataset.paths[4], dataset.paths[5])
            shutil.copy(dataset.paths[5], dataset.paths[4])

    assert_none_wrong(FromTables, tmp_path, before=before, during=during, num_workers=0, num_epochs=4)


class Sly(Photos):
    """Writes to itself while bypassing `setattr`."""

    n = 0

    def label(self, index):
        self.__dict__["n"] += 1
        object.__setattr__(self, "m", self.m + 2)
        vars(self)["seen"] = [*self.seen, index]
        return self.n, self.m, len(self.seen)

    def __init__(self, root):
        super().__init__(root)
        self.n, self.m, self.seen = 0, 0, []


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a06_a_dataset_may_write_to_itself_in_any_way(num_workers, tmp_path):
    assert_none_wrong(Sly, tmp_path, num_workers=num_workers)


OWN_MODULES = {
    "wave.py": "label = 0\ndef read(path):\n    return label\n",
    "cv2.py": "label = 0\ndef imread(path):\n    return label, open(path, 'rb').read(4)\n",
    "imageio.py": "label = 0\ndef imread(path):\n    return label\n",
    "script.py": """
import sys
import numpy
from hasten.data.memo import keys
from hasten.data.memo.memo import Memo
from hasten.data.memo.ram import RamTier
from hasten.data.memo.table import memoizing

keys.QUIET_SECONDS = 0
memo = Memo(RamTier(4 << 20))
wrong = []
with memoizing(memo):
    import cv2, imageio, wave
    for epoch in range(3):
        cv2.label = imageio.label = wave.label = epoch
        found = [cv2.imread(sys.argv[1])[0], imageio.imread(sys.argv[1]), wave.read(sys.argv[1])]
        wrong += [label for label in found if label != epoch]
        numpy.load(sys.argv[1])
print(wrong, memo.counts().tiers[0].num_hits)
""",
}


@pytest.mark.slow
def test_a07_user_modules_are_not_mistaken_for_libraries_of_the_same_name(tmp_path):
    for name, text in OWN_MODULES.items():
        (tmp_path / name).write_text(text)
    np.save(tmp_path / "array.npy", np.arange(4))
    command = [sys.executable, "script.py", "array.npy"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[] 2", "")


class Dynamic(Photos):
    kind = "hard"

    def label(self, index):
        return getattr(self, f"label_{self.kind}")(index), getattr(self, "pix" + "els")(index)

    def label_hard(self, index):
        return index in PSEUDO

    def label_soft(self, index):
        return len(PSEUDO) - index


def test_a08_methods_may_be_reached_by_any_name(tmp_path):
    def before(dataset, epoch):
        PSEUDO.add(epoch)
        dataset.kind = ("hard", "soft")[epoch % 2]

    assert_none_wrong(Dynamic, tmp_path, PSEUDO.clear, before=before)
    PSEUDO.clear()


class SizedIndex(int):
    size = 0


class MultiScale(Sampler):
    """Gives indices that carry an image size."""

    def __init__(self, dataset):
        self.epoch = dataset.epoch

    def __iter__(self):
        for number in range(NUM_FILES):
            index = SizedIndex(number)
            index.size = 5 + (number + self.epoch) % 4
            yield index

    def __len__(self):
        return NUM_FILES


class ManySizes(Staged):
    def __getitem__(self, index):
        image = Image.open(self.paths[index]).convert("RGB").resize((index.size, index.size))
        return F.pil_to_tensor(image), index.size


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a09_an_index_may_carry_more_than_a_number(num_workers, tmp_path):
    def before(dataset, epoch):
        dataset.epoch = epoch

    assert_none_wrong(ManySizes, tmp_path, before=before, sampler=MultiScale, num_workers=num_workers, num_epochs=6)


@pytest.mark.parametrize("how", ["in place", "replaced", "swapped"])
@pytest.mark.parametrize("where", ["ram", "disk"])
def test_a10_different_content_with_the_same_size_and_mtime_is_detected(how, where, tmp_path):
    path, other = tmp_path / "a.bmp", tmp_path / "b.bmp"

    def read():
        return Image.open(path).convert("RGB").resize((9, 9)).tobytes(), np.asarray(Image.open(path)).tobytes()

    path.write_bytes(image_bytes(15, 1, (20, 16)))
    other.write_bytes(image_bytes(15, 2, (20, 16)))
    for one in (path, other):
        os.utime(one, (1e9, 1e9))
    time.sleep(QUIET * 1.3)
    found = []
    for run in range(2):
        tier = RamTier(4 << 20) if where == "ram" else DiskTier(4 << 20, root=tmp_path / "memo", script="x")
        memo = Memo(tier) if where == "ram" else Memo(None, tier)
        with memoizing(memo):
            found += [read() for _ in range(3)]
            size = path.stat().st_size
            if run == 0:
                if how == "in place":
                    path.write_bytes(other.read_bytes())
                elif how == "replaced":
                    os.replace(other, path)
                else:
                    os.rename(path, tmp_path / "c.bmp")
                    os.rename(other, path)
                os.utime(path, (1e9, 1e9))
                assert (path.stat().st_size, path.stat().st_mtime) == (size, 1e9)
                found += [read() for _ in range(2)]
                time.sleep(QUIET * 1.3)
                found += [read() for _ in range(2)]
            assert memo.counts().tiers[0].num_hits
        memo.close()
    assert len({*found[:3]}) == 1 and len({*found[3:]}) == 1
    assert found[3] == read() != found[0]


def test_a13_a_lock_is_not_released_early(tmp_path):
    tier = RamTier(8 << 20, host_key=b"a13 %d" % os.getpid())
    twin = RamTier(8 << 20, host_key=b"a13 %d" % os.getpid())

    def is_free():
        child = os.fork()
        if not child:
            taken = lock(tier._lock.descriptor)
            if taken:
                unlock(tier._lock.descriptor)
            os._exit(int(taken))
        return bool(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    assert tier.write(b"1" * 16, encode(np.zeros(MAPPED_FROM, np.uint8))) and is_free()
    with locked(tier._lock.descriptor) as ours:
        assert ours and not is_free()
        tier._file.free(4 * PAGE, 8 * PAGE)
        assert not is_free()
        tier._file.map(PAGE).close()
        del twin._words, twin._table
        assert not is_free()
        tier.read(b"1" * 16)  # a mapping, which is unmapped at once
        assert not is_free()
        _ = tier.num_bytes, tier.takes(1), b"2" * 16 in tier
        assert not is_free()
    assert is_free()


def test_spawned_workers_get_the_same_samples(tmp_path):
    photos = Photos(tmp_path / "photos")
    memo = Memo(RamTier(8 << 20))
    runs = []
    for used, context in ((None, "fork"), (memo, "spawn")):
        more = {"worker_init_fn": put_memo_to_use, "multiprocessing_context": context, "persistent_workers": True}
        loader = DataLoader(Carried(photos.paths, used, QUIET), batch_size=4, num_workers=1, collate_fn=list, **more)
        torch.manual_seed(0)
        runs.append([look(batch) for _ in range(3) for batch in loader])
        del loader
    assert num_wrong(*runs) == 0
    assert memo.counts().tiers[0].num_hits > NUM_FILES
    memo.close()
