"""Each fault in a hand-written run is found, and is not found where its input was not measured."""

import msgspec
import pytest
from runs import COMPUTING, GIB, GPU, HEALTHY, LINE, STEP, hot, loader, machine, run, samples, steps, sync, tried

from hasten.measurement.diagnose import KINDS, bound_of, diagnose, situation_of
from hasten.records import CopyFacts, Ddp, Exchange, Interval, Late, ModelFacts, RankRow, Ranks, Stage, Where

REST = {"forward": 0.015, "backward": 0.02, "optimizer": 0.005}
WAITS = {"data_wait": 0.06, **REST}


def fed(*stages, **changes):
    """A run that waits for a loader without workers which spends its time on these stages."""
    measured = {"num_workers": 0, "num_measured_batches": 40, "num_measured_samples": 1280} if stages else {}
    return run(steps=steps(phases=WAITS), loaders=(loader(stages=stages, **{**measured, **changes}),))


def stage(name, detail="", seconds=2.4):
    return Stage(name=name, detail=detail, num_calls=1280, seconds=seconds, cpu_seconds=seconds)


def waiting(name, detail="", seconds=2.4):
    """A stage that is on a core for a tenth of its time."""
    return msgspec.structs.replace(stage(name, detail, seconds), cpu_seconds=seconds / 10)


def handing_over(*, instant, replay, **changes):
    """A run that waits for two workers: the step without their work, and without them."""
    tries = [tried("instant samples", instant), tried("replay", replay)]
    return run(steps=steps(phases=WAITS), loaders=(loader(**changes),), interventions=tries)


def fixed(kind, ratio=0.6, *, trial=None, **settings):
    """A run in which fixing this fault was tried."""
    return run(interventions=[tried(trial or kind, ratio, **settings)])


def loading(kind, ratio=0.6):
    feeding = loader(sample_seconds=(0.001, 0.002, 0.2), batch_work_seconds=(0.1, 0.2))
    seen = steps(phases=WAITS)
    settings = {"num_workers": "2", "prefetch_factor": "32"}
    return run(steps=seen, loaders=(feeding,), interventions=[tried(kind, ratio, **settings)])


def copying(copies, **changes):
    tries = [tried("replay", 0.98), tried("device replay", 0.7)]
    feeding = loader(decoded_bytes_per_sample=150_000.0)
    facts = {"device": "cuda", "copies": copies}
    return run(interventions=tries, facts=facts, loaders=(feeding,), on=machine(devices=(GPU,), torch_cuda="12.4"))


def copied(*, pinned, blocking):
    return CopyFacts(num_bytes=19e6, pinned=pinned, blocking=blocking, dtypes=("float32",), where=LINE)


def rarely(phase, *, facts, interventions=(), **changes):
    given = {"steps_per_epoch": 200.0, **facts}
    return run(steps=steps(rare={phase: (5, 0.2)}), facts=given, interventions=interventions, **changes)


LATE = Late(ranks=(1,), phase="backward", excess=0.03, saved=Interval(value=0.03, low=0.028, high=0.032), share=0.98)


def ranks(*, sizes=(16.0, 16.0, 16.0), **changes):
    """Three ranks of one host that train as one."""
    rows = tuple(
        RankRow(rank=rank, host="a", phases=dict(COMPUTING), waiting=0.0, samples_per_step=size)
        for rank, size in enumerate(sizes)
    )
    given = {"world_size": 3, "backend": "gloo", "num_steps": 40, "step_seconds": STEP, "rows": rows}
    return Ranks(**{**given, **changes})


def tiny(*, ratio=0.4, size=4):
    """5 ms a step, most of it the cost of calling operators."""
    phases = {p: s / 25 for p, s in COMPUTING.items()}
    seen = steps(phases=phases, seconds=0.005, num_samples=size)
    return run(
        steps=seen,
        facts={"num_calls": 40.0},
        interventions=[tried("small_batch", ratio, step=0.005, joined="4")],
    )


def parallel(models):
    return run(facts={"models": models})


MODEL = ModelFacts(
    name="ResNet", num_parameters=10, num_modules=3, dtypes=("float32",), devices=("cuda",), data_parallel=True
)
LOG = Where(file="/home/ada/train.py", line=40, function="train", source="print(loss)")

# kind -> (a run with this fault, the same run where the rule's input was not measured)
CASES = {
    "slow_read": (fed(stage("read", "file")), fed()),
    "slow_decode": (fed(stage("decode", "Pillow JPEG")), fed()),
    "slow_transform": (fed(stage("transform", "RandomRotation")), fed()),
    "slow_collate": (fed(stage("collate")), fed()),
    "slow_sampler": (fed(sampler_seconds=0.05), fed()),
    "slow_transport": (handing_over(instant=0.8, replay=0.4), handing_over(instant=None, replay=0.4)),
    "waiting_samples": (fed(waiting("transform", "Bucket.get")), fed()),
    "too_few_workers": (loading("too_few_workers"), loading("too_few_workers", None)),
    "too_many_workers": (loading("too_many_workers"), loading("too_many_workers", None)),
    "shallow_prefetch": (loading("shallow_prefetch"), loading("shallow_prefetch", None)),
    "worker_startup": (
        run(
            steps=steps(rare={"epoch_start": (10, 1.0)}),
            facts={"steps_per_epoch": 10.0},
            loaders=(loader(persistent_workers=False),),
        ),
        run(facts={"steps_per_epoch": 10.0}),
    ),
    "python_bound_data": (
        run(
            steps=steps(phases=WAITS),
            facts={"gather_seconds": 0.001},
            loaders=(loader(in_memory=True),),
        ),
        run(steps=steps(phases=WAITS), loaders=(loader(in_memory=True),)),
    ),
    "busy_machine": (
        run(resources=samples(tree=1.0, others=1.0), facts={"run_delay": 0.02}),
        run(resources=samples(tree=1.0, others=1.0)),
    ),
    "pageable_copy": (copying(copied(pinned=0.0, blocking=1.0)), copying(None)),
    "blocking_copy": (copying(copied(pinned=1.0, blocking=1.0)), copying(None)),
    "wide_copy": (copying(copied(pinned=1.0, blocking=0.0)), copying(None)),
    "default_stream_copy": (
        copying(CopyFacts(num_bytes=19e6, pinned=1.0, blocking=0.0, dtypes=("uint8",), where=LINE)),
        copying(None),
    ),
    "sync_points": (
        run(steps=steps(phases={**REST, "sync": 0.04}), sync_points=(sync(0.04),)),
        run(steps=steps(phases={**REST, "sync": 0.04})),
    ),
    "launch_bound": (run(facts={"num_calls": 6000.0}), run(facts={"num_calls": 6000.0, "call_overhead": None})),
    "full_precision": (fixed("full_precision"), fixed("full_precision", None)),
    "double_precision": (fixed("double_precision"), fixed("double_precision", None)),
    "channels_first": (fixed("channels_first"), fixed("channels_first", None)),
    "cudnn_autotune": (fixed("cudnn_autotune"), fixed("cudnn_autotune", None)),
    "unfused_optimizer": (fixed("unfused_optimizer"), fixed("unfused_optimizer", None)),
    "zero_grad_in_place": (fixed("zero_grad_in_place"), fixed("zero_grad_in_place", None)),
    "anomaly_detection": (fixed("anomaly_detection"), fixed("anomaly_detection", None)),
    "profiler_on": (fixed("profiler_on"), fixed("profiler_on", None)),
    "denormals": (fixed("denormals"), fixed("denormals", None)),
    "allocator_thrash": (fixed("allocator_thrash"), fixed("allocator_thrash", None)),
    "page_faults": (fixed("page_faults"), fixed("page_faults", None)),
    "thread_contention": (fixed("thread_contention"), fixed("thread_contention", None)),
    "validation_gradients": (
        rarely("validation", facts={"validation_grad": True}, interventions=[tried("validation_gradients", 0.5)]),
        rarely("validation", facts={"validation_grad": True}, interventions=[tried("validation_gradients", 0.99)]),
    ),
    "validation_often": (
        rarely("validation", facts={"steps_per_validation": 5.0}),
        rarely("validation", facts={}),
    ),
    "checkpoint_often": (
        rarely("checkpoint", facts={"steps_per_checkpoint": 5.0}),
        rarely("checkpoint", facts={}),
    ),
    "logging_each_step": (
        run(
            steps=steps(phases={**REST, "logging": 0.03}),
            hot_lines=(hot(0.03, phase="logging", where=LOG),),
        ),
        run(steps=steps(phases=REST)),
    ),
    "small_batch": (tiny(), tiny(ratio=None)),
    "memory_full": (run(resources=samples(major_faults=3000.0, available=GIB // 2)), run(resources=())),
    "cuda_unused": (
        run(on=machine(devices=(GPU,), torch_cuda="12.4", cuda_usable=True)),
        run(on=machine(devices=(GPU,), torch_cuda="12.4", cuda_usable=None)),
    ),
    "cpu_only_build": (run(on=machine(devices=(GPU,))), run()),
    "data_parallel": (parallel((MODEL,)), parallel(())),
    "script_bound": (
        run(steps=steps(phases={**REST, "script": 0.05}), hot_lines=(hot(0.05),)),
        run(steps=steps(phases={**REST, "script": 0.05})),
    ),
    "straggler": (run(ranks=ranks(late=LATE)), run(ranks=ranks())),
    "uneven_shards": (run(ranks=ranks(late=LATE, sizes=(16.0, 32.0, 16.0))), run(ranks=ranks(late=LATE))),
    "uneven_steps": (run(ranks=ranks(imbalance=0.03)), run(ranks=ranks())),
    "exposed_communication": (run(ranks=ranks(transfer=0.04)), run()),
    "rank_exchange": (
        run(ranks=ranks(transfer=0.04, exchanges=(Exchange(where=LINE, calls=2.0, seconds=0.035),))),
        run(ranks=ranks(transfer=0.04)),
    ),
    "rank_validation": (
        rarely("validation", facts={"steps_per_validation": 5.0}, ranks=ranks(only={"validation": (0,)})),
        rarely("validation", facts={"steps_per_validation": 5.0}, ranks=ranks()),
    ),
    "rank_checkpoint": (
        rarely("checkpoint", facts={"steps_per_checkpoint": 5.0}, ranks=ranks(only={"checkpoint": (0,)})),
        rarely("checkpoint", facts={"steps_per_checkpoint": 5.0}, ranks=ranks()),
    ),
    "unused_parameters": (fixed("unused_parameters"), fixed("unused_parameters", None)),
    "too_many_threads": (fixed("too_many_threads"), fixed("too_many_threads", None)),
    "few_threads": (fixed("few_threads"), fixed("few_threads", None)),
}
# What has two trials; the second of them.
OTHER_TRIALS = {
    "tf32": "full_precision",
    "matmul_precision": "full_precision",
    "passive_waiting": "thread_contention",
}


def kinds(measured):
    return [finding.kind for finding in diagnose(measured).findings]


def test_every_kind_has_a_case():
    assert set(CASES) == set(KINDS)
    assert len(set(KINDS)) == len(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_is_the_top_finding_where_it_was_measured(kind):
    assert kinds(CASES[kind][0])[:1] == [kind]


@pytest.mark.parametrize("kind", KINDS)
def test_a_rule_abstains_where_its_input_was_not_measured(kind):
    assert kind not in kinds(CASES[kind][1])


@pytest.mark.parametrize("trial", OTHER_TRIALS)
def test_the_other_way_of_trying_a_fault_counts_too(trial):
    assert kinds(fixed(trial)) == [OTHER_TRIALS[trial]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_finding_says_what_it_is_why_and_what_to_do(kind):
    finding = diagnose(CASES[kind][0]).findings[0]
    assert finding.title and finding.because and finding.remedy
    assert all(isinstance(reason, str) and "None" not in reason for reason in finding.because)


def test_the_exchange_for_unused_parameters_is_named_where_there_are_none():
    def found(**changes):
        ddp = Ddp(
            **{
                "num_bytes": 4000,
                "find_unused": True,
                "unused_bytes": 0,
                "static_graph": False,
                "bucket_view": False,
                **changes,
            }
        )
        return diagnose(run(ranks=ranks(transfer=0.04), facts={"ddps": (ddp,)})).findings[0]

    assert found().remedy.startswith("Leave find_unused_parameters out")
    assert "find_unused" not in found(find_unused=False).remedy + found(unused_bytes=400).remedy


@pytest.mark.parametrize("kind", KINDS)
def test_no_finding_promises_more_than_the_step(kind):
    diagnosis = diagnose(CASES[kind][0])
    assert all(0.0 < f.recoverable <= diagnosis.breakdown.step_seconds for f in diagnosis.findings)


@pytest.mark.parametrize("kind", KINDS)
def test_an_interval_holds_what_is_promised(kind):
    finding = diagnose(CASES[kind][0]).findings[0]
    interval = finding.interval
    if interval is not None:
        assert interval.low <= finding.recoverable <= interval.high
        assert interval.value == pytest.approx(finding.recoverable)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_confirmed_names_an_intervention_of_the_run(kind):
    measured = CASES[kind][0]
    finding = diagnose(measured).findings[0]
    assert finding.confirmed_by is None or finding.confirmed_by in {i.name for i in measured.interventions}


@pytest.mark.parametrize("kind", KINDS)
def test_the_verdict_is_one_sentence_about_the_top_finding(kind):
    diagnosis = diagnose(CASES[kind][0])
    assert diagnosis.verdict.endswith("of the step.")
    assert "\n" not in diagnosis.verdict
    assert diagnosis.findings[0].title[1:] in diagnosis.verdict
    assert "openMP" not in diagnosis.verdict and "tF32" not in diagnosis.verdict, "names keep their capitals"


def test_where_ranks_take_all_cores_small_differences_are_noise():
    alone = ranks(imbalance=0.012, ranks_per_host=1)
    crowded = ranks(imbalance=0.012, ranks_per_host=3)
    assert kinds(run(ranks=alone)) == ["uneven_steps"]
    assert kinds(run(ranks=crowded)) == []


def test_emptying_the_cache_is_one_finding_not_also_the_script_s_own_code():
    line = Where(file="/home/ada/train.py", line=46, function="main", source="torch.cuda.empty_cache()")
    faults = {"steps": steps(phases={**REST, "script": 0.05}), "hot_lines": (hot(0.05, where=line),)}
    tries = [tried("allocator_thrash", 0.85)]
    assert kinds(run(**faults, interventions=tries)) == ["allocator_thrash"]
    assert kinds(run(**faults)) == ["script_bound"], "not where the trial did not confirm it"


def test_where_too_few_validations_could_be_measured_recorded_gradients_are_an_estimate():
    seen = steps(rare={"validation": (5, 0.6)})
    unsure = run(steps=seen, facts={"validation_grad": True}, interventions=[tried("validation_gradients", None)])
    finding = next(f for f in diagnose(unsure).findings if f.kind == "validation_gradients")
    assert finding.confirmed_by is None and "guess" in finding.because[-1]


def test_nothing_wrong_is_an_answer():
    diagnosis = diagnose(run())
    assert diagnosis.findings == ()
    assert diagnosis.verdict.startswith("No problem found: compute-bound")


def test_a_healthy_run_with_everything_tried_has_no_finding():
    tries = [fixed(k).interventions[0] for k in KINDS if fixed(k).interventions[0].ratio is not None]
    equal = [msgspec.structs.replace(t, ratio=Interval(value=0.99, low=0.97, high=1.01)) for t in tries]
    diagnosis = diagnose(run(interventions=[*equal, tried("replay", 0.98)]))
    assert diagnosis.findings == ()
    assert "within 2% of the step time with instant data loading" in diagnosis.verdict


def test_what_batches_for_free_would_gain_is_not_called_nothing_wrong():
    diagnosis = diagnose(run(interventions=[tried("replay", 0.75)]))
    assert diagnosis.findings == ()
    assert (
        diagnosis.verdict == "No single cause found: compute-bound; instant data loading would save 25% of the step."
    )


def test_a_loader_that_tells_of_batches_alone_can_be_told_of_a_shallow_prefetch():
    ours = loader(sample_seconds=(), num_workers=2)
    confirmed = tried("shallow_prefetch", 0.6, prefetch_factor="32")
    finding = diagnose(run(steps=steps(phases=WAITS), loaders=(ours,), interventions=[confirmed])).findings[0]
    assert finding.kind == "shallow_prefetch" and len(finding.because) == 1


def test_a_queue_full_of_later_batches_does_not_hide_a_shallow_prefetch():
    full = loader(sample_seconds=(0.001, 0.002, 0.2), queue_ready=(4,) * 50, num_workers=2)
    confirmed = tried("shallow_prefetch", 0.6, prefetch_factor="32")
    finding = diagnose(run(steps=steps(phases=WAITS), loaders=(full,), interventions=[confirmed])).findings[0]
    assert (finding.kind, finding.remedy[:23]) == ("shallow_prefetch", "Set prefetch_factor=32,")


DECODING = (stage("decode", seconds=6.0), stage("collate", seconds=2.0))


def crowded(ratio, *, stages=DECODING, **facts):
    """Batches lie ready, and are not waited for; two workers decode all the time."""
    busy = loader(
        num_workers=2,
        queue_ready=(4,) * 50,
        stages=stages,
        num_measured_batches=40,
        num_measured_samples=1280,
    )
    return run(loaders=(busy,), facts=facts, interventions=[tried("replay", ratio)])


def test_workers_that_nobody_waits_for_cost_the_cores_that_they_take():
    diagnosis = diagnose(crowded(0.45))
    finding = diagnosis.findings[0]
    assert diagnosis.breakdown.phases["data_wait"] < 0.05 * 0.1
    assert diagnosis.verdict.startswith("CPU-starved: 2 loader workers and PyTorch share 2 cores; slow decoding")
    assert finding.kind == "slow_decode" and finding.recoverable == pytest.approx(0.75 * 0.55 * 0.1)
    assert any("workers use cores" in reason for reason in finding.because)


def test_on_a_gpu_or_where_batches_for_free_gain_little_ready_batches_acquit_the_loader():
    assert kinds(crowded(0.94)) == []
    assert "slow_decode" not in kinds(crowded(0.5, device="cuda"))


def test_a_heavy_model_without_workers_is_healthy():
    assert kinds(run(loaders=(loader(num_workers=0, stages=(stage("decode", seconds=0.05),)),))) == []


def test_accumulation_is_healthy():
    phases = {p: 4 * s for p, s in HEALTHY.items()}
    assert kinds(run(steps=steps(phases=phases, seconds=0.4, num_batches=4, num_samples=128))) == []


def test_many_lines_of_the_loop_that_take_next_to_nothing_each_are_no_finding():
    def found(function, seconds):
        places = [Where(file="/home/ada/train.py", line=40 + n, function=function) for n in range(12)]
        lines = tuple(hot(seconds, where=place) for place in places)
        where = {"forward": Where(file="/home/ada/train.py", line=20, function="main")}
        own = steps(phases={**REST, "script": 12 * seconds})
        return kinds(run(steps=own, hot_lines=lines, facts={"where": where}))

    assert found("main", 0.0015) == []
    assert found("main", 0.003) == found("weigh", 0.0015) == ["script_bound"]


@pytest.mark.parametrize(("seconds", "first"), [(0.011, "unfused_optimizer"), (0.02, "script_bound")])
def test_what_was_confirmed_comes_before_an_estimate_of_hardly_more(seconds, first):
    own = {"phases": {"forward": 0.03, "backward": 0.04, "optimizer": 0.02, "script": seconds}, "seconds": 0.1}
    found = diagnose(
        run(steps=steps(**own), hot_lines=(hot(seconds),), interventions=[tried("unfused_optimizer", 0.9)])
    ).findings
    assert {f.kind for f in found} == {"unfused_optimizer", "script_bound"}
    assert found[0].kind == first


def test_validating_and_saving_once_an_epoch_is_healthy():
    seen = steps(rare={"validation": (20, 1.0), "checkpoint": (20, 1.0)})
    facts = {"steps_per_epoch": 20.0, "steps_per_validation": 20.0, "steps_per_checkpoint": 20.0}
    assert kinds(run(steps=seen, facts=facts)) == []


def test_findings_are_told_costliest_first():
    tries = [tried("denormals", 0.9), tried("unfused_optimizer", 0.7), tried("channels_first", 0.8)]
    found = diagnose(run(interventions=tries)).findings
    assert [f.kind for f in found] == ["unfused_optimizer", "channels_first", "denormals"]
    assert [f.recoverable for f in found] == pytest.approx([0.03, 0.02, 0.01])


def test_what_is_worth_less_than_a_twentieth_of_the_step_is_not_told():
    assert kinds(fixed("denormals", 0.96)) == []


def test_a_ratio_that_may_be_one_is_no_finding():
    unsure = msgspec.structs.replace(tried("denormals", 0.8), ratio=Interval(value=0.8, low=0.5, high=1.1))
    assert kinds(run(interventions=[unsure])) == []


def test_images_are_read_because_they_are_decoded():
    # A small file and a large one differ in both: whoever stores images smaller saves both.
    case = fed(stage("decode", "Pillow JPEG", 1.6), stage("read", "file", 0.6))
    (finding,) = diagnose(case).findings
    assert finding.kind == "slow_decode"
    assert finding.recoverable == pytest.approx(2.2 / 40)


def test_small_operators_recover_a_part_of_the_overhead_of_their_calls_and_are_none_where_they_compute():
    (finding,) = diagnose(run(facts={"num_calls": 5000.0})).findings
    assert finding.kind == "launch_bound" and finding.recoverable == pytest.approx(0.4 * 5000 * 10e-6)
    assert diagnose(run(facts={"num_calls": 1000.0})).findings == ()


def test_work_recovers_no_more_than_it_takes():
    cheap = {
        "stages": (stage("transform", "Normalize", 0.2),),
        "num_measured_batches": 40,
        "num_measured_samples": 1280,
    }
    (finding,) = diagnose(handing_over(instant=None, replay=0.4, **cheap)).findings
    assert (finding.kind, finding.recoverable) == ("slow_transform", pytest.approx(0.2 / 40))
    assert kinds(handing_over(instant=0.98, replay=0.4, **cheap)) == ["slow_transport"]


def test_work_and_transport_share_what_instant_loading_saves():
    busy = {"stages": (stage("transform", "Rotate", 8.0),), "num_measured_batches": 40, "num_measured_samples": 1280}
    found = {f.kind: f.recoverable for f in diagnose(handing_over(instant=0.7, replay=0.4, **busy)).findings}
    assert found == {"slow_transport": pytest.approx(0.03), "slow_transform": pytest.approx(0.03)}


def test_samples_that_cost_nothing_when_they_are_ready_are_no_finding():
    slow = {"stages": (stage("transform", "Rotate", 8.0),), "num_measured_batches": 40, "num_measured_samples": 1280}
    unsure = msgspec.structs.replace(tried("replay", 0.9), ratio=Interval(value=0.9, low=0.7, high=1.1))
    instant = msgspec.structs.replace(tried("instant samples", 0.98), ratio=Interval(value=0.98, low=0.9, high=1.1))
    assert kinds(run(steps=steps(phases=WAITS), loaders=(loader(**slow),), interventions=[unsure, instant])) == []


def test_workers_on_shared_cores_cost_no_more_than_they_compute():
    assert kinds(crowded(0.45, stages=(stage("transform", "Rotate", 0.1),))) == []


def test_gradients_in_a_validation_come_before_validating_less_where_an_epoch_is_unknown():
    facts = {"steps_per_epoch": None, "steps_per_validation": 5.0, "validation_grad": True}
    seen = rarely("validation", facts=facts, interventions=[tried("validation_gradients", 0.9)])
    gradients, often = diagnose(seen).findings
    assert (gradients.kind, often.kind) == ("validation_gradients", "validation_often")
    assert often.recoverable == pytest.approx((0.04 - gradients.recoverable) / 2)
    assert often.remedy.startswith("Validate half as often")


def test_what_no_finding_explains_is_named():
    cheap = {
        "stages": (stage("transform", "Normalize", 0.4),),
        "num_measured_batches": 40,
        "num_measured_samples": 1280,
    }
    diagnosis = diagnose(handing_over(instant=None, replay=0.4, **cheap))
    assert diagnosis.unexplained == pytest.approx(0.06 - 0.01)
    assert diagnose(handing_over(instant=0.98, replay=0.4, **cheap)).unexplained == 0.0


def test_choosing_indices_is_not_blamed_on_fetching_them():
    held = loader(in_memory=True, num_workers=0, sampler_seconds=0.04)
    found = diagnose(run(steps=steps(phases=WAITS), facts={"gather_seconds": 0.001}, loaders=(held,))).findings
    assert {f.kind: f.recoverable for f in found} == {
        "slow_sampler": pytest.approx(0.04),
        "python_bound_data": pytest.approx(0.019),
    }


def test_an_epochs_order_costs_its_share_of_the_epoch():
    slow = loader(num_workers=0, sampler_start_seconds=1.5)
    starting = steps(rare={"epoch_start": (10, 1.5)})
    (finding,) = diagnose(run(steps=starting, facts={"steps_per_epoch": 10.0}, loaders=(slow,))).findings
    assert (finding.kind, finding.recoverable) == ("slow_sampler", pytest.approx(0.15))


def test_a_worker_without_a_core_does_not_wait():
    starved = fed(waiting("transform", "Rotate"), num_workers=2, batch_delay=0.05)
    assert kinds(starved)[0] == "slow_transform"


def test_more_workers_for_samples_that_wait_are_said_to_need_no_core():
    few = loader(
        stages=(waiting("getitem"),),
        num_measured_batches=40,
        num_measured_samples=1280,
        batch_work_seconds=(0.1, 0.2),
    )
    confirmed = tried("too_few_workers", 0.5, num_workers="16")
    (finding,) = diagnose(run(steps=steps(phases=WAITS), loaders=(few,), interventions=[confirmed])).findings
    assert (finding.kind, finding.confirmed_by) == ("waiting_samples", "too_few_workers")
    assert finding.remedy.startswith("Set num_workers=16: workers that wait need no core")


def test_unevenness_is_told_where_more_workers_help_too():
    uneven = loader(sample_seconds=(0.001, 0.002, 0.2), batch_work_seconds=(0.1, 0.2))
    tries = [tried("too_few_workers", 0.5, num_workers="2"), tried("shallow_prefetch", 0.7, prefetch_factor="32")]
    assert kinds(run(steps=steps(phases=WAITS), loaders=(uneven,), interventions=tries)) == [
        "too_few_workers",
        "shallow_prefetch",
    ]


def test_slow_work_says_how_many_cores_would_keep_up():
    (finding,) = diagnose(fed(stage("decode", "Pillow JPEG", 6.4), num_workers=2)).findings
    assert "takes 160 ms of CPU time: keeping up needs about 4 cores in addition" in finding.because[-1], (
        "the rest of a step takes 40 ms"
    )
    (finding,) = diagnose(fed(stage("decode", "Pillow JPEG", 0.4))).findings
    assert not any("keeping up" in line for line in finding.because), "one core does"


def test_no_stage_promises_more_than_batches_for_free_give():
    case = fed(stage("decode", "Pillow JPEG", 8.0))
    case = msgspec.structs.replace(case, interventions=(tried("replay", 0.6),))
    finding = diagnose(case).findings[0]
    assert (finding.kind, finding.confirmed_by) == ("slow_decode", "replay")
    assert finding.recoverable == pytest.approx(0.04)


def test_stages_together_promise_no_more_than_batches_for_free_give():
    case = fed(stage("decode", "Pillow JPEG", 4.0), stage("transform", "RandomCrop", 4.0), num_workers=2)
    case = msgspec.structs.replace(case, steps=steps(phases=WAITS), interventions=(tried("replay", 0.4),))
    found = diagnose(case).findings
    assert {f.kind for f in found} <= {"slow_decode", "slow_transform"} and found
    assert sum(f.recoverable for f in found) <= 0.06 + 1e-9


def busy_gpu(**changes):
    """A step of 100 ms in which the device computes for 60 and the script's code and logging take 40 each."""
    seen = steps(
        phases={"forward": 0.01, "backward": 0.005, "script": 0.04, "logging": 0.04},
        device={"forward": 0.02, "backward": 0.03, "optimizer": 0.01},
    )
    lines = (
        hot(0.04),
        hot(0.04, phase="logging", where=Where(file="/home/ada/train.py", line=40, source="print(x)")),
    )
    return run(steps=seen, hot_lines=lines, facts={"device": "cuda"}, on=machine(devices=(GPU,)), **changes)


def test_what_the_host_does_is_promised_once_where_a_device_is_busy_meanwhile():
    found = [f for f in diagnose(busy_gpu()).findings if f.kind in ("script_bound", "logging_each_step")]
    assert found and sum(f.recoverable for f in found) <= 0.04 + 1e-9


def test_a_loss_that_is_printed_is_not_promised_the_devices_own_work():
    line = Where(file="/home/ada/train.py", line=40, source='print(f"{loss.item():.3f}")')
    seen = steps(phases={"forward": 0.005, "backward": 0.005, "logging": 0.001, "sync": 0.08})
    lines = (hot(0.001, phase="logging", where=line),)
    case = run(
        steps=seen, hot_lines=lines, sync_points=(sync(0.08, calls=1.0, where=line),), facts={"device": "cuda"}
    )
    assert "logging_each_step" not in kinds(msgspec.structs.replace(case, machine=machine(devices=(GPU,))))


def test_a_step_that_copies_for_most_of_its_time_is_bound_by_copies():
    seen = steps(phases={"data_wait": 0.005, "copy": 0.001}, device={"copy": 0.06, "forward": 0.01, "backward": 0.02})
    copying = run(steps=seen, facts={"device": "cuda"}, on=machine(devices=(GPU,)))
    assert bound_of(situation_of(copying, {}).case) == "copy-bound"


def test_what_more_workers_hide_is_not_promised_again_by_the_stages():
    feeding = loader(stages=(stage("decode", "Pillow JPEG"),), num_measured_batches=40, num_measured_samples=1280)
    tries = [tried("replay", 0.5), tried("too_few_workers", 0.55, num_workers="4")]
    found = diagnose(run(steps=steps(phases=WAITS), loaders=(feeding,), interventions=tries)).findings
    assert found[0].kind == "too_few_workers"
    assert sum(f.recoverable for f in found) <= 0.05 + 1e-9


def test_a_line_that_logs_is_not_counted_again_as_a_sync_point_or_as_the_scripts_own():
    case = run(
        steps=steps(phases={**REST, "logging": 0.03, "sync": 0.03}),
        hot_lines=(hot(0.03, phase="logging", where=LOG), hot(0.02, where=LOG)),
        sync_points=(sync(0.03, where=LOG),),
    )
    assert kinds(case) == ["logging_each_step"]


def test_one_read_of_the_loss_a_step_on_a_cpu_is_no_fault():
    case = run(steps=steps(phases={**HEALTHY, "sync": 0.001}), sync_points=(sync(0.001, calls=1.0),))
    assert kinds(case) == []


def test_a_gpu_that_is_used_is_not_called_unused():
    case = run(on=machine(devices=(GPU,), torch_cuda="12.4"), facts={"device": "cuda"})
    assert kinds(case) == []


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_gpu_that_the_user_hides_is_not_called_unused(hidden):
    box = machine(devices=(GPU,), torch_cuda="12.4", cuda_usable=True, environment={"CUDA_VISIBLE_DEVICES": hidden})
    assert kinds(run(on=box)) == []


def test_others_on_the_machine_are_no_fault_while_cores_are_left():
    case = run(resources=samples(tree=1.0, others=1.0), on=machine(num_cores=8.0), facts={"run_delay": 0.0005})
    assert kinds(case) == []


def test_a_run_without_steps_is_not_diagnosed():
    with pytest.raises(ValueError, match="without steps"):
        diagnose(run(steps=()))


def test_a_loader_made_anew_each_epoch_is_to_be_made_once():
    starting = steps(rare={"epoch_start": (10, 1.0)})
    anew = loader(recreated=True)
    (finding,) = diagnose(run(steps=starting, facts={"steps_per_epoch": 10.0}, loaders=(anew,))).findings
    assert finding.kind == "worker_startup"
    assert finding.confirmed_by is None
    assert "once" in finding.remedy


def test_workers_that_are_kept_are_not_told_to_be_kept():
    starting = steps(rare={"epoch_start": (10, 1.0)})
    diagnosis = diagnose(run(steps=starting, facts={"steps_per_epoch": 10.0}, loaders=(loader(),)))
    assert "worker_startup" not in {f.kind for f in diagnosis.findings}


def test_files_mapped_into_memory_are_no_lack_of_it():
    assert diagnose(run(resources=samples(major_faults=3000.0))).findings == ()


def test_what_replay_does_not_confirm_is_called_estimated():
    unsure = msgspec.structs.replace(tried("replay", 0.5), ratio=Interval(value=0.5, low=0.2, high=1.1))
    reading = fed(stage("read", "file"))
    finding = diagnose(msgspec.structs.replace(reading, interventions=(unsure,))).findings[0]
    assert (finding.kind, finding.confirmed_by) == ("slow_read", None)


@pytest.mark.parametrize(
    ("source", "logs"),
    [
        ("features = np.log(spectrum + 1)", False),
        ("y = torch.log(mel).mean()", False),
        ("x = power.log()", False),
        ("self.log('loss', loss)", True),
        ("wandb.log({'loss': loss})", True),
        ("log.info('step %d', step)", True),
        ("logger.info(step)", True),
        ("log(step, loss)", True),
        ("losses_log.append(loss)", True),
    ],
)
def test_a_logarithm_is_no_log(source, logs):
    line = hot(0.02, where=Where(file="/home/ada/train.py", line=7, function="work", source=source))
    kinds = {f.kind for f in diagnose(run(steps=steps(phases={**REST, "script": 0.02}), hot_lines=(line,))).findings}
    assert ("logging_each_step" in kinds) is logs


def test_where_little_was_seen_nothing_is_said_to_bind():
    unseen = steps(phases={"data_wait": 0.001})
    assert "bound by time that could not be measured" in diagnose(run(steps=unseen)).verdict


def test_a_larger_batch_gains_only_on_what_batches_for_free_leave():
    waiting = tiny(ratio=0.4)
    free = msgspec.structs.replace(waiting, interventions=(*waiting.interventions, tried("replay", 0.5, step=0.005)))
    both = {f.kind: f.recoverable for r in (waiting, free) for f in diagnose(r).findings if f.kind == "small_batch"}
    assert both["small_batch"] == pytest.approx(0.005 * 0.5 * 0.6, rel=0.1)


def test_the_lines_that_read_a_profiler_are_the_profilers():
    reading = Where(file="/home/ada/train.py", line=50, function="main", source="with torch.profiler.profile() as p:")
    seen = steps(phases={**REST, "script": 0.06})
    # The trial is too short to meet the reading: without a profiler its steps take 20 ms instead of 40.
    tries = [tried("profiler_on", 0.5, step=0.04)]
    on = run(steps=seen, hot_lines=(hot(0.06, where=reading),), interventions=tries, facts={"profiler": True})
    (finding,) = diagnose(on).findings
    assert finding.kind == "profiler_on"
    assert finding.recoverable == pytest.approx(STEP - 0.02)


def test_a_line_of_collate_is_not_one_of_getitem():
    own = hot(0.02, phase="data_wait", where=Where(file="/home/ada/data.py", line=90, function="__getitem__"))
    stacking = Where(file="/home/ada/data.py", line=110, function="my_collate", source="return LongTensor(words)")
    measured = fed(stage("getitem"), stage("collate", seconds=1.2))
    run = msgspec.structs.replace(measured, hot_lines=(own, hot(0.03, phase="data_wait", where=stacking)))
    found = {f.kind: f.where for f in diagnose(run).findings}
    assert found["slow_transform"] == own.where
    assert found["slow_collate"] == stacking


def test_what_an_experiment_leaves_open_is_said():
    wide = msgspec.structs.replace(tried("full_precision", 0.73), ratio=Interval(value=0.73, low=0.62, high=1.02))
    small = msgspec.structs.replace(tried("page_faults", 0.96), ratio=Interval(value=0.96, low=0.9, high=1.02))
    found = diagnose(run(interventions=[wide, small]))
    assert not found.findings
    assert "No problem was confirmed yet" in found.verdict
    assert found.verdict.endswith("this is not clear: training in float32 (27%, -2% to 38%).")


def test_precision_is_credited_with_half_of_the_page_faults_for_it_halves_the_memory():
    layout = tried("channels_first", 0.75)
    found = diagnose(run(interventions=[tried("full_precision", 0.54), layout, tried("page_faults", 0.78)])).findings
    assert [f.kind for f in found] == ["full_precision", "channels_first", "page_faults"]
    assert found[0].recoverable == pytest.approx((0.46 - 0.22 / 2) * STEP)
