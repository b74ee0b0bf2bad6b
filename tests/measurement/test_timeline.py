"""A few steps become lanes: whose each instant was, in the training thread and in the workers."""

import itertools

import pytest

from hasten.launch.recorder import Recorded
from hasten.launch.timeline import MOST_BARS, NUM_STEPS, timeline_of
from hasten.raw_run import (
    DeviceSpan,
    Fetched,
    Forward,
    LoaderSettings,
    RawLoader,
    RawRun,
    RawSegment,
    Span,
    StageLine,
    StageSeconds,
    Sync,
)

STEP = 1.0


def raw(num_steps=12, *, name="marked", more=(), device_spans=()):
    """Steps of 0.3 s waiting, 0.2 s forward, 0.3 s backward with 0.1 s of sync in it, 0.1 s optimizer, 0.1 s of the script."""
    spans = [*more]
    for n in range(1, num_steps + 1):
        at = n * STEP
        spans += [
            Span("next", at, at + 0.3, Fetched(0, 16, None)),
            Span("forward", at + 0.3, at + 0.5, Forward(7, 3, 16)),
            Span("sync", at + 0.6, at + 0.7, Sync(0, ".item()")),
            Span("backward", at + 0.5, at + 0.8),
            Span("optimizer", at + 0.8, at + 0.9, 1),
        ]
    ends = [(n + 1) * STEP for n in range(1, num_steps + 1)]
    return RawRun(
        pid=1,
        ended_by="hasten",
        spans=sorted(spans, key=lambda span: span.end),
        segments=[RawSegment(name="warm-up", ends=[STEP]), RawSegment(name=name, began=STEP, ends=ends)],
        loaders=[RawLoader(settings=LoaderSettings(name="Films", num_workers=2))],
        device_spans=[*device_spans],
    )


def batch(pid, start, end, stages, **more):
    told = [StageSeconds(name, "", 1, seconds, seconds, 0) for name, seconds in stages.items()]
    return StageLine(pid=pid, start=start, end=end, stages=told, **more)


def lane(timeline, name):
    return [
        (bar.kind, pytest.approx(bar.start), pytest.approx(bar.seconds)) for bar in timeline.bars if bar.lane == name
    ]


def test_every_instant_of_the_training_thread_is_the_innermost_spans():
    timeline = timeline_of(Recorded(raw(), []), zero=0.5)
    assert len(timeline.step_ends) == NUM_STEPS and timeline.seconds == pytest.approx(NUM_STEPS * STEP)
    first = [bar for bar in timeline.bars if bar.start < STEP - 1e-9]
    assert [bar.kind for bar in first] == ["data_wait", "forward", "backward", "sync", "backward", "optimizer"]
    assert sum(bar.seconds for bar in first) == pytest.approx(0.9), "the rest is the script's own"
    assert all(a.start + a.seconds <= b.start + 1e-9 for a, b in itertools.pairwise(first))


def test_a_lanes_seconds_are_the_steps_phases():
    recorded = Recorded(raw(), [])
    timeline = timeline_of(recorded, zero=0.0)
    for phase in ("data_wait", "forward", "backward", "sync", "optimizer"):
        drawn = sum(bar.seconds for bar in timeline.bars if bar.kind == phase)
        assert drawn == pytest.approx(NUM_STEPS * recorded.marked[0].phases[phase])


def test_workers_have_lanes_in_which_stages_follow_each_other():
    lines = [
        batch(11, 3.0, 4.0, {"decode": 0.6, "read": 0.2, "collate": 0.2}),
        batch(12, 3.5, 4.5, {"getitem": 0.5}),
        batch(1, 3.0, 4.0, {"getitem": 1.0}),  # made in the training process: its lane has it as data wait
    ]
    timeline = timeline_of(Recorded(raw(), lines), zero=0.0)
    begin = timeline.start
    read, decode, collate = [bar for bar in timeline.bars if bar.lane == "worker 1"]
    assert (read.kind, decode.kind, collate.kind) == ("read", "decode", "collate")
    assert read.start == pytest.approx(3.0 - begin) and decode.start == pytest.approx(3.2 - begin)
    (whole,) = [bar for bar in timeline.bars if bar.lane == "worker 2"]
    assert whole.seconds == pytest.approx(1.0), "what is between stages is drawn with them"
    assert {bar.lane for bar in timeline.bars} == {"main", "worker 1", "worker 2"}


def test_tasks_of_our_own_loader_have_lanes_and_count_as_no_batch():
    told = batch(11, 3.0, 3.2, {"getitem": 0.15, "collate": 0.05}, is_task=True)
    recorded = Recorded(raw(), [told])
    assert recorded.stages == []
    bars = [bar for bar in timeline_of(recorded, zero=0.0).bars if bar.lane == "worker 1"]
    assert [bar.kind for bar in bars] == ["getitem", "collate"]


def test_the_device_does_one_thing_after_the_other():
    told = raw(device_spans=[DeviceSpan("forward", 3.3, 0.4, False), DeviceSpan("backward", 3.5, 0.3, True)])
    bars = [bar for bar in timeline_of(Recorded(told, []), zero=0.0).bars if bar.lane == "device"]
    assert bars[1].start == pytest.approx(bars[0].start + 0.4)


def test_steps_with_something_out_of_the_ordinary_are_not_the_example():
    told = raw(12, more=[Span("checkpoint", 3.9, 3.99)])
    timeline = timeline_of(Recorded(told, []), zero=0.0)
    assert timeline.start >= 4.0 - 1e-9 and "checkpoint" not in {bar.kind for bar in timeline.bars}


def test_without_marked_steps_there_is_no_timeline():
    assert timeline_of(Recorded(raw(name="plain"), []), zero=0.0) is None


def interrupted(*, each, seconds):
    """Steps whose waiting is interrupted `each` times, for so long."""
    more = [
        Span("sync", n * STEP + 0.3 * k / each, n * STEP + 0.3 * k / each + seconds, Sync(0, ".item()"))
        for n in range(1, 13)
        for k in range(1, each)
    ]
    return Recorded(raw(more=more), [])


def test_what_is_too_short_to_be_seen_does_not_part_a_bar():
    timeline = timeline_of(interrupted(each=30, seconds=1e-4), zero=0.0)
    first = [bar.kind for bar in timeline.bars if bar.start < STEP - 1e-9]
    assert first == ["data_wait", "forward", "backward", "sync", "backward", "optimizer"]
    assert timeline.bars[0].seconds == pytest.approx(0.3)


def test_of_too_many_bars_those_of_the_first_steps_are_shown_whole():
    timeline = timeline_of(interrupted(each=59, seconds=2.54e-3), zero=0.0)
    assert len(timeline.bars) <= MOST_BARS
    assert timeline.seconds == timeline.step_ends[-1] == pytest.approx(4 * STEP)
    assert max(bar.start for bar in timeline.bars) > 3 * STEP


def test_of_a_step_with_too_many_bars_the_beginning_is_shown():
    tasks = [batch(11, n / 700, (n + 1) / 700, {"read": 0.001}) for n in range(13 * 700)]
    timeline = timeline_of(Recorded(raw(), tasks), zero=0.0)
    assert MOST_BARS - 1 <= len(timeline.bars) <= MOST_BARS
    assert timeline.step_ends == () and timeline.seconds == pytest.approx(STEP * MOST_BARS / 706, rel=0.02)
