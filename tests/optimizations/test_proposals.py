"""What fixes promise of a diagnosed run, and why they promise nothing."""

import msgspec
import pytest
from runs import COMPUTING, GIB, STEP, loader, machine, run, steps, tried

from hasten.measurement.diagnose import situation_of
from hasten.records import Device, FileRead, Interval, Intervention, ModelFacts, Stage
from hasten.tuning.search import candidates

NET = ModelFacts(
    name="Net", num_modules=40, num_parameters=10**7, devices=("cpu",), dtypes=("float32",), num_convolutions=20
)
WORK = (
    Stage(name="decode", detail="Pillow JPEG", seconds=6.0, cpu_seconds=6.0, num_calls=3200),
    Stage(name="collate", seconds=0.2, cpu_seconds=0.2, num_calls=100),
)
WAITING = steps(phases={**COMPUTING, "data_wait": 0.06})
BF16 = machine(cpu_features=("avx512_bf16",))


def unsure(name, ratio):
    return Intervention(name=name, ratio=Interval(value=ratio, low=ratio - 0.3, high=ratio + 0.3), num_steps=4)


def promised(settings=None, **changes):
    found, _ = candidates(situation_of(run(**changes), settings or {}))
    return {candidate.fix.name: candidate.proposal for candidate in found}


def reasons(settings=None, **changes):
    return {s.fix: s.reason for s in candidates(situation_of(run(**changes), settings or {}))[1]}


def test_of_a_healthy_run_nothing_is_promised():
    assert (
        promised(facts={"models": (NET,)}, interventions=[tried("replay", 0.99), tried("channels_first", 1.0)]) == {}
    )


def test_what_a_finding_is_sure_of_is_promised_in_full():
    found = promised(facts={"models": (NET,)}, interventions=[tried("channels_first", 0.7)])
    assert found["channels_last"].saves == pytest.approx(0.3 * STEP, rel=0.05)


def test_what_only_seemed_faster_is_promised_by_half_and_tried():
    found = promised(interventions=[unsure("denormals", 0.8)])
    assert found["flush_denormal"].saves == pytest.approx(0.1 * STEP, rel=0.05)
    sure = Intervention(name="channels_first", ratio=Interval(value=0.99, low=0.98, high=1.0), num_steps=40)
    assert promised(facts={"models": (NET,)}, interventions=[sure]) == {}


def test_what_was_too_noisy_to_exclude_what_such_fixes_save_is_tried():
    found = promised(facts={"models": (NET,)}, on=BF16, interventions=[unsure("full_precision", 1.0)])
    assert found["bf16"].saves == pytest.approx(0.5 * 0.35 * 0.08, rel=0.1), "half of what it usually saves"
    sure = tried("full_precision", 1.0)
    assert promised(facts={"models": (NET,)}, on=BF16, interventions=[sure]) == {}


def test_what_was_not_measured_is_tried_by_what_such_fixes_save():
    given = {"facts": {"models": (NET,)}, "on": BF16}
    assert promised(**given) == {}, "the diagnosis did not think it worth a measurement"
    found = promised(untried=("full_precision", "channels_first"), **given)
    assert found["bf16"].saves > found["channels_last"].saves > 0.02 * STEP


def test_one_thread_is_promised_where_operators_are_small_and_it_was_faster():
    small = {"facts": {"num_threads": 4, "num_operators": 1e5}, "on": machine(num_cores=4.0)}
    found = promised(interventions=[tried("too_many_threads", 0.8)], **small)["cpu_threads"]
    assert found.value == 1 and found.saves == pytest.approx(0.2 * STEP, rel=0.05)
    assert "cpu_threads" not in promised(interventions=[tried("too_many_threads", 1.0)], **small)
    assert "not measured" in reasons(**small)["cpu_threads"]


def states(**changes):
    return {s.fix: s.state for s in candidates(situation_of(run(**changes), {}))[1]}


def test_every_fix_without_a_trial_says_whether_it_was_measured():
    given = {"facts": {"models": (NET,)}, "on": BF16}
    assert states(interventions=[tried("full_precision", 1.0)], **given)["bf16"] == "does not help"
    assert "1.00x (0.98 to 1.02)" in reasons(interventions=[tried("full_precision", 1.0)], **given)["bf16"]
    assert states(facts={"models": (NET,), "autocast": True}, on=BF16)["bf16"] == "does not apply"
    assert states()["batch_size"] == "not tried"


def test_an_interval_that_reaches_to_zero_is_told_without_one():
    few = msgspec.structs.replace(tried("full_precision", 1.9), ratio=Interval(value=1.9, low=0.0, high=9.0))
    told = reasons(interventions=[few], facts={"models": (NET,)}, on=BF16)["bf16"]
    assert told == "no gain was seen in the diagnosis"


def test_reduced_precision_is_promised_only_where_the_cpu_has_units_for_it():
    given = {"facts": {"models": (NET,)}, "interventions": [tried("full_precision", 0.6)]}
    assert promised(on=BF16, **given)["bf16"].saves == pytest.approx(0.4 * STEP, rel=0.05)
    assert reasons(**given)["bf16"] == "this CPU has no bfloat16 units"


def on_gpu(capability):
    device = Device(index=0, name="A GPU", memory_bytes=16 * GIB, compute_capability=capability)
    model = msgspec.structs.replace(NET, devices=("cuda",))
    return {"on": machine(devices=(device,), cuda_usable=True), "facts": {"models": (model,), "device": "cuda"}}


def test_float16_is_promised_on_gpus_that_have_units_for_it_and_none_for_bfloat16():
    assert promised(**on_gpu("7.5"))["fp16"].saves == pytest.approx(0.3 * 0.08, rel=0.05)
    assert reasons(**on_gpu("6.0"))["fp16"] == "this GPU has no float16 units"
    assert reasons(**on_gpu("8.0"))["fp16"] == "bfloat16 needs no loss scaling"


def test_lower_precision_is_promised_nothing_of_the_time_in_which_a_device_waits_for_the_host():
    given = {**on_gpu("9.0"), "interventions": [], "untried": ("full_precision",)}
    busy = {"forward": 0.03, "backward": 0.06}

    def saves(waited):
        late = tuple(msgspec.structs.replace(s, device_waited=waited) for s in steps(device=busy))
        return promised(**given, steps=late)["bf16"].saves

    assert saves(0.0) == pytest.approx(0.35 * 0.09, rel=0.05)
    assert saves(0.06) == pytest.approx(saves(0.0) - 0.35 * 0.06)


def test_a_script_with_a_precision_of_its_own_is_left_alone():
    given = {"on": BF16, "interventions": [tried("full_precision", 0.6)]}
    double = ModelFacts(
        name="Net", num_modules=40, num_parameters=10**7, devices=("cpu",), dtypes=("float32", "float64")
    )
    assert "uses autocast itself" in reasons(facts={"models": (NET,), "autocast": True}, **given)["bf16"]
    assert "float64" in reasons(facts={"models": (double,)}, **given)["bf16"]


def test_where_training_waits_for_batches_workers_and_a_cache_are_promised():
    slow = loader(num_workers=1, stages=WORK, batch_work_seconds=(0.12, 0.12), num_measured_batches=40)
    found = promised(loaders=(slow,), steps=WAITING, interventions=[tried("replay", 0.45)])
    assert {"num_workers", "cache"} <= {*found}
    assert found["cache"].saves > found["num_workers"].saves


def test_workers_that_were_seen_to_slow_training_down_are_promised_nothing():
    slow = loader(num_workers=0, stages=WORK, batch_work_seconds=(0.12, 0.12), num_measured_batches=40)
    given = {"loaders": (slow,), "steps": WAITING}
    assert promised(**given, interventions=[tried("replay", 0.45)])["num_workers"].saves > 0.3 * STEP
    seen = [tried("replay", 0.45), tried("too_few_workers", 1.24, num_workers="2")]
    assert "num_workers" not in promised(**given, interventions=seen)


def test_a_loader_that_takes_cores_from_training_is_suspected_though_nothing_waits():
    slow = loader(stages=WORK, batch_work_seconds=(0.12, 0.12), num_measured_batches=40)
    found = promised(loaders=(slow,), interventions=[unsure("replay", 0.7)])
    assert found["cache"].saves == pytest.approx(0.9 * 0.15 * STEP * 6.0 / 6.2, rel=0.05)


def test_once_a_fix_is_kept_less_of_a_suspicion_will_do():
    given = {"interventions": [unsure("denormals", 0.94)]}
    assert "flush_denormal" not in promised(**given)
    assert promised({"bf16": True}, **given)["flush_denormal"].saves == pytest.approx(0.03 * STEP, rel=0.1)
    given = {"interventions": [unsure("denormals", 1.02)]}
    assert "flush_denormal" not in promised({"bf16": True}, **given), "it did not even seem faster"
    given = {"facts": {"models": (NET,)}, "interventions": [tried("channels_first", 0.97)]}
    assert "channels_last" not in promised(**given), "sure, and no finding"
    assert promised({"fused_optimizer": True}, **given)["channels_last"].saves == pytest.approx(0.03 * STEP, rel=0.1)


def test_data_in_memory_is_gathered_and_not_kept():
    slow = loader(in_memory=True, stages=WORK[1:], num_measured_batches=40)
    given = {"loaders": (slow,), "steps": WAITING, "interventions": [tried("replay", 0.45)]}
    assert "cache" not in promised(**given)
    assert "in memory already" in reasons(**given)["cache"]


def with_stages(*stages, **changes):
    made = tuple(Stage(name=name, detail=detail, seconds=1.0, cpu_seconds=1.0) for name, detail in stages)
    waiting = loader(stages=made, batch_work_seconds=(0.12, 0.12), num_measured_batches=40, **changes)
    return {"loaders": (waiting,), "steps": WAITING, "interventions": [tried("replay", 0.45)]}


def test_a_cache_is_promised_of_a_stream_whose_length_nobody_knows():
    given = with_stages(("decode", "Pillow JPEG"), ("transform", "Image.resize"), num_samples=None)
    assert promised(**given)["cache"].saves > 0.4 * STEP


def test_a_cache_is_promised_of_what_it_keeps_and_of_nothing_else():
    dicom = (("read", "pydicom"), ("read", "file"), ("decode", "pydicom"), ("getitem", ""))
    half = promised(**with_stages(*dicom))["cache"].saves
    assert half == pytest.approx(promised(**with_stages(*dicom[2:]))["cache"].saves), "decoding, and the file's bytes"
    for stages in ((("read", "pandas"),), (("read", "numpy.loadtxt"),), (("decode", "pickle"), ("read", "file"))):
        assert "through a library" in reasons(**with_stages(*stages))["cache"]
    arrays = with_stages(("decode", "OpenCV"), ("transform", "Image.resize"))
    assert promised(**arrays)["cache"].saves == pytest.approx(half), "no image that Pillow decoded is resized"


def test_what_is_on_is_not_promised_again():
    given = {"facts": {"models": (NET,)}, "interventions": [tried("channels_first", 0.7)]}
    assert promised({"channels_last": True}, **given) == {}


def test_a_fault_that_costs_nothing_is_not_said_to_be_none():
    assert reasons()["set_to_none"] == "gradients are dropped already"
    assert "next to nothing" in reasons(facts={"zero_grad_in_place": True})["set_to_none"]
    assert reasons()["no_grad_validation"] == "validation records no gradients"
    assert "next to nothing" in reasons(facts={"validation_grad": True})["no_grad_validation"]


def short_of_memory(read_seconds):
    """A set of three times the memory, whose samples take 60 ms to decode, on a disk of so many seconds for 100 MB."""
    decoding = Stage(name="decode", detail="Pillow JPEG", seconds=60.0, cpu_seconds=60.0)
    slow = loader(
        stages=(decoding,),
        batch_work_seconds=(0.12, 0.12),
        num_measured_batches=40,
        num_measured_samples=1000,
        num_samples=30_000,
        decoded_bytes_per_sample=1e6,
    )
    read = FileRead(num_files=100, num_bytes=100 << 20, cold_seconds=read_seconds, warm_seconds=0.01)
    return {
        "loaders": (slow,),
        "steps": WAITING,
        "interventions": [tried("replay", 0.45)],
        "on": machine(memory_available_bytes=12 << 30),
        "file_read": read,
    }


def test_a_disk_is_promised_where_memory_does_not_hold_the_set_and_it_is_faster_than_computing():
    alone, beside = promised(**short_of_memory(0.1)), promised({"cache": "auto"}, **short_of_memory(0.1))
    assert alone["disk_cache"].saves > alone["cache"].saves, "the disk holds all of it"
    assert alone["cache"].saves + beside["disk_cache"].saves == pytest.approx(alone["disk_cache"].saves, rel=0.05)
    assert "66% of the set does not fit in memory" in beside["disk_cache"].because


def test_no_disk_is_promised_that_is_slower_than_computing_or_not_needed():
    assert "sooner than they are computed" in reasons(**short_of_memory(10.0))["disk_cache"]
    plenty = {**short_of_memory(0.1), "on": machine(memory_available_bytes=64 << 30)}
    assert "memory holds everything" in reasons(**plenty)["disk_cache"]
