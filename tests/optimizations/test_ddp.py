"""Settings of DistributedDataParallel, on one rank."""

import inspect

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hasten.agent.handle import Handle
from hasten.agent.models import Models
from hasten.optimizations.ddp import (
    _constructing,
    enable_batched_copy,
    enable_bucket_view,
    enable_gradients,
    enable_no_search,
)
from hasten.patches import Patches


@pytest.fixture
def handle():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    patches, refused = Patches(), []
    handle = Handle("ddp", Models(patches), on_refuse=refused.append)
    handle.refused = refused
    handle.is_enabled = True
    yield handle
    handle.disable()
    patches.undo()
    dist.destroy_process_group()


def test_an_argument_is_set_however_the_script_passes_it(handle):
    enable_no_search(handle, True)
    by_name = DistributedDataParallel(torch.nn.Linear(2, 2), find_unused_parameters=True)
    by_position = DistributedDataParallel(torch.nn.Linear(2, 2), None, None, 0, True, False, None, 25, True)
    assert not by_name.find_unused_parameters and not by_position.find_unused_parameters
    enable_bucket_view(handle, True)
    assert DistributedDataParallel(torch.nn.Linear(2, 2)).gradient_as_bucket_view
    handle.disable()
    assert DistributedDataParallel(torch.nn.Linear(2, 2), find_unused_parameters=True).find_unused_parameters


def test_gradients_are_copied_at_once_where_torch_can(handle):
    enable_batched_copy(handle, True)
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    train_once(model)
    known = "batched_grad_copy" in inspect.signature(DistributedDataParallel).parameters
    assert getattr(model, "batched_grad_copy", False) == known
    assert bool(handle.refused) != known


def test_an_argument_that_this_torch_lacks_is_refused(handle):
    _constructing("of_another_torch")(handle, True)
    DistributedDataParallel(torch.nn.Linear(2, 2))
    assert handle.refused == ["this PyTorch's DistributedDataParallel has no of_another_torch"]


def train_once(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def test_gradients_are_exchanged_in_half_precision(handle):
    enable_gradients(handle, "bf16")
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    train_once(model)
    assert "bf16" in model._get_ddp_logging_data()["comm_hook"] and handle.refused == []


def test_a_hook_of_the_script_s_own_stays(handle):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    enable_gradients(handle, "bf16")
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    model.register_comm_hook(None, allreduce_hook)
    train_once(model)
    assert handle.refused == ["the script has a communication hook of its own"]
