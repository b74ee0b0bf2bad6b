"""The same mathematics, carried out otherwise."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hasten.optimizations import compile as compiling


def convolutions():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2))


def fit(model, *, steps=4, make=lambda p: torch.optim.AdamW(p, lr=0.01), zero=None):
    optimizer = make(model.parameters())
    losses = []
    for number in range(steps):
        x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(number))
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad() if zero is None else optimizer.zero_grad(set_to_none=zero)
        losses.append(loss.item())
    return losses, optimizer


def test_channels_last_turns_weights_and_input_round(put_on):
    expected, _ = fit(convolutions())
    states = put_on("channels_last")
    model = convolutions()
    seen = []
    model[0].register_forward_pre_hook(
        lambda _m, given: seen.append(given[0].is_contiguous(memory_format=torch.channels_last))
    )
    losses, _ = fit(model)
    assert losses == pytest.approx(expected, rel=1e-4)
    assert all(seen) and model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert states == {"channels_last": "on"}


def test_a_model_without_convolutions_has_no_layout(put_on):
    states = put_on("channels_last")
    model = nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    assert "no convolution" in states["channels_last"]


def test_the_fused_optimizer_steps_as_the_other(put_on):
    expected, _ = fit(convolutions())
    states = put_on("fused_optimizer")
    losses, optimizer = fit(convolutions())
    assert losses == pytest.approx(expected, rel=1e-4)
    assert optimizer.param_groups[0]["fused"] is True
    assert states == {"fused_optimizer": "on"}


def test_what_a_fused_optimizer_saves_says_what_the_script_said(put_on):
    plain = fit(convolutions())[1].state_dict()["param_groups"]
    put_on("fused_optimizer")
    _, optimizer = fit(convolutions())
    saved = optimizer.state_dict()
    assert saved["param_groups"] == plain
    assert optimizer.param_groups[0]["fused"] is True


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda p: torch.optim.RMSprop(p), "no fused implementation"),
        (lambda p: torch.optim.AdamW(p, fused=True), "is fused already"),
    ],
)
def test_an_optimizer_that_cannot_be_fused_says_why(put_on, make, reason):
    states = put_on("fused_optimizer")
    fit(convolutions(), make=make)
    assert reason in states["fused_optimizer"]


def test_parameters_that_get_a_gradient_later_are_not_left_to_the_fused_kernel(put_on):
    states = put_on("fused_optimizer")
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        model[0].requires_grad_(step >= 2)  # unfrozen
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert "no gradient yet" in states["fused_optimizer"]


def test_sparse_gradients_are_not_left_to_the_fused_kernel(put_on):
    states = put_on("fused_optimizer")
    table = nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    table(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    assert "sparse" in states["fused_optimizer"]


@pytest.mark.parametrize("name", ["fused_optimizer", "channels_last", "batch_size"])
def test_optimizers_that_the_script_drops_are_freed(put_on, name):
    put_on(name, 8 if name == "batch_size" else True)
    data = TensorDataset(torch.zeros(16, 1))
    DataLoader(data, batch_size=4, shuffle=True)
    _, optimizer = fit(convolutions())
    dropped = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert dropped() is None


def test_a_second_model_without_convolutions_leaves_the_first_laid_out_as_it_is(put_on):
    states = put_on("channels_last")
    images = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    for step in range(3):
        images(torch.randn(2, 3, 8, 8)).view(2, -1).sum().backward()
        if step:
            nn.Linear(3, 2)(torch.ones(1, 3)).sum().backward()
    assert states == {"channels_last": "on"}


def test_a_later_parameter_that_never_had_a_gradient_gets_none(put_on):
    put_on("set_to_none")
    for _ in range(50):
        used, unused = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([unused, used], lr=0.1, weight_decay=0.1)
        used.sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        assert unused.item() == 1.0 and unused.grad is None
        del unused, used, optimizer


def test_gradients_are_dropped_whatever_the_script_says(put_on):
    put_on("set_to_none")
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.zero_grad(set_to_none=False)
    assert model.weight.grad is None


def test_the_number_of_threads_is_the_plans(process, put_on):
    before = torch.get_num_threads()
    put_on("cpu_threads", 1)
    torch.set_num_threads(2)
    assert torch.get_num_threads() == 1
    process.patches.undo()
    assert torch.get_num_threads() == before


def test_a_network_in_evaluation_mode_passes_gradients_on(put_on):
    """As a discriminator does in the step of its generator."""
    put_on("no_grad_validation")
    evaluator, fake = nn.Linear(2, 1), torch.ones(1, 2, requires_grad=True)
    evaluator(torch.ones(1, 2)).sum().backward()
    evaluator.eval()(fake).sum().backward()
    assert fake.grad is not None


@pytest.fixture
def evaluated(put_on):
    """A model in evaluation mode, once it has learnt a step."""
    put_on("no_grad_validation")
    model = nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    return model.eval()


def test_validation_records_nothing_once_its_outputs_were_seen_to_be_dropped(evaluated):
    recorded = []
    for _ in range(8):
        output = evaluated(torch.ones(1, 2))
        loss = output.sum()
        recorded.append(loss.requires_grad)
    assert recorded == [True] * 3 + [False] * 5
    assert evaluated.train()(torch.ones(1, 2)).requires_grad


def test_what_learns_in_evaluation_mode_goes_on_learning(evaluated):
    for _ in range(8):
        evaluated(torch.ones(1, 2)).sum().backward()
    assert evaluated(torch.ones(1, 2)).requires_grad, "another place"


def test_a_function_that_validates_and_trains_goes_on_training(evaluated):
    """As where a network with frozen statistics learns in evaluation mode."""

    def through():
        return evaluated(torch.ones(1, 2))

    for _ in range(8):
        validated = through()
    assert not validated.requires_grad
    for _ in range(8):
        through().sum().backward()
    assert evaluated.weight.grad.tolist() == [[9.0, 9.0]]


def test_outputs_that_are_kept_may_be_meant_for_a_backward(evaluated):
    kept = [evaluated(torch.ones(1, 2)).sum() for _ in range(8)]
    sum(kept).backward()
    assert evaluated.weight.grad.tolist() == [[9.0, 9.0]]


def test_an_image_inside_a_dict_may_need_its_gradient(put_on):
    put_on("no_grad_validation")

    class Evaluator(nn.Linear):
        def forward(self, given):
            return super().forward(given["image"])

    evaluator = Evaluator(2, 1)
    evaluator({"image": torch.ones(1, 2)}).sum().backward()
    evaluator.eval()
    for _ in range(8):
        image = torch.ones(1, 2, requires_grad=True)
        evaluator({"image": image}).sum().backward()
        assert image.grad is not None


def test_debugging_aids_stay_off(put_on):
    put_on("no_debug")
    with torch.autograd.detect_anomaly():
        assert not torch.is_anomaly_enabled()
    torch.autograd.set_detect_anomaly(True)
    assert not torch.is_anomaly_enabled()
    with torch.profiler.profile() as profiler:
        torch.ones(2) + 1
        assert not torch.autograd._profiler_enabled()
        profiler.step()
    assert len(profiler.key_averages()) == 0
    profiler.export_chrome_trace("/nowhere/at/all.json")


CATCHING = """
import torch

def learn(loss):
    loss.backward()

def train(weight):
    with torch.autograd.detect_anomaly():
        for _ in range(3):
            try:
                learn((weight * float("inf")).sum() * 0.0)
            except RuntimeError:
                weight.grad = None
"""


def test_anomaly_detection_stays_on_where_the_script_catches_what_it_raises(put_on, tmp_path, process):
    script = tmp_path / "catching.py"
    script.write_text(CATCHING)
    inside = {}
    exec(compile(CATCHING, str(script), "exec"), inside)
    put_on("no_debug")
    weight = torch.ones(2, requires_grad=True)
    inside["train"](weight)
    assert weight.grad is None, "a gradient that is not a number was let pass"
    assert "catches" in process.states["no_debug"]


@pytest.mark.parametrize("kind", [torch.optim.AdamW, lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9)])
def test_a_head_that_some_steps_do_not_use_is_trained_as_with_gradients_of_zeros(put_on, kind):
    def trained():
        torch.manual_seed(0)
        body, heads = nn.Linear(4, 4), nn.ModuleList(nn.Linear(4, 1) for _ in range(3))  # the last is never used
        optimizer = kind([*body.parameters(), *heads.parameters()], lr=0.01)
        for step in range(20):
            optimizer.zero_grad(set_to_none=False)
            heads[step % 7 == 0](body(torch.randn(8, 4))).square().mean().backward()
            optimizer.step()
        return [parameter.detach().clone() for parameter in (*body.parameters(), *heads.parameters())]

    expected = trained()
    put_on("set_to_none")
    assert all(torch.equal(one, other) for one, other in zip(expected, trained()))


def test_a_compiled_forward_is_the_same_function(process, monkeypatch):
    compiled = []

    def compile(model, *, mode):
        compiled.append(mode)
        return model._call_impl

    monkeypatch.setattr(process.models, "compile", compile)
    torch.manual_seed(0)
    expected, _ = fit(convolutions())
    compiling.enable(process.handle("compile"), "default")
    torch.manual_seed(0)
    found, _ = fit(convolutions())
    assert compiled == ["default"] and found == expected


def test_a_script_that_compiles_is_left_alone(put_on):
    states = put_on("compile", "default")
    model = nn.Linear(2, 1)
    model.compile(backend="eager")
    model(torch.ones(1, 2)).sum().backward()
    assert "compiles its model itself" in states["compile"]


def test_denormal_numbers_are_flushed_until_undo(process, put_on):
    if put_on("flush_denormal")["flush_denormal"] != "on":
        pytest.skip("this CPU cannot")
    torch.set_flush_denormal(False)  # as a script may say
    assert (torch.tensor([1e-40]) * 1).item() == 0.0
    process.patches.undo()
    assert (torch.tensor([1e-40]) * 1).item() != 0.0
