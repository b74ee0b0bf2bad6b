"""What may stand in a plan, and what is said of what may not."""

from pathlib import Path

import pytest

from hasten.errors import PlanError
from hasten.optimizations.catalog import CATALOG, checked, enabled_in, specs_of, variables_of, weakest


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"num_worker": 2}, "did you mean num_workers"),
        ({"frobnicate": 2}, "docs/fixes.md"),
        ({"num_workers": "two"}, "a whole number of 0 or more"),
        ({"num_workers": -1}, "a whole number of 0 or more"),
        ({"num_workers": True}, "a whole number"),
        ({"bf16": "yes"}, "true or false"),
        ({"bf16": 1}, "true or false"),
        ({"cache": "8 Gigs"}, '"8 GiB"'),
        ({"allocator": "mimalloc"}, '"glibc" or "jemalloc" or "tcmalloc"'),
        ({"bf16": True, "fp16": True}, "bf16 and fp16 contradict"),
        ({"num_workers": 0, "persistent_workers": True}, "needs workers"),
        ({"pixels": "close"}, "does nothing without loader"),
        ({"cpu_threads": 0}, "1 or more"),
    ],
)
def test_what_makes_no_sense_is_one_clear_line(settings, words):
    with pytest.raises(PlanError) as raised:
        checked(settings)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_settings_that_make_sense_are_taken_as_they_are():
    settings = {"bf16": True, "num_workers": 0, "cache": "8 GiB", "compile": False}
    assert checked(settings) == settings


def test_what_is_off_contradicts_nothing():
    assert checked({"bf16": True, "fp16": False}) == {"bf16": True, "fp16": False}
    assert enabled_in({"bf16": True, "fp16": False, "num_workers": 0}) == {"bf16": True, "num_workers": 0}


def test_fixes_are_put_on_in_the_order_of_the_catalog():
    names = [fix.name for fix in specs_of({"compile": "default", "channels_last": True, "bf16": True})]
    assert names == ["bf16", "channels_last", "compile"]


def test_what_must_precede_torch_is_the_environment():
    assert variables_of({"omp_wait": "passive", "cpu_threads": 2}) == {
        "OMP_WAIT_POLICY": "PASSIVE",
        "OMP_NUM_THREADS": "2",
    }
    assert "MALLOC_TRIM_THRESHOLD_" in variables_of({"allocator": "glibc"})
    assert variables_of({"omp_wait": False}) == {}


def test_what_a_killed_trial_could_leave_torn_lies_where_it_is_gone_afterwards(tmp_path):
    kept = variables_of({"compile": "default"}, scratch=tmp_path)["TORCHINDUCTOR_CACHE_DIR"]
    assert Path(kept).parent == tmp_path.resolve()
    assert variables_of({"compile": "default"}) == {}, "a run keeps what it compiled in the user's own place"
    assert variables_of({"bf16": True}, scratch=tmp_path) == {}


def test_an_allocator_that_is_not_installed_is_said_at_once(monkeypatch):
    monkeypatch.setattr("hasten.optimizations.allocator.find_library", lambda _: None)
    with pytest.raises(PlanError, match="not installed here"):
        variables_of({"allocator": "jemalloc"})


def test_the_guarantee_is_that_of_the_weakest_fix():
    assert weakest([]) == "identical"
    assert weakest(["num_workers", "channels_last"]) == "rounding"
    assert weakest(["bf16", "channels_last"]) == "precision"
    assert weakest(["bf16", "batch_size"]) == "recipe"


def test_every_fix_says_what_it_may_be_set_to():
    for fix in CATALOG.values():
        assert fix.allowed and fix.title and not fix.title.endswith("."), fix.name
        with pytest.raises(PlanError):
            fix.check([])
