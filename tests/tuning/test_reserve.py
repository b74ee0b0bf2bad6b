"""Enough of a budget is left for what comes after the trials, and never all of it."""

import re

import pytest
from pages import search
from runs import loader, run

from hasten.measurement.diagnose import situation_of
from hasten.records import Proof, Trial
from hasten.tuning.budget import Journal, Reserve, reserve
from hasten.tuning.evaluator import Evaluator
from hasten.tuning.metric import Metric

METRIC = Metric(re.compile("F1: (.*)"))
FIRST = situation_of(run(loaders=(loader(),)), {})
JUDGE = Evaluator(bench=None, step_seconds=FIRST.case.step, steps_per_epoch=None)


def kept(left, *, metric=None, num_steps=None, recipes=False):
    return reserve(FIRST, JUDGE, left=left, metric=metric, num_steps=num_steps, recipes=recipes)


def test_the_proof_gets_what_it_takes_where_there_is_enough():
    found = kept(10_000)
    assert 0 < found.proof < 1000 and found.screening_runs == 0.0
    assert kept(100_000) == found


def test_of_a_short_budget_half_is_left_for_trials():
    assert kept(20.0).all == pytest.approx(10.0)


def test_whole_runs_are_kept_for_too():
    num_steps = 1000
    more = kept(100_000, metric=METRIC, num_steps=num_steps).proof - kept(100_000).proof
    assert more >= 32 * num_steps * FIRST.case.step, "sixteen seeds on both sides"
    target = Metric(METRIC.pattern, target=0.5)
    less = kept(100_000, metric=target, num_steps=num_steps).proof - kept(100_000).proof
    assert 6 * num_steps * FIRST.case.step <= less < more, "a target is told by three"


def test_recipes_get_a_whole_run_each_before_the_proof():
    target = Metric(METRIC.pattern, target=0.5)
    found = kept(1e6, metric=target, num_steps=1000, recipes=True)
    assert found.screening_runs >= 6 * 1000 * FIRST.case.step
    assert kept(1e6, metric=target, num_steps=1000).screening_runs == 0.0
    short = kept(60.0, metric=target, num_steps=1000, recipes=True)
    assert short.all == pytest.approx(40.0) and short.screening_runs / short.proof == pytest.approx(
        found.screening_runs / found.proof
    )


def test_what_an_early_proof_has_launched_of_the_script_itself_is_not_kept_for_again():
    first = Reserve(screening_runs=10.0, proof=270.0)
    assert first.after(90.0) == Reserve(screening_runs=10.0, proof=225.0)
    assert first.after(1000.0).proof == 0.0


def test_a_proof_of_other_settings_is_none(tmp_path):
    journal = Journal(tmp_path, 600.0, lambda *_: None, lambda _: None)
    journal.begin(search(FIRST.case.run))
    journal.keep(settings={"bf16": True}, proof=Proof(verdict="proven", guarantee="precision"))
    dropped = Trial(fix="loader", value=True, settings={"bf16": True}, verdict="slower")
    journal.add({"bf16": True}, dropped)
    assert journal.tuning.proof is not None
    journal.add({"bf16": True, "allocator": "glibc"}, Trial(fix="allocator", value="glibc", verdict="faster"))
    assert journal.tuning.proof is None
