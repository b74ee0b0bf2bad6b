"""Which further runs a run gives a chance of telling something."""

import pkgutil
from dataclasses import replace

import msgspec
import pytest
import runs

from hasten.launch.recorder import Recorded
from hasten.launch.shares import Shares
from hasten.measurement import measure
from hasten.measurement.followups import (
    FollowUpRun,
    broken_segment,
    choose,
    compare,
    may_be_luck,
    of_two_pairs,
    spec_for,
)
from hasten.measurement.measure import MeasureOptions
from hasten.optimizations.catalog import EXPERIMENTS
from hasten.protocol import FixSpec, SwitchSpec
from hasten.raw_run import RawRun, RawSegment
from hasten.records import Facts, LoaderFacts, ModelFacts, OptimizerFacts, Stage

COMPUTING = {"data_wait": 0.001, "forward": 0.04, "backward": 0.04, "optimizer": 0.002}
MOSTLY_VALIDATING = {"validation": 0.06, "forward": 0.01, "backward": 0.02, "optimizer": 0.002}
WAITING = {"data_wait": 0.06, "forward": 0.015, "backward": 0.02, "optimizer": 0.002}


def machine(**changes):
    given = {"torch": None, "num_cores": 4.0, "num_cores_present": 4, "memory_available_bytes": 1 << 33}
    return runs.machine(**{**given, "shm_bytes": None, **changes})


def model(**changes):
    given = {"name": "Net", "num_parameters": 9, "num_modules": 3, "dtypes": ("float32",), "devices": ("cpu",)}
    return ModelFacts(**{**given, **changes})


def loader(**changes):
    given = {
        "name": "Films",
        "role": "train",
        "num_workers": 0,
        "batch_size": 16,
        "num_batches": 10,
        "num_samples": 160,
    }
    return LoaderFacts(**{**given, "start_method": "fork", **changes})


def chosen(*, phases=COMPUTING, step=0.1, faults=0.0, others=0.0, on=None, already=(), **facts):
    shares = Shares(step=step, regular=step, phases=phases, faults=faults, others_cpu=others)
    return choose(Facts(**{"boundary": "optimizer", "num_threads": 1, **facts}), shares, on or machine(), on=already)


def inside(**case):
    """What the alternating launch is asked for."""
    return next((f.interventions for f in chosen(**case) if f.interventions is not None), None)


def switches(**case):
    asked = inside(**case)
    return {} if asked is None else {switch.cause: switch.fix.value for switch in asked.switches}


def launches(**case):
    return {f.name: f for f in chosen(**case) if f.interventions is None}


def test_a_script_without_a_loader_and_without_a_fault_needs_no_further_run():
    assert chosen(phases={"forward": 0.001}) == []


def test_whoever_has_a_loader_gets_batches_for_free():
    asked = inside(loaders=(loader(),))
    assert asked.replay and asked.device_replay is None and not asked.drain


def test_a_loader_that_is_waited_for_is_also_run_alone():
    assert inside(loaders=(loader(),), phases=WAITING).drain


def test_batches_are_replayed_from_the_device_where_there_is_one():
    assert inside(loaders=(loader(),), device="cuda").device_replay == "cuda"


def test_a_validation_loader_is_not_replayed():
    assert not inside(loaders=(loader(role="validation"),)).replay


@pytest.mark.parametrize(("step", "size", "joined"), [(0.1, 4, True), (2.0, 4, False), (0.1, 64, False)])
def test_only_short_steps_of_few_samples_are_joined(step, size, joined):
    assert inside(loaders=(loader(batch_size=size),), step=step).join is joined


def test_where_training_mostly_waits_what_makes_the_rest_faster_comes_last():
    both = chosen(loaders=(loader(),), phases={"data_wait": 0.08, "forward": 0.02, "backward": 0.03})
    first, second = (run for run in both if run.interventions is not None)
    assert first.interventions.replay and not first.interventions.switches
    assert second.interventions.switches and not second.interventions.replay
    waits_all_the_time = [runs.tried("replay", 0.1)]
    assert (
        second.most(waits_all_the_time)
        < 0.2
        < launches(loaders=(loader(),), phases=WAITING)["too_few_workers"].most([])
    )


def test_no_launch_about_the_loader_promises_more_than_instant_loading():
    workers = launches(loaders=(loader(),), phases=WAITING)["too_few_workers"]
    assert workers.most([runs.tried("replay", 0.9)]) == pytest.approx(0.12)
    assert workers.most([runs.tried("replay", 0.5), runs.tried("instant samples", 0.9)]) == pytest.approx(0.12)


@pytest.mark.parametrize(("dtypes", "tried"), [(("float64",), True), (("float32",), False)])
def test_what_float64_costs_is_tried_in_a_launch_of_its_own_and_is_no_setting(dtypes, tried):
    launch = launches(models=(model(dtypes=dtypes),)).get("double_precision")
    assert (launch is not None) is tried
    if launch is not None:
        assert [fix.installer for fix in launch.fixes] == ["hasten.optimizations.float32:use_float32"]
        assert launch.settings == {}


def test_a_script_that_ends_soon_gives_each_experiment_fewer_steps():
    shares = Shares(step=0.1, regular=0.1, phases=COMPUTING, faults=0.0, others_cpu=0.0)
    facts = Facts(boundary="optimizer", num_threads=1)
    (short,) = choose(facts, shares, machine(), length=3.0)
    assert short.brief and short.seconds == pytest.approx(1.0)
    (long,) = choose(facts, shares, machine(), length=60.0)
    assert not long.brief and long.seconds == 4.0


def test_keeping_device_memory_is_tried_where_the_driver_is_asked_each_step():
    assert "allocator_thrash" in switches(device="cuda", memory_requests=3.0)
    assert "allocator_thrash" not in switches(device="cuda", memory_requests=0.02)
    assert "allocator_thrash" not in switches(memory_requests=None)


def test_denormals_are_tried_where_the_cpu_computes():
    assert "denormals" in switches()
    assert "denormals" not in switches(device="cuda")
    assert "denormals" not in switches(phases=WAITING, step=1.0)


@pytest.mark.parametrize("fact", ["anomaly_detection", "zero_grad_in_place"])
def test_what_the_script_switched_on_is_tried_off(fact):
    assert fact in switches(**{fact: True})
    assert fact not in switches()


@pytest.mark.parametrize(
    ("name", "fused", "share", "tried"),
    [
        ("Adam", None, 0.02, True),
        ("Adam", True, 0.02, False),
        ("Adam", None, 0.001, False),
        ("RMSprop", None, 0.02, False),
    ],
)
def test_an_optimizer_that_costs_something_is_tried_fused(name, fused, share, tried):
    stepping = OptimizerFacts(name=name, num_parameters=9, num_tensors=2, fused=fused)
    phases = {**COMPUTING, "optimizer": share}
    assert ("unfused_optimizer" in switches(optimizers=(stepping,), phases=phases)) is tried


BF16 = {"on": machine(cpu_features=("avx512_bf16",))}


@pytest.mark.parametrize(
    ("case", "tried"),
    [
        ({"models": (model(),), **BF16}, True),
        ({"models": (model(),)}, False),
        ({"models": (model(),), "autocast": True, **BF16}, False),
        ({"models": (model(dtypes=("float32", "float64")),), **BF16}, False),
        ({"models": (model(compiled=True),), **BF16}, False),
        ({"models": (model(),), "device": "cuda"}, True),
    ],
)
def test_lower_precision_is_tried_where_the_hardware_has_it_and_the_script_does_not_use_it(case, tried):
    assert ("full_precision" in switches(**case)) is tried


@pytest.mark.parametrize(("on", "tried"), [(False, True), (True, False)])
def test_tf32_is_tried_where_it_is_off(on, tried):
    assert ("tf32" in switches(models=(model(),), device="cuda", tf32=on)) is tried


@pytest.mark.parametrize(
    ("changes", "tried"),
    [({"num_convolutions": 3}, True), ({"num_convolutions": 3, "channels_last": True}, False), ({}, False)],
)
def test_channels_last_is_tried_on_convolutions_that_are_not(changes, tried):
    assert ("channels_first" in switches(models=(model(**changes),))) is tried


@pytest.mark.parametrize(
    ("benchmark", "shapes", "tried"),
    [
        (False, 1, {"cudnn_autotune": True}),
        (True, 1, {}),
        (True, 50, {"cudnn_autotune": False}),
        (False, 50, {}),
    ],
)
def test_autotuning_is_tried_against_the_shapes(benchmark, shapes, tried):
    case = {"models": (model(num_convolutions=3),), "device": "cuda"}
    found = switches(**case, cudnn_benchmark=benchmark, num_input_shapes=shapes)
    assert {name: value for name, value in found.items() if name.startswith("cudnn")} == tried


def test_threads_are_tried_as_many_as_the_workers_leave_cores():
    assert switches(num_threads=4, loaders=(loader(num_workers=3),))["thread_contention"] == 1
    assert switches(num_threads=4, loaders=(loader(num_workers=2),))["thread_contention"] == 2
    assert "thread_contention" not in switches(num_threads=1, loaders=(loader(num_workers=2),))


def test_a_thread_that_was_seen_to_wait_for_a_core_has_fewer_threads_tried_first():
    case = {"num_threads": 4, "loaders": (loader(num_workers=3),), "models": (model(num_convolutions=3),)}
    assert [*switches(**case)].index("thread_contention") > 0
    assert next(iter(switches(**case, run_delay=0.04))) == "thread_contention"


def test_what_makes_computing_faster_saves_no_more_of_a_step_that_waits():
    case = {"models": (model(num_convolutions=3),), "num_threads": 4, "loaders": (loader(num_workers=3),)}
    for phases, first in ((COMPUTING, "channels_first"), (MOSTLY_VALIDATING, "thread_contention")):
        assert next(iter(switches(**case, phases=phases, run_delay=0.008))) == first


def test_workers_that_may_keep_training_from_a_core_are_stopped_before_anything_else_is_tried():
    crowded = {"num_threads": 4, "loaders": (loader(num_workers=3),), "run_delay": 0.02}
    assert not inside(**crowded).switches_first
    assert inside(**{**crowded, "run_delay": 0.001}).switches_first


def test_threads_are_tried_as_many_as_there_are_cores_where_the_script_asks_for_more():
    assert switches(num_threads=24)["thread_contention"] == 4
    assert "thread_contention" not in switches(num_threads=4)


def test_one_thread_is_tried_where_operators_are_small():
    small = {"num_threads": 4, "num_operators": 100_000.0}
    assert switches(**small)["too_many_threads"] == 1
    assert "too_many_threads" not in switches(**{**small, "num_operators": 10.0})
    assert "too_many_threads" not in switches(**{**small, "num_threads": 1})
    assert "too_many_threads" not in switches(**small, device="cuda")
    contended = switches(**small, loaders=(loader(num_workers=3),))
    assert contended["thread_contention"] == 1 and "too_many_threads" not in contended


def test_ranks_share_the_cores_of_their_host():
    two = {"ranks_per_host": 2, "num_threads": 4}
    assert switches(**two)["thread_contention"] == 2
    limited = {"ranks_per_host": 2, "num_threads": 1, "forced_threads": True}
    assert switches(**limited)["few_threads"] == 2
    assert "few_threads" not in switches(**{**limited, "ranks_per_host": 4})
    assert "few_threads" not in switches(num_threads=1)


def test_what_is_on_already_is_not_turned_on_and_off():
    case = {"models": (model(num_convolutions=3),), **BF16}
    assert {"full_precision", "channels_first"} <= {*switches(**case)}
    assert {"full_precision", "channels_first"} & {*switches(already=("bf16",), **case)} == {"channels_first"}


def test_what_may_gain_most_is_tried_first():
    found = [*switches(models=(model(num_convolutions=3),), anomaly_detection=True, **BF16)]
    assert found.index("anomaly_detection") < found.index("full_precision") < found.index("denormals")
    assert not any(n.startswith("thread") for n in switches(num_threads=4, loaders=(loader(),)))


def test_more_workers_are_tried_where_batches_are_waited_for():
    slow = loader(batch_work_seconds=(0.08, 0.08))
    found = launches(loaders=(slow,), phases=WAITING)["too_few_workers"]
    assert found.fixes == (
        FixSpec(name="num_workers", installer="hasten.optimizations.workers:enable_number", value=2),
    )
    assert found.settings == {"num_workers": "2"}
    assert "too_few_workers" not in launches(loaders=(slow,))


def test_workers_that_wait_for_a_disk_may_be_more_than_the_cores():
    stages = (Stage(name="read", num_calls=10, seconds=1.0, cpu_seconds=0.1),)
    slow = loader(num_workers=4, stages=stages, num_measured_batches=2, batch_work_seconds=(0.4,), prefetch_factor=2)
    found = launches(loaders=(slow,), phases=WAITING)["too_few_workers"]
    assert int(found.settings["num_workers"]) > 4


def test_data_in_memory_is_not_given_workers():
    assert launches(loaders=(loader(in_memory=True),), phases=WAITING) == {}


def test_workers_that_would_have_to_be_spawned_are_not_tried():
    assert launches(loaders=(loader(start_method="spawn"),), phases=WAITING) == {}


def test_more_workers_than_cores_are_tried_fewer():
    found = launches(loaders=(loader(num_workers=16),))
    assert found["too_many_workers"].settings == {"num_workers": "4"}


@pytest.mark.parametrize(
    ("samples", "tried"), [((0.01,) * 30, False), ((0.01,) * 29 + (0.5,), True), ((0.01, 0.5), False)]
)
def test_a_deeper_prefetch_is_tried_where_samples_are_uneven(samples, tried):
    uneven = loader(num_workers=4, prefetch_factor=2, sample_seconds=samples)
    assert ("shallow_prefetch" in launches(loaders=(uneven,), phases=WAITING)) is tried


@pytest.mark.parametrize(
    ("slowest", "batch_bytes", "depth"), [(0.1, 1, "8"), (1.0, 1, "16"), (20.0, 1, "64"), (1.0, 1 << 26, "6")]
)
def test_a_prefetch_lasts_while_the_slowest_batch_is_made_and_fits_the_memory(slowest, batch_bytes, depth):
    work = (0.01,) * 20 + (slowest,)
    uneven = loader(num_workers=2, prefetch_factor=2, batch_work_seconds=work, bytes_per_batch=batch_bytes)
    uneven = msgspec.structs.replace(uneven, sample_seconds=work)
    further = launches(loaders=(uneven,), phases=WAITING)["shallow_prefetch"]
    assert further.settings == {"prefetch_factor": depth}
    assert further.baseline().seconds == further.seconds and further.baseline().fixes == ()


@pytest.mark.parametrize(
    ("settings", "tried"), [({}, True), ({"persistent_workers": True}, False), ({"recreated": True}, False)]
)
def test_workers_are_kept_where_their_start_costs_something(settings, tried):
    starting = loader(**{"num_workers": 2, "persistent_workers": False, **settings})
    phases = {**COMPUTING, "epoch_start": 0.02}
    assert ("worker_startup" in launches(loaders=(starting,), phases=phases)) is tried


def test_a_profiler_is_kept_off_in_a_launch_of_its_own():
    tried = FixSpec(name="no_debug", installer="hasten.optimizations.no_debug:no_profiler", value=True)
    assert launches(profiler=True)["profiler_on"].fixes == (tried,)


def test_what_an_experiment_enables_is_there_to_be_enabled():
    for experiment, optimization in EXPERIMENTS.values():
        if experiment.enable is not None or optimization.enable is not None:
            assert callable(pkgutil.resolve_name(spec_for(experiment, optimization, True).installer))
        else:
            assert optimization.environment(optimization.words[0]), experiment.cause


def test_gradients_in_validation_are_tried_without_where_validation_costs_something():
    validating = {**COMPUTING, "validation": 0.02}
    assert "validation_gradients" in launches(validation_grad=True, phases=validating)
    assert "validation_gradients" not in launches(validation_grad=True)
    assert "validation_gradients" not in launches(phases=validating)


@pytest.mark.parametrize(
    ("faults", "each", "tried"),
    [
        (50_000.0, 1e-6, True),
        (100.0, 1e-6, False),
        (4_000.0, 1e-6, False),
        (4_000.0, 2e-6, True),
        (None, 1e-6, False),
        (50_000.0, None, False),
    ],
)
def test_keeping_memory_is_tried_where_page_faults_take_time(faults, each, tried):
    found = launches(faults=faults, on=machine(fault_seconds=each))
    assert ("page_faults" in found) is tried
    assert all("MALLOC_TRIM_THRESHOLD_" in f.environment for f in found.values())


@pytest.mark.parametrize(("others", "workers", "tried"), [(1.0, 0, True), (0.0, 2, True), (0.0, 0, False)])
def test_waiting_without_spinning_is_tried_where_others_want_the_cores(others, workers, tried):
    found = launches(num_threads=4, others=others, loaders=(loader(num_workers=workers),))
    assert ("passive_waiting" in found) is tried


def test_a_side_without_a_step_is_said_and_has_no_ratio():
    tried = compare("tf32", [], [0.1], num_steps=0)
    assert tried.ratio is None and tried.note == "too few steps were measured"


def test_a_comparison_keeps_both_sides():
    tried = compare("tf32", [0.05, 0.05, 0.06], [0.1, 0.1, 0.1], num_steps=30, settings={"a": "b"})
    assert (tried.candidate_seconds, tried.baseline_seconds, tried.ratio.value) == (0.05, 0.1, 0.5)
    assert (tried.num_steps, tried.settings) == (30, {"a": "b"})


@pytest.mark.parametrize(
    ("candidate", "is_luck"),
    [(0.085, True), (0.05, False), (0.098, False), (0.11, False)],
    ids=["close", "half", "none", "slower"],
)
def test_only_a_close_gain_of_one_pair_of_launches_needs_a_second_pair(candidate, is_luck):
    tried = compare("shallow_prefetch", [candidate] * 4, [0.1] * 4, num_steps=40)
    assert may_be_luck(tried) is is_luck


def test_two_pairs_of_launches_that_differ_confirm_nothing():
    lucky = compare("shallow_prefetch", [0.085] * 4, [0.1] * 4, num_steps=40)
    usual = compare("shallow_prefetch", [0.102] * 4, [0.1] * 4, num_steps=40)
    together = of_two_pairs(lucky, usual)
    assert together.ratio.low < 0.9 and together.ratio.high > 1.0 and together.num_steps == 80


def test_two_pairs_of_launches_that_agree_confirm_it():
    pairs = [compare("shallow_prefetch", [gain] * 4, [0.1] * 4, num_steps=40) for gain in (0.085, 0.08)]
    assert of_two_pairs(*pairs).ratio.high < 0.9


def test_a_pair_that_is_not_sure_by_itself_does_not_hide_what_both_show():
    sure = compare("shallow_prefetch", [0.075, 0.08, 0.085], [0.1] * 3, num_steps=30)
    unsure = compare("shallow_prefetch", [0.055, 0.065, 0.084], [0.1] * 3, num_steps=30)
    assert sure.ratio.high < 1.0 < unsure.ratio.high
    assert of_two_pairs(sure, unsure).ratio.high < 1.0


def test_a_pair_that_could_not_be_measured_changes_nothing():
    tried = compare("shallow_prefetch", [0.085] * 4, [0.1] * 4, num_steps=40)
    assert of_two_pairs(tried, compare("shallow_prefetch", [], [0.1], num_steps=0)) == tried


@pytest.fixture
def launched(monkeypatch):
    """The launches that trying a deeper prefetch makes, where each pair shows the next of the ratios."""

    def launched(*ratios, begun_within=60.0):
        made, left = [], [*ratios]
        further = FollowUpRun(name="shallow_prefetch", fixes=(FixSpec(name="prefetch", installer="", value=4),))
        measuring = measure._Measuring([], [], None, MeasureOptions(begun_within=begun_within), None, module=False)
        monkeypatch.setattr(measuring, "_one", lambda _, one: made.append("fixed" if one.fixes else "plain") or one)
        monkeypatch.setattr(measure, "_read", lambda launch: launch)
        monkeypatch.setattr(
            measure, "against", lambda *_: compare("shallow_prefetch", [left.pop(0)] * 4, [1.0] * 4, num_steps=40)
        )
        return measuring._tried("", further, None)[0], made

    return launched


def test_a_close_gain_is_measured_in_two_pairs_in_reverse_order(launched):
    tried, made = launched(0.85, 0.85, 0.8)
    assert made == ["fixed", "plain", "plain", "fixed"]
    assert tried.ratio.high == pytest.approx(0.85) and tried.ratio.low == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("ratios", "made"), [((0.5, 0.5), ["fixed", "plain"]), ((0.99,), ["fixed"])], ids=["large", "none"]
)
def test_other_gains_are_measured_in_no_second_pair(launched, ratios, made):
    assert launched(*ratios)[1] == made


def test_no_second_pair_begins_where_its_time_is_over(launched):
    assert launched(0.85, 0.85, begun_within=1.0)[1] == ["fixed", "plain"]


def alternating():
    return next(f for f in chosen(loaders=(loader(),), phases=WAITING) if f.interventions is not None)


def record(*names, exit_code=None, ended_by="hasten"):
    """What an alternating launch told: the segments of its steps, and how it ended."""
    segments = [RawSegment(name=name, began=0.0, ends=[1.0]) for name in names]
    return Recorded(RawRun(pid=1, ended_by=ended_by, segments=segments, spans=[]), [], exit_code=exit_code)


@pytest.mark.parametrize(
    ("segment", "exit_code", "broken"),
    [
        ("denormals", 1, "denormals"),
        ("replay", 1, "replay"),
        ("warm-up", 1, "warm-up"),
        ("denormals", None, None),
        ("denormals", 0, None),
    ],
)
def test_a_script_that_fails_names_what_it_failed_under(segment, exit_code, broken):
    assert broken_segment(record(segment, exit_code=exit_code)) == broken


def with_switches(*causes):
    further = alternating()
    switches = tuple(SwitchSpec(cause=c, fix=FixSpec(name=c, installer="", value=True)) for c in causes)
    return replace(further, interventions=replace(further.interventions, switches=switches, drain=False))


def causes_of(further):
    return [switch.cause for switch in further.interventions.switches]


def test_what_comes_after_a_switch_that_broke_the_script_is_tried_again():
    further = with_switches("denormals", "channels_first", "thread_contention")
    again = further.remaining_after(record("replay", "denormals", "channels_first", exit_code=1))
    assert causes_of(again) == ["thread_contention"]
    assert not again.interventions.replay, "it came before and was read"
    assert again.remaining_after(record("thread_contention", exit_code=1)) is None


def test_every_switch_is_tried_where_the_script_fails_while_batches_are_replayed():
    further = with_switches("denormals", "channels_first")
    again = further.remaining_after(record("replay", exit_code=1))
    assert causes_of(again) == ["denormals", "channels_first"] and not again.interventions.replay
    assert again.remaining_after(record("warm-up", exit_code=1)) is None, "it fails by itself"


def test_a_short_script_is_started_again_for_what_it_did_not_come_to():
    further = with_switches("denormals", "channels_first", "thread_contention")
    again = further.remaining_after(record("replay", "denormals", "channels_first", ended_by="script", exit_code=0))
    assert causes_of(again) == ["channels_first", "thread_contention"], "the last one was not finished"
    again = again.remaining_after(record("channels_first", ended_by="script", exit_code=0))
    assert causes_of(again) == ["thread_contention"], "one that does not fit into the script is not tried for ever"


def test_slow_steps_get_more_time_in_proportion_up_to_a_limit():
    options = MeasureOptions(begun_within=45.0, begun_within_if_slow=150.0)
    assert [options.begun_within_at(step) for step in (0.01, 0.3, 0.6, 9.0)] == [45.0, 45.0, 90.0, 150.0]
    assert MeasureOptions(begun_within=45.0).begun_within_at(9.0) == 45.0
