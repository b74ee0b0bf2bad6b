"""A batch in pieces: the same loss and gradients, and a run that has no memory left goes on."""

import gc
import weakref
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from hasten.agent import shortage
from hasten.cgroup import CgroupMemory
from hasten.fixes.inside import memory
from hasten.fixes.inside.recompute import blocks_of, recomputing


class Text(nn.Module):
    """Two inputs, one of them whole numbers; two outputs; dropout."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(8, 3)

    def forward(self, words, weights=None):
        x = self.embedding(words).mean(1)
        if weights is not None:
            x = x * weights[:, None]
        x = self.drop(x)
        return {"scores": self.head(x), "features": x}


def trained(model, *, steps=3, dropout_seed=7, fails=None):
    """Losses and parameters of a few steps whose loss depends on the whole batch at once."""
    torch.manual_seed(dropout_seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for number in range(steps):
        generator = torch.Generator().manual_seed(number)
        words = torch.randint(0, 11, (8, 5), generator=generator)
        weights = torch.rand(8, generator=generator)
        optimizer.zero_grad()
        out = model(words, weights=weights)
        similar = out["features"] @ out["features"].T
        loss = nn.functional.cross_entropy(out["scores"], words[:, 0] % 3) + similar.logsumexp(1).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach().clone() for p in model.parameters()]


def fresh(dropout=0.0):
    torch.manual_seed(0)
    return Text(dropout)


def close(first, second):
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(first, second))


@pytest.mark.parametrize("most", [4, 3, 1])
def test_a_forward_in_pieces_trains_the_same(put_on, most):
    expected = trained(fresh())
    put_on("micro_batch", most)
    losses, parameters = trained(fresh())
    assert losses == pytest.approx(expected[0], rel=1e-5)
    assert close(parameters, expected[1])


def test_what_a_model_calls_again_in_backward_is_not_taken_for_another_model(put_on):
    put_on("micro_batch", 2)
    untouched = nn.Linear.forward
    fresh()(torch.zeros(4, 5, dtype=torch.long))["scores"].sum().backward()
    assert nn.Linear.forward is untouched


def test_dropout_draws_for_backward_what_it_drew_for_forward(put_on):
    put_on("micro_batch", 4)
    model = fresh(dropout=0.5)
    words = torch.randint(0, 11, (8, 5))
    features = model(words)["features"]
    features.sum().backward()
    kept = (features != 0).float()
    # The gradient of the embedding counts each kept feature of each word.
    assert model.embedding.weight.grad.sum() == pytest.approx(float(kept.sum()) * 2, rel=1e-5)


def test_at_most_so_many_samples_are_held(put_on, monkeypatch):
    sizes = []
    put_on("micro_batch", 3)
    model = fresh()
    model.head.register_forward_pre_hook(lambda _m, given: sizes.append((len(given[0]), torch.is_grad_enabled())))
    trained(model, steps=1)
    assert max(size for size, _ in sizes) <= 3
    assert sum(size for size, grad in sizes if grad) == 8


class Hungry(nn.Module):
    """Says that memory has run out whenever it is given more samples than it likes."""

    def __init__(self, most, *, in_backward=False):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)
        self.most, self.in_backward = most, in_backward

    def forward(self, x):
        x = self.first(x)
        if not self.in_backward:
            self.refuse(x)
        elif x.requires_grad:
            x.register_hook(self.refuse)
        return self.head(x)

    def refuse(self, x):
        if len(x) > self.most:
            raise RuntimeError(
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"
            )


def fit(model, *, accumulate=1, zero=True):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for number in range(4):
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(number))
        loss = model(x).square().mean()
        loss.backward()
        losses.append(loss.item())
        if (number + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=zero)
    return losses, [p.detach().clone() for p in model.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("in_backward", [False, True], ids=["in forward", "in backward"])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("zero", [True, False], ids=["to none", "to zero"])
def test_a_run_that_has_no_memory_left_goes_on_and_loses_no_step(put_on, in_backward, accumulate, zero, capfd):
    expected = fit(Hungry(99), accumulate=accumulate, zero=zero)
    put_on("micro_batch", "auto")
    losses, parameters = fit(Hungry(5, in_backward=in_backward), accumulate=accumulate, zero=zero)
    assert losses == pytest.approx(expected[0], rel=1e-5)
    assert close(parameters, expected[1])
    assert "no step is lost" in capfd.readouterr().err


def test_what_was_accumulated_is_not_dropped_because_another_model_was_zeroed(put_on):
    """As a discriminator's optimizer is between two backwards of its generator."""
    put_on("micro_batch", "auto")
    model, other = Hungry(99, in_backward=True), nn.Linear(1, 1)
    model(torch.ones(16, 4)).square().mean().backward()
    model.most = 5
    torch.optim.SGD(other.parameters(), lr=0.1).zero_grad()
    loss = model(torch.ones(16, 4)).square().mean()
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        loss.backward()


def test_without_shortage_nothing_changes(put_on):
    expected = fit(Hungry(99))
    put_on("micro_batch", "auto")
    losses, parameters = fit(Hungry(99))
    assert losses == expected[0]
    assert all(torch.equal(a, b) for a, b in zip(parameters, expected[1]))


class Hoard(nn.Module):
    """A layer that says that memory has run out once more is held for backward than it likes."""

    def __init__(self, most):
        super().__init__()
        self.most, self.held = most, set()

    def counting(self):
        return torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: Packed(self, tensor), lambda packed: packed.tensor
        )

    def forward(self, x):
        if len(self.held) > self.most:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")
        return x


class Packed:
    def __init__(self, hoard, tensor):
        self.hoard, self.tensor = hoard, tensor.detach()  # an output with its history would hold itself
        hoard.held.add(id(self))

    def __del__(self):
        self.hoard.held.discard(id(self))


class Blocks(nn.Module):
    """Six blocks with batch statistics and dropout, and a head; memory may run out in the middle of its backward."""

    def __init__(self, *, fails=(), hoard=None, in_a_row=False):
        super().__init__()
        torch.manual_seed(0)
        hoard = hoard or nn.Identity()
        self.stem = nn.Linear(4, 8)
        blocks = [[nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), hoard] for _ in range(6)]
        row = [layer for block in blocks for layer in block]
        self.layers = nn.Sequential(*row) if in_a_row else nn.Sequential(*(nn.Sequential(*b) for b in blocks))
        self.head = nn.Linear(8, 2)
        self.fails = list(fails)  # numbers of the backwards in which there is no memory

    def forward(self, x):
        half = len(self.layers) // 2
        x = self.layers[:half](self.stem(x))
        if x.requires_grad and self.fails:
            x.register_hook(self.refuse)
        return self.head(self.layers[half:](x))

    def refuse(self, _):
        if self.fails.pop(0):
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")


def statistics_of(model):
    return [buffer.clone() for buffer in model.buffers()]


@pytest.mark.parametrize("in_a_row", [False, True])
def test_a_model_with_batch_statistics_is_made_block_by_block_where_memory_runs_out_in_forward(
    put_on, capfd, in_a_row
):
    torch.manual_seed(1)
    whole = Blocks(in_a_row=in_a_row)
    expected = fit(whole)
    put_on("micro_batch", "auto")
    torch.manual_seed(1)
    hoard = Hoard(most=30)
    model = Blocks(hoard=hoard, in_a_row=in_a_row)
    with hoard.counting():
        losses, parameters = fit(model)
    assert close(statistics_of(model), statistics_of(whole)), "a forward that failed was counted"
    assert losses == pytest.approx(expected[0], rel=1e-5)
    assert close(parameters, expected[1])
    assert "6 blocks of the model are made again; no step is lost" in capfd.readouterr().err


@pytest.mark.parametrize("in_a_row", [False, True])
@pytest.mark.parametrize("fails", [[True], [False, False, True]], ids=["first", "third"])
def test_and_in_backward(put_on, capfd, fails, in_a_row):
    def trained_blocks(**settings):
        torch.manual_seed(1)
        model = Blocks(in_a_row=in_a_row, **settings)
        return *fit(model), statistics_of(model)

    losses, parameters, statistics = trained_blocks()
    put_on("micro_batch", "auto")
    found = trained_blocks(fails=fails)
    assert found[0] == pytest.approx(losses, rel=1e-5)
    assert close(found[1], parameters)
    assert close(found[2], statistics), "a forward that was made again was counted twice"
    assert "no step is lost" in capfd.readouterr().err


class Row(nn.Module):
    """Layers in a row, one of them in two places, of which only some are gone through."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        first, second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.layers = nn.Sequential(first, nn.BatchNorm1d(4), nn.ReLU(inplace=True), second, nn.Tanh(), second)

    def forward(self, x):
        for layer in self.layers[1:2]:
            x = layer(x)
        return self.layers[:2](x) + self.layers(x) + self.layers[2:5](x.clone())


def test_a_part_of_a_row_is_computed_as_that_part():
    model, x = Row(), torch.randn(8, 4)
    stretches = blocks_of(model)
    assert [len(stretch) for stretch in stretches] == [3, 2, 1]
    expected = model(x)
    with recomputing(stretches):
        found = model(x)
        assert [*model.layers] == [*model.layers.children(), model.layers[-1]], "whoever looks sees the layers"
    assert torch.equal(found, expected)
    gradients = (torch.autograd.grad(y.sum(), [*model.parameters()]) for y in (found, expected))
    assert close(*gradients)


class Scan(nn.Module):
    """Takes its steps one after another, time first."""

    def __init__(self):
        super().__init__()
        self.cell = nn.RNN(4, 4)

    def forward(self, x):
        return self.cell(x)[0]


class Loss(nn.Module):
    """Gives its loss by itself, as models of some libraries do."""

    def __init__(self, most=99):
        super().__init__()
        self.hungry = Hungry(most)

    def forward(self, x):
        return self.hungry(x).square().mean()


@pytest.mark.parametrize("model", [Scan, Loss])
def test_samples_that_see_each_other_are_not_cut(put_on, model):
    torch.manual_seed(0)
    made = model()
    x = torch.randn(6, 3, 4)
    expected = made(x)
    put_on("micro_batch", 2)
    assert torch.equal(made(x), expected), "a sequence, or a mean, was cut"


def test_once_the_first_steps_went_well_nothing_of_a_step_is_looked_at(put_on, monkeypatch):
    monkeypatch.setattr(memory, "FIRST", 2)
    monkeypatch.setattr(memory, "EVERY", 1)
    monkeypatch.setattr(memory, "may_run_out", lambda: False)
    untouched = torch.autograd.backward, nn.Module.zero_grad
    put_on("micro_batch", "auto")
    model = Hungry(99)
    armed = []
    for _ in range(4):
        model(torch.randn(8, 4)).sum().backward()
        armed.append((torch.autograd.backward, nn.Module.zero_grad) != untouched)
    assert armed == [True, True, False, False]


def test_memory_that_runs_out_late_is_survived_in_a_forward_and_from_then_on(put_on, monkeypatch):
    monkeypatch.setattr(memory, "FIRST", 0)
    monkeypatch.setattr(memory, "EVERY", 1)
    monkeypatch.setattr(memory, "may_run_out", lambda: False)
    untouched = torch.autograd.backward
    x = torch.randn(16, 4)
    torch.manual_seed(0)
    expected = Hungry(99)(x)
    put_on("micro_batch", "auto")
    torch.manual_seed(0)
    found = Hungry(5)(x)
    assert torch.allclose(found, expected) and torch.autograd.backward is not untouched


def test_a_step_is_looked_at_again_where_most_of_the_memory_is_in_use(put_on, monkeypatch):
    monkeypatch.setattr(memory, "FIRST", 0)
    monkeypatch.setattr(memory, "EVERY", 1)
    used = iter([False, True, False])
    monkeypatch.setattr(memory, "may_run_out", lambda: next(used))
    untouched = torch.autograd.backward
    put_on("micro_batch", "auto")
    model, armed = Hungry(99), []
    for _ in range(3):
        model(torch.randn(8, 4)).sum().backward()
        armed.append(torch.autograd.backward is not untouched)
    assert armed == [False, True, False]


def test_memory_is_short_where_most_of_it_is_in_use(monkeypatch):
    for shares in ((0.9, 0.0), (0.0, 0.9)):
        monkeypatch.setattr(shortage, "_share_of_machine", lambda shares=shares: shares[0])
        monkeypatch.setattr(shortage, "_share_of_limit", lambda shares=shares: shares[1])
        assert shortage.may_run_out()
    monkeypatch.undo()
    assert 0.0 <= shortage._share_of_machine() <= 1.0 and shortage._share_of_limit() == 0.0


def test_where_the_batch_cannot_be_cut_the_scripts_own_error_comes(put_on, capfd):
    put_on("micro_batch", "auto")
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        Loss(most=5)(torch.randn(16, 4))
    assert "not a row for each sample" in capfd.readouterr().err


class LateScan(Hungry):
    """Takes its steps time first; memory ends in its backward."""

    def __init__(self):
        super().__init__(5, in_backward=True)
        self.cell = nn.RNN(4, 4)

    def forward(self, x):
        return super().forward(self.cell(x)[0])


class Remembering(Hungry):
    """Begins with a state for just so many samples."""

    def __init__(self, samples=16):
        super().__init__(5)
        self.register_buffer("state", torch.zeros(samples, 4))

    def forward(self, x):
        return super().forward(x + self.state)


@dataclass
class Output:
    scores: torch.Tensor
    name: str = "scores"


class Wrapped(Hungry):
    """Hands out an object of its own class."""

    def forward(self, x):
        return Output(super().forward(x))


@pytest.mark.parametrize(
    "model, shape, reason",
    [
        (LateScan, (16, 8, 4), "depends on the others"),
        (Remembering, (16, 4), "cannot be given some of its samples"),
        (lambda: Wrapped(5), (16, 4), "not made of tensors alone"),
    ],
    ids=["time first", "a state of its own", "a class of its own"],
)
def test_what_cannot_be_cut_dies_as_it_would_by_itself(put_on, capfd, model, shape, reason):
    put_on("micro_batch", "auto")
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        output = model()(torch.randn(shape))
        getattr(output, "scores", output).square().mean().backward()
    assert reason in capfd.readouterr().err


def test_what_cannot_be_cut_runs_whole_where_pieces_were_asked_for(put_on):
    put_on("micro_batch", 4)
    torch.manual_seed(0)
    model = Remembering()
    model.most = 99
    assert model(torch.randn(16, 4)).shape == (16, 2)


def test_gradients_that_reach_parameters_past_the_output_are_not_lost(put_on):
    put_on("micro_batch", "auto")
    model = Hungry(5, in_backward=True)
    loss = model(torch.randn(16, 4)).square().mean() + sum(p.square().sum() for p in model.parameters())
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        loss.backward()


def test_of_several_outputs_half_a_backward_is_not_made_again(put_on):
    """What reached one of them may have come through another: it would count twice."""

    class Two(Hungry):
        def forward(self, x):
            return super().forward(x), self.first(x)

    put_on("micro_batch", "auto")
    one, other = Two(5, in_backward=True)(torch.randn(16, 4))
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        (one.sum() + other.sum()).backward()


def test_a_gradient_with_a_hook_is_not_made_in_parts(put_on, capfd):
    put_on("micro_batch", "auto")
    model = Hungry(5)
    model.head.weight.register_hook(lambda gradient: gradient.clamp(-1, 1))
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        model(torch.randn(16, 4))
    assert "the gradient of head.weight has a hook" in capfd.readouterr().err


def test_a_graph_is_not_kept_alive_by_a_second_backward_through_it(put_on):
    put_on("micro_batch", "auto")
    model = Hungry(99)
    output = model(torch.randn(16, 4))
    alive = weakref.ref(output)
    output.square().mean().backward(create_graph=True)
    for parameter in model.parameters():
        parameter.grad = None
    del output
    gc.collect()
    assert alive() is None


def test_batch_statistics_are_not_cut(put_on, capfd):
    put_on("micro_batch", "auto")
    model = nn.Sequential(nn.BatchNorm1d(4), Hungry(5))
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        model(torch.randn(16, 4))
    assert "computes statistics over the whole batch" in capfd.readouterr().err


def test_another_error_passes_untouched(put_on):
    put_on("micro_batch", "auto")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        Hungry(99)(torch.randn(16, 5))


def test_what_says_that_memory_has_run_out():
    from hasten.agent.shortage import ran_out

    assert ran_out(torch.OutOfMemoryError("CUDA out of memory"))
    assert ran_out(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    assert not ran_out(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not ran_out(ValueError("can't allocate memory"))


def test_the_memory_fix_is_gone_after_undo(process, put_on):
    put_on("micro_batch", "auto")
    process.patches.undo()
    assert memory._known == []


def test_what_comes_before_the_model_gets_its_gradients_too(put_on):
    def gradients():
        torch.manual_seed(0)
        before, model = nn.Linear(4, 4), Hungry(99)
        hidden = before(torch.ones(8, 4) * torch.arange(8.0)[:, None])
        before.eval()  # no root of its own here: it is called first, and would be one
        model(hidden).square().mean().backward()
        return [p.grad.clone() for p in (*before.parameters(), *model.parameters())]

    expected = gradients()
    put_on("micro_batch", 3)
    assert close(gradients(), expected)


def test_gradients_asked_for_by_name_come_at_once(put_on):
    put_on("micro_batch", 4)
    model = Hungry(99)
    loss = model(torch.randn(8, 4)).square().mean()
    found = torch.autograd.grad(loss, list(model.parameters()))
    assert all(gradient.abs().sum() > 0 for gradient in found)


def test_a_batch_is_let_go_once_its_backward_is_done(put_on):
    put_on("micro_batch", "auto")
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = []
    gc.disable()
    try:
        for _ in range(3):
            x = torch.randn(4, 8)
            batches.append(weakref.ref(x))
            output = model(x)
            loss = output.square().mean()
            del x
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert output.grad_fn is not None and [one() for one in batches] == [None, None, None]
    finally:
        gc.enable()


def test_memory_is_short_where_a_control_group_is_nearly_full(monkeypatch):
    group = CgroupMemory(limit=1000, available=100, page_cache=0)
    monkeypatch.setattr(shortage, "read_memory", lambda found: group, raising=False)
    assert shortage.may_run_out()
