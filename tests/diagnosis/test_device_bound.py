"""On a GPU the host only asks: what it waits for while the device is busy costs nothing."""

import msgspec
import pytest
from runs import GPU, HEALTHY, LINE, machine, run, steps

from hasten.diagnosis.breakdown import break_down, find_ceiling
from hasten.diagnosis.case import Case
from hasten.measurement.diagnose import diagnose
from hasten.records import CopyFacts, HotLine, SyncPoint

ASKING = {**HEALTHY, "forward": 0.004, "backward": 0.006, "loss": 0.001}
BUSY = {"forward": 0.03, "backward": 0.065}


def on_gpu(*, phases, device, **changes):
    facts = {"device": "cuda", **changes.pop("facts", {})}
    box = machine(devices=(GPU,), torch_cuda="12.4")
    return run(steps=steps(phases=phases, device=device), facts=facts, on=box, **changes)


def reading(seconds):
    return SyncPoint(kind=".item()", where=LINE, calls=1.0, seconds=seconds)


def test_waiting_for_a_busy_device_is_no_finding():
    waiting = {"phases": {**ASKING, "sync": 0.05}, "sync_points": (reading(0.05),)}
    assert diagnose(on_gpu(**waiting, device=BUSY)).findings == ()
    (finding,) = diagnose(on_gpu(**waiting, device={"forward": 0.02, "backward": 0.04})).findings
    assert finding.kind == "sync_points" and finding.recoverable == pytest.approx(0.04)


@pytest.mark.parametrize("phase", ["script", "logging"])
def test_what_the_script_does_meanwhile_costs_only_what_the_device_is_idle(phase):
    lines = (HotLine(where=LINE, phase=phase, seconds=0.06),)
    doing = {"phases": {**ASKING, phase: 0.06}, "hot_lines": lines}
    assert diagnose(on_gpu(**doing, device=BUSY)).findings == ()
    (finding,) = diagnose(on_gpu(**doing, device={"forward": 0.03, "backward": 0.03})).findings
    assert finding.recoverable == pytest.approx(0.04)
    assert "the device is busy" in finding.because[-1]


def test_computing_takes_what_the_device_takes_for_it():
    measured = on_gpu(phases={**ASKING, "sync": 0.05}, device=BUSY)
    breakdown = break_down(measured)
    case = Case(measured, breakdown, find_ceiling(measured, breakdown))
    assert case.phase("forward") == pytest.approx(0.03) and case.phase("backward") == pytest.approx(0.065)
    assert case.idle == pytest.approx(case.step - 0.095)
    assert "compute-bound" in diagnose(measured).verdict.lower()


def test_on_a_cpu_nothing_is_hidden():
    lines = (HotLine(where=LINE, phase="script", seconds=0.06),)
    (finding,) = diagnose(run(steps=steps(phases={**ASKING, "script": 0.06}), hot_lines=lines)).findings
    assert finding.recoverable == pytest.approx(0.06, rel=0.2)


def test_copies_that_the_device_waits_for_are_inferred_where_nothing_was_tried():
    copies = CopyFacts(num_bytes=19e6, pinned=1.0, blocking=0.0, dtypes=("uint8",), where=LINE)
    copying = {"forward": 0.03, "backward": 0.04, "copy": 0.02}
    (finding,) = diagnose(on_gpu(phases=ASKING, device=copying, facts={"copies": copies})).findings
    assert finding.kind == "default_stream_copy" and finding.confirmed_by is None
    assert finding.recoverable == pytest.approx(0.02)
    aside = {"forward": 0.04, "backward": 0.05}  # on a stream of their own
    assert diagnose(on_gpu(phases=ASKING, device=aside, facts={"copies": copies})).findings == ()


def test_a_device_is_never_busy_for_longer_than_the_step():
    breakdown = break_down(on_gpu(phases=ASKING, device={"forward": 0.06, "backward": 0.06}))
    assert breakdown.device_seconds == pytest.approx(breakdown.step_seconds)


def test_a_device_that_waits_for_the_host_in_a_phase_is_not_busy_with_it():
    asking = {"phases": ASKING, "device": BUSY, "facts": {"num_calls": 2000.0}}
    assert diagnose(on_gpu(**asking)).findings == ()
    waited = on_gpu(**asking)
    steps_ = tuple(msgspec.structs.replace(s, device_waited=0.095 if s.marked else 0.0) for s in waited.steps)
    (finding,) = diagnose(msgspec.structs.replace(waited, steps=steps_)).findings
    assert finding.kind == "launch_bound"


def late_host(**changes):
    """A run whose device waits for the host in 60 of 100 ms, in a network of few calls."""
    changes["facts"] = {"num_calls": 200.0, "num_operators": 1200.0}
    measured = on_gpu(phases=ASKING, device=BUSY, **changes)
    late = tuple(msgspec.structs.replace(s, device_waited=0.06 if s.marked else 0.0) for s in measured.steps)
    return msgspec.structs.replace(measured, steps=late)


def test_a_host_that_is_late_is_found_by_the_device_that_waits_not_by_a_count_of_calls():
    (finding,) = diagnose(late_host()).findings
    assert finding.kind == "launch_bound" and finding.recoverable == pytest.approx(0.6 * 0.06)
    assert "60.0 ms per step" in finding.because[0] and "guess" in finding.because[-1]


def test_a_host_that_is_late_because_it_reads_tensors_back_is_not_launch_bound():
    findings = diagnose(late_host(sync_points=(reading(0.001),))).findings
    assert "launch_bound" not in [f.kind for f in findings]


def test_validation_leaves_the_device_no_time_to_wait_for_the_host():
    asking = {"phases": ASKING, "device": BUSY, "facts": {"num_calls": 2000.0, "steps_per_validation": 48.0}}
    measured = on_gpu(**asking)
    last = measured.steps[-1]
    validated = msgspec.structs.replace(last, seconds=last.seconds + 4.8, phases={**last.phases, "validation": 4.8})
    findings = diagnose(msgspec.structs.replace(measured, steps=(*measured.steps[:-1], validated))).findings
    assert [f.kind for f in findings] == ["validation_often"]


def test_on_a_device_the_spread_is_that_of_stretches_not_of_steps():
    """Each stretch of six steps takes 0.6 s, five of them at once, and all of it in the last."""
    measured, made = on_gpu(phases=ASKING, device=BUSY), []
    for number in range(48):
        one = measured.steps[1] if number // 6 % 2 else measured.steps[0]
        made.append(msgspec.structs.replace(one, index=number, seconds=0.55 if number % 6 == 5 else 0.01))
    breakdown = break_down(msgspec.structs.replace(measured, steps=tuple(made)))
    assert breakdown.median_seconds == pytest.approx(0.1)
    assert breakdown.spread is not None and breakdown.spread.high - breakdown.spread.low < 0.001
