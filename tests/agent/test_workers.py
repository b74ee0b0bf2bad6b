"""Timing what torch's fetchers do, without altering what they fetch."""

import random

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from hasten.agent import workers
from hasten.agent.instant import InstantSamples
from hasten.agent.tree import num_samples
from hasten.agent.workers import _Recorder, held_bytes
from hasten.launch.launch import stage_lines


class Squares(Dataset):
    """Knows who asks it."""

    def __init__(self, count=12):
        self.count = count
        self.asked = []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.asked.append(index)
        return torch.tensor([float(index) ** 2, random.random()]), index


class Whole(Squares):
    def __getitems__(self, indices):
        return [self[i] for i in indices]


class Stream(IterableDataset):
    def __iter__(self):
        yield from (torch.tensor([float(i)]) for i in range(10))


@pytest.fixture
def timed(tmp_path, patches):
    """Take a loader's batches with every fetch timed; the batches and the lines that were written."""
    workers.install(tmp_path, patches)

    def take(loader, *, on=True):
        workers.serve(3, timed=on)
        try:
            batches = list(loader)
        finally:
            workers.serve(None, timed=False)
        return batches, [*stage_lines(tmp_path)]

    yield take


def seeded(loader):
    random.seed(1)
    torch.manual_seed(1)
    return loader


def flat(batches):
    return torch.cat([torch.as_tensor(part).reshape(-1).double() for b in batches for part in b])


@pytest.mark.parametrize("kind", [Squares, Whole])
def test_batches_are_the_same_and_random_numbers_are_not_touched(timed, kind):
    plain = list(seeded(DataLoader(kind(), batch_size=4, shuffle=True)))
    state = torch.random.get_rng_state(), random.getstate(), str(numpy.random.get_state())
    batches, lines = timed(seeded(DataLoader(kind(), batch_size=4, shuffle=True)))
    assert torch.equal(flat(batches), flat(plain))
    assert torch.equal(torch.random.get_rng_state(), state[0])
    assert (random.getstate(), str(numpy.random.get_state())) == state[1:]
    assert len(lines) == 3


def test_a_line_tells_the_loader_its_samples_and_its_stages(timed):
    _, lines = timed(DataLoader(Squares(), batch_size=4))
    assert [(line.loader, line.num_samples, len(line.sample_seconds)) for line in lines] == [(3, 4, 4)] * 3
    for line in lines:
        assert {(stage.name, stage.detail) for stage in line.stages} == {("getitem", ""), ("collate", "")}
        assert 0 < sum(stage.seconds for stage in line.stages) <= line.end - line.start


def test_no_sample_is_asked_for_on_our_account(timed):
    data = Squares()
    timed(DataLoader(data, batch_size=4))
    assert data.asked == list(range(12))


def test_a_stream_is_timed_and_ends_as_before(timed):
    batches, lines = timed(DataLoader(Stream(), batch_size=4))
    assert [len(b) for b in batches] == [4, 4, 2]
    assert [line.num_samples for line in lines][:3] == [4, 4, 2]


def test_while_marks_are_off_nothing_is_timed(timed):
    batches, lines = timed(DataLoader(Squares(), batch_size=4), on=False)
    assert (len(batches), lines) == (3, [])


def test_a_dataset_that_raises_raises_the_same_and_is_itself_afterwards(timed):
    class Bad(Squares):
        def __getitem__(self, index):
            if index == 5:
                raise ValueError("sample 5 is bad")
            return super().__getitem__(index)

    loader = DataLoader(Bad(), batch_size=4)
    iterator = iter(loader)
    workers.serve(0, timed=True)
    next(iterator)
    with pytest.raises(ValueError, match="sample 5 is bad"):
        next(iterator)
    workers.serve(None, timed=False)
    assert iterator._dataset_fetcher.dataset is loader.dataset
    assert iterator._dataset_fetcher.collate_fn is loader.collate_fn


def test_a_dataset_can_look_at_itself_while_it_is_timed(timed):
    class Curious(Squares):
        def __getitem__(self, index):
            assert type(self) is Curious
            return super().__getitem__(index)

    assert len(timed(DataLoader(Curious(), batch_size=6))[0]) == 2


def test_a_batch_that_cannot_be_looked_into_is_handed_over_all_the_same(timed):
    class Opaque:
        __slots__ = ()

    batches, _ = timed(DataLoader(Squares(), batch_size=4, collate_fn=lambda _: Opaque()))
    assert [type(b) for b in batches] == [Opaque] * 3


@pytest.mark.slow
def test_workers_write_lines_of_their_own(tmp_path, patches):
    workers.install(tmp_path, patches)
    batches = list(DataLoader(Squares(48), batch_size=4, num_workers=2))
    lines = [*stage_lines(tmp_path)]
    assert torch.equal(flat([b[1:] for b in batches]), torch.arange(48).double())
    assert len({line.pid for line in lines}) == 2
    assert {line.loader for line in lines} == {None}, "the parent tells by the process which loader it was"


def test_the_bytes_that_a_dataset_holds_are_counted_through_its_wrappers():
    inner = TensorDataset(torch.zeros(100, 3), torch.zeros(100, dtype=torch.int64))
    assert held_bytes(inner) == 100 * 3 * 4 + 100 * 8
    assert held_bytes(torch.utils.data.Subset(inner, range(10))) == held_bytes(inner)


def test_a_long_list_of_arrays_is_held_and_a_list_of_paths_is_not():
    class Holding(Squares):
        def __init__(self, held):
            super().__init__()
            self.held = held

    assert held_bytes(Holding([numpy.zeros(10, numpy.float32)] * 50)) == 2000
    assert held_bytes(Holding(["a.png"] * 50)) == 0


def test_in_a_worker_the_length_of_every_batch_is_told_though_few_are_looked_into(timed):
    _, lines = timed(DataLoader(Squares(400), batch_size=4, num_workers=1))
    assert len(lines) < 50, "cheap batches are not all timed"
    told = sum(len(line.batch_seconds) for line in lines)
    assert 100 - workers.MOST_APART < told <= 100, "what came after the last line is lost"
    assert all(line.batch_seconds[-1] == line.end - line.start for line in lines)


class TestInstantSamples:
    """A worker hands over what it has kept, and the training process decides when."""

    def taken(self, tmp_path, patches, collate=None):
        instant = InstantSamples(tmp_path)
        workers.install(tmp_path, patches, instant=instant)
        batches = iter(DataLoader(Squares(40), batch_size=2, num_workers=1, prefetch_factor=1, collate_fn=collate))
        before = [next(batches) for _ in range(3)]
        instant.on()
        next(batches)  # was made ahead
        during = [next(batches) for _ in range(3)]
        instant.off()
        next(batches)
        return before, during, [next(batches) for _ in range(2)]

    def test_the_first_batch_comes_again_and_again(self, tmp_path, patches):
        before, during, after = self.taken(tmp_path, patches)
        assert all(torch.equal(batch[0], before[0][0]) and torch.equal(batch[1], before[0][1]) for batch in during)
        assert during[0][0].is_shared() and during[0][0].data_ptr() != during[1][0].data_ptr()
        assert [batch[1].tolist() for batch in after] == [[16, 17], [18, 19]], "and the order of samples is kept"

    def test_python_objects_are_pickled_each_time(self, tmp_path, patches):
        before, during, _ = self.taken(tmp_path, patches, collate=lambda samples: {"rows": [i for _, i in samples]})
        assert during == [before[0]] * 3 and during[0] is not during[1]


def test_a_sparse_sample_has_a_size_and_a_nested_batch_a_length():
    recorder = _Recorder.__new__(_Recorder)
    recorder._samples = []
    recorder.sample(0.1, torch.eye(3).to_sparse())
    assert recorder._sample_bytes == 36
    assert num_samples(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])) == 2
