"""Batches for free: what a script is given while its batches are replayed."""

from collections import UserDict, namedtuple
from collections.abc import Mapping

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from hasten.agent import replay
from hasten.agent.loaders import Loaders
from hasten.agent.tree import mapped
from hasten.raw_run import JOIN, REPLAY


class Session:
    """As much of a session as replay needs, with the loader's hooks on."""

    def __init__(self, patches):
        self.loaders = Loaders()
        self.num_fetched = 0
        self.not_applied = {}
        self.player = replay.Replay(self, patches)
        patches.wrap(DataLoader, "__iter__", self.hook_iter)
        patches.wrap(_BaseDataLoaderIter, "__next__", self.hook_next)

    def loader_starts(self, loader, iterator, start):
        self.loaders.starts(loader, iterator)

    def hook_iter(self, original):
        def start(loader):
            iterator = original(loader)
            self.loader_starts(loader, iterator, 0.0)
            return iterator

        return start

    def hook_next(self, original):
        def take(iterator):
            batch = self.player.on_batch(iterator, lambda: self.fetched(original(iterator)))
            self.loaders.length_of(self.loaders.number(iterator), batch)
            return batch

        return take

    def fetched(self, batch):
        self.num_fetched += 1
        return batch


@pytest.fixture
def session(patches):
    return Session(patches)


@pytest.fixture
def loader():
    return DataLoader(TensorDataset(torch.arange(24.0).reshape(12, 2), torch.arange(12)), batch_size=4)


def values(batches):
    return [batch[1].tolist() for batch in batches]


PLAIN = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_while_off_the_batches_are_the_loaders(session, loader):
    assert values(loader) == PLAIN


def test_while_on_an_epoch_keeps_its_length_and_fetches_nothing(session, loader):
    list(loader)
    session.player.on()
    before = session.num_fetched
    batches = [values(loader) for _ in range(3)]
    assert [len(b) for b in batches] == [3, 3, 3]
    assert session.num_fetched == before
    assert all(v in PLAIN for epoch in batches for v in epoch)


def test_held_batches_are_handed_out_in_turn(session, loader):
    list(loader)
    session.player.on()
    assert sorted(values(loader)) == PLAIN


def test_turned_off_again_the_loader_works_as_before(session, loader):
    list(loader)
    session.player.on()
    list(loader)
    session.player.off()
    assert values(loader) == PLAIN


def test_turned_on_in_the_middle_of_an_epoch_it_still_ends_where_it_would(session, loader):
    seen = []
    for batch in loader:
        seen.append(batch)
        session.player.on()
    assert len(seen) == 3


def test_turned_on_and_off_within_an_epoch_the_epoch_is_no_longer_than_the_loader_says(session, loader):
    list(loader)
    batches = iter(loader)
    next(batches)
    session.player.on()
    next(batches)
    session.player.off()
    assert len(list(batches)) == 1
    assert values(loader) == PLAIN


def test_a_script_that_works_in_place_is_noticed_and_gets_fresh_batches(session, loader):
    list(loader)
    session.player.on()
    for _ in range(3):
        for _, targets in loader:
            targets += 100
    # The first one handed out was spoiled before it could be seen, and is dropped.
    assert sum(t[0] in (0, 4, 8) for t in values(loader)) == 3


def test_what_is_held_is_not_what_the_script_was_given(session, loader):
    for inputs, targets in loader:
        inputs.zero_()
        targets.zero_()
    session.player.on()
    assert sorted(values(loader)) == PLAIN


def test_joined_batches_are_longer_and_the_epoch_shorter(session):
    loader = DataLoader(TensorDataset(torch.arange(32)), batch_size=4)
    list(loader)
    session.player.join(4)
    assert [len(batch[0]) for batch in loader] == [16, 16]
    session.player.off()
    assert [len(batch[0]) for batch in loader] == [4] * 8


def test_batches_of_a_validation_are_not_joined(session):
    training = DataLoader(TensorDataset(torch.arange(32)), batch_size=4)
    validation = DataLoader(TensorDataset(torch.arange(16)), batch_size=8)
    with torch.no_grad():
        list(validation)
    list(training)
    session.player.join(4)
    with torch.no_grad():
        assert [len(batch[0]) for batch in validation] == [8, 8]
        assert [len(batch[0]) for batch in training] == [16, 16]  # whatever it is that trains is joined


def test_only_so_many_batches_are_held(session, monkeypatch):
    monkeypatch.setattr(replay, "MOST_BATCHES", 2)
    loader = DataLoader(TensorDataset(torch.arange(40)), batch_size=4)
    list(loader)
    session.player.on()
    assert {tuple(b[0].tolist()) for b in loader} == {(0, 1, 2, 3), (4, 5, 6, 7)}


def test_two_loaders_are_replayed_each_with_its_own_batches(session, loader):
    other = DataLoader(TensorDataset(torch.arange(100, 106)), batch_size=2)
    list(loader), list(other)
    session.player.on()
    assert [len(b) for b in (list(loader), list(other))] == [3, 3]
    assert all(b[0][0] >= 100 for b in other)


def test_a_loader_not_seen_before_is_read_as_it_is(session, loader):
    session.player.on()
    assert values(loader)[0] == PLAIN[0]
    assert session.num_fetched > 0


Pair = namedtuple("Pair", "image label")


@pytest.mark.parametrize(
    ("batches", "joined"),
    [
        ([torch.zeros(2, 3)] * 2, torch.zeros(4, 3)),
        ([{"a": torch.zeros(1), "id": ["x"]}] * 2, {"a": torch.zeros(2), "id": ["x", "x"]}),
        ([Pair(torch.zeros(1), torch.ones(1))] * 2, Pair(torch.zeros(2), torch.ones(2))),
        ([[torch.zeros(1), 7]] * 2, [torch.zeros(2), 7]),
        ([torch.tensor(3.0)] * 2, torch.tensor(3.0)),
        ([UserDict(a=torch.zeros(1))] * 2, UserDict(a=torch.zeros(2))),  # as transformers' BatchEncoding
    ],
)
def test_batches_of_any_shape_are_joined(batches, joined):
    made = replay._join(list(batches))
    assert type(made) is type(joined)
    assert repr(made) == repr(joined)


class Graph:
    def __init__(self):
        self.nodes = torch.zeros(2, 3)


@pytest.mark.parametrize("batch", [Graph(), [Graph()]])
def test_batches_of_the_scripts_own_types_are_not_called_joined(session, batch):
    loader = DataLoader(range(8), batch_size=4, collate_fn=lambda _: batch)
    list(loader)
    session.player.join(4)
    assert len(list(loader)) > 0
    assert "Graph cannot be joined" in session.not_applied[JOIN]
    assert REPLAY not in session.not_applied


class Settled(Mapping):
    """A mapping that cannot be made from a dict."""

    def __init__(self, *, nodes):
        self.nodes = nodes

    def __getitem__(self, key):
        return getattr(self, key)

    def __iter__(self):
        return iter(("nodes",))

    def __len__(self):
        return 1


def test_a_mapping_of_the_scripts_own_is_replayed_and_not_joined(session):
    loader = DataLoader(range(8), batch_size=4, collate_fn=lambda _: Settled(nodes=torch.zeros(2)))
    list(loader)
    session.player.on()
    assert len(list(loader)) == 2 and session.not_applied == {}
    session.player.join(4)
    list(loader)
    assert [*session.not_applied] == [JOIN]


def test_moving_keeps_the_shape_of_a_batch():
    batch = {"x": [torch.zeros(2)], "pair": Pair(torch.ones(1), "name"), "n": 3}
    moved = mapped(batch, lambda t: t + 1)
    assert repr(moved) == repr({"x": [torch.ones(2)], "pair": Pair(torch.full((1,), 2.0), "name"), "n": 3})


def test_draining_without_a_loader_says_so(session):
    assert replay.drain(session, seconds=0.1) == ([], "no loader to drain")


def test_draining_takes_batches_from_the_loader_that_was_used_last(session, loader):
    list(loader)
    seconds, trouble = replay.drain(session, seconds=1.0)
    assert seconds and all(s > 0 for s in seconds) and not trouble


def test_batches_of_an_evaluation_in_inference_mode_are_replayed(session, loader):
    with torch.inference_mode():
        fetched = values(loader)
        session.player.on()
        for batch in loader:
            batch[0].mul_(2)  # a plain tensor: its changes are counted, in inference mode too
        again = [batch[0].sum().item() for batch in loader]
    assert fetched and "replay" not in session.not_applied
    with torch.inference_mode():
        assert len(again) == len(fetched)


def test_a_failure_of_ours_ends_the_replay_and_not_the_script(session, loader, monkeypatch):
    expected = values(loader)
    session.player.on()

    def fail(self):
        raise RuntimeError("ours")

    monkeypatch.setattr(replay.Replay, "_watch_for_changes", fail)
    assert values(loader) == expected
    assert "ours" in session.not_applied["replay"]
