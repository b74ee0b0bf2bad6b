"""Same arguments, same batches in the same order: hasten.Loader compared with torch's DataLoader."""

import dataclasses
import random
import warnings
from collections import namedtuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from samples import Drawing, Large, Nested, same
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
)
from torch.utils.data._utils.collate import default_collate_fn_map

from hasten.data.loader import Loader
from hasten.errors import DeviceError


def both(dataset, seed=0, **arguments):
    """Return all batches of two epochs from both loaders, and a number drawn after them."""
    found = []
    for kind in (DataLoader, Loader):
        torch.manual_seed(seed)
        made = {name: value() if name in ("sampler", "batch_sampler") else value for name, value in arguments.items()}
        loader = kind(dataset, **made)
        found.append(([list(loader), list(loader)], torch.rand(1)))
    return found


def assert_same(dataset, **arguments):
    torchs, ours = both(dataset, **arguments)
    assert same(torchs[0], ours[0])
    assert same(torchs[1], ours[1])


class TaggedCollate:
    def __call__(self, samples):
        return {"tag": "mine", "batch": default_collate([sample[:2] for sample in samples])}


grid = st.fixed_dictionaries(
    {},
    optional={
        "batch_size": st.sampled_from([1, 2, 7, 41, 64]),
        "shuffle": st.booleans(),
        "drop_last": st.booleans(),
        "collate_fn": st.sampled_from([None, TaggedCollate(), list]),
    },
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arguments=grid, length=st.sampled_from([1, 2, 40, 41]), seed=st.integers(0, 5))
def test_without_workers_every_grid_of_arguments_gives_torchs_batches(arguments, length, seed):
    assert_same(Nested(length), seed=seed, **arguments)


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    arguments=grid,
    num_workers=st.integers(1, 3),
    persistent_workers=st.booleans(),
    prefetch_factor=st.sampled_from([None, 1, 4]),
)
def test_with_workers_every_grid_of_arguments_gives_torchs_batches(
    arguments, num_workers, persistent_workers, prefetch_factor
):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # more workers than cores
        assert_same(
            Nested(),
            num_workers=num_workers,
            persistent_workers=persistent_workers,
            prefetch_factor=prefetch_factor,
            **arguments,
        )


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": None},
        {"batch_size": None, "sampler": lambda: BatchSampler(SequentialSampler(range(12)), 5, False)},
        {"batch_size": 3, "sampler": lambda: SubsetRandomSampler([4, 1, 3, 9])},
        {"batch_size": 3, "sampler": lambda: WeightedRandomSampler([1.0, 2.0, 3.0], 10)},
        {"batch_size": 3, "sampler": lambda: [5, 5, 2, 0]},
        {"batch_sampler": lambda: [[0, 1], [2], [3, 4, 5]]},
        {"batch_size": 4, "sampler": lambda: RandomSampler(range(12), generator=torch.Generator().manual_seed(3))},
    ],
    ids=lambda arguments: "-".join(arguments),
)
def test_every_kind_of_sampler_is_supported(arguments, num_workers):
    class Listed(Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, index):
            return torch.as_tensor(index), "text"

    assert_same(Listed(), num_workers=num_workers, **arguments)


@pytest.mark.parametrize(
    "dataset",
    [
        TensorDataset(torch.arange(60).view(20, 3), torch.arange(20)),
        Subset(TensorDataset(torch.arange(20)), [3, 1, 19, 4]),
        ConcatDataset([Nested(5), Nested(8)]),
        Subset(Nested(30), list(range(4, 20))),
        StackDataset(image=TensorDataset(torch.rand(9, 2)), number=Nested(9)),
    ],
    ids=["tensors", "subset of tensors", "concat", "subset", "stack"],
)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchs_own_datasets_give_torchs_batches(dataset, num_workers):
    assert_same(dataset, batch_size=3, shuffle=True, num_workers=num_workers)


Point = namedtuple("Point", "x y")


@dataclasses.dataclass(frozen=True)
class Pair:
    left: torch.Tensor
    right: int


class Custom(dict):
    pass


@pytest.mark.parametrize(
    "sample",
    [
        Point(1, torch.ones(2)),
        [1, [2.0, [True, "text", b"bytes"]]],
        {"a": {"b": np.ones((2, 2))}, 3: np.int8(4)},
        Custom(x=1),
        torch.ones(0, 3),
        torch.ones(3, 4).t(),
        torch.arange(96.0).reshape(2, 3, 4, 4).to(memory_format=torch.channels_last)[0],
        torch.tensor(1 + 2j),
        np.float64(2.5),
        np.array("text"),
        (),
        {},
        "only text",
    ],
    ids=repr,
)
def test_nested_samples_are_collated_like_torch(sample):
    class Constant(Dataset):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            return sample

    try:
        expected = list(DataLoader(Constant(), 2))
    except Exception as error:
        with pytest.raises(type(error)):
            list(Loader(Constant(), 2))
        return
    for num_workers in (0, 1):
        assert same(list(Loader(Constant(), 2, num_workers=num_workers)), expected)


def test_dataclasses_are_collated_too():
    class Pairs(Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return Pair(torch.full((2,), index), index)

    [first, second] = Loader(Pairs(), 2, num_workers=1)
    assert type(first) is Pair and first.left.tolist() == [[0, 0], [1, 1]] and second.right.tolist() == [2]


def test_samples_of_unequal_shape_raise_torchs_error():
    class Growing(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return torch.ones(1 + index)

    for num_workers in (0, 1):
        with pytest.raises(RuntimeError, match="equal size"):
            list(Loader(Growing(), 2, num_workers=num_workers))
        assert [len(batch[0]) for batch in Loader(Growing(), 1, num_workers=num_workers)] == [1, 2, 3, 4]


def test_samples_with_different_structures_are_collated():
    class Mixed(Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            return float(index) if index == 4 else index

    expected = list(DataLoader(Mixed(), 3))
    assert same(list(Loader(Mixed(), 3)), expected)
    assert same(list(Loader(Mixed(), 3, num_workers=2)), expected)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_getitems_is_called_for_whole_batches(num_workers):
    class Batches(Dataset):
        def __len__(self):
            return 10

        def __getitem__(self, index):
            raise AssertionError("not one by one")

        def __getitems__(self, indices):
            return [index * 10 for index in indices]

    assert_same(Batches(), batch_size=4, num_workers=num_workers)


def test_batches_do_not_depend_on_the_number_of_workers():
    found = []
    for num_workers in (0, 1, 2):
        torch.manual_seed(7)
        loader = Loader(Drawing(), 4, shuffle=True, num_workers=num_workers)
        found.append([list(loader), list(loader)])
    assert same(found[0], found[1]) and same(found[0], found[2])


def test_epochs_and_samples_draw_different_numbers():
    [first], [second] = (list(loader) for loader in [Loader(Drawing(40), 40)] * 2)
    assert not torch.equal(first[1], second[1])
    assert len({tuple(row.tolist()) for row in first[1]}) == 40


def test_a_repeated_index_draws_different_numbers():
    [batch] = Loader(Drawing(), 4, sampler=[3, 3, 3, 3])
    assert len({tuple(row.tolist()) for row in batch[1]}) == 4


def test_the_training_loops_generators_are_unchanged():
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    np.random.randn()  # NumPy caches a second normal number
    states = random.getstate(), np.random.get_state()
    list(Loader(Drawing(), 4, generator=torch.Generator().manual_seed(0)))
    assert random.getstate() == states[0]
    assert all(np.array_equal(one, other) for one, other in zip(np.random.get_state(), states[1]))


def test_a_sample_does_not_leave_a_cached_normal_number_to_the_training_loop():
    class Normal(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return np.random.randn()

    np.random.seed(1)
    expected = np.random.randn()
    np.random.seed(1)
    list(Loader(Normal(), 4))
    assert np.random.randn() == expected


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchs_initial_seed_is_the_samples_seed_even_if_only_read(num_workers):
    class Reading(Dataset):
        def __len__(self):
            return 24

        def __getitem__(self, index):
            return random.random(), torch.initial_seed() % 1000

    torch.manual_seed(3)
    ours = list(Loader(Reading(), 4, num_workers=num_workers))
    torch.manual_seed(3)
    assert same(ours, list(Loader(Reading(), 4)))
    assert len({int(seed) for _, seeds in ours for seed in seeds}) > 4


def test_a_dataset_that_rarely_draws_is_seeded_too():
    class Seldom(Dataset):
        def __len__(self):
            return 30

        def __getitem__(self, index):
            return index, float(torch.rand(1)) if index == 17 else 0.0

    found = []
    for num_workers in (0, 2):
        torch.manual_seed(3)
        before = torch.get_rng_state()
        found.append(list(Loader(Seldom(), 5, num_workers=num_workers, generator=torch.Generator().manual_seed(2))))
        assert torch.equal(torch.get_rng_state(), before)
    assert same(*found)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_generator_first_used_late_is_seeded_from_then_on(num_workers):
    class Late(Dataset):
        def __len__(self):
            return 30

        def __getitem__(self, index):
            return (
                index,
                torch.rand(()),
                np.random.rand() if index > 9 else 0.0,
                random.random() if index > 19 else 0.0,
            )

    torch.manual_seed(3)
    late = list(Loader(Late(), 5, num_workers=num_workers))
    torch.manual_seed(3)
    always = list(Loader(Drawing(30), 5))
    assert same([batch[2] for batch in late[2:]], [batch[2] for batch in always[2:]])
    assert same([batch[3] for batch in late[4:]], [batch[3] for batch in always[4:]])


def test_workers_have_worker_info():
    class Who(Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            info = get_worker_info()
            return info.id, info.num_workers, torch.get_num_threads(), int(info.dataset is self)

    batches = torch.cat([torch.stack(batch, 1) for batch in Loader(Who(), 2, num_workers=2)])
    assert set(batches[:, 0].tolist()) <= {0, 1}
    assert batches[:, 1:].tolist() == [[2, 1, 1]] * 6


def test_worker_init_fn_is_called_in_each_worker():
    class Told(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return self.told

    def tell(number):
        get_worker_info().dataset.told = 100 + number

    values = torch.cat(list(Loader(Told(), 1, num_workers=2, worker_init_fn=tell)))
    assert set(values.tolist()) <= {100, 101}


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(5))


def test_an_iterable_dataset_is_read_by_torch_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(list(Loader(Stream(), 2)), list(DataLoader(Stream(), 2)))


@pytest.mark.parametrize(
    "given", [{"device": "cpu"}, {"cache": "1 MiB"}, {"workers": "threads", "on_error": "replace"}]
)
def test_what_torch_would_not_do_with_an_iterable_dataset_is_refused(given):
    with pytest.raises(ValueError, match=", ".join(f"{name}=" for name in given)):
        Loader(Stream(), 2, **given)


def test_an_iterable_dataset_says_that_it_starts_over():
    loader = Loader(Stream(), 2)
    with pytest.warns(UserWarning, match="starts over"):
        loader.load_state_dict(loader.state_dict())


class Queue(Dataset):
    """Gives what comes next, whatever is asked for, and draws."""

    def __init__(self, draw):
        self.left, self.draw = list(range(12)), draw

    def __len__(self):
        return 12

    def __getitem__(self, index):
        self.draw()
        return self.left.pop(0)


@pytest.mark.parametrize("draw", [random.random, np.random.rand, lambda: torch.rand(1), lambda: None])
def test_no_sample_is_built_twice_to_find_out_what_it_draws_from(draw):
    assert [batch.tolist() for batch in Loader(Queue(draw), 4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_batches_of_data_in_memory_are_pinned(monkeypatch):
    pinned = []
    monkeypatch.setattr("hasten.data.epoch.in_memory.torch_pin", lambda batch, _device: pinned.append(batch) or batch)
    loader = Loader(TensorDataset(torch.arange(6)), 2)
    batches = iter(loader)
    batches._pin_memory = True  # as torch sets it where there is an accelerator
    assert len(list(batches)) == len(pinned) == 3


def test_an_unknown_device_is_a_wrong_argument():
    with pytest.raises(ValueError, match="device='foo' is not valid"):
        Loader(TensorDataset(torch.arange(6)), device="foo")


def test_frameworks_find_a_dataloader_with_its_attributes():
    loader = Loader(Nested(), 4, shuffle=True, drop_last=True, num_workers=2, pin_memory=False)
    assert isinstance(loader, DataLoader)
    theirs = DataLoader(Nested(), 4, shuffle=True, drop_last=True, num_workers=2)
    for name in ("batch_size", "drop_last", "num_workers", "prefetch_factor", "persistent_workers", "timeout"):
        assert getattr(loader, name) == getattr(theirs, name)
    assert len(loader) == len(theirs) == 10
    assert type(loader.sampler) is type(theirs.sampler) and type(loader.batch_sampler) is type(theirs.batch_sampler)


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_workers": -1},
        {"timeout": -1},
        {"prefetch_factor": 2},
        {"persistent_workers": True},
        {"sampler": [1], "shuffle": True},
        {"batch_size": None, "drop_last": True},
        {"pixels": "same"},
        {"workers": "fibres"},
        {"on_error": "skip"},
    ],
    ids=str,
)
def test_an_invalid_argument_raises_at_once(arguments):
    with pytest.raises(ValueError):
        Loader(Nested(), **arguments)


def test_all_batches_arrive_out_of_order():
    loader = Loader(Nested(), 4, num_workers=2, in_order=False)
    assert sorted(index for batch in loader for index in batch[1].tolist()) == list(range(41))


def test_a_batch_may_be_stored_and_modified_while_others_arrive():
    kept = list(Loader(Nested(200), 4, num_workers=2))
    kept[0][0].add_(1000)
    assert same(kept[1:], list(DataLoader(Nested(200), 4))[1:])
    assert kept[0][0].min() == 1000


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_may_be_spawned(method):
    loader = Loader(Nested(9), 4, num_workers=1, multiprocessing_context=method)
    assert same(list(loader), list(DataLoader(Nested(9), 4)))


def test_a_loader_can_be_copied_and_sent():
    import copy
    import pickle

    loader = Loader(Nested(), 4, num_workers=1)
    expected = list(loader)
    for again in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert same(list(again), expected)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_samples_may_contain_local_classes(num_workers):
    Local = namedtuple("Local", "x")

    class Locals(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return Local(index)

    if num_workers:
        with pytest.raises(Exception, match="pickle"):
            list(Loader(Locals(), 2, num_workers=num_workers))
    else:
        assert [batch.x.tolist() for batch in Loader(Locals(), 2)] == [[0, 1], [2, 3]]


def test_nested_tensors_come_from_workers():
    class Growing(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return torch.ones(1 + index)

    batches = list(Loader(Growing(), 2, num_workers=1, collate_fn=torch.nested.nested_tensor))
    assert [[len(part) for part in batch.unbind()] for batch in batches] == [[1, 2], [3, 4]]


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint64, torch.float8_e4m3fn, torch.complex32])
def test_the_rarer_dtypes_pass_through(dtype):
    class Rare(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return torch.zeros(3, dtype=torch.uint8).to(dtype)

    for num_workers in (0, 1):
        batches = list(Loader(Rare(), 2, num_workers=num_workers))
        assert [(batch.dtype, tuple(batch.shape)) for batch in batches] == [(dtype, (2, 3))] * 2


def test_a_very_large_batch_takes_few_messages():
    class Range(Dataset):
        def __len__(self):
            return 70_000

        def __getitem__(self, index):
            return index

    loader = Loader(Range(), 70_000, num_workers=1)
    [batch] = loader
    assert torch.equal(batch, torch.arange(70_000))


def test_the_number_of_workers_may_be_changed_between_epochs():
    loader = Loader(Nested(), 4, collate_fn=TaggedCollate())
    expected = list(DataLoader(Nested(), 4, collate_fn=TaggedCollate()))
    assert same(list(loader), expected)
    loader.num_workers, loader.prefetch_factor = 2, 2
    assert same(list(loader), expected)
    loader.num_workers, loader.prefetch_factor = 0, None
    assert same(list(loader), expected)


def test_samples_of_many_shapes_are_collated_in_the_workers():
    class Scales(Dataset):
        def __len__(self):
            return 400

        def __getitem__(self, index):
            return torch.full((1 + index // 4 % 5,), index)

    for num_workers in (0, 2):
        assert same(list(Loader(Scales(), 4, num_workers=num_workers)), list(DataLoader(Scales(), 4)))


@pytest.mark.parametrize("odd", [(), (0, 5, 13)], ids=["alike", "some with another structure"])
def test_large_samples_are_collated_like_small_ones(odd):
    dataset = Large(Nested(), is_odd=lambda index: index in odd)
    for num_workers in (0, 2):
        assert same(list(Loader(dataset, 7, num_workers=num_workers)), list(DataLoader(dataset, 7)))


def test_large_samples_draw_the_same_numbers_for_any_number_of_workers():
    expected = None
    for num_workers in (0, 1, 2):
        torch.manual_seed(0)
        batches = list(Loader(Large(Drawing()), 7, shuffle=True, num_workers=num_workers))
        expected = expected or batches
        assert same(batches, expected)


@pytest.mark.parametrize(
    "arguments", [{"cache": "lots"}, {"num_workers": "automatic"}, {"max_error_rate": 5.0}], ids=str
)
def test_an_invalid_option_raises_at_once(arguments):
    with pytest.raises(ValueError):
        Loader(Nested(), **arguments)


def test_a_dataclass_registered_with_default_collate_uses_the_registered_function(monkeypatch):
    monkeypatch.setitem(default_collate_fn_map, Pair, lambda batch, *, collate_fn_map=None: "as taught")

    class Pairs(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return Pair(torch.ones(1), index)

    assert list(Loader(Pairs(), 2)) == list(DataLoader(Pairs(), 2)) == ["as taught"]


def test_a_missing_device_raises_a_clear_error():
    if torch.cuda.is_available():
        pytest.skip("needs a machine without this device")
    with pytest.raises(DeviceError, match="leave device out"):
        next(iter(Loader(Nested(), 4, device="cuda")))
    with pytest.raises(DeviceError, match="leave device out"):
        next(iter(Loader(TensorDataset(torch.ones(4)), 4, device="cuda")))
