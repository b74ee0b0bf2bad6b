"""Samples that are made on the nodes of a Ray cluster: three nodes on this machine, each with its own raylet."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from samples import Drawing, Dying, Failing, Large, Nested, same
from torch.utils.data import DataLoader

from hasten.data.loader import Loader
from hasten.data.workers import ray_checks, ray_pool
from hasten.data.workers.ray_pool import cores
from hasten.errors import ClusterError, WorkerDiedError

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray"), pytest.mark.filterwarnings("ignore::ResourceWarning")]
ENDS_IN = 10.0  # seconds for killed actors to be gone


def actors():
    """Processes of actors of ours on this machine, by process id."""
    found = set()
    for process in psutil.process_iter(["cmdline"]):
        if "RayWorker" in " ".join(process.info["cmdline"] or []):
            found.add(process.pid)
    return found


def until(condition, seconds=ENDS_IN):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


@pytest.fixture(scope="module")
def cluster():
    """The training process's node, with one CPU, and two others that lend one CPU each."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(2):
        made.add_node(num_cpus=1)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def session(cluster, monkeypatch):
    """A training process on a node of the cluster."""
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    return cluster


@pytest.fixture(autouse=True)
def nothing_is_left():
    """In the place of the check for child processes, of which the cluster starts and ends some itself."""
    before = {path.name for path in Path("/dev/shm").glob("hasten*")}
    threads = set(threading.enumerate())
    yield
    gc.collect()  # a caught exception holds its frames, which hold the iterator
    assert not ray_pool.is_in_use()
    assert until(lambda: not actors()), "actors are left"
    assert {path.name for path in Path("/dev/shm").glob("hasten*")} <= before
    assert not [t for t in threading.enumerate() if t.name.startswith("hasten") and t not in threads]


def seeded(dataset, batch_size=4, **arguments):
    torch.manual_seed(7)
    return list(Loader(dataset, batch_size, shuffle=True, **arguments))


class Augmented(Drawing):
    """Samples with arrays, augmented by all three global generators, as a script has them."""

    def __getitem__(self, index):
        image = torch.arange(48, dtype=torch.float32).view(3, 4, 4) + torch.rand(1)
        return image, np.random.default_rng(index).random(3) * np.random.rand(), {"name": f"{index}"}


# ----------------------------------------------------------------------------------------------------------- batches


@pytest.mark.parametrize(
    "dataset", [Drawing(), Nested(), Augmented(), Large(Nested())], ids=lambda d: type(d).__name__
)
def test_batches_are_those_of_local_workers(session, dataset):
    assert same(seeded(dataset, workers="ray"), seeded(dataset, num_workers=2))


def test_two_epochs_of_persistent_workers_are_those_of_local_ones(session):
    epochs = []
    for arguments in ({"workers": "ray"}, {"num_workers": 2}):
        torch.manual_seed(3)
        loader = Loader(Drawing(), 4, shuffle=True, **{"num_workers": 2, "persistent_workers": True, **arguments})
        epochs.append([list(loader), list(loader)])
    assert same(*epochs) and not same(epochs[0][0], epochs[0][1])


@pytest.mark.parametrize("arguments", [{"collate_fn": list}, {"batch_size": None}], ids=["collate_fn", "unbatched"])
def test_a_collate_function_and_single_keys_work_as_with_local_workers(session, arguments):
    assert same(seeded(Drawing(), workers="ray", **arguments), seeded(Drawing(), num_workers=2, **arguments))


def test_a_left_epoch_leaves_the_next_one_whole(session):
    loader = Loader(Nested(), 4, workers="ray", num_workers=2, persistent_workers=True)
    next(iter(loader))
    assert same(list(loader), list(DataLoader(Nested(), 4)))


def test_an_epoch_is_resumed_on_the_cluster(session):
    expected = seeded(Drawing(), num_workers=2)
    torch.manual_seed(7)
    first = Loader(Drawing(), 4, shuffle=True, num_workers=2)
    batches = iter(first)
    assert same([next(batches), next(batches)], expected[:2])
    rest = Loader(Drawing(), 4, shuffle=True, workers="ray")
    rest.load_state_dict(first.state_dict())
    assert same(list(rest), expected[2:])


# ------------------------------------------------------------------------------------------------------------ errors


def test_a_bad_sample_is_raised_at_its_batch_and_named(session):
    batches = iter(Loader(Failing((9,)), 4, workers="ray"))
    expected = list(DataLoader(Nested(), 4))
    assert same([next(batches), next(batches)], expected[:2])
    with pytest.raises(ValueError, match=r"sample 9(.|\n)*9 is torn"):
        next(batches)
    assert same(list(batches), expected[3:])


def test_a_bad_sample_is_replaced_by_the_same_one_as_locally(session):
    settings = {"on_error": "replace", "max_error_rate": 1.0}
    bad = Failing((0, 9, 40))
    with pytest.warns(UserWarning, match="replaced by another"):
        assert same(seeded(bad, workers="ray", **settings), seeded(bad, num_workers=2, **settings))


def test_a_dataset_that_cannot_be_pickled_is_refused(session):
    dataset = Nested()
    dataset.lock = threading.Lock()
    with pytest.raises(ClusterError, match=r"cannot be pickled: .*lock"):
        iter(Loader(dataset, 4, workers="ray"))


def test_a_sample_that_kills_its_process_is_an_error(session):
    with pytest.raises(WorkerDiedError, match=r"no Ray worker is left|3 Ray workers died"):
        list(Loader(Dying(30, signal.SIGKILL), 4, workers="ray", num_workers=3))


# ------------------------------------------------------------------------------------------------------------ checks


def test_a_node_with_another_version_is_refused(session, monkeypatch):
    def other(packages):
        return {name: "0.0.1" if name == "numpy" else version for name, version in known(packages).items()}

    known = ray_checks.versions
    monkeypatch.setattr(ray_checks, "versions", other)
    with pytest.raises(
        ClusterError, match=r"^node \S+ \(\w{8}\) has version \S+ of numpy, and this one has 0\.0\.1: install"
    ):
        iter(Loader(Nested(), 4, workers="ray"))


class Uneven(Nested):
    """Another node computes the samples differently."""

    def __getitem__(self, index):
        return torch.full((3,), index + 1e-7 * (os.getpid() % 1000))


class Missing(Nested):
    """The files are on the training process's node alone."""

    def __getitem__(self, index):
        import ray

        if ray.get_runtime_context().get_node_id() != self.here:
            raise FileNotFoundError(f"{index}.jpg")
        return index


def test_a_node_that_builds_other_bytes_is_refused(session):
    with pytest.raises(
        ClusterError, match=r"^node \S+ \(\w{8}\) builds other bytes for sample 0 than this one: [^\n]*$"
    ):
        next(iter(Loader(Uneven(), 4, workers="ray")))


def test_a_node_that_lacks_the_data_is_refused(session):
    dataset = Missing()
    dataset.here = ray_pool.connected().get_runtime_context().get_node_id()
    with pytest.raises(ClusterError, match=r"cannot build sample 0 \([^\n]*\): FileNotFoundError: 0\.jpg$"):
        next(iter(Loader(dataset, 4, workers="ray")))


def test_the_network_bound_is_reported_before_the_first_batch(session, caplog):
    loader = Loader(Large(Nested()), 4, workers="ray")
    next(iter(loader))
    [said] = [record.getMessage() for record in caplog.records if record.name == "hasten"]
    assert said.startswith("hasten: ray: 2 workers on 2 hosts; 103 KB a sample; the network carries at most about ")
    stats = loader.stats()
    assert stats.num_workers == 2 and stats.cluster.samples_per_second > 10


def test_a_number_of_workers_may_take_the_training_processs_own_node(session):
    loader = Loader(Nested(), 4, workers="ray", num_workers=3)
    assert same(list(loader), list(DataLoader(Nested(), 4)))
    assert loader.stats().cluster.num_hosts == 3
    with pytest.raises(ClusterError, match="num_workers=9, but the Ray cluster has 3 CPUs"):
        iter(Loader(Nested(), 4, workers="ray", num_workers=9))


def test_cpus_that_another_loader_holds_are_waited_for_and_named(session, monkeypatch):
    batches = iter(Loader(Nested(), 4, workers="ray"))
    next(batches)
    monkeypatch.setattr(ray_checks, "START_SECONDS", 2.0)
    with pytest.raises(ClusterError, match=r"Ray workers? of 3 did not start .* num_workers="):
        iter(Loader(Nested(), 4, workers="ray"))
    assert len(list(batches)) == 10


# ------------------------------------------------------------------------------------------------------------- cores


def nodes(**cpus):
    return [{"NodeID": name, "Alive": True, "Resources": {"CPU": float(number)}} for name, number in cpus.items()]


def test_every_core_of_the_other_nodes_is_lent_in_turn():
    assert cores(nodes(a=2, b=1, here=4), "here", None) == ["a", "b", "a"]
    assert cores(nodes(a=2, b=1, here=4), "here", 2) == ["a", "b"]
    assert cores(nodes(a=1, here=2), "here", 3) == ["a", "here", "here"]


def test_a_single_node_lends_its_own_cores():
    assert cores(nodes(here=2), "here", None) == ["here", "here"]


def test_ranks_share_the_cores():
    shared = [cores(nodes(a=2, b=2, here=0), "here", None, rank=rank, world=2) for rank in range(2)]
    assert shared == [["a", "a"], ["b", "b"]]


def test_a_cluster_without_cores_is_refused():
    with pytest.raises(ClusterError, match="the Ray cluster has 0 CPUs for each of 3 training processes"):
        cores(nodes(here=2), "here", None, rank=2, world=3)


# --------------------------------------------------------------------------------------------------- without a cluster


def test_without_a_cluster_the_error_says_what_to_do(monkeypatch):
    ray.shutdown()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(
        ClusterError, match=r"no running Ray cluster: start one with `ray start --head`.* RAY_ADDRESS .*refused"
    ):
        iter(Loader(Nested(), 4, workers="ray"))
    assert not ray.is_initialized()


def test_ray_client_is_refused(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "ray://elsewhere:10001")
    with pytest.raises(ClusterError, match="on a node of the cluster"):
        iter(Loader(Nested(), 4, workers="ray"))


def test_without_ray_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'hasten\[ray\]'"):
        Loader(Nested(), 4, workers="ray")


def test_a_cache_of_this_machine_is_refused():
    with pytest.raises(ValueError, match=r"cache= and disk_cache= are of this machine"):
        Loader(Nested(), 4, workers="ray", cache="auto")


# ---------------------------------------------------------------------------------------------------- what a script does

SCRIPT = """
import os, signal, sys, time
from typing import NamedTuple
import torch
from torch.utils.data import Dataset
from hasten import Loader

class Pair(NamedTuple):
    image: torch.Tensor
    label: int

class Torn(Exception):
    pass

class Own(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        time.sleep(0.005)
        if index == 399:
            raise Torn(index)
        return Pair(torch.rand(3), index)

if __name__ == "__main__":
    own = []
    for workers in ("ray", "processes"):
        torch.manual_seed(0)
        own.append(iter(Loader(Own(), 4, workers=workers, num_workers=2)))
    for number in range(99):
        one, other = map(next, own)
        assert type(one) is Pair and all(map(torch.equal, one, other))
        if number == 3:
            print("started", flush=True)
            if "interrupt" in sys.argv:
                time.sleep(60)
    try:
        next(own[0])
    except Torn:
        print("caught", flush=True)
"""


@pytest.fixture
def script(session, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")

    def started(*words):
        return subprocess.Popen([sys.executable, tmp_path / "train.py", *words], stdout=subprocess.PIPE, text=True)

    return started


def test_classes_of_the_script_itself_arrive_as_what_they_are(script):
    with script() as process:
        assert process.stdout.read().split() == ["started", "caught"]
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_script_leaves_no_actor(script, number):
    with script("interrupt") as process:
        assert process.stdout.readline() == "started\n"
        assert actors()
        process.send_signal(number)
        process.wait(30)
    assert until(lambda: not actors())


# --------------------------------------------------------------------------------------------------------------- death


class Slow(Nested):
    def __getitem__(self, index):
        time.sleep(0.005)
        return super().__getitem__(index)


def test_a_killed_node_costs_no_sample(session):
    third = session.add_node(num_cpus=2)
    assert until(lambda: sum(node["Alive"] for node in ray_pool.connected().nodes()) == 4)
    found = []
    loader = Loader(Slow(400), 4, workers="ray")
    for number, batch in enumerate(loader):
        found.append(batch)
        if number == 10:
            assert loader.stats().cluster.num_workers == 4
            session.remove_node(third, allow_graceful=False)
    assert same(found, list(DataLoader(Nested(400), 4)))
    # Ray may still list the dead node.
    assert same(list(Loader(Nested(), 4, workers="ray")), list(DataLoader(Nested(), 4)))


def test_ray_is_imported_when_it_is_asked_for():
    code = "import sys, hasten; hasten.Loader; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# ---------------------------------------------------------------------------------------------------------- in a plan


@pytest.fixture
def put_on(monkeypatch):
    from training_process import Process

    monkeypatch.setattr("hasten.patches._warned", set())
    process = Process()
    yield process.put_on
    process.patches.undo()


def test_a_plan_sends_one_loader_at_a_time_to_the_cluster(session, put_on, caplog):
    def trained():
        torch.manual_seed(5)
        training = DataLoader(Drawing(), 4, shuffle=True)
        validation = DataLoader(Nested(), 8)
        return [[batch, *validation] if number == 2 else [batch] for number, batch in enumerate(training)]

    put_on("loader")
    expected = trained()
    assert put_on("ray", 2)["ray"] == "on"
    assert same(trained(), expected)
    assert [record.getMessage()[:35] for record in caplog.records] == ["hasten: ray: 2 workers on 2 hosts; "]


def test_a_plan_without_a_cluster_goes_on_without_it(put_on, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert "no running Ray cluster" in put_on("ray", "auto")["ray"]
    assert len(list(DataLoader(Nested(), 4))) == 11
