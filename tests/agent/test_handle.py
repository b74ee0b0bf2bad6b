"""An optimization that fails, or is refused, leaves nothing on."""

import torch
from torch.utils.data import DataLoader, TensorDataset

from hasten.agent import loader_arguments
from hasten.agent.handle import enable_all
from hasten.errors import NotApplicableError
from hasten.protocol import FixSpec

DATA = TensorDataset(torch.zeros(8, 2))


def half_done(handle, _value):
    handle.patches.set(torch, "get_num_threads", lambda: 99)
    raise NotApplicableError("the rest is not there")


def no_workers(handle, _value):
    loader_arguments.change_loaders(handle, lambda given: given.update(batch_size=4))


def breaks_loaders(handle, _value):
    def change(given):
        raise KeyError("no such argument")

    loader_arguments.change_loaders(handle, change)


def enabled(process, *functions):
    reasons = {}
    specs = [FixSpec(name=f.__name__, installer=f"{f.__module__}:{f.__name__}", value=True) for f in functions]
    enable_all(specs, process.models, process.patches, report=lambda name, reason: reasons.update({name: reason}))
    return reasons


def test_what_fails_halfway_is_undone(process):
    assert enabled(process, half_done) == {"half_done": "the rest is not there"}
    assert torch.get_num_threads() != 99


def test_a_change_that_fails_leaves_the_loader_to_the_others(process):
    reasons = enabled(process, breaks_loaders, no_workers)
    assert DataLoader(DATA).batch_size == 4
    assert reasons == {"breaks_loaders": "it failed: KeyError('no such argument')"}


def test_a_change_of_loaders_is_gone_when_its_optimization_is(process):
    first, second = process.handle("first"), process.handle("second")
    loader_arguments.change_loaders(first, lambda given: given.update(batch_size=4))
    loader_arguments.change_loaders(second, lambda given: given.update(drop_last=True))
    first.disable()
    loader = DataLoader(DATA)
    assert loader.batch_size == 1 and loader.drop_last
    second.disable()
    assert not DataLoader(DATA).drop_last


def test_a_function_that_is_wrapped_is_the_scripts_own_once_the_optimization_is_refused(process):
    handle = process.handle()
    handle.wrap(torch, "get_num_threads", lambda _original: lambda: 99)
    assert torch.get_num_threads() == 99
    handle.refuse("not here")
    assert torch.get_num_threads() != 99
