"""An epoch goes on where it was left, whoever makes the samples."""

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
    """What follows a loader's first batch, and what another that is given its state workers out."""
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
    assert len(list(resumed)) == 11  # the next epoch is whole


def test_a_resumed_epoch_makes_no_sample_twice():
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


def test_repeated_indices_go_on_with_their_own_draws():
    def make():
        return Loader(Drawing(), 4, sampler=WeightedRandomSampler([1.0, 1.0] + [0.0] * 39, 24))

    torch.manual_seed(2)
    assert same(*rest_and_resumed(make(), make()))


def test_an_order_that_is_drawn_when_it_is_asked_for_is_drawn_alike():
    class Eager(Sampler):
        def __len__(self):
            return 41

        def __iter__(self):
            return iter(torch.randperm(41).tolist())

    torch.manual_seed(3)
    assert same(*rest_and_resumed(*(Loader(Drawing(), 4, sampler=Eager()) for _ in range(2))))


class EagerBatches:
    """Draws when it is asked, and another order the next time it is asked."""

    def __init__(self):
        self.epoch = 0

    def __len__(self):
        return 10

    def __iter__(self):
        self.epoch += 1
        order = torch.randperm(40).roll(self.epoch)
        return iter(order.view(10, 4).tolist())


@pytest.mark.parametrize("settings", [{}, {"num_workers": 1, "persistent_workers": True}])
def test_batches_that_are_drawn_when_they_are_asked_for_are_drawn_alike(settings):
    torch.manual_seed(3)
    assert same(*rest_and_resumed(*(Loader(Drawing(), batch_sampler=EagerBatches(), **settings) for _ in range(2))))


def test_a_generator_of_the_loaders_own_goes_on_too():
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


def test_a_loop_that_was_left_can_be_gone_on_with():
    loader = Loader(Drawing(), 4, num_workers=1)
    for _ in loader:
        break
    resumed = Loader(Drawing(), 4)
    resumed.load_state_dict(loader.state_dict())
    assert next(iter(resumed))[0].tolist() == [4, 5, 6, 7]


def test_between_two_epochs_a_state_begins_the_next():
    loader = Loader(Drawing(), 4)
    assert loader.state_dict()["position"] is None
    list(loader)
    resumed = Loader(Drawing(), 4)
    resumed.load_state_dict(loader.state_dict())
    assert len(list(resumed)) == 11


def test_a_distributed_sampler_is_told_its_epoch():
    sampler = DistributedSampler(Drawing(), num_replicas=2, rank=0, shuffle=True)
    loader = Loader(Drawing(), 4, sampler=sampler)
    first = [batch[0].tolist() for batch in loader]
    loader.set_epoch(1)
    assert sampler.epoch == 1 and [batch[0].tolist() for batch in loader] != first


@pytest.mark.parametrize("state", [{}, {"hasten_loader": 99, "position": None}, [1], None])
def test_a_foreign_state_is_refused(state):
    with pytest.raises(StateError, match="state_dict"):
        Loader(Drawing(), 4).load_state_dict(state)


def test_a_state_of_another_batch_size_is_refused():
    loader = Loader(Drawing(), 4)
    next(iter(loader))
    with pytest.raises(StateError, match="batch_size=4"):
        Loader(Drawing(), 8).load_state_dict(loader.state_dict())


def test_a_torn_state_is_refused():
    loader = Loader(Drawing(), 4)
    next(iter(loader))
    state = loader.state_dict()
    del state["position"]["base_seed"]
    with pytest.raises(StateError, match="incomplete or corrupt"):
        Loader(Drawing(), 4).load_state_dict(state)
