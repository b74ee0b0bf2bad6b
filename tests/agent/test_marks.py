"""Marks on a fake clock."""

import threading

from hasten.agent import marks as marking
from hasten.agent.marks import BETWEEN, Marks


def fake_clock(*instants):
    return iter(instants).__next__


def test_a_mark_ends_now():
    marks = Marks(now=fake_clock(5.0))
    marks.add("optimizer", 2.0, 41)
    assert marks.spans == [("optimizer", 2.0, 5.0, 41)]


def test_a_run_keeps_only_so_many_marks(monkeypatch):
    monkeypatch.setattr(marking, "MOST_SPANS", 3)
    marks = Marks(now=lambda: 1.0)
    for _ in range(5):
        marks.add("sync", 0.0)
    assert len(marks.spans) == 3


def test_the_phase_is_the_innermost_open_span():
    marks = Marks()
    assert marks.phase() == BETWEEN
    marks.open += ["optimizer", "backward"]
    assert marks.phase() == "backward"


def test_between_two_spans_the_phase_is_what_the_last_one_left():
    marks = Marks()
    marks.between = "loss"
    assert marks.phase() == "loss"


def test_only_the_thread_that_made_them_is_the_training_thread():
    marks, answers = Marks(), []
    thread = threading.Thread(target=lambda: answers.append(marks.here()))
    thread.start()
    thread.join()
    assert (marks.here(), answers) == (True, [False])


def test_a_line_keeps_its_number():
    marks = Marks()
    numbers = [marks.place(0) for _ in range(3)]
    other = marks.place(0)
    assert numbers == [0, 0, 0]
    assert other == 1
    assert [place[0] for place in marks.places] == [__file__, __file__]


def test_the_first_place_of_a_kind_is_kept():
    marks = Marks()
    for _ in range(2):
        marks.remember_place("backward", 0)
    first = dict(marks.first_place)
    marks.remember_place("backward", 0)
    assert marks.first_place == first == {"backward": 0}
