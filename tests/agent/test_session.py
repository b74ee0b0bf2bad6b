"""What ends a step, and what happens when measuring itself goes wrong."""

import os
import types

import pytest
import torch

from hasten.agent import segments, status
from hasten.agent import session as session_module
from hasten.agent.marks import Marks
from hasten.agent.segments import History, Segment
from hasten.agent.session import Session
from hasten.agent.steps import MOST_OTHERS
from hasten.protocol import Status, files_of, read
from hasten.raw_run import RawFacts, RawModel, RawRun

made = []


@pytest.fixture
def ended(monkeypatch):
    """Processes that would have ended, instead of this one."""
    gone = []
    monkeypatch.setattr(session_module, "leave", gone.append)
    monkeypatch.setattr(segments, "WARM_SECONDS", 0.0)
    yield gone
    while made:
        made.pop().sampler.end()


def make(folder, *segments):
    models = types.SimpleNamespace(discover=lambda **_: None, settle=lambda: None)
    session = Session(folder, history=History(), marks=Marks(), models=models)
    made.append(session)
    session.scheduler.follow(iter(segments or [Segment(name="plain", min_seconds=3600.0)]))
    return session


def optimizer():
    return torch.optim.SGD([torch.zeros(1)], lr=0.1)


def test_an_optimizer_that_takes_over_ends_the_steps_from_then_on(tmp_path, ended):
    session, head, everything = make(tmp_path), optimizer(), optimizer()
    for _ in range(5):
        session.optimizer_steps(head)
    seen = session.scheduler.num_steps
    for _ in range(MOST_OTHERS + 10):
        session.optimizer_steps(everything)
    assert session.scheduler.num_steps == seen + 10


def test_an_optimizer_whose_predecessor_is_gone_takes_over_at_once(tmp_path, ended):
    session, head, everything = make(tmp_path), optimizer(), optimizer()
    session.optimizer_steps(head)
    session.optimizer_steps(everything)
    del head
    seen = session.scheduler.num_steps
    session.optimizer_steps(everything)
    assert session.scheduler.num_steps == seen + 1


def test_of_two_optimizers_that_alternate_one_ends_the_step(tmp_path, ended):
    session, generator, critic = make(tmp_path), optimizer(), optimizer()
    for _ in range(10):
        session.optimizer_steps(generator)
        for _ in range(5):
            session.optimizer_steps(critic)
    assert session.scheduler.num_steps == 10


def test_a_fault_at_a_steps_end_writes_what_was_seen_and_leaves(tmp_path, ended, capsys):
    def broken():
        raise RuntimeError("a switch that cannot be turned")

    session = make(tmp_path, Segment(name="plain", enter=broken))
    stepping = optimizer()
    for _ in range(6):
        session.optimizer_steps(stepping)
    (path,) = files_of(RawRun, tmp_path)
    assert "a switch that cannot be turned" in read(RawRun, path).trouble
    assert ended == [None]
    assert "measurement disabled" in capsys.readouterr().err


def test_a_fault_of_ours_does_not_reach_the_script(tmp_path, ended):
    session = make(tmp_path)
    session.loaders = None
    assert session.next_batch(object(), lambda: "batch") == "batch"
    assert session.trouble is not None


def test_the_status_is_never_seen_half_written(tmp_path, ended):
    session = make(tmp_path)
    session.optimizer_steps(optimizer())
    (path,) = tmp_path.iterdir()
    assert path.name == f"status-{os.getpid()}.json" and read(Status, path).state == "warming up"


@pytest.mark.parametrize("gone", [True, False])
def test_what_a_script_has_let_go_of_at_its_end_is_known_from_before(tmp_path, ended, gone):
    session = make(tmp_path)
    net = RawModel(
        name="Net", num_parameters=1, num_modules=1, dtypes=("float32",), devices=("cpu",),
        num_convolutions=0, channels_last=False, compiled=False, data_parallel=False,
    )  # fmt: skip
    held = [net]
    session.gather_facts = lambda _: RawFacts(num_threads=len(held), models=tuple(held))
    head = optimizer()
    for _ in range(6):
        session.optimizer_steps(head)
    if gone:
        held.clear()
    else:
        held.append(net)
    session.finish("script")
    (path,) = files_of(RawRun, tmp_path)
    assert read(RawRun, path).facts.num_threads == (1 if gone else 2)


@pytest.mark.parametrize(("world_size", "waits"), [(None, 0), ("1", 0), ("3", 1)])
def test_ranks_wait_a_moment_for_gloos_threads_at_their_end(monkeypatch, world_size, waits):
    """Else torch ends one process in ten of a job by SIGABRT: see the log, "ranks that were not measured"."""
    slept = []
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if world_size is not None:
        monkeypatch.setenv("WORLD_SIZE", world_size)
    monkeypatch.setattr(status.time, "sleep", slept.append)
    status.let_threads_end()
    assert len(slept) == waits
