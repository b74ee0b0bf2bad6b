"""Steps become the mean step and where it goes."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import COMPUTING, HEALTHY, run, steps

from hasten.diagnosis.breakdown import break_down
from hasten.records import PHASES, RARE, Step


def known(breakdown):
    return sum(seconds for seconds in breakdown.phases.values() if seconds is not None)


def test_phases_and_unaccounted_sum_to_the_step():
    breakdown = break_down(run())
    assert breakdown.step_seconds == pytest.approx(0.1)
    assert known(breakdown) + breakdown.unaccounted == pytest.approx(breakdown.step_seconds)
    assert breakdown.unaccounted == pytest.approx(0.1 - sum(HEALTHY.values()))


def test_an_unmeasured_copy_is_not_a_zero_copy():
    assert break_down(run()).phases["copy"] is None
    measured = steps(phases={**HEALTHY, "copy": 0.0})
    assert break_down(run(steps=measured)).phases["copy"] == 0.0


def test_every_phase_is_told_even_if_it_was_not_seen():
    phases = set(PHASES) - {"communication"}  # which only ranks of one job have
    assert set(break_down(run()).phases) == phases
    assert set(break_down(run(steps=steps(count=1))).phases) == phases
    among_ranks = run(steps=steps(phases={**COMPUTING, "communication": 0.001}))
    assert set(break_down(among_ranks).phases) == set(PHASES)


def test_the_time_of_record_is_that_of_the_unmarked_steps():
    plain, marked = steps(count=20, seconds=0.1)[::2], steps(count=20, seconds=0.2)[1::2]
    breakdown = break_down(run(steps=(*plain, *marked)))
    assert breakdown.step_seconds == pytest.approx(0.1)
    # Marking doubled the step, so each phase is scaled back to the time of record.
    assert breakdown.phases["forward"] == pytest.approx(COMPUTING["forward"] / 2)
    assert known(breakdown) + breakdown.unaccounted == pytest.approx(breakdown.step_seconds)


def test_without_a_marked_step_only_the_data_wait_is_known():
    plain = steps()[::2]
    breakdown = break_down(run(steps=plain))
    assert {p for p, s in breakdown.phases.items() if s is not None} == {"data_wait"}
    assert breakdown.unaccounted == pytest.approx(0.1 - 0.002)


def test_what_happens_once_in_a_while_is_spread_over_the_steps_between():
    breakdown = break_down(run(steps=steps(rare={"validation": (10, 0.5)})))
    assert breakdown.phases["validation"] == pytest.approx(0.05)
    assert breakdown.step_seconds == pytest.approx(0.15)
    assert breakdown.phases["forward"] == pytest.approx(COMPUTING["forward"]), "regular phases are not diluted"


def test_one_validation_in_a_short_window_is_spread_over_the_steps_from_one_to_the_next():
    seen = steps(count=40, rare={"validation": (40, 8.0)})
    breakdown = break_down(run(steps=seen, facts={"steps_per_epoch": 400.0, "steps_per_validation": 400.0}))
    assert breakdown.phases["validation"] == pytest.approx(8.0 / 400)


def test_one_epoch_start_in_a_short_window_is_spread_over_the_epochs_length():
    seen = steps(count=40, rare={"epoch_start": (40, 8.0)})
    breakdown = break_down(run(steps=seen, facts={"steps_per_epoch": 400.0}))
    assert breakdown.phases["epoch_start"] == pytest.approx(8.0 / 400)


def test_a_stall_in_one_step_does_not_move_the_median():
    seen = [*steps(count=20), Step(index=20, start=20.0, seconds=5.0, marked=False)]
    assert break_down(run(steps=tuple(seen))).median_seconds == pytest.approx(0.1)


def test_throughput_counts_the_samples_of_all_steps():
    assert break_down(run(steps=steps(num_samples=32))).samples_per_second == pytest.approx(320)
    assert break_down(run(steps=steps(num_samples=None))).samples_per_second is None


def test_the_interval_holds_the_mean_and_is_narrow_for_a_steady_run():
    spread = break_down(run()).spread
    assert spread.low <= spread.value <= spread.high
    assert spread.high - spread.low < 0.001


def test_without_a_device_nothing_is_said_of_one():
    breakdown = break_down(run())
    assert (breakdown.device_seconds, breakdown.device_wait) == (None, None)


def test_a_wait_of_the_host_that_the_device_works_through_is_no_wait_of_the_device():
    waiting = {"data_wait": 0.05, "forward": 0.05}
    busy = break_down(run(steps=steps(phases=waiting, device={"forward": 0.1})))
    idle = break_down(run(steps=steps(phases=waiting, device={"forward": 0.04})))
    assert (busy.device_wait, busy.device_seconds) == (pytest.approx(0.0), pytest.approx(0.1))
    assert (idle.device_wait, idle.device_seconds) == (pytest.approx(0.05), pytest.approx(0.04))


def test_a_run_without_steps_has_no_breakdown():
    with pytest.raises(ValueError, match="without steps"):
        break_down(run(steps=()))


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from(PHASES), st.floats(min_value=0, max_value=1)),
            st.floats(min_value=0.001, max_value=1),
            st.booleans(),
            st.booleans(),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_whatever_the_steps_nothing_is_negative_and_the_parts_never_exceed_the_whole(rows):
    made = []
    for index, (phases, rest, marked, starts) in enumerate(rows):
        own = phases if marked else {p: s for p, s in phases.items() if p in (*RARE, "data_wait")}
        made.append(
            Step(
                index=index,
                start=float(index),
                seconds=sum(own.values()) + rest,
                marked=marked,
                phases=own,
                starts_epoch=starts and "epoch_start" in own,
            )
        )
    breakdown = break_down(run(steps=tuple(made)))
    assert all(s is None or s >= 0 for s in breakdown.phases.values())
    assert breakdown.unaccounted >= 0
    assert known(breakdown) + breakdown.unaccounted == pytest.approx(breakdown.step_seconds)


def test_a_larger_first_batch_is_not_taken_for_a_slow_start_of_the_epoch():
    """Two steps an epoch, of 64 and of 36 samples, at one pace: what is left of the first is its workers' start."""
    made = steps(count=40, num_samples=36, seconds=0.36)
    longer = [
        msgspec.structs.replace(
            step,
            num_samples=64,
            starts_epoch=True,
            seconds=0.64 + 0.1,
            phases={**step.phases, "epoch_start": 0.1},
        )
        if index % 2 == 0
        else step
        for index, step in enumerate(made)
    ]
    breakdown = break_down(run(steps=tuple(longer), facts={"steps_per_epoch": 2.0}))
    assert breakdown.phases["epoch_start"] == pytest.approx(0.05, rel=0.01)
    assert breakdown.step_seconds == pytest.approx(0.55, rel=0.01)
