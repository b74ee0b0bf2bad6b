"""Spans become steps, on a fake clock: whose each instant was."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.launch.folding import (
    FoldedStep,
    epoch_starts,
    fold,
    loader_roles,
    phase_means,
    segment_means,
    validations_of,
)
from hasten.raw_run import GRAD, OUTPUT_GRAD, TRAINING, Fetched, Forward, RawSegment, Span, Sync

LEARNS = TRAINING | GRAD
MODEL, TEACHER, DISCRIMINATOR = 7, 8, 9


class Tape:
    """A training thread on a fake clock: spans and boundaries are put down as the hooks would."""

    def __init__(self):
        self.at = 0.0
        self.spans = []
        self.segments = [RawSegment(name="marked")]

    def idle(self, seconds):
        self.at += seconds

    def span(self, kind, seconds, detail=None, *, inner=()):
        start = self.at
        for action in inner:
            action()
        self.at = start + seconds
        self.spans.append(Span(kind=kind, start=start, end=self.at, detail=detail))

    def iter(self, seconds=0.125, loader=0):
        self.span("iter", seconds, loader)

    def next(self, seconds=0.25, loader=0, length=16):
        self.span("next", seconds, Fetched(loader, length, None))

    def exhausted(self, seconds=0.03125, loader=0):
        self.span("next", seconds, Fetched(loader, None, None))

    def forward(self, seconds=1.0, flags=LEARNS, model=MODEL, length=16):
        self.span("forward", seconds, Forward(model, flags, length))

    def evaluate(self, seconds=1.0, flags=0, model=MODEL):
        self.forward(seconds, flags, model)

    def backward(self, seconds=2.0):
        self.span("backward", seconds)

    def optimizer(self, seconds=0.5, number=1, inner=()):
        self.span("optimizer", seconds, number, inner=inner)

    def bound(self):
        self.segments[-1].ends.append(self.at)

    def train(self, *, fetch=True):
        """One plain step of 0.25 + 1 + 0.125 + 2 + 0.5 = 3.875 s."""
        if fetch:
            self.next()
        self.forward()
        self.idle(0.125)
        self.backward()
        self.optimizer()
        self.bound()

    def begin(self):
        """Two steps behind it, so that the next one has a beginning."""
        self.train()
        self.train()
        return self

    def fold(self, **settings):
        return fold(self.spans, self.segments, **settings)


PLAIN_STEP = {"data_wait": 0.25, "forward": 1.0, "loss": 0.125, "backward": 2.0, "optimizer": 0.5}


def total(step):
    return sum(step.phases.values())


@pytest.fixture
def tape():
    return Tape().begin()


def test_the_phases_of_a_plain_step_sum_to_it_exactly(tape):
    (step,) = tape.fold()
    assert step.phases == PLAIN_STEP
    assert total(step) == step.seconds == 3.875


def test_what_no_span_covers_is_no_phase(tape):
    tape.idle(1.5)
    tape.train()
    step = tape.fold()[-1]
    assert step.seconds - total(step) == 1.5


def test_the_first_boundary_ends_no_step():
    tape = Tape()
    tape.train()
    assert tape.fold() == []


def test_samples_and_batches_are_those_of_the_step(tape):
    (step,) = tape.fold()
    assert (step.num_batches, step.num_samples) == (1, 16)


def test_a_span_within_another_counts_for_itself_only(tape):
    tape.next()
    tape.forward()
    tape.idle(0.125)
    tape.span("logging", 1.0, inner=[lambda: tape.span("sync", 0.25, Sync(0, ".item()"))])
    tape.backward()
    tape.optimizer()
    tape.bound()
    step = tape.fold()[-1]
    assert (step.phases["logging"], step.phases["sync"], step.phases["loss"]) == (0.75, 0.25, 0.125)
    assert total(step) == step.seconds


def test_three_levels_of_spans_are_each_exclusive(tape):
    copy = lambda: tape.span("copy", 0.125, [0, 4, False, True, "torch.float32"])  # noqa: E731
    sync = lambda: tape.span("sync", 0.5, Sync(0, ".item()"), inner=[copy])  # noqa: E731
    tape.span("logging", 2.0, inner=[sync])
    tape.train()
    step = tape.fold()[-1]
    assert (step.phases["logging"], step.phases["sync"], step.phases["copy"]) == (1.5, 0.375, 0.125)


def test_reading_the_loss_is_a_sync_and_not_the_loss_phase(tape):
    tape.next()
    tape.forward()
    tape.idle(0.125)
    tape.span("sync", 0.5, Sync(0, ".item()"))
    tape.idle(0.125)
    tape.backward()
    tape.optimizer()
    tape.bound()
    step = tape.fold()[-1]
    assert (step.phases["loss"], step.phases["sync"]) == (0.25, 0.5)
    assert total(step) == step.seconds


def test_zeroing_gradients_between_forward_and_backward_is_not_the_loss_phase(tape):
    tape.next()
    tape.forward()
    tape.idle(0.125)
    tape.span("zero_grad", 0.25, [0, True])
    tape.backward()
    tape.optimizer()
    tape.bound()
    step = tape.fold()[-1]
    assert (step.phases["loss"], step.phases["zero_grad"]) == (0.125, 0.25)


def test_accumulation_makes_one_step_of_several_batches(tape):
    for _ in range(4):
        tape.next()
        tape.forward()
        tape.idle(0.125)
        tape.backward()
    tape.optimizer()
    tape.bound()
    step = tape.fold()[-1]
    assert (step.num_batches, step.num_samples) == (4, 64)
    assert step.phases == {k: (1 if k == "optimizer" else 4) * v for k, v in PLAIN_STEP.items()}
    assert total(step) == step.seconds


def test_two_optimizers_make_one_step_a_round(tape):
    for _ in range(2):
        tape.next()
        tape.forward(model=DISCRIMINATOR)
        tape.backward()
        tape.optimizer(0.25, number=2)
        tape.forward()
        tape.backward()
        tape.optimizer(0.5, number=1)
        tape.bound()
    step = tape.fold()[-1]
    assert (step.phases["optimizer"], step.phases["backward"], step.num_batches) == (0.75, 4.0, 1)
    assert step.num_validations == 0
    assert total(step) == step.seconds


def test_a_generated_image_judged_without_gradients_is_part_of_a_gans_step():
    tape = Tape()
    for _ in range(6):
        tape.next()
        tape.evaluate(0.5, flags=TRAINING, model=MODEL)  # the generator, under no_grad
        tape.forward(model=DISCRIMINATOR)
        tape.backward()
        tape.optimizer(number=2)
        tape.forward(model=MODEL)
        tape.backward()
        tape.optimizer(number=1)
        tape.bound()
    assert all("validation" not in step.phases for step in tape.fold())


def test_a_frozen_teacher_is_part_of_the_step():
    tape = Tape()
    for _ in range(4):
        tape.next()
        tape.evaluate(model=TEACHER)
        tape.forward()
        tape.backward()
        tape.optimizer()
        tape.bound()
    for step in tape.fold():
        assert step.num_validations == 0
        assert step.phases["forward"] == 2.0
        assert total(step) == step.seconds


def test_a_frozen_teacher_without_a_loader_is_part_of_the_step():
    tape = Tape()
    for _ in range(4):
        tape.evaluate(model=TEACHER)
        tape.train(fetch=False)
    assert [step.phases["forward"] for step in tape.fold()] == [2.0, 2.0, 2.0]


def validate(tape, *, batches=3, flags=0, loader=1, between=0.25):
    tape.iter(loader=loader)
    for _ in range(batches):
        tape.next(loader=loader, length=32)
        tape.evaluate(flags=flags)
        tape.idle(between)
    tape.exhausted(loader=loader)


def test_validation_is_told_by_a_loader_whose_batches_are_not_learned_from(tape):
    validate(tape)
    tape.train()
    step = tape.fold()[-1]
    # iter 0.125, three times (0.25 + 1 + 0.25), the exhausted next 0.03125: the lines between count too.
    assert step.phases["validation"] == 0.125 + 3 * 1.5 + 0.03125
    assert {k: v for k, v in step.phases.items() if k != "validation"} == PLAIN_STEP
    assert step.num_validations == 1
    assert (step.num_batches, step.num_samples) == (1, 16)
    assert total(step) == step.seconds


@pytest.mark.parametrize("batches", [1, 4, 20])
def test_a_loader_that_is_exhausted_between_train_and_validation_confuses_neither(batches):
    # The end of an epoch asks each loader for a batch that is not there.
    tape = Tape()
    for _ in range(3):
        tape.iter(loader=0)
        for _ in range(4):
            tape.train()
        tape.exhausted(loader=0)
        validate(tape, batches=batches)
    tape.iter(loader=0)
    tape.train()
    assert loader_roles(tape.spans) == {0: "train", 1: "validation"}
    assert sum(s.num_validations for s in tape.fold()) == 3


def test_a_step_without_its_validation_is_a_regular_step(tape):
    validate(tape)
    tape.train()
    assert tape.fold()[-1].regular == 3.875


def test_validation_in_training_mode_is_validation_still(tape):
    # A script that forgets model.eval() and no_grad looks at batches as if to learn from them.
    for _ in range(3):
        tape.train()
    validate(tape, flags=LEARNS)
    tape.train()
    step = tape.fold()[-1]
    assert step.num_validations == 1
    assert validations_of(tape.spans)[0][2:] == (True, 3)


def test_validation_under_no_grad_records_no_gradients(tape):
    validate(tape, flags=0)
    tape.train()
    assert validations_of(tape.spans)[0][2:] == (False, 3)


def test_evaluation_mode_with_gradients_is_noticed(tape):
    validate(tape, flags=GRAD | OUTPUT_GRAD)
    tape.train()
    assert validations_of(tape.spans)[0][2:] == (True, 3)


def test_evaluation_forwards_without_a_loader_are_validation():
    tape = Tape()
    for _ in range(3):
        tape.train(fetch=False)
    tape.evaluate(1.0)
    tape.idle(0.5)
    tape.evaluate(1.0)
    tape.train(fetch=False)
    *before, step = tape.fold()
    assert [s.num_validations for s in before] == [0, 0]
    assert step.phases["validation"] == 2.5


def test_evaluating_once_the_loader_is_exhausted_is_validation(tape):
    tape.exhausted()
    tape.evaluate(2.0, GRAD | OUTPUT_GRAD)
    tape.evaluate(2.0, GRAD | OUTPUT_GRAD)
    tape.train()
    step = tape.fold()[-1]
    assert (step.phases["validation"], step.num_validations) == (4.0, 1)
    assert validations_of(tape.spans)[0].with_grad, "its gradients were recorded"


def test_evaluating_on_the_last_training_batch_is_validation(tape):
    tape.next()
    tape.forward()
    tape.backward()
    tape.optimizer()
    tape.bound()
    tape.evaluate(0.75)
    tape.train()
    step = tape.fold()[-1]
    assert step.phases["validation"] == 0.75


def test_reading_tensors_within_a_validation_is_validation(tape):
    tape.iter(loader=1)
    tape.next(loader=1)
    tape.evaluate()
    tape.span("sync", 0.5, Sync(0, ".item()"))
    tape.exhausted(loader=1)
    tape.train()
    step = tape.fold()[-1]
    assert "sync" not in step.phases
    assert step.phases["validation"] == 0.125 + 0.25 + 1.0 + 0.5 + 0.03125


def test_an_epochs_first_batch_from_workers_belongs_to_its_start(tape):
    tape.iter(0.5)
    tape.next(2.0)
    tape.train(fetch=False)
    step = tape.fold(with_workers=frozenset({0}))[-1]
    assert step.phases["epoch_start"] == 2.5
    assert "data_wait" not in step.phases
    assert (step.num_batches, step.num_samples) == (1, 16)
    assert total(step) == step.seconds


def test_an_epochs_first_batch_without_workers_is_an_ordinary_wait(tape):
    tape.iter(0.5)
    tape.train()
    step = tape.fold()[-1]
    assert (step.phases["epoch_start"], step.phases["data_wait"]) == (0.5, 0.25)
    assert step.num_batches == 1


def test_ending_an_epochs_workers_belongs_to_the_epoch(tape):
    tape.span("next", 1.0, [0, None, None], inner=[lambda: tape.span("end", 0.75, 0)])
    tape.train()
    step = tape.fold()[-1]
    assert (step.phases["epoch_start"], step.phases["data_wait"]) == (0.75, 0.5)
    assert total(step) == step.seconds


def test_a_checkpoint_swallows_what_happens_within_it(tape):
    tape.span("checkpoint", 2.0, inner=[lambda: tape.span("sync", 0.5, [0, ".cpu()"])])
    tape.train()
    step = tape.fold()[-1]
    assert step.phases["checkpoint"] == 2.0
    assert "sync" not in step.phases
    assert step.num_checkpoints == 1
    assert total(step) == step.seconds


def test_a_closure_makes_forward_and_backward_part_of_the_optimizers_span_but_not_of_its_phase(tape):
    def closure():
        tape.forward()
        tape.idle(0.125)
        tape.backward()

    tape.next()
    tape.optimizer(10.0, inner=[closure, closure, closure])
    tape.bound()
    step = tape.fold()[-1]
    assert step.phases == {
        "data_wait": 0.25,
        "optimizer": 10.0 - 3 * 3.125,
        "forward": 3.0,
        "loss": 0.375,
        "backward": 6.0,
    }
    assert total(step) == step.seconds


def test_an_endless_loader_that_is_never_started_in_the_window_has_no_epoch_start(tape):
    for _ in range(5):
        tape.train()
    assert all("epoch_start" not in s.phases and not s.starts_epoch for s in tape.fold())


def test_an_only_loader_is_the_training_loader_even_if_nothing_is_learned_from_it():
    # A stream that is read ahead, or a generator of noise: there is no other candidate.
    tape = Tape()
    for _ in range(12):
        tape.next()
        tape.evaluate(flags=LEARNS)
    assert loader_roles(tape.spans) == {0: "train"}


def test_batches_of_two_loaders_taken_together_are_both_trained_on():
    tape = Tape()
    for _ in range(4):
        tape.next(loader=0)
        tape.next(loader=1)
        tape.train(fetch=False)
    tape.next()
    assert loader_roles(tape.spans) == {0: "train", 1: "train"}
    assert all(s.num_batches == 1 and s.num_samples == 32 for s in tape.fold())


def test_a_script_without_a_loader_has_no_data_wait_and_counts_its_samples_by_the_forward():
    tape = Tape()
    for _ in range(3):
        tape.train(fetch=False)
    for step in tape.fold():
        assert "data_wait" not in step.phases
        assert step.num_samples == 16
        assert total(step) == step.seconds


def test_without_a_loader_only_what_is_learned_from_says_how_large_a_step_is():
    """Meta-learning looks at queries without gradients, and in uninstrumented steps nothing else is marked."""
    tape = Tape()
    for _ in range(2):
        tape.forward(flags=TRAINING, length=75)
        tape.optimizer()
        tape.bound()
        tape.forward(flags=TRAINING, length=75)
        tape.train(fetch=False)
    assert [step.num_samples for step in tape.fold()] == [16, None, 16]


def test_a_turn_between_segments_belongs_to_no_step(tape):
    tape.idle(5.0)
    tape.segments.append(RawSegment(name="marked", began=tape.at))
    tape.train()
    first, second = tape.fold()
    assert (first.segment, second.segment) == (0, 1)
    assert second.seconds == 3.875


def test_a_span_that_began_before_its_step_counts_from_the_steps_start(tape):
    start = tape.at - 1.0
    tape.idle(0.5)
    tape.spans.append(Span(kind="logging", start=start, end=tape.at))
    tape.train()
    assert tape.fold()[-1].phases["logging"] == 0.5


def test_a_step_of_a_script_that_has_no_optimizer_ends_with_its_backward():
    tape = Tape()
    for _ in range(3):
        tape.next()
        tape.forward()
        tape.backward()
        tape.span("step", 0.0)
        tape.bound()
    for step in tape.fold():
        assert step.phases == {"data_wait": 0.25, "forward": 1.0, "loss": 0.0, "backward": 2.0}
        assert total(step) == step.seconds


# ------------------------------------------------------------------------------------- any well-nested spans

MOMENTS = st.integers(min_value=1, max_value=8).map(lambda n: n / 8)
SMALL = ("copy", "sync", "zero_grad", "logging")
WITHIN = {  # what a span of each kind can hold
    "optimizer": ("forward", "evaluate", "backward", *SMALL),
    "checkpoint": ("evaluate", "next", "iter", *SMALL),
    "forward": ("backward", *SMALL),
    "evaluate": ("backward", *SMALL),
    "backward": SMALL,
    "next": ("end", "iter", "evaluate", *SMALL),
    "iter": SMALL,
    "logging": ("copy", "sync"),
}
KINDS = (*WITHIN, "copy", "sync", "zero_grad", "end")


@st.composite
def nests(draw, *, kinds=KINDS, depth):
    """A function that puts a span, with spans within it, on a tape."""
    kind = draw(st.sampled_from(kinds))
    before, after = draw(MOMENTS), draw(MOMENTS)
    inner = WITHIN.get(kind, ())
    inside = draw(st.lists(nests(kinds=inner, depth=depth - 1), max_size=3)) if depth and inner else []
    loader = draw(st.integers(min_value=0, max_value=1))
    flags = draw(st.sampled_from([0, GRAD, TRAINING, LEARNS, GRAD | OUTPUT_GRAD]))
    details = {
        "forward": Forward(MODEL, LEARNS, 4),
        "evaluate": Forward(MODEL, flags, 4),
        "next": Fetched(loader, draw(st.sampled_from([None, 4])), None),
        "iter": loader,
        "end": loader,
        "optimizer": 1,
        "sync": Sync(0, ".item()"),
    }

    def put(tape):
        start = tape.at
        tape.idle(before)
        for nest in inside:
            nest(tape)
            tape.idle(after)
        name = "forward" if kind == "evaluate" else kind
        tape.spans.append(Span(kind=name, start=start, end=tape.at, detail=details.get(kind)))

    return put


@settings(derandomize=True, max_examples=300, deadline=None)
@given(
    st.lists(st.lists(nests(depth=2), max_size=4), min_size=2, max_size=3),
    st.sets(st.integers(min_value=0, max_value=1)),
)
def test_no_phase_is_negative_and_their_sum_never_exceeds_the_step(steps, workers):
    tape = Tape()
    tape.bound()
    for step in steps:
        for nest in step:
            nest(tape)
            tape.idle(0.125)
        tape.optimizer()
        tape.bound()
    for step in tape.fold(with_workers=frozenset(workers)):
        assert all(seconds >= 0.0 for seconds in step.phases.values())
        assert total(step) <= step.seconds + 1e-9, step.phases


def folded(seconds, samples, segment, *, name="on", **more):
    return FoldedStep(start=0.0, end=seconds, name=name, counted=True, segment=segment, num_samples=samples, **more)


def test_segments_that_met_smaller_batches_do_not_seem_faster():
    steps = [folded(0.64, 64, 1), folded(0.36, 36, 2), folded(0.64, 64, 3), folded(0.36, 36, 4)]
    assert segment_means(steps, "on") == pytest.approx([0.5] * 4)
    same = [folded(0.3, 64, 1), folded(0.4, 64, 2)]
    assert segment_means(same, "on") == pytest.approx([0.3, 0.4])


def test_of_what_changes_one_phase_the_others_do_not_count_nor_a_step_that_lost_its_core():
    def step(segment, optimizer, rest):
        phases = {"optimizer": optimizer, "forward": rest}
        return folded(optimizer + rest, 32, segment, is_baseline=segment % 2 == 0, phases=phases)

    baseline = [step(2, 0.004, rest) for rest in (0.010, 0.030, 0.020)]
    candidate = [step(1, 0.003, rest) for rest in (0.030, 0.020, 0.010)]
    assert phase_means([*baseline, *candidate], "on", "optimizer") == (pytest.approx([0.023]), pytest.approx([0.024]))
    interrupted = [step(1, 0.003, 0.03), step(1, 0.003, 0.02), step(1, 0.5, 0.01)]
    assert phase_means([*baseline, *interrupted], "on", "optimizer") == (
        pytest.approx([0.023]),
        pytest.approx([0.024]),
    )


def test_joined_batches_are_not_counted_down_to_the_size_of_one():
    steps = [*(folded(0.1, 8, 1, name="replay") for _ in range(9)), folded(0.3, 32, 2, name="join")]
    assert segment_means(steps, "join") == pytest.approx([0.3])
    assert segment_means(steps, "replay") == pytest.approx([0.1])


def test_what_more_samples_take_is_not_the_start_of_an_epoch():
    first = folded(0.74, 64, 1, starts_epoch=True, phases={"epoch_start": 0.1})
    assert epoch_starts([first, folded(0.36, 36, 1)]) == pytest.approx([0.1])
