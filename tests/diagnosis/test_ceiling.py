"""How fast it could go, and what an upgrade would buy."""

import msgspec
import pytest
from runs import GPU, HEALTHY, loader, machine, run, samples, steps, tried

from hasten.diagnosis.breakdown import break_down, cache_need, find_ceiling, what_ifs
from hasten.records import FileRead, Intervention, Stage


def ceiling(case):
    return find_ceiling(case, break_down(case))


def upgrades(case):
    breakdown = break_down(case)
    return {w.change.split(" (")[0]: w for w in what_ifs(case, breakdown, find_ceiling(case, breakdown))}


WAITS = {"data_wait": 0.05, "forward": 0.02, "backward": 0.03}


def test_what_was_not_tried_has_no_ceiling():
    found = ceiling(run())
    assert (found.free_batches, found.free_copies, found.loader_alone, found.headroom) == (None,) * 4


def test_replay_gives_the_step_with_batches_for_free():
    found = ceiling(run(interventions=[tried("replay", 0.5)]))
    assert (found.free_batches, found.headroom) == (pytest.approx(0.05), pytest.approx(0.05))


def test_a_replay_that_was_slower_leaves_no_headroom_rather_than_less_than_none():
    assert ceiling(run(interventions=[tried("replay", 1.2)])).headroom == 0.0


def test_an_intervention_without_a_ratio_is_not_measured():
    assert ceiling(run(interventions=[tried("replay", None)])).free_batches is None


def test_free_batches_still_validate_but_start_no_epoch():
    seen = steps(rare={"validation": (10, 0.5), "epoch_start": (10, 1.0)})
    found = ceiling(run(steps=seen, interventions=[tried("replay", 0.5)]))
    # A step is 0.1 of its own, 0.05 of validation and 0.1 of epoch start.
    assert found.free_batches == pytest.approx(0.5 * 0.1 + 0.05)
    assert found.headroom == pytest.approx(0.25 - 0.1)


def test_the_loader_alone_is_paced_by_the_step_when_a_step_takes_several_batches():
    drain = Intervention(name="drain", candidate_seconds=0.02, num_steps=50)
    assert ceiling(run(interventions=[drain])).loader_alone == pytest.approx(0.02)
    several = run(steps=steps(num_batches=4), interventions=[drain])
    assert ceiling(several).loader_alone == pytest.approx(0.08)


def test_replay_from_the_device_gives_the_step_with_copies_for_free():
    tries = [tried("replay", 0.8), tried("device replay", 0.75)]  # against replay
    found = ceiling(run(interventions=tries, on=machine(devices=(GPU,)), facts={"device": "cuda"}))
    assert found.free_copies == pytest.approx(0.06)
    noisy = [tried("replay", 0.8), tried("device replay", 1.05)]
    found = ceiling(run(interventions=noisy, on=machine(devices=(GPU,)), facts={"device": "cuda"}))
    assert found.free_copies == found.free_batches, "to copy nothing never takes longer"


IMAGES = {"decoded_bytes_per_sample": 3e6, "file_bytes": 1_000_000, "num_samples": 1000}


def test_a_cache_needs_the_decoded_bytes_of_every_sample():
    need = cache_need(run(loaders=(loader(**IMAGES),)))
    assert need.total_bytes == 3e9
    assert need.k_factor == pytest.approx(3.0)
    assert need.fits_share == 1.0


def test_what_does_not_fit_is_said_as_a_share():
    small = machine(memory_available_bytes=int(3e9 / 0.8 / 2))
    assert cache_need(run(loaders=(loader(**IMAGES),), on=small)).fits_share == pytest.approx(0.5, rel=1e-6)


def test_without_files_there_is_no_k_factor():
    assert cache_need(run(loaders=(loader(**{**IMAGES, "file_bytes": None}),))).k_factor is None


@pytest.mark.parametrize(
    "changes",
    [{"num_samples": None}, {"in_memory": True}, {"role": "validation"}, {"decoded_bytes_per_sample": None}],
)
def test_what_is_a_stream_or_held_already_or_not_measured_needs_no_cache(changes):
    assert cache_need(run(loaders=(loader(**{**IMAGES, **changes}),))) is None
    assert cache_need(run(loaders=())) is None


def test_nothing_is_predicted_of_twice_the_cores():
    assert "twice the cores" not in upgrades(run(resources=samples(tree=1.0)))


def reading(*, cold):
    """A run that takes 100 MB/s from the disk, and whose files take 2 s/GB longer cold."""
    seen = steps(phases=WAITS)
    sampled = samples(tree=0.0)
    sampled = tuple(msgspec.structs.replace(s, read_bytes=int(50e6 * i)) for i, s in enumerate(sampled))
    files = FileRead(num_files=8, num_bytes=100_000_000, cold_seconds=cold, warm_seconds=0.1)
    return run(steps=seen, file_read=files, resources=sampled, loaders=(loader(num_workers=1),))


def test_a_disk_that_never_waits_gives_back_what_reads_waited():
    # 10 MB a step, at 2 s/GB.
    found = upgrades(reading(cold=0.3))
    assert found["a disk without read latency"].step_seconds == pytest.approx(0.08)


@pytest.mark.parametrize("cold", [None, 0.1])
def test_where_the_pages_were_not_dropped_or_cost_nothing_a_faster_disk_is_not_advised(cold):
    assert "a disk without read latency" not in upgrades(reading(cold=cold))


def test_a_cache_gives_back_the_share_of_reading_and_decoding_in_the_headroom():
    stages = (
        Stage(name="decode", detail="Pillow JPEG", num_calls=64, seconds=0.6),
        Stage(name="transform", detail="RandomCrop", num_calls=64, seconds=0.4),
    )
    feeding = loader(**IMAGES, stages=stages, num_measured_batches=2, num_measured_samples=64)
    seen = steps(phases=WAITS)
    found = upgrades(run(loaders=(feeding,), steps=seen, resources=(), interventions=[tried("replay", 0.5)]))
    assert found["a full cache of decoded samples"].step_seconds == pytest.approx(0.1 - 0.6 * 0.05)


def test_an_upgrade_that_changes_next_to_nothing_is_not_told():
    assert upgrades(run(resources=samples(tree=0.02))) == {}


def test_every_what_if_says_why():
    found = upgrades(run(steps=steps(phases=HEALTHY), on=machine(num_cores=8.0)))
    assert all(w.because for w in found.values())
