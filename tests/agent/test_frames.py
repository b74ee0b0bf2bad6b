"""Whose line is running. A second thread looks which line is running."""

import gc
import itertools
import json
import sys
import sysconfig
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import hasten
from hasten.agent.frames import (
    INSIDE,
    LIBRARY,
    USER,
    LineSampler,
    caller_is_user,
    cut_chain,
    kind_of,
    lines_above,
    user_place,
)

PACKAGES = sysconfig.get_path("purelib")
STANDARD = sysconfig.get_path("stdlib")
ROOT = Path(hasten.__file__).parent


numbers = itertools.count()


def code_of(file, source="pass"):
    return compile(source, str(file), "exec")


def code_like_no_other(file):
    return code_of(file, f"x = {next(numbers)}")


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("/home/ada/train.py", USER),
        ("train.py", USER),
        ("<ipython-input-3-abc>", USER),
        (f"{PACKAGES}/timm/models/layers.py", LIBRARY),
        ("/usr/lib/python3/dist-packages/yaml/__init__.py", LIBRARY),
        (f"{PACKAGES}/torch/optim/sgd.py", INSIDE),
        (f"{STANDARD}/json/encoder.py", INSIDE),
        ("<frozen importlib._bootstrap>", INSIDE),
        ("<string>", INSIDE),
        (ROOT / "measurement" / "inside" / "hooks.py", INSIDE),
        (ROOT / "examples" / "xray.py", USER),
    ],
)
def test_a_file_is_the_users_a_librarys_or_nobodys(file, kind):
    assert kind_of(code_like_no_other(file)) == kind


def test_two_files_with_the_same_code_are_told_apart():
    # Code objects are equal when their names, lines and instructions are, whatever file they come from.
    mine, theirs = code_of("/home/ada/same.py"), code_of(f"{PACKAGES}/timm/same.py")
    assert mine == theirs
    assert (kind_of(mine), kind_of(theirs)) == (USER, LIBRARY)


def test_a_script_beside_a_folder_named_torch_is_still_the_users():
    assert kind_of(code_like_no_other("/home/ada/torch/train.py")) == USER


def test_the_innermost_line_of_the_user_is_found_through_the_standard_library():
    places = []

    class Recording(json.JSONEncoder):
        def default(self, value):
            places.append(user_place(sys._getframe().f_back))
            return None

    def dumps():
        return json.dumps(object(), cls=Recording)

    dumps()
    assert places[0][0] == __file__
    assert places[0][2] == "dumps"


def frame_in(file, call):
    """Run `call` from a frame that says it belongs to this file."""
    space = {"call": call}
    exec(compile("def within():\n    return call()\n", str(file), "exec"), space)
    return space["within"]()


def test_where_no_line_is_the_users_the_librarys_stands_in():
    frame = frame_in(f"{PACKAGES}/timm/train.py", lambda: sys._getframe(1))

    class Alone:
        f_code, f_lineno, f_back = frame.f_code, frame.f_lineno, None

    assert user_place(Alone()) == (f"{PACKAGES}/timm/train.py", 2, "within")


def test_nothing_but_torch_is_nowhere():
    class Alone:
        f_code, f_lineno, f_back = code_like_no_other(torch.__file__), 1, None

    assert user_place(Alone()) is None
    assert user_place(None) is None


def test_the_caller_is_the_user_or_is_not():
    assert caller_is_user(0)
    assert not frame_in(f"{PACKAGES}/timm/train.py", lambda: caller_is_user(1))


def test_a_comprehension_is_a_line_of_the_function_that_it_stands_in():
    def reading():
        return [user_place(sys._getframe()) for _ in range(1)]

    ((_, _, function),) = reading()
    assert function == "reading"


def test_a_frame_that_is_at_no_line_counts_for_its_functions_first():
    """Another thread may be met between two instructions of which the compiler made no line."""
    code = compile("def work(): pass", "/home/ada/train.py", "exec").co_consts[0]
    frame = SimpleNamespace(f_code=code, f_lineno=None, f_back=None)
    assert user_place(frame) == ("/home/ada/train.py", 1, "work")
    assert lines_above(frame) == ((code, 1),)


def test_a_sampler_puts_the_interpreters_switch_interval_back():
    before = sys.getswitchinterval()
    sampler = LineSampler(threading.get_ident(), lambda: "script", switch_interval=5e-4)
    sampler.running(True)
    assert sys.getswitchinterval() < before
    sampler.running(False)
    assert sys.getswitchinterval() == before
    sampler.running(True)
    sampler.end()
    assert sys.getswitchinterval() == before


def test_a_thread_that_computes_in_python_alone_is_met_there():
    sampler = LineSampler(threading.get_ident(), lambda: "script", switch_interval=5e-4)
    sampler.running(True)
    until = time.perf_counter() + 0.3
    while time.perf_counter() < until:
        sum(range(1000))
    sampler.end()
    assert sum(sampler.seconds.values()) > 0.1
    assert {place[2] for place, _ in sampler.seconds if place} == {
        "test_a_thread_that_computes_in_python_alone_is_met_there"
    }


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="others collect garbage between two instructions alone")
def test_no_garbage_is_collected_while_another_threads_frames_are_looked_at():
    """Else the other thread may return from a frame whose object is being made, and the process dies."""
    meanwhile = []

    def collecting(_phase, _info):
        frame = sys._getframe(1)
        while frame is not None:
            meanwhile.extend([frame.f_lineno] if frame.f_code is user_place.__code__ else [])
            frame = frame.f_back

    names = {}
    exec("def deep(calls): return deep(calls - 1) + 1 if calls else sum(range(3000))", names)  # in no file of a user
    sampler, threshold = (
        LineSampler(threading.get_ident(), lambda: "script", switch_interval=5e-4),
        gc.get_threshold(),
    )
    gc.callbacks.append(collecting)
    gc.set_threshold(1)
    sampler.running(True)
    try:
        until = time.perf_counter() + 0.5
        while time.perf_counter() < until:
            names["deep"](50)
    finally:
        sampler.end()
        gc.set_threshold(*threshold)
        gc.callbacks.remove(collecting)
    assert gc.isenabled() and sum(sampler.seconds.values()) > 0.1
    assert not meanwhile


def test_an_exception_that_is_its_own_cause_has_an_end():
    error = ValueError("torn")
    error.__cause__ = error
    cut_chain(error)
