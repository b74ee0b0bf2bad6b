"""What a measured process does with its steps, on a history written by hand. A segment ends when the
device has done what was asked of it."""

import itertools

import pytest

from hasten.agent.segments import (
    MARKED,
    PLAIN,
    History,
    Segment,
    SegmentScheduler,
    Switch,
    alternate,
    first_steps,
    in_turns,
    measure,
    plain,
)


def labels(segments):
    return [s.name for s in segments]


def run(*, mean=0.01, seconds=60.0, num_steps=None, epoch_left=None, epochs_seen=0, spread=0.0):
    """Carry a measuring program out on a fake clock; its segments and what was seen."""
    history = History(epoch_left=epoch_left, epochs_seen=epochs_seen)
    segments = []
    for segment in measure(history, num_steps=num_steps, seconds=seconds):
        segments.append(segment)
        length = max(segment.min_seconds, mean)
        history.num_steps += max(1, round(length / mean))
        history.measuring += length
        history.seconds.setdefault(segment.name, []).append(mean * (1 + spread * (-1) ** (len(segments) // 4)))
        if history.epoch_left is not None:
            history.epoch_left -= length
            if history.epoch_left <= 0:
                history.epochs_seen, history.epoch_left = 1, None
    return segments, history


def test_only_the_marked_segments_mark_every_phase():
    segments, _ = run()
    assert labels(segments)[:8] == [PLAIN, MARKED, MARKED, PLAIN] * 2
    assert all(s.full == (s.name == MARKED) for s in segments)


def test_a_steady_figure_ends_the_measuring_early():
    _, history = run()
    assert 5.0 <= history.measuring < 20.0
    assert len(history.seconds[PLAIN]) >= 4


def test_an_unsteady_figure_is_measured_longer_but_never_beyond_its_time():
    _, steady = run()
    _, unsteady = run(spread=0.3)
    assert steady.measuring < unsteady.measuring <= 62.0


@pytest.mark.parametrize("seconds", [1.0, 2.0, 10.0, 60.0])
def test_the_time_allowed_is_kept_to(seconds):
    _, history = run(seconds=seconds, spread=0.5)
    assert history.measuring <= seconds + 2.0


@pytest.mark.parametrize("seconds", [1.0, 2.0, 5.0, 60.0])
def test_whatever_the_time_both_sides_are_measured(seconds):
    segments, _ = run(seconds=seconds)
    assert {PLAIN, MARKED} <= set(labels(segments))


@pytest.mark.parametrize("num_steps", [1, 5, 50, 300])
def test_a_number_of_steps_leaves_some_of_them_marked(num_steps):
    # Without a marked step nothing can be attributed: every phase would be "not seen".
    segments, _ = run(num_steps=num_steps)
    assert MARKED in labels(segments)


@pytest.mark.parametrize("num_steps", [50, 1000])
def test_a_number_of_steps_is_measured_in_full(num_steps):
    _, history = run(num_steps=num_steps)
    assert history.num_steps >= num_steps


def test_the_end_of_an_epoch_within_reach_is_waited_for():
    _, without = run()
    _, within = run(epoch_left=25.0)
    _, beyond = run(epoch_left=500.0)
    assert within.epochs_seen == 1
    assert beyond.measuring == pytest.approx(without.measuring)


def test_slow_steps_get_a_segment_each():
    segments, history = run(mean=7.0)
    assert history.measuring >= 20 * 7.0 or history.measuring >= 60.0
    assert {PLAIN, MARKED} <= set(labels(segments))


def test_the_last_segment_is_the_one_asked_for():
    history = History(measuring=1e9)
    last = Segment(name="count")
    *_, end = measure(history, num_steps=None, seconds=1.0, last=last)
    assert end is last


def test_a_plain_program_marks_nothing():
    segments = list(plain(History(), seconds=4.0))
    assert len(segments) == 8
    assert not any(s.full for s in segments)


def test_a_plain_program_of_slow_steps_has_enough_segments_for_an_interval():
    assert len(list(plain(History(measuring=60.0), seconds=4.0))) == 4


def test_segments_in_turns_are_short_and_each_waits_for_its_turn():
    history, waits = History(), []
    program = in_turns(history, seconds=4.0, wait=lambda: waits.append(1))
    for segment in program:
        assert segment.min_seconds == 0.1
        segment.enter()
        history.measuring += 0.1
    assert len(waits) in (40, 41)


def test_a_short_step_at_the_beginning_of_a_turn_is_not_counted_and_a_long_one_is():
    for step, settle in ((0.01, 1), (0.05, 0)):
        history = History()
        segments = in_turns(history, seconds=4.0, wait=print)
        next(segments)
        history.seconds["plain"] = [step]
        assert next(segments).settle == settle


def test_switches_go_on_and_off_in_balance():
    state, log = {"on": False}, []
    switch = Switch(
        name="denormals",
        on=lambda: state.update(on=True),
        off=lambda: state.update(on=False),
        settle=2,
    )
    for segment in alternate(History(), [switch], seconds=4.0, rounds=2):
        segment.enter()
        log.append((segment.is_baseline, state["on"], segment.settle))
        segment.leave()
    conditions = [False, True, True, False] * 2
    assert [entry[1] for entry in log] == conditions
    # Only a change has to settle: two segments of one condition follow each other as one.
    assert [entry[2] for entry in log] == [2, 2, 0, 2, 0, 2, 0, 2]
    assert {entry[:2] for entry in log} == {(True, False), (False, True)}
    assert not state["on"]


def test_each_switch_has_the_whole_time_to_itself():
    names = ["tf32", "denormals"]
    segments = list(alternate(History(), [Switch(name=n, on=print, off=print) for n in names], seconds=6.0))
    for name in names:
        mine = [s for s in segments if s.name == name]
        assert sum(s.min_seconds for s in mine) == pytest.approx(6.0)


@pytest.mark.parametrize(("with_it", "rounds"), [(0.1, 1), (0.098, 3), (0.12, 1)])
def test_a_switch_that_gains_nothing_in_its_first_round_gets_no_other(with_it, rounds):
    history = History()
    segments = []
    for segment in alternate(history, [Switch(name="tf32", on=print, off=print)], seconds=6.0):
        segments.append(segment)
        history.seconds.setdefault("tf32", []).append(0.1 if segment.is_baseline else with_it)
    assert len(segments) == 4 * rounds


@pytest.mark.parametrize(
    ("without", "with_it", "rounds"),
    [
        ([0.1], [0.09, 0.08], 3),  # faster in every segment
        ([0.1], [0.07, 0.11], 6),  # seems to gain, and may owe it to luck
        ([0.12, 0.08], [0.078, 0.076], 6),  # faster in every segment, by nobody knows how much
        ([0.1], [0.09, 0.105], 3),  # too little to be pursued
    ],
)
def test_a_switch_that_seems_to_gain_is_tried_until_it_is_clear(without, with_it, rounds):
    history = History()
    segments, plain, values = [], itertools.cycle(without), itertools.cycle(with_it)
    for segment in alternate(history, [Switch(name="tf32", on=print, off=print)], seconds=6.0):
        segments.append(segment)
        history.seconds.setdefault("tf32", []).append(next(plain if segment.is_baseline else values))
    assert len(segments) == 4 * rounds


def test_a_switch_that_seems_to_gain_is_not_left_open_for_lack_of_time():
    history, lefts = History(), iter([1.0])
    switches = [Switch(name=name, on=print, off=print) for name in ("bf16", "denormals")]
    segments, values = [], itertools.cycle([0.07, 0.11])
    for segment in alternate(history, switches, seconds=6.0, time_left=lambda: next(lefts, 0.0)):
        segments.append(segment)
        history.seconds.setdefault(segment.name, []).append(0.1 if segment.is_baseline else next(values))
    assert [s.name for s in segments] == ["bf16"] * 4 * 6


def walked(scheduler, *, steps, seconds=0.1):
    """The scheduler after so many steps of so many seconds, a new segment at each end; ends of segments."""
    ends, now = [], 0.0
    for _ in range(steps):
        now += seconds
        if scheduler.step(now):
            now = scheduler.segments[-1].ends[-1]
            scheduler.end(scheduler.ended(now))
            segment = scheduler.upcoming()
            if segment is None:
                return ends
            scheduler.begin(segment, now)
            ends.append(now)
    return ends


def test_the_device_catches_up_at_both_ends_of_a_segment_and_nowhere_else():
    scheduler, asked = SegmentScheduler(History()), []

    def catch_up(now):
        asked.append(round(now, 6))
        return now + 0.05

    scheduler.catch_up = catch_up
    scheduler.follow(iter([Segment(name="one", full=False, min_seconds=0.5, settle=2, min_steps=1)]))
    walked(scheduler, steps=60)
    segment = scheduler.segments[-1]
    begin, *counted = segment.ends[segment.settle - 1 :]
    assert len(asked) == 3, "the warm-up's end, after the settling steps, at the segment's end"
    assert begin == pytest.approx(asked[1] + 0.05) and counted[-1] == pytest.approx(asked[2] + 0.05)
    (mean,) = scheduler.history.seconds["one"]
    assert mean == pytest.approx((counted[-1] - begin) / len(counted))


def experiment_over_epochs(*, length):
    """Alternate one switch that saves half of the step, with steps of 0.5 s, and 4 s where an epoch starts.

    Every segment's seconds of a step, and the raw segments.
    """
    history, gains = History(), []
    scheduler = SegmentScheduler(history)
    switch = Switch(name="fast", on=lambda: gains.append(True), off=gains.clear)
    scheduler.follow(alternate(history, [switch], seconds=1.2, rounds=2))
    now = 0.0
    for number in range(200):
        starts = number % length == 0
        if starts:
            scheduler.loader_starts()
        now += (0.25 if gains else 0.5) + 4.0 * starts
        if scheduler.step(now):
            scheduler.end(scheduler.ended(now))
            segment = scheduler.upcoming()
            if segment is None:
                break
            segment.enter()
            scheduler.begin(segment, now)
    return history.seconds["fast"], scheduler.segments[1:]


@pytest.mark.parametrize("length", [2, 3, 5, 7, 11, 19])
def test_a_step_that_starts_an_epoch_is_no_step_of_an_experiment(length):
    # Where an epoch has 19 steps, one in three experiments met one in its first round, and said nothing.
    means, segments = experiment_over_epochs(length=length)
    assert means == pytest.approx([0.5, 0.25, 0.25, 0.5] * (len(means) // 4)) and len(means) >= 8
    assert all(len(segment.ends) <= segment.settle + 2 for segment in segments)


def test_where_every_step_starts_an_epoch_an_experiment_still_ends():
    means, _ = experiment_over_epochs(length=1)
    assert means == pytest.approx([4.5, 4.25, 4.25, 4.5] * (len(means) // 4))


@pytest.mark.parametrize("num_steps", [1, 2, 16, 33, 120])
def test_the_first_steps_are_as_many_as_asked_for_however_short(num_steps):
    scheduler = SegmentScheduler(History())
    scheduler.warms_up = False
    scheduler.follow(first_steps(scheduler.history, num_steps=num_steps, seconds=10.0))
    walked(scheduler, steps=500, seconds=0.001)
    assert scheduler.num_steps == num_steps


def test_a_warm_up_that_waits_to_begin_is_as_long_and_its_wait_is_no_part_of_the_start():
    plain, waiting = SegmentScheduler(History()), SegmentScheduler(History())
    waiting.start = lambda now: now + 5.0
    for step in range(1, 30):
        plain.step(0.1 * step)
        waiting.step(0.1 * step + (5.0 if step > 1 else 0.0))
    assert waiting.held == 5.0
    assert waiting.started_at - waiting.held == pytest.approx(plain.started_at)
    assert waiting.segments[0].ends == pytest.approx([end + 5.0 for end in plain.segments[0].ends])
