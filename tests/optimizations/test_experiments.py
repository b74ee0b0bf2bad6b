"""Every what-if that is switched on leaves no trace when it is switched off."""

import copy
import io
import types

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from hasten.agent.models import Models
from hasten.agent.schedule import switch_of
from hasten.measurement.followups import spec_for
from hasten.optimizations.catalog import EXPERIMENTS
from hasten.patches import Patches
from hasten.protocol import SwitchSpec

HOOKS = Patches()  # a launch's own; taken off at its end


@pytest.fixture(autouse=True)
def launched():
    yield
    HOOKS.undo()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.conv(x).relu().mean((2, 3)))


class Training:
    """A small net in training, and as much of a session as switches need."""

    def __init__(self, kind=torch.optim.Adam, **settings):
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = kind(self.model.parameters(), lr=0.01, **settings)
        self.inputs = torch.randn(2, 3, 5, 5)
        self.session = types.SimpleNamespace(not_applied={}, models=Models(HOOKS))
        self.session.models.discover()

    def switch(self, cause, value=None):
        """As a measured launch makes it."""
        experiment, optimization = EXPERIMENTS[cause]
        value = value or next(reversed(optimization.words if optimization else ()), True)
        fix = spec_for(experiment, optimization, value)
        made = switch_of(self.session, HOOKS, SwitchSpec(cause=cause, fix=fix, settle=experiment.settle))
        HOOKS.on_undo(made.off)
        return made

    def step(self):
        self.optimizer.zero_grad()
        loss = self.model(self.inputs).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def state(self):
        """Everything that training goes on from, bit for bit."""
        return copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))

    def layout(self):
        return [p.stride() for p in self.model.parameters()], [
            (t.stride(), str(t.device))
            for s in self.optimizer.state.values()
            for t in s.values()
            if isinstance(t, torch.Tensor)
        ]


def flags():
    return {
        "anomaly": torch.is_anomaly_enabled(),
        "set_anomaly": torch.set_anomaly_enabled,
        "threads": torch.get_num_threads(),
        "benchmark": torch.backends.cudnn.benchmark,
        "matmul": torch.backends.cuda.matmul.allow_tf32,
        "zero_grad": (torch.optim.Optimizer.zero_grad, nn.Module.zero_grad),
        "autocast": torch.is_autocast_enabled("cpu"),
        "denormal": (torch.tensor([1e-39]) * 1.0).item() == 0.0,
        "grad": torch.is_grad_enabled(),
    }


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other))
    return one == other


NAMES = [
    name for name, (experiment, _) in EXPERIMENTS.items() if experiment.toggled and name != "tf32"
]  # which needs a GPU


@pytest.fixture
def as_the_script_left_it():
    """A switch is only tried where the script has the fault; here, anomaly detection."""
    before = torch.is_anomaly_enabled(), torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32
    cudnn = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.autograd.set_detect_anomaly(before[0])
    torch.set_num_threads(before[1])
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before[2], cudnn
    torch.set_flush_denormal(False)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_switched_on_and_off_nothing_has_changed(name, as_the_script_left_it):
    if name == "anomaly_detection":
        torch.autograd.set_detect_anomaly(True)
    training = Training()
    training.step()
    groups = [{k: v for k, v in group.items() if k != "params"} for group in training.optimizer.param_groups]
    before = training.state(), training.layout(), flags(), groups, {*training.model.__dict__}
    switch = training.switch(name)
    for _ in range(2):
        switch.on()
        training.step()  # where most of them act
        switch.off()
    assert training.layout() == before[1]
    assert flags() == before[2]
    assert [{k: v for k, v in group.items() if k != "params"} for group in training.optimizer.param_groups] == before[
        3
    ]
    assert training.model.__dict__.keys() == before[4]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_a_script_trains_on_while_switched_on_and_after(name, as_the_script_left_it):
    if name == "anomaly_detection":
        torch.autograd.set_detect_anomaly(True)
    training = Training()
    training.step()
    switch = training.switch(name)
    for turn in (switch.on, switch.off, switch.on, switch.off):
        turn()
        assert torch.isfinite(training.step())
    assert training.model(training.inputs).dtype == torch.float32


@pytest.mark.parametrize("name", ["anomaly_detection", "zero_grad_in_place", "cudnn_autotune", "denormals"])
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_a_switch_that_computes_the_same_trains_to_the_same_bits(name, as_the_script_left_it):
    plain, switched = Training(), Training()
    switch = switched.switch(name)
    for turn in (switch.on, switch.off):
        turn()
        assert torch.equal(plain.step(), switched.step())
    assert same(plain.state(), switched.state())


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
def test_every_optimizer_that_can_be_fused_goes_there_and_back(kind):
    plain, switched = Training(kind), Training(kind)
    switch = switched.switch("unfused_optimizer")
    for turn in (switch.on, switch.off):
        turn()
        plain.step(), switched.step()
    for one, other in zip(plain.model.parameters(), switched.model.parameters()):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert [g["fused"] for g in switched.optimizer.param_groups] == [None]


def test_an_optimizer_that_cannot_be_fused_is_left_alone():
    plain, switched = Training(torch.optim.RMSprop), Training(torch.optim.RMSprop)
    switched.switch("unfused_optimizer").on()
    assert torch.equal(plain.step(), switched.step())
    assert same(plain.state(), switched.state())


def test_a_lower_precision_is_that_of_the_forward_only():
    training = Training()
    seen = []
    training.model.conv.register_forward_hook(lambda _m, _a, out: seen.append(out.dtype))
    switch = training.switch("full_precision")
    switch.on()
    assert training.model(training.inputs).dtype == torch.float32
    assert not torch.is_autocast_enabled("cpu")
    switch.off()
    training.model(training.inputs)
    assert seen == [torch.bfloat16, torch.float32]


def test_a_forward_that_raises_under_lower_precision_leaves_it():
    training = Training()
    switch = training.switch("full_precision")
    switch.on()
    with pytest.raises(RuntimeError):
        training.model(torch.randn(2, 9, 5, 5))
    switch.off()
    assert not torch.is_autocast_enabled("cpu")


def test_a_model_with_volumes_beside_images_can_be_laid_out_otherwise():
    training = Training()
    training.model.volume = nn.Conv3d(1, 1, 3)
    switch = training.switch("channels_first")
    switch.on()
    training.step()
    assert training.model.conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert training.session.not_applied == {}
    switch.off()


def test_channels_last_reaches_the_convolutions_and_their_inputs():
    training = Training()
    training.step()
    switch = training.switch("channels_first")
    switch.on()
    training.step()
    assert training.model.conv.weight.is_contiguous(memory_format=torch.channels_last)
    moments = training.optimizer.state[training.model.conv.weight]["exp_avg"]
    assert moments.is_contiguous(memory_format=torch.channels_last), "else its update takes the slow way"
    switch.off()
    assert training.model.conv.weight.is_contiguous()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_a_model_can_be_saved_whole_and_copied_while_switched_on(name, as_the_script_left_it):
    training = Training()
    training.step()
    switch = training.switch(name)
    switch.on()
    training.step()
    kept = io.BytesIO()
    torch.save(training.model, kept)
    torch.save(training.optimizer, kept)
    assert b"hasten" not in kept.getvalue()
    assert copy.deepcopy(training.model)._compiled_call_impl is None
    switch.off()


def test_a_fix_that_is_turned_on_within_a_step_is_on_in_the_next():
    """A session turns its switches while torch goes through the hooks of an optimizer's step."""
    training = Training()
    seen, switch = [], training.switch("full_precision")
    training.model.conv.register_forward_hook(lambda _m, _a, out: seen.append(out.dtype))
    handle = register_optimizer_step_post_hook(lambda *_: switch.on() if len(seen) == 2 else None)
    for _ in range(4):
        training.step()
    handle.remove()
    switch.off()
    assert seen == [torch.float32, torch.float32, torch.bfloat16, torch.bfloat16]


def test_a_fix_that_does_not_apply_says_why():
    training = Training(torch.optim.RMSprop)
    switch = training.switch("unfused_optimizer")
    switch.on()
    training.step()
    assert "no fused implementation" in training.session.not_applied["unfused_optimizer"]
