"""A raw record, as a measured process writes it, becomes the records of a Run."""

import math
from dataclasses import replace

import pytest

from hasten.launch.folding import FoldedStep, validation_cycles
from hasten.launch.recorder import Recorded, segment_means, where
from hasten.measurement.followups import read_switches
from hasten.protocol import from_json, to_json
from hasten.raw_run import (
    AUTOCAST,
    GRAD,
    TRAINING,
    Copy,
    DeviceSpan,
    Fetched,
    Forward,
    LoaderSettings,
    RawFacts,
    RawLoader,
    RawOptimizer,
    RawRun,
    RawSegment,
    Span,
    StageLine,
    StageSeconds,
    Sync,
    ZeroGrad,
)
from hasten.records import Where

SCRIPT = "/home/ada/train.py"
LEARNS = TRAINING | GRAD
LOADER = LoaderSettings(name="Films", batch_size=16, num_batches=10, num_samples=160, where=(SCRIPT, 5, "main"))
OPTIMIZER = RawOptimizer(id=41, name="SGD", num_parameters=9, num_tensors=2, fused=None, foreach=None)


class Writer:
    """Writes the raw record of steps of 4 s: next 1, forward 1, backward 1, optimizer 0.5, unaccounted 0.5."""

    def __init__(self):
        self.at = 100.0
        self.spans, self.segments, self.places = [], [], []
        self.changes = {}
        self.device = "cpu"

    def place(self, line, function="main"):
        self.places.append((SCRIPT, line, function))
        return len(self.places) - 1

    def span(self, kind, seconds, detail=None):
        self.spans.append(Span(kind, self.at, self.at + seconds, detail))
        self.at += seconds

    def step(self, name, *, flags=LEARNS, before=(), optimizing=0.5, idle=0.5):
        for kind, seconds, detail in before:
            self.span(kind, seconds, detail)
        self.span("next", 1.0, Fetched(0, 16, None))
        if name == "marked":
            self.span("forward", 1.0, Forward(7, flags, 16))
            self.span("backward", 1.0)
        else:
            self.at += 2.0
        self.span("optimizer", optimizing, 41)
        self.at += idle
        self.segments[-1].ends.append(self.at)

    def segment(self, name, count=3, *, settle=0, is_baseline=False, **step):
        self.at += 10.0
        self.segments.append(RawSegment(name=name, began=self.at, settle=settle, is_baseline=is_baseline))
        for _ in range(count):
            self.step(name, **step)
        return self

    def recorded(self, stages=()):
        raw = RawRun(
            pid=1,
            ended_by="hasten",
            segments=self.segments,
            spans=self.spans,
            places=self.places,
            **{"loaders": [RawLoader(settings=LOADER)], **self.changes},
            facts=RawFacts(num_threads=2, optimizers=(OPTIMIZER,), device=self.device),
        )
        return Recorded(from_json(RawRun, to_json(raw), source="it"), list(stages))


@pytest.fixture
def writer():
    return Writer()


def measured(writer):
    return writer.segment("plain").segment("marked").segment("marked").segment("plain").recorded()


def test_steps_are_told_on_the_runs_clock(writer):
    steps = measured(writer).steps_record(zero=100.0)
    assert [s.seconds for s in steps] == [4.0] * 12
    assert steps[0].start == 10.0
    assert [s.index for s in steps] == list(range(12))
    assert [s.marked for s in steps] == [False] * 3 + [True] * 6 + [False] * 3


def test_a_marked_step_tells_its_phases_and_an_unmarked_one_its_wait_only(writer):
    steps = measured(writer).steps_record(zero=0.0)
    assert steps[0].phases == {"data_wait": 1.0}
    assert steps[3].phases == {"data_wait": 1.0, "forward": 1.0, "loss": 0.0, "backward": 1.0, "optimizer": 0.5}
    assert (steps[3].num_batches, steps[3].num_samples) == (1, 16)


def test_what_is_no_measuring_is_no_step_of_the_record(writer):
    writer.segment("warm-up").segment("plain").segment("marked").segment("count", 1)
    writer.segment("plain", settle=3)
    assert len(writer.recorded().steps_record(zero=0.0)) == 6


def test_the_scripts_share_of_the_time_between_is_what_the_sampler_knew(writer):
    between = [((SCRIPT, 9, "main"), "between", 3.0), (None, "between", 1.0), (None, "forward", 8.0)]
    writer.changes["lines"] = between
    steps = measured(writer).steps_record(zero=0.0)
    assert steps[3].phases["script"] == pytest.approx(0.75 * 0.5)
    assert "script" not in steps[0].phases


def test_hot_lines_are_seconds_a_marked_step_costliest_first(writer):
    writer.changes["lines"] = [
        ((SCRIPT, 9, "main"), "between", 3.0),
        ((SCRIPT, 20, "main"), "forward", 12.0),
        (None, "backward", 60.0),
    ]
    lines = measured(writer).hot_lines()
    assert [(h.where.line, h.phase, h.seconds) for h in lines] == [(20, "forward", 2.0), (9, "script", 0.5)]


def test_what_runs_after_a_forward_that_no_backward_follows_is_the_scripts_own(writer):
    """A policy that acts: the environment's lines come between two forwards."""
    writer.changes["lines"] = [((SCRIPT, 9, "act"), "loss", 12.0), ((SCRIPT, 20, "main"), "forward", 12.0)]
    lines = measured(writer).hot_lines()
    assert [(h.where.line, h.phase, h.seconds) for h in lines] == [(9, "script", 2.0), (20, "forward", 2.0)]


def test_a_script_without_a_marked_step_has_no_hot_lines(writer):
    writer.changes["lines"] = [((SCRIPT, 9, "main"), "between", 3.0)]
    assert writer.segment("plain").recorded().hot_lines() == ()


def test_sync_points_are_counted_by_line_and_kind_in_marked_steps_only(writer):
    here, there = writer.place(12), writer.place(13)
    reads = [("sync", 0.25, Sync(here, ".item()"))] * 2 + [("sync", 0.1, Sync(there, ".cpu()"))]
    writer.segment("plain", before=reads).segment("marked", before=reads)
    points = writer.recorded().sync_points()
    assert [(p.where.line, p.kind, p.calls) for p in points] == [(12, ".item()", 2.0), (13, ".cpu()", 1.0)]
    assert points[0].seconds == pytest.approx(0.5)


def test_a_sync_whose_line_is_unknown_is_not_told(writer):
    writer.segment("plain").segment("marked", before=[("sync", 0.25, Sync(-1, ".item()"))])
    assert writer.recorded().sync_points() == ()


def test_facts_tell_the_epoch_and_the_optimizer(writer):
    facts = measured(writer).facts()
    assert (facts.boundary, facts.num_threads, facts.steps_per_epoch) == ("optimizer", 2, 10.0)
    (optimizer,) = facts.optimizers
    assert (optimizer.name, optimizer.num_tensors) == ("SGD", 2)
    (loader,) = facts.loaders
    assert (loader.name, loader.role, loader.where) == ("Films", "train", Where(file=SCRIPT, line=5, function="main"))


def test_what_was_not_asked_is_none_and_not_zero(writer):
    facts = measured(writer).facts()
    assert (facts.num_operators, facts.subnormal_share, facts.run_delay, facts.gather_seconds) == (None,) * 4
    assert (facts.copies, facts.steps_per_validation, facts.steps_per_checkpoint) == (None,) * 3


@pytest.mark.parametrize(("in_place", "told"), [(2, True), (1, False)])
def test_zeroing_in_place_is_a_fact_when_most_of_it_is(writer, in_place, told):
    place = writer.place(8)
    zeroing = [("zero_grad", 0.1, ZeroGrad(place, n >= in_place)) for n in range(3)]
    facts = writer.segment("plain").segment("marked", before=zeroing).recorded().facts()
    assert facts.zero_grad_in_place is told
    assert facts.zero_grad_where.line == 8


def test_autocast_is_seen_by_its_forwards(writer):
    assert not measured(Writer()).facts().autocast
    writer.segment("plain").segment("marked", flags=LEARNS | AUTOCAST)
    assert writer.recorded().facts().autocast


def test_copies_are_bytes_a_step_and_shares_of_them(writer):
    place = writer.place(15)
    copies = [
        ("copy", 0.1, Copy(place, 300, True, False, "torch.float32")),
        ("copy", 0.1, Copy(place, 100, False, True, "torch.int64")),
    ]
    facts = writer.segment("plain").segment("marked", before=copies).recorded().facts()
    assert (facts.copies.num_bytes, facts.copies.pinned, facts.copies.blocking) == (400.0, 0.75, 0.25)
    assert facts.copies.dtypes == ("float32", "int64")
    assert facts.copies.where.line == 15


def test_how_often_checkpoints_are_written_is_a_fact(writer):
    saving = [("checkpoint", 1.0, None)]
    writer.segment("plain", before=saving).segment("marked", count=6)
    assert writer.recorded().facts().steps_per_checkpoint == 3.0


@pytest.mark.parametrize(
    ("kind", "fact"), [("checkpoint", "steps_per_checkpoint"), ("validating", "steps_per_validation")]
)
def test_what_comes_once_in_a_window_shorter_than_an_epoch_comes_once_an_epoch(writer, kind, fact):
    rare = {
        "checkpoint": [("checkpoint", 1.0, None)],
        "validating": [("forward", 1.0, Forward(7, 0, 16)), ("forward", 1.0, Forward(7, 0, 16))],
    }
    writer.segment("plain").segment("marked", 1, before=rare[kind]).segment("marked", 2)
    assert getattr(writer.recorded().facts(), fact) == 10.0


def test_two_loaders_that_are_used_together_have_the_epoch_of_each(writer):
    writer.changes["loaders"] = [RawLoader(settings=LOADER), RawLoader(settings=LOADER)]
    other = [("next", 0.1, Fetched(1, 16, None))]
    recorded = writer.segment("plain", before=other).segment("marked", before=other).recorded()
    assert recorded.facts().steps_per_epoch == 10.0
    assert [(s.num_batches, s.num_samples) for s in recorded.steps_record(zero=0.0)] == [(1, 32)] * 6


def test_a_collective_of_the_scripts_own_leaves_the_backward_as_it_is(writer):
    writer.segment("plain").segment("marked", 1)
    start = writer.segments[-1].began
    writer.changes["device_spans"] = [
        DeviceSpan("backward", start + 1, 2.0, False),
        DeviceSpan("communication", start + 2, 0.5, False),
    ]
    (step,) = writer.recorded().marked
    assert step.device == {"backward": 2.0, "communication": 0.5}


def test_the_time_without_a_core_is_that_of_a_step_after_the_warm_up(writer):
    writer.changes["run_delay"] = 3.0
    writer.segment("warm-up", 5).segment("plain", 3).segment("marked", 3)
    assert writer.recorded().facts().run_delay == pytest.approx(0.5)


def test_the_cost_of_marking_is_marked_over_plain(writer):
    overhead = measured(writer).overhead(sampler_cpu=0.02)
    assert overhead.ratio.value == 1.0
    assert overhead.marks_per_step == 4.0
    assert overhead.sampler_cpu == 0.02


def test_without_a_marked_side_the_cost_of_marking_is_not_measured(writer):
    assert writer.segment("plain").recorded().overhead(sampler_cpu=0.0).ratio is None


def test_an_epochs_start_is_no_part_of_a_segments_mean(writer):
    writer.segment("plain", before=[("iter", 7.0, 0)])
    assert segment_means(writer.recorded().steps, "plain") == [4.0]


def test_each_segment_has_a_mean_of_its_own(writer):
    recorded = measured(writer)
    assert segment_means(recorded.steps, "plain") == [4.0, 4.0]
    assert segment_means(recorded.steps, "never") == []


def test_no_figure_of_a_record_is_infinite_after_two_segments_a_side(writer):
    assert math.isfinite(measured(writer).overhead(sampler_cpu=0.0).ratio.high)


def test_a_place_brings_its_source_line(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import torch\n    loss.backward()\n")
    assert where((str(script), 2, "<module>")) == Where(file=str(script), line=2, source="loss.backward()")
    assert where(("/no/such/file.py", 3, "main")).source == ""


# ------------------------------------------------------------------------------------------ the loader's work


def line(start, *, seconds=1.0, pid=501, loader=None, stages=(), held=0, sample_bytes=0, files=(), samples=16):
    return StageLine(
        pid=pid,
        loader=loader,
        start=start,
        end=start + seconds,
        batch_seconds=[seconds],
        num_samples=samples,
        sample_seconds=[seconds / samples] * samples,
        stages=list(stages),
        held_bytes=held,
        sample_bytes=sample_bytes,
        files=list(files),
    )


def work(writer, lines):
    writer.changes["loaders"] = [RawLoader(settings=replace(LOADER, num_workers=1), pids=[501])]
    writer.segment("plain").segment("marked")
    (loader,) = writer.recorded(lines).facts().loaders
    return loader


DECODE = StageSeconds("decode", "Pillow JPEG", 16, 0.75, 0.5, 16 * 3000)
READ = StageSeconds("read", "file", 16, 0.25, 0.125, 16 * 1000)


def test_the_work_of_a_loader_is_that_of_its_workers_within_the_window(writer):
    lines = [line(104.0, stages=[DECODE]), *(line(t, stages=[DECODE, READ]) for t in (112.0, 116.0))]
    loader = work(writer, [*lines, line(113.0, pid=999, stages=[DECODE])])
    assert (loader.num_measured_batches, loader.num_measured_samples) == (2, 32)
    assert [(s.name, s.detail, s.num_calls, s.seconds, s.cpu_seconds) for s in loader.stages] == [
        ("decode", "Pillow JPEG", 32, 1.5, 1.0),
        ("read", "file", 32, 0.5, 0.25),
    ]
    assert loader.decoded_bytes_per_sample == 3000
    assert loader.batch_work_seconds == (1.0, 1.0)


def test_a_loader_nobody_timed_has_no_work(writer):
    loader = work(writer, [])
    assert (loader.stages, loader.num_measured_batches, loader.decoded_bytes_per_sample) == ((), 0, None)
    assert not loader.in_memory


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"held": 16000, "sample_bytes": 100}, True),
        ({"held": 0, "sample_bytes": 100}, False),
        ({"held": 16000, "sample_bytes": 100, "stages": [READ]}, False),
        ({"held": 16000, "sample_bytes": 100, "seconds": 1.0}, False),
    ],
)
def test_data_in_memory_is_cheap_held_and_neither_read_nor_decoded(writer, changes, told):
    given = {"seconds": 0.0004, **changes}
    assert work(writer, [line(t, **given) for t in (112.0, 116.0)]).in_memory is told


def test_the_mean_size_of_the_files_that_were_read_is_told(writer, tmp_path):
    for name, size in (("a", 100), ("b", 300)):
        (tmp_path / name).write_bytes(bytes(size))
    files = [str(tmp_path / n) for n in ("a", "b", "gone")]
    loader = work(writer, [line(t, files=files) for t in (112.0, 116.0)])
    assert (loader.files, loader.file_bytes) == (tuple(files), 200)


def test_a_cycle_goes_from_one_validation_to_the_next():
    steps = [FoldedStep(start=0.0, end=s, name="plain", counted=True, num_validations=v) for s, v in ROWS]
    # The steps before the first validation and those after the last belong to no whole cycle.
    assert validation_cycles(steps) == [2.0, 3.0]


ROWS = ((1.0, 0), (3.0, 1), (1.0, 0), (5.0, 1), (2.0, 0), (2.0, 0), (4.0, 1))


@pytest.mark.parametrize(("device", "is_seen"), [("cpu", True), ("cuda", False)])
def test_a_fused_optimizer_is_seen_in_the_optimizer_though_the_rest_of_the_step_varies(writer, device, is_seen):
    """On a GPU the host's time in the optimizer is that of queueing."""
    writer.device = device
    for idle in (0.2, 1.2, 0.4, 0.9):
        writer.segment("unfused_optimizer", is_baseline=True, idle=idle)
        writer.segment("unfused_optimizer", optimizing=0.1, idle=1.4 - idle)
    (found,) = read_switches(writer.recorded())
    assert found.ratio.value == pytest.approx(0.9, abs=0.03)
    assert (found.ratio.high < 0.95) is is_seen
