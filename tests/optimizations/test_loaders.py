"""Loaders made otherwise, and ours in the place of theirs."""

import io
import sys
import weakref

import numpy as np
import pytest
import torch
from draws import Drawn
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from hasten.agent import loader_arguments


class Squares(Dataset):
    def __init__(self, length=20):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.full((3,), float(index)) ** 2, index


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(6))


def batches(loader):
    return [[part.tolist() for part in batch] for batch in loader]


def seeded(*arguments, **settings):
    torch.manual_seed(3)
    return batches(DataLoader(*arguments, **settings))


def test_the_number_of_workers_is_the_plans(put_on):
    expected = seeded(Squares(), 4, shuffle=True)
    put_on("num_workers", 2)
    loader = DataLoader(Squares(), 4, shuffle=True)
    assert loader.num_workers == 2
    assert seeded(Squares(), 4, shuffle=True) == expected


def test_no_workers_take_with_them_what_only_workers_have(put_on):
    put_on("num_workers", 0)
    loader = DataLoader(Squares(), 4, num_workers=3, prefetch_factor=4, persistent_workers=True, timeout=5)
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (0, None, False)
    assert len(batches(loader)) == 5


def test_a_stream_divides_itself_among_the_workers_it_was_given(put_on):
    put_on("num_workers", 2)
    assert DataLoader(Stream()).num_workers == 0


def test_what_needs_workers_waits_for_some(put_on):
    put_on("persistent_workers")
    put_on("prefetch_factor", 8)
    assert not DataLoader(Squares()).persistent_workers
    loader = DataLoader(Squares(), num_workers=1)
    assert loader.persistent_workers and loader.prefetch_factor == 8


def test_workers_of_the_plan_are_workers_enough(put_on):
    for name, value in (("num_workers", 1), ("prefetch_factor", 8), ("persistent_workers", True)):
        put_on(name, value)
    loader = DataLoader(Squares())
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (1, 8, True)


class Scaled(Squares):
    factor = 1.0

    def __getitem__(self, index):
        return torch.tensor([index * self.factor])


def test_workers_that_stay_see_what_the_script_changes_between_epochs(put_on):
    put_on("persistent_workers")
    loader = DataLoader(Scaled(2), num_workers=1)
    assert batches(loader) == batches(loader) == [[[0.0]], [[1.0]]]
    running = weakref.ref(loader._iterator)
    assert batches(loader) and loader._iterator is running(), "they stay"
    loader.dataset.factor = 5.0
    assert batches(loader) == [[[0.0]], [[5.0]]]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_that_stay_draw_in_every_epoch_what_new_ones_would(put_on, start):
    def epochs():
        torch.manual_seed(1)
        loader = DataLoader(Drawn(6), 2, shuffle=True, num_workers=2, multiprocessing_context=start)
        return [batches(loader) for _ in range(3)]

    expected = epochs()
    assert expected[0] != expected[1] != expected[2]
    put_on("persistent_workers")
    assert epochs() == expected


def test_workers_that_the_script_itself_has_stay_are_left_alone(put_on):
    def epochs():
        torch.manual_seed(1)
        loader = DataLoader(Drawn(6), 2, num_workers=2, persistent_workers=True)
        return [batches(loader) for _ in range(3)]

    expected = epochs()
    put_on("persistent_workers")
    assert epochs() == expected


def test_workers_with_a_beginning_of_the_scripts_own_do_not_stay(put_on):
    put_on("persistent_workers")
    assert not DataLoader(Squares(), num_workers=1, worker_init_fn=print).persistent_workers


class Listed(Squares):
    def __init__(self):
        super().__init__(3)
        self.order, self.weights = [*range(3)], np.arange(3)

    def __getitem__(self, index):
        return torch.tensor([self.order[index] + 10 * int(self.weights[index])])


@pytest.mark.parametrize("inside", [False, True], ids=["a dataset", "a subset of it"])
def test_workers_that_stay_see_what_is_changed_in_place(put_on, inside):
    put_on("persistent_workers")
    dataset = Listed()
    loader = DataLoader(torch.utils.data.Subset(dataset, range(3)) if inside else dataset, num_workers=1)
    assert batches(loader) == [[[0]], [[11]], [[22]]]
    dataset.order.reverse()
    assert batches(loader) == [[[2]], [[11]], [[20]]]
    dataset.weights += 1
    assert batches(loader) == [[[12]], [[21]], [[30]]]
    running = weakref.ref(loader._iterator)
    assert batches(loader) and loader._iterator is running(), "they stay where nothing has changed"


def test_a_loop_within_a_loop_over_the_same_loader_ends_neither(put_on):
    put_on("persistent_workers")
    loader = DataLoader(Squares(4), num_workers=1)
    assert [(int(n), len([*loader])) for _, n in loader] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert [(int(one), int(other)) for (_, one), (_, other) in zip(loader, loader)] == [(n, n) for n in range(4)]


class Streamed(IterableDataset):
    def __init__(self):
        self.source = iter(range(3))

    def __iter__(self):
        return self.source


class Drawing(Squares):
    def __init__(self):
        super().__init__(4)
        self.rng = np.random.RandomState(0)

    def __getitem__(self, index):
        return self.rng.randint(1000)


class Recorded(Squares):
    def __init__(self):
        super().__init__(100)
        self.items = [{"label": n} for n in range(100)]

    def __getitem__(self, index):
        return self.items[index]["label"]


@pytest.mark.parametrize("dataset", [Streamed, Drawing, Recorded])
def test_workers_whose_copy_of_the_data_may_differ_do_not_stay(put_on, dataset):
    def epochs():
        torch.manual_seed(1)
        data = dataset()
        loader = DataLoader(data, num_workers=1)
        found = [batches(loader)]
        if dataset is Recorded:
            data.items[7]["label"] = -1
        return [*found, batches(loader), batches(loader)]

    expected = epochs()
    put_on("persistent_workers")
    assert epochs() == expected


def test_a_subclass_with_its_own_arguments_still_works(put_on):
    class Mine(DataLoader):
        def __init__(self, name, dataset, **settings):
            super().__init__(dataset, **settings)
            self.name = name

    put_on("num_workers", 1)
    loader = Mine("train", Squares(), batch_size=5)
    assert loader.name == "train" and loader.num_workers == 1 and len(batches(loader)) == 4


@pytest.mark.parametrize(
    "text, may", [("import torch\ntrain()\n", False), ('if __name__ == "__main__":\n    go()\n', True)]
)
def test_workers_that_are_spawned_need_a_guarded_script(put_on, monkeypatch, tmp_path, text, may):
    script = tmp_path / "train.py"
    script.write_text(text)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    monkeypatch.setattr(loader_arguments.multiprocessing, "get_start_method", lambda allow_none=False: "spawn")
    assert (put_on("num_workers", 2)["num_workers"] == "on") is may


# ------------------------------------------------------------------------------------------------- our loader


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 4, "shuffle": True},
        {"batch_size": 4, "shuffle": True, "num_workers": 2, "persistent_workers": True},
        {"batch_size": None},
        {"batch_sampler": [[3, 1], [2], [5, 4, 0]]},
        {"batch_size": 4, "drop_last": True, "collate_fn": lambda samples: [torch.stack([x for x, _ in samples])]},
    ],
    ids=["shuffled", "workers", "unbatched", "batch sampler", "collate"],
)
def test_our_loader_gives_the_batches_of_theirs(put_on, settings):
    dataset = Squares(18)
    torch.manual_seed(3)
    theirs = DataLoader(dataset, **settings)
    expected = [[torch.as_tensor(p).tolist() for p in b] for _ in range(2) for b in theirs]
    assert put_on("loader") == {"loader": "on"}
    torch.manual_seed(3)
    ours = DataLoader(dataset, **settings)
    found = [[torch.as_tensor(p).tolist() for p in b] for _ in range(2) for b in ours]
    assert found == expected
    assert type(ours) is DataLoader


def test_the_iterator_is_ours(put_on):
    from hasten.data.epoch.batches import BatchIterator
    from hasten.data.epoch.in_memory import InMemoryIterator

    put_on("loader")
    assert isinstance(iter(DataLoader(Squares())), BatchIterator)
    assert isinstance(iter(DataLoader(TensorDataset(torch.ones(8, 2)), 4)), InMemoryIterator)


def test_gather_takes_only_what_is_in_memory(put_on):
    from hasten.data.epoch.batches import BatchIterator
    from hasten.data.epoch.in_memory import InMemoryIterator

    put_on("gather")
    assert isinstance(iter(DataLoader(TensorDataset(torch.ones(8, 2)), 4)), InMemoryIterator)
    assert not isinstance(iter(DataLoader(Squares())), BatchIterator)


def test_a_stream_stays_torchs(put_on):
    put_on("loader")
    assert [x.item() for x in DataLoader(Stream())] == list(range(6))


class Counting(Dataset):
    made = 0

    def __len__(self):
        return 6

    def __getitem__(self, index):
        Counting.made += 1
        return torch.full((300,), float(index))


class Random(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.rand(300) + index


def test_a_cache_that_nothing_goes_through_says_so(put_on):
    states = put_on("cache", "64 MiB")
    loader = DataLoader(Random(), 6)
    first, second = list(loader), list(loader)
    assert not torch.equal(first[0], second[0])
    assert "read through a library" in states["cache"]


def test_after_undo_the_loader_is_torchs_again(process, put_on):
    put_on("loader")
    loader = DataLoader(Squares(), 5)
    batches(loader)
    process.patches.undo()
    assert type(iter(loader)).__module__ == "torch.utils.data.dataloader"


# ---------------------------------------------------------------------------------------------------- decoding


def photo(mode="RGB", quality=90, size=(53, 37)):
    shape = (*size[::-1], 3) if mode == "RGB" else size[::-1]
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return file.getvalue()


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_photograph_has_the_pixels_that_pillow_gives(put_on, tmp_path, mode):
    path = tmp_path / "photo.jpg"
    path.write_bytes(photo(mode))
    with Image.open(path) as image:
        expected = np.asarray(image)
    states = put_on("decode")
    calls = []
    with Image.open(path) as image:
        image.load_prepare = lambda: calls.append("Pillow decodes")
        assert np.array_equal(np.asarray(image), expected)
        assert image.getpixel((3, 4)) is not None
    assert Image.open(path).convert("RGB").size == (53, 37)
    assert states == {"decode": "on"} and calls == []


def test_a_drafted_or_damaged_photograph_is_pillows(put_on):
    put_on("decode")
    image = Image.open(io.BytesIO(photo(size=(800, 640))))
    image.draft("RGB", (100, 80))
    assert image.size == (100, 80) and np.asarray(image).shape == (80, 100, 3)
    with pytest.raises(OSError, match=r"(?i)truncated"):
        Image.open(io.BytesIO(photo()[:600])).load()


def test_a_second_picture_in_one_file_is_not_the_first(put_on, tmp_path):
    first, second = (Image.new("RGB", (64, 48), colour) for colour in ("red", "blue"))
    first.save(tmp_path / "two.mpo", save_all=True, append_images=[second])
    put_on("decode")
    with Image.open(tmp_path / "two.mpo") as image:
        image.seek(1)
        assert image.getpixel((5, 5))[2] > 200
