"""Models are found when they are called; what is put around their forward leaves nothing behind."""

import copy
import io
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional

from hasten.agent.facts import _model
from hasten.errors import NotApplicableError


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x, scale=1.0):
        return self.head(self.inner(x)) * scale


def step(model, x=None):
    """Two steps: with the second every model had its turn."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(3, 4) if x is None else x).sum().backward()
        optimizer.step()


def doubled(_module, forward, arguments, settings):
    return forward(*arguments, **settings) * 2


def test_only_the_outermost_module_is_met(process):
    met = []
    process.handle().on_model(met.append)
    model = Net()
    step(model)
    step(model)
    assert met == [model]


def test_a_module_without_parameters_is_no_model(process):
    met = []
    process.handle().on_model(met.append)
    nn.ReLU()(torch.ones(2))
    nn.Sequential(nn.Flatten())(torch.ones(2, 2))
    assert met == []


def test_a_module_that_only_evaluates_is_no_model(process):
    met = []
    process.handle().on_model(met.append)
    Net().eval()(torch.ones(1, 4))
    with torch.no_grad():
        Net()(torch.ones(1, 4))
    assert met == []


def test_the_very_first_forward_goes_through_the_fix(process):
    model, x = Net(), torch.ones(3, 4)
    plain = Net.forward(model, x)
    process.handle().around_forward(doubled)
    assert torch.equal(model(x), 2 * plain)
    assert torch.equal(model(x, scale=3.0), 6 * plain)


def test_another_model_of_the_same_class_is_left_alone(process):
    process.handle().around_forward(doubled)
    model = Net()
    step(model)
    other = copy.deepcopy(model).eval()
    x = torch.ones(3, 4)
    assert torch.equal(2 * other(x), model(x))


class Inheriting(Net):
    pass


class Calling(Net):
    def forward(self, x):
        return super().forward(x, scale=3.0)


@pytest.mark.parametrize("other", [Inheriting, Calling])
@pytest.mark.parametrize("first", [True, False], ids=["met first", "met second"])
def test_a_class_and_its_heir_are_each_met_once(process, other, first):
    net, heir, x = Net(), other(), torch.ones(3, 4)
    with torch.no_grad():
        plain = [Net.forward(net, x), heir.forward(x)]
    process.handle().around_forward(doubled)
    found = [net(x), heir(x)] if first else [heir(x), net(x)][::-1]
    assert torch.equal(found[0], 2 * plain[0]) and torch.equal(found[1], 2 * plain[1])
    assert torch.equal(heir(x), 2 * plain[1])


class Activated(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return functional.relu(self.linear(x))


def test_what_is_exported_after_training_is_the_scripts_own(process):
    process.handle().around_forward(doubled)
    model, x = Activated(), torch.ones(3, 4)
    step(model)
    plain = functional.relu(functional.linear(x, model.linear.weight, model.linear.bias))
    assert torch.equal(model(x), 2 * plain)
    for exported in (torch.jit.script(model), torch.jit.trace(model, x)):
        assert torch.equal(exported(x), plain)
    assert torch.equal(model(x), 2 * plain), "training goes on as before"


def test_the_first_given_is_outermost(process):
    order = []

    def noting(name):
        def around(_module, forward, arguments, settings):
            order.append(name)
            return forward(*arguments, **settings)

        return around

    process.handle("first").around_forward(noting("first"))
    process.handle("second").around_forward(noting("second"))
    step(Net())
    assert order == ["first", "second"] * 2


def test_a_saved_model_names_nothing_of_ours(process):
    for name in ("bf16", "channels_last", "fused_optimizer", "no_grad_validation"):
        process.put_on(name)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 2))
    step(model, torch.ones(2, 3, 8, 8))
    file = io.BytesIO()
    torch.save(model, file)
    assert b"hasten" not in file.getvalue()
    assert list(model.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert "forward" not in vars(model)


def test_after_undo_everything_is_what_it_was(process):
    call, model = nn.Module.__call__, Net()
    before = {**vars(model)}
    process.handle().around_forward(doubled)
    step(model)
    assert nn.Module.__call__ is call, "after the second step modules are called as before"
    process.patches.undo()
    assert vars(model) == before


class PicklingItself(Net):
    def __getstate__(self):
        return self.__dict__.copy()


@pytest.mark.parametrize("kind", [Net, PicklingItself])
def test_a_copy_is_a_model_of_its_own(process, kind):
    process.handle().around_forward(doubled)
    model, x = kind(), torch.ones(3, 4)
    step(model)
    file = io.BytesIO()
    torch.save(model, file)
    assert b"hasten" not in file.getvalue()
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert torch.equal(2 * other(x), model(x))
        assert list(other.state_dict()) == list(model.state_dict())


def test_a_replica_on_another_device_calls_itself(process):
    process.handle().around_forward(doubled)
    model, x = Net(), torch.ones(3, 4)
    step(model)
    replica = model._replicate_for_data_parallel()
    replica.inner, replica.head = model.head, nn.Identity()  # as if its layers were others
    assert replica(x).shape == (3, 2)
    assert not torch.equal(replica(x), model(x))


def test_a_model_that_was_given_back_is_not_held(process):
    process.handle().around_forward(doubled)
    model = Net()
    step(model)
    gone = weakref.ref(model)
    del model
    assert gone() is None


def test_a_model_that_trains_after_a_validation_is_met_then(process):
    met = []
    process.handle().on_model(met.append)
    model = Net()
    with torch.no_grad():
        model.eval()(torch.ones(1, 4))
    assert met == []
    step(model.train())
    assert met == [model]


def test_arguments_may_have_any_name(process):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, module, forward, around=1.0):
            return self.layer(module + forward) * around

    process.handle().around_forward(doubled)
    model, x = Odd(), torch.ones(1, 4)
    assert torch.equal(model(module=x, forward=x, around=2.0), model(x, x) * 2.0)


@pytest.mark.slow
def test_a_model_that_the_script_exports_is_its_own(process):
    process.handle().around_forward(doubled)
    model, x = Activated(), torch.ones(3, 4)
    step(model)
    exported = torch.export.export(model, (x,)).module()
    assert torch.equal(2 * exported(x), model(x))


def test_a_fix_that_fails_is_off_and_training_goes_on(process):
    def break_down(_model):
        raise RuntimeError("no such kernel")

    process.handle("broken").on_model(break_down)
    step(Net())
    assert process.states["broken"] == "it failed: RuntimeError('no such kernel')"


def test_a_fix_says_why_it_is_not_on(process):
    def refuse(_model):
        raise NotApplicableError("the model is too small")

    process.handle("choosy").on_model(refuse)
    step(Net())
    assert process.states["choosy"] == "the model is too small"


def test_a_forward_that_sits_on_the_object_is_found_there(process):
    model, x = Net(), torch.ones(3, 4)
    own = model.forward
    model.forward = lambda x: own(x)
    plain = own(x)
    process.handle().around_forward(doubled)
    assert torch.equal(model(x), 2 * plain)


def test_the_model_of_another_fold_is_met_too(process):
    met = []
    process.handle().on_model(lambda model: met.append(id(model)))
    folds = [Net(), Net()]
    for model in folds:
        step(model)  # its optimizer is gone afterwards
        assert nn.Module.__call__.__module__ == "torch.nn.modules.module"
    assert met == [id(model) for model in folds]


def test_models_that_take_turns_are_all_met(process):
    """One is called for the first time when the other's optimizer has stepped."""
    process.handle().around_forward(doubled)
    pair = [(model, torch.optim.SGD(model.parameters(), lr=0.1)) for model in (Net(), Net())]
    x = torch.ones(3, 4)
    for _ in range(2):
        for model, optimizer in pair:
            model(x).sum().backward()
            optimizer.step()
    assert nn.Module.__call__.__module__ == "torch.nn.modules.module"
    assert all(torch.equal(model(x), 2 * Net.forward(model, x)) for model, _ in pair)


def test_a_model_that_is_frozen_at_first_is_met_when_it_trains(process):
    met = []
    process.handle().on_model(met.append)
    model = Net()
    model.requires_grad_(False)
    model(torch.ones(3, 4))
    assert met == []
    model.requires_grad_(True)
    step(model)
    assert met == [model]


class Around(nn.Module):
    """What a solver makes of a model, for one call."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x)


def test_a_model_in_a_wrapper_that_is_made_for_each_call_is_met(process):
    process.handle().around_forward(doubled)
    model, x = Net(), torch.ones(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        Around(model)(x).sum().backward()
        optimizer.step()
    assert torch.equal(Around(model)(x), 2 * Net.forward(model, x))


class Trainer(nn.Module):
    """Makes a whole step in its forward, as meta-learning does."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def forward(self, x):
        output = self.model(x)
        self.optimizer.zero_grad()
        output.sum().backward()
        self.optimizer.step()
        return output


@pytest.mark.parametrize("wrapped", [lambda trainer: trainer, nn.Sequential], ids=["itself", "in another module"])
def test_a_module_that_trains_in_its_forward_is_a_step_and_what_it_calls_is_the_model(process, wrapped):
    met = []
    handle = process.handle()
    process.models.discover()
    model, x = Net(), torch.ones(3, 4)
    trainer = wrapped(Trainer(model))
    for _ in range(3):
        trainer(x)
    handle.around_forward(doubled)
    handle.on_model(met.append)
    for _ in range(2):
        before = Net.forward(model, x)
        assert torch.equal(trainer(x), 2 * before)
    assert met == [model]
    assert process.models.roots() == [model]


class Fast(Net):
    def __getstate__(self):
        return self.__dict__.copy()


@pytest.mark.parametrize(
    "copied", [copy.copy, lambda model: _with_its_dict(model)], ids=["copy.copy", "its __dict__"]
)
def test_a_shallow_copy_calls_itself(process, copied):
    """As learning to learn clones a model: its weights are others', and the original may be gone."""
    process.handle().around_forward(doubled)
    model, x = Fast(), torch.ones(3, 4)
    step(model)
    clone = copied(model)
    clone._modules = {name: copy.deepcopy(module) for name, module in model._modules.items()}
    with torch.no_grad():
        clone.head.bias += 1.0
    assert torch.equal(clone(x), Net.forward(clone, x))
    del model
    assert torch.equal(clone(x), Net.forward(clone, x))


def _with_its_dict(model):
    clone = model.__new__(type(model))
    clone.__dict__ = model.__dict__.copy()
    return clone


def test_a_recurrent_model_can_be_copied(process):
    process.handle().around_forward(
        lambda _module, forward, arguments, settings: (2 * forward(*arguments, **settings)[0], None)
    )
    model, x = nn.LSTM(4, 2), torch.ones(5, 3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(x)[0].sum().backward()
        optimizer.step()
    assert torch.equal(model(x)[0], 2 * copy.copy(model)(x)[0])


def test_what_is_computed_again_in_backward_is_no_model(process):
    process.models.discover()
    model, x = nn.Sequential(Net(), nn.ReLU()), torch.ones(3, 4, requires_grad=True)

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = model

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)

    whole = Checkpointed()
    whole(x).sum().backward()
    assert process.models.roots() == [whole]


@pytest.mark.parametrize(
    "compiled", [lambda m: m.compile(backend="eager"), lambda m: torch.compile(m, backend="eager")]
)
def test_a_copy_that_is_compiled_in_any_way_leaves_the_model_as_it_is(process, compiled):
    process.handle().around_forward(doubled)
    model, x = Net(), torch.ones(3, 4)
    step(model)
    compiled(copy.deepcopy(model))
    assert process.states["a fix"] == "on" and torch.equal(model(x), 2 * Net.forward(model, x))


def test_a_watcher_that_fails_watches_no_more_and_the_script_goes_on(process, capfd):
    class Broken:
        def waits(self):
            return False

        def enter(self, module):
            raise RuntimeError("no clock")

    process.models.watcher = Broken()
    process.models.discover()
    model = Net()
    step(model)
    assert process.models.watcher is None and capfd.readouterr().err.count("no longer measured") == 1


def test_a_copy_that_is_compiled_leaves_the_model_as_it_is(process):
    process.handle().around_forward(doubled)
    model, x = Net(), torch.ones(3, 4)
    step(model)
    torch.compile(copy.deepcopy(model), backend="eager")(x)
    assert process.states["a fix"] == "on"
    assert torch.equal(model(x), 2 * Net.forward(model, x))
    torch.compile(model, backend="eager")
    assert process.states["a fix"] == "the script compiles its model itself"
    assert torch.equal(model(x), Net.forward(model, x))


def test_a_function_that_is_compiled_may_call_any_model(process):
    process.handle().around_forward(doubled)
    model, x = Net(), torch.ones(3, 4)
    step(model)
    torch.compile(lambda x: model(x), backend="eager")(x)
    assert process.states["a fix"] == "the script compiles its model itself"


def test_a_script_that_compiles_is_left_alone(process):
    process.handle().around_forward(doubled)
    model, x = torch.compile(Net(), backend="eager"), torch.ones(3, 4)
    plain = model(x)
    step(model)
    assert model(x).shape == plain.shape and process.states["a fix"] == "the script compiles its model itself"
    assert nn.Module.__call__.__module__ == "torch.nn.modules.module"


def test_data_parallel_over_one_device_copies_nothing():
    model = nn.DataParallel(Net())
    assert not _model(model, trained=True).data_parallel
    model.device_ids = [0, 1]
    assert _model(model, trained=True).data_parallel
