"""Samples that are made for a trial show what reading the code did not."""

import itertools
import random

import numpy as np
import pytest
import torch

from hasten.loading.datasets.watching import still_holds, why_not
from hasten.loading.generators import snapshot


class Parts:
    """A recipe in two parts; the first gives `prepared()`, the second adds what `drawn()` draws."""

    keepable = True
    threadable = False
    fingerprint = b""

    def __init__(self, prepared=lambda index: index, drawn=lambda: 0, *, draws_globally=False):
        self._prepared = prepared
        self._drawn = drawn
        self.draws_globally = draws_globally

    def prepare(self, index):
        return self._prepared(index)

    def complete(self, prepared, generator):
        return prepared + self._drawn()

    def identity(self, index):
        return None


def reason_against(make, recipe, **options):
    before = snapshot()
    reason = why_not(lambda: (make, recipe), num_samples=6, **options)
    assert snapshot() == before
    return reason


def draw_and_add(index):
    random.random()
    return index


def test_nothing_speaks_against_the_same_samples():
    assert reason_against(lambda index: index, Parts()) is None


def test_the_same_draws_are_heeded():
    recipe = Parts(drawn=np.random.rand, draws_globally=True)
    assert reason_against(lambda index: index + np.random.rand(), recipe) is None


COUNTER = itertools.count()


@pytest.mark.parametrize(
    ("make", "recipe", "words"),
    [
        (lambda index: index, Parts(draw_and_add), "it draws from a generator"),
        (lambda index: index, Parts(drawn=lambda: draw_and_add(0)), "its transforms do not draw"),
        (draw_and_add, Parts(draws_globally=True), "its transforms do not draw"),
        (lambda index: index, Parts(drawn=lambda: 1), "another sample"),
        (lambda index: index, Parts(drawn=lambda: 0.0), "another sample"),
        (lambda index: 0, Parts(lambda index: next(COUNTER), lambda: -COUNTER.__reduce__()[1][0] + 1), "every time"),
        (lambda index: index, Parts(lambda index: lambda: index), "cannot be kept"),
        (lambda index: 1 / 0, Parts(), "ZeroDivisionError was raised"),
    ],
)
def test_what_speaks_against_a_recipe_is_named(make, recipe, words):
    assert words in reason_against(make, recipe)


def test_a_slow_dataset_is_left_after_one_sample(monkeypatch):
    clock = itertools.count(step=10.0)
    monkeypatch.setattr("hasten.loading.datasets.watching.time.perf_counter", lambda: next(clock))
    made = []

    def make(index):
        made.append(index)
        return index

    assert "takes too long" in reason_against(make, Parts())
    assert made == [0]


def test_generators_that_transforms_share_are_put_back():
    shared = np.random.default_rng(0)
    before = shared.bit_generator.state
    recipe = Parts(drawn=shared.random)
    assert reason_against(lambda index: index + shared.random(), recipe, generators=[shared]) is None
    assert shared.bit_generator.state == before


def test_what_was_kept_is_compared_to_the_bit():
    value = torch.tensor([0.0, float("nan")])
    recipe = Parts(lambda index: value.clone())
    assert still_holds(recipe, 0, value.clone())
    assert not still_holds(recipe, 0, torch.tensor([-0.0, float("nan")]))
    assert not still_holds(recipe, 0, value.double())
