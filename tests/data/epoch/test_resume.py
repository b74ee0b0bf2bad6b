"""An epoch resumes where it was left, for any number of workers."""

import io

import pytest
import torch
from samples import Drawing, same
from torch.utils.data import DistributedSampler, Sampler, TensorDataset, WeightedRandomSampler

from hasten.data.loader import Loader
from hasten.errors import StateError


def saved(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def rest_and_resumed(loader, other):
    """Return a loader's remaining batches, and those of another loader that loads its state."""
    batches = iter(loader)
    next(batches)
    state = saved(loader.state_dict())
    rest = list(batches)
    torch.manual_seed(4)
    other.load_state_dict(state)
    return rest, list(other)


@pytest.mark.parametrize("before, after", [(0, 2), (2, 0), (2, 1)])
@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("persistent", [False, True])
def test_the_rest_of_an_epoch_is_the_same_with_another_number_of_workers(before, after, epoch, persistent):
    torch.manual_seed(5)
    loader = Loader(Drawing(), 4, shuffle=True, num_workers=before, persistent_workers=persistent and before > 0)
    for _ in range(epoch):
        list(loader)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = saved(loader.state_dict())
    rest = list(batches)

    torch.manual_seed(99)
    generators = torch.get_rng_state()
    resumed = Loader(Drawing(), 4, shuffle=True, num_workers=after)
    resumed.load_state_dict(state)
    assert same(list(resumed), rest)
    assert torch.equal(torch.get_rng_state(), generators)
    assert len(list(resumed)) == 11  # the next epoch is complete


def test_a_resumed_epoch_builds_no_sample_twice():
    asked = []

    class Watched(Drawing):
        def __getitem__(self, index):
            asked.append(index)
            return super().__getitem__(index)

    loader = Loader(Watched(), 4)
    next(iter(loader))
    state = loader.state_dict()
    asked.clear()
    resumed = Loader(Watched(), 4)
    resumed.load_state_dict(state)
    batch = next(iter(resumed))
    assert batch[0].tolist() == [4, 5, 6, 7] and set(asked) <= {4, 5, 6, 7}


def test_repeated_indices_continue_their_draws():
    def make():
        return Loader(Drawing(), 4, sampler=WeightedRandomSampler([1.0, 1.0] + [0.0] * 39, 24))

    torch.manual_seed(2)
    assert same(*rest_and_resumed(make(), make()))


def test_an_order_drawn_at_iter_is_reproduced():
    class Eager(Sampler):
        def __len__(self):
            return 41

        def __iter__(self):
            return iter(torch.randperm(41).tolist())

    torch.manual_seed(3)
    assert same(*rest_and_resumed(*(Loader(Drawing(), 4, sampler=Eager()) for _ in range(2))))


class EagerBatches:
    """Draws an order at `iter`, and another order the next time."""

    def __init__(self):
        self.epoch = 0

    def __len__(self):
        return 10

    def __iter__(self):
        self.epoch += 1
        order = torch.randperm(40).roll(self.epoch)
        return iter(order.view(10, 4).tolist())


@pytest.mark.parametrize("settings", [{}, {"num_workers": 1, "persistent_workers": True}])
def test_batches_drawn_at_iter_are_reproduced(settings):
    torch.manual_seed(3)
    assert same(*rest_and_resumed(*(Loader(Drawing(), batch_sampler=EagerBatches(), **settings) for _ in range(2))))


def test_the_loaders_generator_continues_too():
    def make(seed):
        return Loader(Drawing(), 4, shuffle=True, generator=torch.Generator().manual_seed(seed))

    loader = make(1)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest, following = list(batches), list(loader)
    resumed = make(2)
    resumed.load_state_dict(state)
    assert same(list(resumed), rest) and same(list(resumed), following)


def test_data_in_memory_resumes_too():
    data = TensorDataset(torch.arange(50))
    assert same(*rest_and_resumed(*(Loader(data, 7, shuffle=True) for _ in range(2))))


def test_an_interrupted_loop_can_be_resumed():
    loader = Loader(Drawing(), 4, num_workers=1)
    for _ in loader:
        break
    resumed = Loader(Drawing(), 4)
    resumed.load_state_dict(loader.state_dict())
    assert next(iter(resumed))[0].tolist() == [4, 5, 6, 7]


def test_a_state_saved_between_epochs_starts_the_next_epoch():
    loader = Loader(Drawing(), 4)
    assert loader.state_dict()["position"] is None
    list(loader)
    resumed = Loader(Drawing(), 4)
    resumed.load_state_dict(loader.state_dict())
    assert len(list(resumed)) == 11


def test_set_epoch_reaches_a_distributed_sampler():
    sampler = DistributedSampler(Drawing(), num_replicas=2, rank=0, shuffle=True)
    loader = Loader(Drawing(), 4, sampler=sampler)
    first = [batch[0].tolist() for batch in loader]
    loader.set_epoch(1)
    assert sampler.epoch == 1 and [batch[0].tolist() for batch in loader] != first


@pytest.mark.parametrize("state", [{}, {"hasten_loader": 99, "position": None}, [1], None])
def test_a_foreign_state_raises(state):
    with pytest.raises(StateError, match="state_dict"):
        Loader(Drawing(), 4).load_state_dict(state)


def test_a_state_with_another_batch_size_raises():
    loader = Loader(Drawing(), 4)
    next(iter(loader))
    with pytest.raises(StateError, match="batch_size=4"):
        Loader(Drawing(), 8).load_state_dict(loader.state_dict())


def test_an_incomplete_state_raises():
    loader = Loader(Drawing(), 4)
    next(iter(loader))
    state = loader.state_dict()
    del state["position"]["base_seed"]
    with pytest.raises(StateError, match="incomplete or corrupt"):
        Loader(Drawing(), 4).load_state_dict(state)


class Counting(Sampler):
    """Counts its epochs itself, and shuffles by their number; `hidden`: under a name that nobody knows."""

    def __init__(self, hidden=False):
        self.name = "round" if hidden else "epoch"
        setattr(self, self.name, 0)

    def __len__(self):
        return 42

    def __iter__(self):
        setattr(self, self.name, getattr(self, self.name) + 1)
        generator = torch.Generator().manual_seed(getattr(self, self.name))
        return iter(torch.randperm(42, generator=generator).tolist())


@pytest.mark.parametrize("before", [0, 3])
def test_a_sampler_that_counts_its_epochs_continues_in_the_saved_one(before):
    loader = Loader(Drawing(), 4, sampler=Counting())
    for _ in range(before):
        list(loader)
    rest, resumed = rest_and_resumed(loader, Loader(Drawing(), 4, sampler=Counting()))
    assert len(rest) == 10 and same(rest, resumed)


def test_a_distributed_sampler_continues_in_the_saved_epoch():
    def sampler():
        return DistributedSampler(Drawing(), num_replicas=2, rank=0, shuffle=True)

    loader = Loader(Drawing(), 4, sampler=sampler())
    loader.set_epoch(3)
    assert same(*rest_and_resumed(loader, Loader(Drawing(), 4, sampler=sampler())))


class Key:
    """Has the default repr, with an address in it."""

    def __init__(self, number):
        self.number = number


class Keyed(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, key):
        return key.number


def test_keys_that_are_objects_are_the_same_in_another_process():
    rest, resumed = rest_and_resumed(*(Loader(Keyed(), 2, sampler=[Key(n) for n in range(8)]) for _ in range(2)))
    assert len(rest) == 3 and same(rest, resumed)


OTHERS = {
    "a sampler with a state that nobody knows": lambda: Loader(Drawing(), 4, sampler=Counting(hidden=True)),
    "another order": lambda: Loader(Drawing(), 4),
    "too few samples": lambda: Loader(torch.utils.data.Subset(Drawing(), range(3)), 4),
    "another sampler": lambda: Loader(Drawing(), 4, sampler=[0] * 42),
}


@pytest.mark.parametrize("name", OTHERS)
def test_an_epoch_whose_order_cannot_be_repeated_is_refused(name):
    loader = Loader(Drawing(), 4, sampler=Counting(hidden=True))
    list(loader)
    next(iter(loader))
    other = OTHERS[name]()
    other.load_state_dict(saved(loader.state_dict()))
    with pytest.raises(StateError, match="does not repeat the order of the saved epoch"):
        iter(other)
    assert list(other), "the state is dropped: the next epoch begins as usual"


@pytest.mark.parametrize("state", [{"hasten_loader": 2}, {"hasten_loader": 2, "position": 3}])
def test_a_corrupt_state_raises(state):
    with pytest.raises(StateError, match="incomplete or corrupt"):
        Loader(Drawing(), 4).load_state_dict(state)


def test_a_state_without_generators_raises():
    loader = Loader(Drawing(), 4)
    next(iter(loader))
    state = loader.state_dict()
    state["position"]["generators"] = {}
    with pytest.raises(StateError, match="lacks numpy, own, python, torch"):
        Loader(Drawing(), 4).load_state_dict(state)
