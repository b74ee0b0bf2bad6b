"""What is tried, in which order, and what is left in the end."""

import math
from dataclasses import replace

import pytest

from hasten.optimizations.catalog import CATALOG
from hasten.optimizations.optimization import Proposal
from hasten.records import Interval, Trial
from hasten.tuning.search import candidates, leave_out, search


class FakeSituation:
    """What fixes promise, by name; the rest promises nothing."""

    class case:
        step = 1.0

    least = 0.02

    def __init__(self, promises, settings=None, *, sure=(), helps=None):
        self.promises, self.settings, self.sure, self.helps = promises, settings or {}, sure, helps or {}


@pytest.fixture(autouse=True)
def promising(monkeypatch):
    """Every fix proposes what the situation says."""
    for name, fix in CATALOG.items():

        def propose(situation, name=name):
            if name not in situation.promises:
                return "it promises nothing"
            values = {"num_workers": [2, 1], "batch_size": [64]}.get(name, [True])
            return [
                Proposal(value=v, saves=situation.promises[name] / n, because="", is_sure=name in situation.sure)
                for n, v in enumerate(values, 1)
            ]

        def helped_by(situation, _value, name=name):
            return situation.helps.get(name, {})

        monkeypatch.setitem(CATALOG, name, replace(fix, propose=propose, helped_by=helped_by))


PLENTY = 1e4  # seconds


def trying(speedups, log):
    def try_fix(settings, added, promised, share):
        (name, value), *others = added.items()
        log.append((tuple(settings), "+".join(added)))
        speedup = math.prod(speedups.get(n, speedups.get((n, v), 1.0)) for n, v in added.items())
        verdict = "faster" if speedup > 1.01 else "slower" if speedup < 0.99 else "no difference"
        return Trial(
            fix=name,
            value=value,
            together=added if others else {},
            settings=settings,
            verdict=verdict,
            speedup=Interval(speedup, 0.9, 2.0),
        )

    return try_fix


def searched(promises, speedups, *, again=lambda settings: None, time_left=lambda: PLENTY, **more):
    log, first = [], FakeSituation(promises, **more)
    found = list(search(first, try_fix=trying(speedups, log), diagnose_again=again, time_left=time_left))
    return (found[-1][0] if found else {}), log


def test_while_time_is_left_everything_worth_a_trial_is_tried():
    settings, log = searched({"bf16": 0.3, "channels_last": 0.2, "num_workers": 0.1}, {})
    assert settings == {} and {name for _, name in log} == {"bf16", "channels_last", "num_workers"}


def test_what_promises_as_much_as_the_best_shares_its_time():
    shares = {}

    def noting(settings, added, promised, share):
        shares.update(dict.fromkeys(added, share))
        return Trial(fix=next(iter(added)), value=True, verdict="inconclusive")

    first = FakeSituation({"bf16": 0.3, "channels_last": 0.2, "set_to_none": 0.05})
    [*search(first, try_fix=noting, diagnose_again=lambda _: None, time_left=lambda: PLENTY)]
    assert shares == {"bf16": 1 / 2, "channels_last": 1.0, "set_to_none": 1.0}


def test_what_there_is_time_for_is_tried_though_something_else_promises_more():
    log = []
    found = search(
        FakeSituation({"persistent_workers": 0.5, "channels_last": 0.08}, settings={"bf16": True}),
        try_fix=trying({}, log),
        diagnose_again=lambda _settings: None,
        time_left=lambda: 50.0,
        trial_seconds=lambda added: 180.0 if "persistent_workers" in added else 60.0,
    )
    assert len([*found]) == 1 and [name for _, name in log] == ["channels_last"]


def test_what_gains_most_for_the_time_of_its_trial_comes_first():
    lasting, log = {"persistent_workers": 180.0}, []
    situation = FakeSituation({"persistent_workers": 0.12, "channels_last": 0.08})
    found = search(
        situation,
        try_fix=trying({}, log),
        diagnose_again=lambda _settings: None,
        time_left=lambda: PLENTY,
        trial_seconds=lambda added: lasting.get("".join(added), 60.0),
    )
    assert not [settings for settings, _ in found if settings]
    assert [name for _, name in log] == ["channels_last", "persistent_workers"]


def test_where_there_is_no_time_for_one_trial_each_the_likeliest_are_tried_at_once():
    promises = {"persistent_workers": 0.4, "loader": 0.3, "bf16": 0.2, "compile": 0.2, "set_to_none": 0.05}
    seen = {"sure": ("bf16",), "time_left": lambda: 200.0}
    settings, log = searched(promises, {"bf16": 1.6, "persistent_workers": 1.4}, **seen)
    assert log[0] == ((), "persistent_workers+bf16"), "the loader answers what workers that stay answer"
    assert {"persistent_workers", "bf16"} <= {*settings}
    _, log = searched(promises, {}, **seen)
    alone = [name for _, name in log[1:]]
    assert {"persistent_workers", "bf16"} <= {*alone}, "what did not help together may help by itself"


@pytest.mark.parametrize("trial_seconds, first", [(20.0, "bf16"), (110.0, "bf16+set_to_none")])
def test_a_script_whose_launches_take_long_has_no_time_for_one_trial_each_either(trial_seconds, first):
    situation, log = FakeSituation({"bf16": 0.3, "set_to_none": 0.2}, sure=("bf16",)), []
    try_fix = trying({"bf16": 1.5, "set_to_none": 1.2}, log)
    [
        *search(
            situation,
            try_fix=try_fix,
            diagnose_again=lambda _: None,
            time_left=lambda: 410.0,
            trial_seconds=lambda _added: trial_seconds,
        )
    ]
    assert log[0] == ((), first)


def test_guesses_are_tried_one_by_one_however_short_the_time():
    _, log = searched({"bf16": 0.4, "set_to_none": 0.3}, {"set_to_none": 1.2}, time_left=lambda: 60.0)
    assert log[0] == ((), "bf16")


def test_what_the_diagnosis_has_seen_to_help_is_tried_at_once():
    promises = {"bf16": 0.4, "set_to_none": 0.3, "fused_optimizer": 0.2, "cpu_threads": 0.2}
    settings, log = searched(promises, {"bf16": 1.6, "set_to_none": 1.2}, sure=("bf16", "set_to_none"))
    assert log[0] == ((), "bf16+set_to_none")
    assert [added for _, added in log[1:]] == ["fused_optimizer", "cpu_threads"]
    assert settings == {"bf16": True, "set_to_none": True}


def test_two_that_influence_each_other_are_tried_at_once_only_if_each_was_measured_to_help():
    promises, gains = {"channels_last": 0.4, "bf16": 0.3, "set_to_none": 0.2}, {"channels_last": 1.4, "bf16": 1.2}
    sure, more = ("channels_last", "set_to_none"), {"helps": {"bf16": {"channels_last": True}}}
    _, log = searched(promises, gains, sure=sure, time_left=lambda: 200.0, **more)
    assert log[0][1] == "channels_last+set_to_none" and log[1][1] == "bf16"
    settings, log = searched(promises, gains, sure=(*sure, "bf16"), **more)
    assert log[0][1] == "channels_last+bf16+set_to_none" and {*settings} >= {"channels_last", "bf16"}


def test_what_may_help_only_beside_another_is_tried_with_it_when_nothing_else_is_left():
    helps = {"num_workers": {"cpu_threads": 1}}

    def trying_pairs(settings, added, promised, share):
        log.append("+".join(added))
        gains = {*added} == {"num_workers", "cpu_threads"}
        fix, value = next(iter(added.items()))
        return Trial(fix=fix, value=value, together=added, settings=settings, verdict="faster" if gains else "slower")

    log = []
    first = FakeSituation({"num_workers": 0.3, "bf16": 0.2}, helps=helps)
    found = list(search(first, try_fix=trying_pairs, diagnose_again=lambda _: None, time_left=lambda: PLENTY))
    assert log == ["num_workers", "bf16", "num_workers", "num_workers+cpu_threads"], "two numbers of workers"
    assert found[-1][0] == {"num_workers": 2, "cpu_threads": 1}


def test_beside_what_was_kept_its_missing_helper_is_tried_once():
    _, log = searched({"bf16": 0.3}, {"bf16": 1.5}, helps={"bf16": {"channels_last": True}})
    assert log == [((), "bf16"), (("bf16",), "channels_last")]


def test_what_gained_nothing_gets_a_second_chance_where_a_later_diagnosis_is_sure_of_it():
    first = {"bf16": 0.4, "set_to_none": 0.3}

    def again(settings):
        return FakeSituation({"bf16": 0.4}, settings, sure=("bf16",))

    _, log = searched(first, {"set_to_none": 1.5}, again=again)
    assert log == [((), "bf16"), ((), "set_to_none"), (("set_to_none",), "bf16")]
    _, log = searched(first, {"set_to_none": 1.5}, again=lambda s: FakeSituation({"bf16": 0.4}, s))
    assert log == [((), "bf16"), ((), "set_to_none")]


def test_what_draws_other_random_numbers_is_tried_along_with_others_only_where_it_promises_much():
    promises = {"bf16": 0.4, "num_workers": 0.15, "cpu_threads": 0.15}
    seen = {"sure": ("bf16",), "time_left": lambda: 200.0}
    _, log = searched(promises, {"bf16": 1.6}, **seen)
    assert log[0] == ((), "bf16+cpu_threads")
    _, log = searched({**promises, "num_workers": 0.3}, {"bf16": 1.6}, **seen)
    assert log[0] == ((), "bf16+num_workers+cpu_threads")


def test_without_time_for_another_trial_the_run_is_not_diagnosed_again():
    asked, left = [], [60.0]

    def takes_long(settings, added, promised, share):
        left[0] = 20.0
        return trying({"bf16": 1.5}, [])(settings, added, promised, share)

    found = list(
        search(
            FakeSituation({"bf16": 0.3}),
            try_fix=takes_long,
            diagnose_again=asked.append,
            time_left=lambda: left[0],
        )
    )
    assert found[-1][0] == {"bf16": True} and asked == []


def test_what_takes_long_to_try_is_tried_after_what_does_not():
    _, log = searched({"compile": 0.3, "bf16": 0.2}, {})
    assert [name for _, name in log] == ["bf16", "compile"]


def test_what_promises_most_is_tried_first_on_top_of_what_was_kept():
    settings, log = searched({"bf16": 0.3, "channels_last": 0.2, "num_workers": 0.4}, {"num_workers": 2, "bf16": 1.5})
    assert [name for _, name in log] == ["num_workers", "bf16", "channels_last"]
    assert log[2][0] == ("num_workers", "bf16")
    assert settings == {"num_workers": 2, "bf16": True}


def test_what_promises_too_little_is_not_tried():
    assert searched({"bf16": 0.01}, {"bf16": 9.0}) == ({}, [])


def test_after_a_fix_is_kept_the_run_is_diagnosed_again():
    asked = []

    def again(settings):
        asked.append(dict(settings))
        return FakeSituation({"fused_optimizer": 0.5}, settings)

    _, log = searched({"bf16": 0.3, "channels_last": 0.2}, {"bf16": 1.5, "fused_optimizer": 1.2}, again=again)
    assert asked == [{"bf16": True}, {"bf16": True, "fused_optimizer": True}]
    assert [name for _, name in log] == ["bf16", "fused_optimizer"]


def test_another_value_is_tried_where_the_first_gained_nothing():
    settings, log = searched({"num_workers": 0.4, "bf16": 0.3}, {("num_workers", 1): 1.5})
    assert [name for _, name in log] == ["num_workers", "bf16", "num_workers"]
    assert settings == {"num_workers": 1}


def test_what_contradicts_what_was_kept_is_not_tried():
    _, log = searched({"bf16": 0.3, "fp16": 0.2}, {"bf16": 1.5, "fp16": 1.5})
    assert [name for _, name in log] == ["bf16"]


def test_what_needs_another_fix_waits_for_it():
    _, log = searched({"pixels": 0.3, "loader": 0.2}, {"loader": 1.5, "pixels": 1.2})
    assert [name for _, name in log] == ["loader", "pixels"]
    _, log = searched({"pixels": 0.3, "loader": 0.2}, {"pixels": 1.2})
    assert [name for _, name in log] == ["loader"]


def test_when_time_is_over_nothing_is_tried_and_what_was_left_is_told():
    left = []
    found = search(
        FakeSituation({"bf16": 0.3}),
        try_fix=trying({}, []),
        diagnose_again=lambda _: None,
        time_left=lambda: 0.0,
        on_end=lambda _situation, waiting: left.extend(waiting),
    )
    assert list(found) == []
    assert [candidate.fix.name for candidate in left] == ["bf16"]


def test_recipes_are_tried_only_when_asked_for():
    situation = FakeSituation({"batch_size": 0.5})
    found, skipped = candidates(situation)
    assert found == [] and "--recipe" in {s.fix: s.reason for s in skipped}["batch_size"]
    assert [c.fix.name for c in candidates(situation, recipes=True)[0]] == ["batch_size"]


def test_every_fix_is_tried_or_skipped_with_a_reason():
    found, skipped = candidates(FakeSituation({"bf16": 0.3}))
    assert {c.fix.name for c in found} | {s.fix for s in skipped} == set(CATALOG)
    assert all(s.reason for s in skipped)


def test_what_gains_nothing_beside_the_others_goes():
    log = []
    settings = {"num_workers": 2, "bf16": True, "cache": "auto"}
    found = list(
        leave_out(settings, gains={}, try_fix=trying({"bf16": 1.5, "cache": 2.0}, log), time_left=lambda: 100.0)
    )
    assert found[-1][0] == {"bf16": True, "cache": "auto"}
    assert log[0] == (("bf16", "cache"), "num_workers")


def test_what_fails_beside_the_others_goes():
    def failing(settings, added, promised, share):
        ((name, value),) = added.items()
        return Trial(fix=name, value=value, verdict="failed" if name == "bf16" else "faster")

    found = list(leave_out({"bf16": True, "allocator": "glibc"}, gains={}, try_fix=failing, time_left=lambda: 1.0))
    assert found[-1][0] == {"allocator": "glibc"}


def test_a_plan_of_one_fix_is_not_taken_apart():
    assert list(leave_out({"bf16": True}, gains={}, try_fix=trying({}, []), time_left=lambda: 100.0)) == []


def test_what_others_need_stays():
    log = []
    list(leave_out({"loader": True, "pixels": "close"}, gains={}, try_fix=trying({}, log), time_left=lambda: 100.0))
    assert [name for _, name in log] == ["pixels"]


def test_what_gained_much_and_stands_alone_is_not_asked_again():
    log = []
    settings = {"bf16": True, "allocator": "glibc"}
    list(leave_out(settings, gains={"bf16": 1.5, "allocator": 1.05}, try_fix=trying({}, log), time_left=lambda: 1.0))
    assert [name for _, name in log] == ["allocator"]


def test_what_only_the_user_can_vouch_for_is_tried_last_and_never_switched_on():
    settings, log = searched({"pure": 0.9, "cache": 0.3, "bf16": 0.1}, {"pure": 3.0, "cache": 1.5, "bf16": 1.2})
    assert settings == {"cache": True, "bf16": True}
    assert log[-1] == (("cache", "bf16"), "pure") and sum("pure" in name for _, name in log) == 1


class TestATrialThatRanOutOfItsShareOfTime:
    """Four pairs a call; `clear_at` pairs make it clear that it is faster."""

    def trying(self, speedups, clear_at, log):
        def try_fix(settings, added, promised, share):
            ((name, value),) = added.items()
            log.append(name)
            pairs = 4 * log.count(name) if speedups[name] != 1.0 else 16
            speedup, clear = speedups[name], pairs >= clear_at.get(name, 16)
            verdict = "no difference" if speedup == 1.0 else "faster" if clear else "inconclusive"
            interval = Interval(speedup, 0.9 if not clear else 1.1, 1.1 * speedup**2)
            launches = (1.0,) * min(pairs, 16)
            return Trial(
                fix=name,
                value=value,
                settings=settings,
                verdict=verdict,
                speedup=interval,
                baseline_seconds=launches,
                candidate_seconds=launches,
                seconds=10.0 * pairs,
            )

        return try_fix

    def searched(self, promises, speedups, clear_at):
        log = []
        first = FakeSituation(promises)
        try_fix = self.trying(speedups, clear_at, log)
        found = [*search(first, try_fix=try_fix, diagnose_again=lambda _: None, time_left=lambda: PLENTY)]
        return found[-1][0], log

    def test_continues_where_it_shows_more_than_the_others_promise(self):
        settings, log = self.searched(
            {"bf16": 0.3, "channels_last": 0.2}, {"bf16": 1.5, "channels_last": 1.0}, {"bf16": 8}
        )
        assert log == ["bf16", "bf16", "channels_last"] and settings == {"bf16": True}

    def test_waits_where_others_promise_more(self):
        settings, log = self.searched(
            {"bf16": 0.3, "channels_last": 0.2}, {"bf16": 1.1, "channels_last": 1.0}, {"bf16": 8}
        )
        assert log == ["bf16", "channels_last", "bf16"] and settings == {"bf16": True}

    def test_begins_anew_on_top_of_what_was_kept_meanwhile(self):
        settings, log = self.searched(
            {"bf16": 0.3, "channels_last": 0.2}, {"bf16": 1.1, "channels_last": 1.5}, {"bf16": 8, "channels_last": 4}
        )
        assert log == ["bf16", "channels_last", "bf16"] and settings == {"channels_last": True, "bf16": True}

    def test_is_given_up_after_the_last_look(self):
        settings, log = self.searched({"bf16": 0.3}, {"bf16": 1.5}, {"bf16": 99})
        assert log == ["bf16"] * 4 and settings == {}

    def test_is_dropped_where_it_shows_too_little(self):
        _, log = self.searched({"bf16": 0.3}, {"bf16": 1.015}, {"bf16": 8})
        assert log == ["bf16"]
