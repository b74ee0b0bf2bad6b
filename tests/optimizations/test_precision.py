"""Reduced precision: what the script sees stays float32, weights move, and who chose a precision is left alone."""

import copy
import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from hasten.agent.mixed_precision import LossScale
from hasten.devices import accelerator
from hasten.optimizations.float32 import use_float32


class Net(nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(16, 32, dtype=dtype)
        self.head = nn.Linear(32, 4, dtype=dtype)
        self.seen = []

    def forward(self, x):
        hidden = self.first(x)
        self.seen.append(hidden.dtype)
        return {"scores": self.head(hidden.relu()), "pair": (hidden, 3)}


def fit(model, steps=5, autocast=False, dtype=torch.float32):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1)
    x, y = torch.randn(8, 16, dtype=dtype), torch.randint(0, 4, (8,))
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            out = model(x)
        loss = nn.functional.cross_entropy(out["scores"].to(dtype), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, out


def test_the_forward_computes_in_bfloat16_and_hands_back_float32(put_on):
    states = put_on("bf16")
    model = Net()
    _, out = fit(model)
    assert set(model.seen) == {torch.bfloat16}
    assert out["scores"].dtype == out["pair"][0].dtype == torch.float32
    assert out["pair"][1] == 3
    assert states == {"bf16": "on"}


def test_a_model_that_has_parameters_of_its_own_making_is_under_it(put_on):
    """Meta-learning returns the list that it can replace."""

    class Learner(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterList([nn.Parameter(torch.ones(4, 16))])

        def parameters(self):
            return self.weights

        def forward(self, x):
            self.seen = nn.functional.linear(x, self.weights[0]).dtype
            return {"scores": nn.functional.linear(x, self.weights[0])}

    states = put_on("bf16")
    model = Learner()
    fit(model)
    assert states == {"bf16": "on"}
    assert model.seen == torch.bfloat16


def test_weights_move_in_every_step(put_on):
    """Switched on globally, autocast keeps its casts of the weights, and the loss stands still."""
    plain, _ = fit(Net())
    put_on("bf16")
    losses, _ = fit(Net())
    assert losses == pytest.approx(plain, rel=0.02)
    assert all(after < before for before, after in itertools.pairwise(losses))


def test_validation_is_under_it_too(put_on):
    put_on("bf16")
    model = Net()
    fit(model)
    model.seen.clear()
    with torch.no_grad():
        model.eval()(torch.ones(2, 16))
    assert model.seen == [torch.bfloat16]


@pytest.mark.parametrize(
    "model, options, reason",
    [
        (Net(torch.float64), {"dtype": torch.float64}, "float64, not float32"),
        (Net(torch.bfloat16), {"dtype": torch.bfloat16}, "bfloat16, not float32"),
        (Net(), {"autocast": True}, "uses autocast itself"),
    ],
    ids=["double", "half", "autocast"],
)
def test_a_script_that_chose_its_precision_is_left_alone(process, model, options, reason):
    expected, _ = fit(copy.deepcopy(model), **options)
    process.put_on("bf16")
    losses, _ = fit(model, **options)
    assert reason in process.states["bf16"]
    assert model.seen and losses == expected


def test_the_dataset_is_not_under_it(put_on):
    class Products(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return (torch.ones(4, 4) @ torch.ones(4, 4)).dtype == torch.float32

    put_on("bf16")
    fit(Net())
    assert all(bool(flags.all()) for flags in DataLoader(Products(), batch_size=2))


def test_matmul_precision_is_set_and_put_back(process, put_on):
    before = torch.get_float32_matmul_precision()
    put_on("matmul_precision", "medium")
    assert torch.get_float32_matmul_precision() == "medium"
    process.patches.undo()
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="they can be on")
@pytest.mark.parametrize("name", ["tf32", "fp16", "pin_memory", "non_blocking"])
def test_what_needs_a_gpu_says_so_without_one(put_on, name):
    assert put_on(name)[name] != "on"


def test_a_scaled_loss_trains_as_an_unscaled_one(process):
    from hasten.agent.mixed_precision import scale_losses

    plain, _ = fit(Net())
    scale_losses(process.handle("fp16"))
    losses, _ = fit(Net())
    assert losses == pytest.approx(plain, rel=1e-6)


@pytest.mark.parametrize("module", [torch.nn.utils, torch.nn.utils.clip_grad], ids=["utils", "clip_grad"])
def test_clipping_sees_gradients_of_their_own_size(process, module):
    from hasten.agent.mixed_precision import scale_losses

    scale_losses(process.handle("fp16"))
    weight = nn.Parameter(torch.tensor([3.0]))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    (2 * weight).sum().backward()
    assert weight.grad.item() == 2 * 65536
    assert module.clip_grad_norm_([weight], 1.0).item() == pytest.approx(2.0)
    optimizer.step()
    assert weight.item() == pytest.approx(2.0, abs=1e-5)


def test_a_step_with_an_infinite_gradient_changes_nothing_and_lowers_the_scale():
    scale = LossScale()
    weight = nn.Parameter(torch.tensor([3.0]))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scale.scaled(torch.zeros(()))
    weight.grad = torch.tensor([float("inf")])
    scale.before_step(optimizer, (), {})
    optimizer.step()
    scale.after_step(optimizer, (), {})
    assert weight.item() == 3.0
    assert scale.scale == 32768.0


@pytest.fixture
def scaled(process):
    """A process in which losses are scaled, as by fp16 on a GPU."""
    from hasten.agent.mixed_precision import scale_losses

    scale_losses(process.handle("fp16"))
    return process


def two(lr=1.0):
    weights = [nn.Parameter(torch.tensor([value])) for value in (3.0, 5.0)]
    return weights, [torch.optim.SGD([weight], lr=lr) for weight in weights]


def test_of_two_optimizers_each_gradient_is_divided_once(scaled):
    weights, optimizers = two()
    (2 * weights[0] + 4 * weights[1]).sum().backward()
    torch.nn.utils.clip_grad_value_(weights, 100.0)
    for optimizer in optimizers:
        optimizer.step()
    assert [w.item() for w in weights] == pytest.approx([1.0, 1.0])


def test_a_gradient_that_was_divided_waits_for_its_step_through_anothers_backward(scaled):
    weights, optimizers = two()
    (2 * weights[0]).sum().backward()
    torch.nn.utils.clip_grad_value_(weights[:1], 100.0)
    (4 * weights[1]).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    assert [w.item() for w in weights] == pytest.approx([1.0, 1.0])


def test_a_gradient_asked_for_by_name_is_as_it_is(scaled):
    (weight, _), (optimizer, _) = two()
    (weight.grad,) = torch.autograd.grad((2 * weight).sum(), [weight])
    optimizer.step()
    assert weight.item() == pytest.approx(1.0)


def test_a_step_with_a_closure_takes_the_scale_off(scaled):
    (weight, _), (optimizer, _) = two()

    def closure():
        optimizer.zero_grad()
        loss = (2 * weight).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert weight.item() == pytest.approx(1.0)
    assert "calls the script's backward itself" in scaled.states["fp16"]


class Guarded(nn.Module):
    """Needs float32 inside, whatever is round it, as a rotary embedding does."""

    def __init__(self):
        super().__init__()
        self.weights = nn.Linear(32, 32)
        self.seen = []

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            out = self.weights(x.float())
        self.seen.append(out.dtype)
        return out


class WithOptions(nn.Module):
    """Opens autocast itself, by an option that is left off."""

    def __init__(self, amp):
        super().__init__()
        self.amp = amp
        self.first, self.guarded, self.head = nn.Linear(16, 32), Guarded(), nn.Linear(32, 4)
        self.seen = []

    def forward(self, x):
        with torch.autocast("cpu", enabled=self.amp):
            hidden = self.first(x)
            hidden = self.guarded(hidden)
        with torch.autocast(
            "cpu",
            enabled=False,
        ):
            scores = self.head(hidden.float())
        self.seen.append((self.first(x).dtype, scores.dtype))
        return {"scores": scores}


def test_a_disabled_context_round_the_model_is_an_option_left_off(put_on):
    states = put_on("bf16")
    model = Net()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    fit(model)  # under autocast(enabled=False)
    assert set(model.seen) == {torch.bfloat16} and states == {"bf16": "on"} and not scaler.is_enabled()


def test_autocast_in_float32_is_no_mixed_precision(put_on, monkeypatch):
    """CUDA takes float32 as a dtype; on a CPU, torch turns such a context into a disabled one."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: True)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda device: torch.float32)
    assert not accelerator.in_mixed_precision("cuda")
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda device: torch.bfloat16)
    assert accelerator.in_mixed_precision("cuda")
    monkeypatch.undo()
    states = put_on("bf16")
    model = Net()
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_dtype("cpu", torch.float32)
    try:
        model(torch.randn(2, 16))
    finally:
        torch.set_autocast_enabled("cpu", False)
        torch.set_autocast_dtype("cpu", torch.bfloat16)
    assert states == {"bf16": "on"} and set(model.seen) == {torch.bfloat16}


def test_a_disabled_context_in_the_forward_is_switched_on_where_an_option_leaves_it_off(put_on):
    seen = []
    model = WithOptions(amp=False)
    model.first.register_forward_hook(lambda _m, _a, out: seen.append(out.dtype))
    put_on("bf16")
    fit(model)
    assert set(seen) == {torch.bfloat16}
    assert not torch.is_autocast_enabled("cpu")


def test_a_context_that_says_false_itself_guards_what_needs_float32(put_on):
    model = WithOptions(amp=False)
    put_on("bf16")
    fit(model)
    assert set(model.guarded.seen) == {torch.float32}
    assert {scores for _, scores in model.seen} == {torch.float32}


def test_taken_off_contexts_are_as_the_script_wrote_them(put_on, process):
    entering = torch.autocast.__enter__
    put_on("bf16")
    fit(WithOptions(amp=False))
    process.patches.undo()
    assert torch.autocast.__enter__ is entering


FLOAT64 = torch.float64
IN_FLOAT64 = {
    "a dtype": lambda: torch.ones(2, dtype=torch.float64),
    "another name of it": lambda: torch.ones(2).to(torch.double),
    "a method": lambda: torch.ones(2).double(),
    "a class": lambda: torch.ones(2).type(torch.DoubleTensor),
    "a model": lambda: nn.Linear(2, 2).double().weight,
    "an array": lambda: torch.from_numpy(np.ones(2)),
    "an array, copied": lambda: torch.tensor(np.ones(2)),
    "an array, as a tensor": lambda: torch.as_tensor(np.ones(2)),
    "a batch of arrays": lambda: torch.utils.data.default_collate([np.ones(2), np.ones(2)]),
    "a batch of numbers": lambda: torch.utils.data.default_collate([1.0, 2.0]),
}


@pytest.mark.parametrize("make", IN_FLOAT64.values(), ids=IN_FLOAT64)
def test_to_measure_what_float64_costs_float32_takes_its_place_until_undo(process, make):
    assert make().dtype == FLOAT64
    use_float32(process.handle(), True)
    assert make().dtype == torch.float32
    process.patches.undo()
    assert make().dtype == FLOAT64


def test_whole_numbers_stay_what_they_are_where_float32_is_measured(process):
    use_float32(process.handle(), True)
    assert torch.from_numpy(np.arange(3)).dtype == torch.tensor([1, 2]).dtype == torch.int64
