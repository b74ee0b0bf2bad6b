"""What the hooks mark, on a tiny model in this process."""

import contextlib
import copy
import itertools
import logging
import threading

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from hasten.agent.facts import CallCount
from hasten.raw_run import GRAD, OUTPUT_GRAD, TRAINING, Forward


def spans(hooked, kind):
    return [span for span in hooked.marks.spans if span[0] == kind]


def line_of(hooked, number):
    file, line, _ = list(hooked.marks.places)[number]
    with open(file, encoding="utf-8") as source:
        return source.read().splitlines()[line - 1].strip()


def test_a_step_is_marked_phase_by_phase(hooked, tiny):
    tiny.step(next(iter(tiny.loader)))
    assert hooked.listener.kinds() == ["iter", "next", "zero_grad", "forward", "backward", "optimizer"]
    assert hooked.listener.heard == ["made", "starts", "next", "backward", "SGD"]


def test_marks_nest_and_follow_each_other(hooked, tiny):
    tiny.epoch()
    order = [(start, end) for _, start, end, _ in hooked.marks.spans]
    assert all(start <= end for start, end in order)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(order))
    assert hooked.marks.open == []


def test_a_hooked_step_computes_the_same_numbers(hooked, tiny):
    twin = copy.deepcopy(tiny)
    marked = tiny.epoch()
    hooked.patches.undo()
    assert all(torch.equal(a, b) for a, b in zip(twin.epoch(), marked))


def test_in_the_time_of_record_only_batches_and_boundaries_are_marked(hooked, tiny):
    hooked.marks.full = False
    tiny.epoch()
    assert set(hooked.listener.kinds()) == {"iter", "next", "optimizer"}


def test_everything_is_as_it_was_after_undo(hooked, tiny):
    tiny.epoch()
    hooked.patches.undo()
    hooked.marks.spans.clear()
    tiny.epoch()
    print("unmarked", torch.ones(()).item())
    assert hooked.marks.spans == []
    assert not tiny.model._forward_hooks and not tiny.model._forward_pre_hooks


def test_only_the_outermost_module_is_marked(hooked, tiny):
    tiny.model(torch.zeros(1, 3))
    ((_, _, _, detail),) = spans(hooked, "forward")
    assert detail == Forward(id(tiny.model), TRAINING | GRAD, 1)


def test_once_settled_only_the_root_is_called_through_us(hooked, tiny):
    tiny.epoch()
    hooked.marks.spans.clear()
    tiny.epoch()
    assert len(spans(hooked, "forward")) == 2
    assert ["_compiled_call_impl" in vars(m) for m in tiny.model.modules()] == [True, False, False, False]


def settled(hooked, tiny):
    """After discovery, in an uninstrumented segment."""
    tiny.step(next(iter(tiny.loader)))
    hooked.marks.full = False
    hooked.marks.spans.clear()


def test_in_an_uninstrumented_segment_a_training_forward_is_not_marked(hooked, tiny):
    settled(hooked, tiny)
    tiny.model(torch.zeros(2, 3))
    assert hooked.listener.kinds() == []
    hooked.marks.full = True
    tiny.model(torch.zeros(2, 3))
    assert hooked.listener.kinds() == ["forward"]


def test_in_an_uninstrumented_segment_a_validation_is_marked_all_the_same(hooked, tiny):
    settled(hooked, tiny)
    tiny.model.eval()
    tiny.model(torch.zeros(2, 3))
    assert hooked.listener.kinds() == ["forward"]


def test_in_an_uninstrumented_segment_a_teacher_is_marked_all_the_same(hooked, tiny):
    settled(hooked, tiny)
    with torch.no_grad():
        tiny.model(torch.zeros(2, 3))
    assert hooked.listener.kinds() == ["forward"]


def test_a_forward_that_evaluates_a_part_of_itself_is_ended(hooked):
    class Frozen(torch.nn.Linear):
        def forward(self, x):
            self.eval()
            self.train()
            return super().forward(x)

    model = Frozen(3, 1)
    model(torch.zeros(2, 3))
    hooked.models.settle()
    hooked.marks.spans.clear()
    for _ in range(2):
        model(torch.zeros(2, 3))
    assert hooked.listener.kinds() == ["forward", "forward"]


def test_where_optimizers_end_the_steps_the_time_of_record_hears_of_no_backward(hooked, tiny):
    settled(hooked, tiny)
    hooked.marks.by_optimizer = True
    hooked.listener.heard.clear()
    tiny.step(next(iter(tiny.loader)))
    assert "backward" not in hooked.listener.heard
    assert "SGD" in hooked.listener.heard


def test_a_loss_module_is_a_root_of_its_own(hooked, tiny):
    loss = nn.MSELoss()
    loss(tiny.model(torch.zeros(2, 3)), torch.zeros(2, 1))
    assert [d[0] for *_, d in spans(hooked, "forward")] == [id(tiny.model), id(loss)]


@pytest.mark.parametrize(
    ("training", "grad", "flags"),
    [(True, True, TRAINING | GRAD), (True, False, TRAINING), (False, True, GRAD | OUTPUT_GRAD), (False, False, 0)],
)
def test_a_forward_says_how_it_was_run(hooked, tiny, training, grad, flags):
    tiny.model.train(training)
    with torch.set_grad_enabled(grad):
        tiny.model(torch.zeros(2, 3))
    ((_, _, _, detail),) = spans(hooked, "forward")
    assert detail[1] == flags


def test_a_forward_that_raises_is_closed_and_raises_as_before(hooked, tiny):
    with pytest.raises(RuntimeError, match="shape"):
        tiny.model(torch.zeros(2, 7))
    tiny.model(torch.zeros(2, 3))
    assert hooked.marks.open == []
    assert len(spans(hooked, "forward")) == 2


def test_a_backward_that_raises_is_closed_and_raises_as_before(hooked):
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(()).backward()
    assert hooked.marks.open == []
    assert hooked.listener.heard == []


def test_an_optimizer_whose_step_raises_once_is_seen_again_afterwards(hooked, tiny):
    def closure():
        raise ValueError("not now")

    with pytest.raises(ValueError, match="not now"):
        tiny.optimizer.step(closure)
    tiny.step(next(iter(tiny.loader)))
    assert hooked.listener.heard[-1] == "SGD"
    assert hooked.marks.open == [], "the step that failed is still open: no later step would end a step"


def test_a_gradient_asked_for_by_autograd_is_a_backward(hooked):
    x = torch.ones(2, requires_grad=True)
    torch.autograd.grad(x.square().sum(), x)
    assert hooked.listener.kinds() == ["backward"]


def test_a_backward_has_ended_where_a_mode_that_counts_its_calls_can_be_left(hooked, monkeypatch):
    """Within a call that a mode handles, the mode is off the stack, and leaving it would take another off."""
    modes = contextlib.ExitStack()
    modes.enter_context(CallCount(lambda: "backward"))
    monkeypatch.setattr(hooked.listener, "backward_ends", modes.close)
    torch.ones((), requires_grad=True).backward()
    assert torch.overrides._get_current_function_mode_stack() == []


def test_backward_by_tensor_and_by_function_are_each_marked_once(hooked):
    x = torch.ones(2, requires_grad=True)
    x.sum().backward()
    torch.autograd.backward(x.sum())
    assert hooked.listener.kinds() == ["backward", "backward"]


def test_a_closure_is_run_within_the_optimizers_span(hooked, tiny):
    inputs, targets = next(iter(tiny.loader))
    optimizer = torch.optim.LBFGS(tiny.model.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = (tiny.model(inputs) - targets).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    kinds = hooked.listener.kinds()
    assert kinds[-1] == "optimizer"
    assert kinds.count("optimizer") == 1
    assert kinds.count("backward") >= 2
    assert hooked.listener.heard[-1] == "LBFGS"


@pytest.mark.parametrize("to_none", [True, False])
def test_zeroing_says_whether_it_was_in_place(hooked, tiny, to_none):
    tiny.optimizer.zero_grad(set_to_none=to_none)
    tiny.model.zero_grad(to_none)
    assert [detail[1] for *_, detail in spans(hooked, "zero_grad")] == [to_none, to_none]


def test_zero_grad_does_what_it_did(hooked, tiny):
    tiny.step(next(iter(tiny.loader)))
    tiny.optimizer.zero_grad(set_to_none=False)
    assert all(p.grad is not None and not p.grad.any() for p in tiny.model.parameters())
    tiny.optimizer.zero_grad()
    assert all(p.grad is None for p in tiny.model.parameters())


READERS = {
    ".item()": lambda t: t.item(),
    ".tolist()": lambda t: t.tolist(),
    ".numpy()": lambda t: t.numpy(),
    ".cpu()": lambda t: t.cpu(),
    "float(tensor)": lambda t: float(t),
    "int(tensor)": lambda t: int(t),
    "bool(tensor)": lambda t: bool(t),
    "printing a tensor": lambda t: repr(t),
    "formatting a tensor": lambda t: f"{t:.2f}",
}


@pytest.mark.parametrize("label", READERS)
def test_reading_a_tensor_is_marked_with_its_line(hooked, label):
    READERS[label](torch.ones(()))
    *_, (_, _, _, (place, said)) = spans(hooked, "sync")
    assert said == label
    assert "lambda t" in line_of(hooked, place)


@pytest.mark.parametrize("label", READERS)
def test_reading_a_tensor_gives_what_it_gave(hooked, label):
    value = torch.tensor(1.5)
    marked = READERS[label](value)
    hooked.patches.undo()
    assert marked == READERS[label](value)


def test_what_the_optimizer_reads_for_itself_is_no_sync_point(hooked, tiny):
    optimizer = torch.optim.Adam(tiny.model.parameters(), foreach=False)
    for batch in tiny.loader:
        tiny.step(batch)
        optimizer.step()
    assert spans(hooked, "sync") == []


def test_printing_and_logging_are_marked_and_say_what_they_said(hooked, capsys, caplog):
    print("loss", 3, sep="=")
    with caplog.at_level(logging.INFO):
        logging.getLogger("training").info("epoch %d", 7)
    assert capsys.readouterr().out == "loss=3\n"
    assert "epoch 7" in caplog.text
    assert hooked.listener.kinds() == ["logging", "logging"]
    assert line_of(hooked, spans(hooked, "logging")[0][3]).startswith('print("loss"')


def test_a_phase_remembers_the_line_it_was_first_entered_from(hooked, tiny):
    tiny.epoch()
    first = {kind: line_of(hooked, number) for kind, number in hooked.marks.first_place.items()}
    assert first["forward"].startswith("loss = (self.model(inputs)")
    assert first["backward"] == "loss.backward()"
    assert first["optimizer"] == "self.optimizer.step()"


def test_another_thread_is_not_marked(hooked, tiny):
    thread = threading.Thread(target=tiny.epoch)
    thread.start()
    thread.join()
    assert hooked.marks.spans == []
    assert hooked.listener.heard == ["made"], "by this thread"


def test_a_loader_within_a_loader_is_waited_for_once(hooked, tiny):
    class Outer(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from (x for x, _ in tiny.loader)

    list(DataLoader(Outer(), batch_size=None))
    assert len(spans(hooked, "next")) == 3  # two batches, and the end


def test_an_iterator_keeps_its_type_and_its_end(hooked, tiny):
    iterator = iter(tiny.loader)
    assert type(iterator).__name__ == "_SingleProcessDataLoaderIter"
    assert len(list(iterator)) == 2
    with pytest.raises(StopIteration):
        next(iterator)


def test_a_model_is_copied_and_saved_without_our_hooks_weighing_on_it(hooked, tiny, tmp_path):
    tiny.epoch()
    twin = copy.deepcopy(tiny.model)
    torch.save(tiny.model, tmp_path / "model.pt")
    again = torch.load(tmp_path / "model.pt", weights_only=False)
    for model in (twin, again):
        assert torch.equal(model(torch.ones(1, 3)), tiny.model(torch.ones(1, 3)))


def test_compiling_takes_us_off_every_module_so_that_we_are_not_traced(hooked, tiny):
    tiny.model(torch.zeros(1, 3))
    compiled = torch.compile(tiny.model, backend="eager")
    assert hooked.models.compiled
    assert not [m for m in tiny.model.modules() if "_compiled_call_impl" in vars(m)]
    hooked.marks.spans.clear()
    compiled(torch.zeros(1, 3))
    tiny.model.compile(backend="eager")
    tiny.model(torch.zeros(1, 3))
    assert [detail.model for *_, detail in spans(hooked, "forward")] == [id(compiled), id(tiny.model)]
