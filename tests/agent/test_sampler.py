"""A second thread looks which line is running."""

import sys
import threading
import time

from hasten.agent.frames import LineSampler


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
