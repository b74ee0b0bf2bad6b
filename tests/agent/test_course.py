"""A stretch ends when the device has done what was asked of it in it."""

import pytest

from hasten.agent.segments import History, Segment, SegmentScheduler


def walked(course, *, steps, seconds=0.1):
    """The course after so many steps of so many seconds, a new segment at each end; ends of stretches."""
    ends, now = [], 0.0
    for _ in range(steps):
        now += seconds
        if course.step(now):
            now = course.segments[-1].ends[-1]
            course.end(now)
            segment = course.upcoming()
            if segment is None:
                return ends
            course.begin(segment, now)
            ends.append(now)
    return ends


def test_the_device_catches_up_at_both_ends_of_a_stretch_and_nowhere_else():
    course, asked = SegmentScheduler(History()), []

    def catch_up(now):
        asked.append(round(now, 6))
        return now + 0.05

    course.catch_up = catch_up
    course.follow(iter([Segment(name="one", full=False, min_seconds=0.5, settle=2, min_steps=1)]))
    walked(course, steps=60)
    segment = course.segments[-1]
    begin, *counted = segment.ends[segment.settle - 1 :]
    assert len(asked) == 3, "the warm-up's end, after the settling steps, at the segment's end"
    assert begin == pytest.approx(asked[1] + 0.05) and counted[-1] == pytest.approx(asked[2] + 0.05)
    (mean,) = course.history.seconds["one"]
    assert mean == pytest.approx((counted[-1] - begin) / len(counted))
