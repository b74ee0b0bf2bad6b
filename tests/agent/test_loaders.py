"""What is known of loaders and of their batches."""

from collections import UserDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from PIL import Image
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, TensorDataset

from hasten import Loader
from hasten.agent.loaders import Loaders
from hasten.agent.tree import tensors_in
from hasten.raw_run import UNKNOWN_LENGTH

DATA = TensorDataset(torch.zeros(10, 3), torch.zeros(10))


@pytest.fixture
def loaders():
    return Loaders()


def started(loaders, loader):
    iterator = iter(loader)
    loaders.starts(loader, iterator)
    return iterator


@dataclass
class Sample:
    image: torch.Tensor


Pair = namedtuple("Pair", "image label")
IMAGES = torch.zeros(4, 3)


@pytest.mark.parametrize(
    "batch",
    [
        IMAGES,
        [IMAGES, torch.zeros(4)],
        (IMAGES, ["a"] * 4),
        {"image": IMAGES, "id": ["a"] * 4},
        Pair(IMAGES, 3),
        Sample(IMAGES),
        UserDict(image=IMAGES),  # as the batches of transformers are
        {"nested": [{"image": IMAGES}]},
    ],
    ids=lambda b: type(b).__name__,
)
def test_a_batch_of_any_kind_is_as_long_as_its_first_tensor(loaders, batch):
    number = loaders.number(started(loaders, DataLoader(DATA)))
    assert loaders.length_of(number, batch) == 4


@pytest.mark.parametrize("batch", [None, 3, ["a", "b"], {}, torch.tensor(2.0), object()])
def test_a_batch_without_a_tensor_of_rows_has_an_unknown_length(loaders, batch):
    number = loaders.number(started(loaders, DataLoader(DATA)))
    assert loaders.length_of(number, batch) == UNKNOWN_LENGTH


def test_tensors_are_found_in_the_order_of_the_batch():
    first, second, third = (torch.full((1,), float(i)) for i in range(3))
    assert [t.item() for t in tensors_in({"a": [first, second], "b": third})] == [0, 1, 2]


def test_a_batch_that_holds_itself_is_looked_at_no_longer_than_others():
    batch = [torch.zeros(1)]
    batch.append(batch)
    assert len(list(tensors_in(batch, most=3))) <= 3


def test_a_loader_keeps_its_number_over_epochs_and_others_get_their_own(loaders):
    one, other = DataLoader(DATA), DataLoader(DATA, batch_size=2)
    numbers = [loaders.number(started(loaders, x)) for x in (one, other, one)]
    assert numbers == [0, 1, 0]


def test_a_loader_made_anew_each_epoch_is_one_loader(loaders):
    # Many scripts write `for batch in DataLoader(dataset, ...)` within the epoch.
    for _ in range(3):
        started(loaders, DataLoader(DATA, batch_size=4, shuffle=True))
    assert len(loaders.raw()) == 1


def test_the_settings_of_a_loader_are_told(loaders):
    started(loaders, DataLoader(DATA, batch_size=4))
    (facts,) = loaders.raw()
    told = facts.settings
    assert (told.name, told.num_workers, told.prefetch_factor) == ("TensorDataset", 0, None)
    assert (told.batch_size, told.num_batches, told.num_samples) == (4, 3, 10)


def test_the_batch_size_of_a_batch_sampler_is_told(loaders):
    started(loaders, DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 5, False)))
    assert loaders.raw()[0].settings.batch_size == 5


def test_a_stream_has_no_length(loaders):
    class Stream(IterableDataset):
        def __iter__(self):
            yield torch.zeros(2)

    started(loaders, DataLoader(Stream()))
    (facts,) = loaders.raw()
    assert (facts.settings.num_batches, facts.settings.num_samples) == (None, None)
    assert loaders.epoch_left(0.1) == (None, 1)


def test_the_rest_of_an_epoch_is_counted_in_steps(loaders):
    iterator = started(loaders, DataLoader(DATA, batch_size=2))
    for batch in (next(iterator), next(iterator)):
        loaders.length_of(0, batch)
    assert loaders.epoch_left(0.5) == (1.5, 1)


def test_bytes_and_types_of_a_batch_are_told(loaders):
    number = loaders.number(started(loaders, DataLoader(DATA)))
    loaders.length_of(number, [torch.zeros(2, 3), torch.zeros(2, dtype=torch.uint8)])
    facts = loaders.raw()[number]
    assert (facts.bytes_per_batch, facts.dtypes) == (26, ("float32", "uint8"))


def test_without_workers_there_is_no_queue_to_look_into(loaders):
    assert loaders.ready(started(loaders, DataLoader(DATA))) is None


@pytest.mark.parametrize("kept", [True, False])
def test_a_loader_is_made_anew_where_the_one_before_it_is_gone(loaders, kept):
    alive = []
    for _ in range(2):
        loader = DataLoader(TensorDataset(torch.zeros(4, 1)))
        loaders.starts(loader, iter(loader))
        alive += [loader] if kept else []
        del loader
    assert loaders.raw()[0].recreated is not kept


class Photographs(Dataset):
    """The same file, decoded and turned into a tensor; the decoded part is worth keeping."""

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 12

    def __getitem__(self, index):
        image = Image.open(self.path).convert("RGB").resize((16, 16))
        return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8), index


def test_what_a_cache_holds_and_gives_is_told(loaders, tmp_path, monkeypatch):
    monkeypatch.setattr("hasten.data.memo.keys.QUIET_SECONDS", 0.0)
    Image.effect_noise((300, 300), 80).save(tmp_path / "photograph.png")
    loader = Loader(Photographs(tmp_path / "photograph.png"), batch_size=4, cache=64 << 20)
    for _ in range(2):
        for _batch in started(loaders, loader):
            pass
    (facts,) = loaders.raw()
    ((name, hits, size, budget, saved),) = facts.cache
    assert name == "ram" and facts.num_cache_misses <= 2, "all samples are made from one file"
    assert hits >= 22
    assert 16 * 16 * 3 < size <= budget <= 64 << 20 and saved > 0


def test_a_loader_of_torchs_has_kept_nothing(loaders):
    started(loaders, DataLoader(DATA))
    assert loaders.raw()[0].num_cache_misses is None


def test_choosing_indices_is_counted_at_an_epochs_start_and_by_the_batch(loaders):
    loader = DataLoader(DATA, batch_size=2)
    for _ in range(2):
        iterator = started(loaders, loader)
        for seconds in [0.5, 0.01, 0.03]:
            loaders.drew(iterator, [0], seconds, starting=False)
            loaders.length_of(loaders.number(iterator), next(iterator))
    (facts,) = loaders.raw()
    assert (facts.sampling_at_start.seconds, facts.sampling_at_start.times) == (1.0, 2)
    assert (facts.sampling.seconds, facts.sampling.times) == (pytest.approx(0.08), 4)


def test_indices_drawn_ahead_while_workers_start_belong_to_the_epochs_start(loaders):
    loader = DataLoader(DATA, batch_size=2)
    loaders.drew(iter(loader), [0], 0.2, starting=True)
    started(loaders, loader)
    assert loaders.raw()[0].sampling_at_start.seconds == 0.2


def test_a_batch_of_python_objects_is_looked_through_once(loaders):
    looked = []

    class Row(dict):
        def values(self):
            looked.append(self)
            return super().values()

    number = loaders.number(started(loaders, DataLoader(DATA)))
    batch = [Row(page=i) for i in range(5000)]
    assert [loaders.length_of(number, batch) for _ in range(3)] == [UNKNOWN_LENGTH] * 3
    assert len(looked) < 1200
