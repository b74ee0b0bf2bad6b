"""A measured block: what it tells, and that nothing of it stays behind."""

import contextlib
import os
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hasten
from hasten.errors import MeasurementError

LONG_ENOUGH = 5.0  # seconds: a warm-up, and stretches of both kinds

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("timing")]


@pytest.fixture(autouse=True)
def one_thread():
    """Two threads on cores that others use wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def train(num_steps=10**9, *, seconds=60.0, saves=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(640, 32), torch.randint(0, 4, (640,)))
    done = 0
    until = (
        time.monotonic() + seconds
    )  # from here on: the first optimizer of a process makes torch import for seconds
    while done < num_steps and time.monotonic() < until:
        for rows, labels in DataLoader(data, batch_size=32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(rows), labels).backward()
            optimizer.step()
            done += 1
            if done == num_steps:
                break
    if saves is not None:
        torch.save(model.state_dict(), saves)
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    saves = tmp_path_factory.mktemp("saved") / "model.pt"
    with hasten.measure() as run:
        train(seconds=LONG_ENOUGH, saves=saves)
    return run, saves


def test_a_block_is_measured_where_it_stands(measured):
    run, _ = measured
    assert len(run.record.steps) > 5 and run.record.ended_by == "script"
    assert {"data_wait", "forward", "backward", "optimizer"} <= set(run.diagnosis.breakdown.phases)
    assert run.findings == run.diagnosis.findings


def test_what_the_block_saves_is_saved(measured):
    assert set(torch.load(measured[1])) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_it_trains_as_it_would_without(tmp_path):
    alone = train(40)
    with hasten.measure():
        again = train(40)
    assert all(torch.equal(alone[name], again[name]) for name in alone)


def test_it_shows_itself_as_text_and_as_html(measured):
    run, _ = measured
    assert repr(run).startswith(run.diagnosis.verdict[:20]) and "Step " in repr(run)
    shown = run._repr_html_()
    assert "<svg" in shown and "http" not in shown.replace("http://www.w3.org", "")


def test_its_steps_are_a_table(measured):
    pandas = pytest.importorskip("pandas")
    run, _ = measured
    table = run.to_pandas()
    assert isinstance(table, pandas.DataFrame) and len(table) == len(run.record.steps)
    assert table["seconds"].sum() == pytest.approx(sum(step.seconds for step in run.record.steps))
    assert "forward" in table.columns


def test_a_block_that_is_interrupted_has_the_result_of_its_steps():
    with pytest.raises(KeyboardInterrupt), hasten.measure() as run:
        train(seconds=LONG_ENOUGH)
        raise KeyboardInterrupt
    assert run.has_result and len(run.record.steps) > 5


def test_no_file_stays_open():
    def open_files():
        found = set()
        for path in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):  # the folder's own is closed by now
                found.add(os.readlink(path))
        return found

    before = open_files()
    with hasten.measure():
        train(seconds=LONG_ENOUGH)
    assert {name for name in open_files() - before if "hasten" in name} == set()


def test_the_users_own_error_passes_untouched():
    with pytest.raises(ZeroDivisionError), hasten.measure() as run:
        train(20)
        _ = 1 / 0
    with pytest.raises(MeasurementError, match="without an error"):
        _ = run.record
    assert "nothing was measured yet" in repr(run)


@pytest.mark.parametrize(
    ("steps", "said"), [(0, "no optimizer step was seen in the block"), (3, "at least 5 must be")]
)
def test_a_block_without_enough_steps_says_so_and_does_not_fail(steps, said, capsys):
    with hasten.measure() as run:
        train(steps)
    told = capsys.readouterr().err
    assert told.startswith("hasten: ") and said in told
    assert not run.has_result and said in repr(run)
    with pytest.raises(MeasurementError, match=said):
        _ = run.findings


def test_a_block_may_be_measured_again_in_one_session():
    with hasten.measure() as first:
        train(seconds=LONG_ENOUGH)
    with hasten.measure() as second:
        train(seconds=LONG_ENOUGH)
    assert first.record.id and len(second.record.steps) > 5
