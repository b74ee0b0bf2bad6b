"""Records that a page is made of: a run with everything, and one search."""

import runs

from hasten.measurement.diagnose import diagnose
from hasten.records import (
    RECORD_VERSION,
    Bar,
    BothSides,
    CacheTier,
    Check,
    Device,
    DeviceSample,
    Interval,
    Proof,
    RemoteReads,
    ScreeningRun,
    Skipped,
    Stage,
    Suggestion,
    Timeline,
    Trial,
    Tuning,
)
from hasten.reports.page.page import PageInput

STAGES = (
    Stage(name="read", detail="file", num_calls=640, seconds=1.0, cpu_seconds=0.2, num_bytes=640 << 10),
    Stage(name="decode", detail="Pillow JPEG", num_calls=640, seconds=6.0, cpu_seconds=5.9, num_bytes=640 << 20),
    Stage(name="transform", detail="RandomResizedCrop", num_calls=640, seconds=2.0, cpu_seconds=2.0),
    Stage(name="collate", num_calls=20, seconds=0.4, cpu_seconds=0.4),
)


def timeline(pace=1.0):
    bars = []
    for n in range(4):
        at = n * 0.1 * pace
        bars += [
            Bar(lane="main", kind="data_wait", start=at, seconds=0.06 * pace),
            Bar(lane="main", kind="forward", start=at + 0.06 * pace, seconds=0.02 * pace),
            Bar(lane="main", kind="backward", start=at + 0.08 * pace, seconds=0.019 * pace),
            Bar(lane="worker 1", kind="read", start=at, seconds=0.01),
            Bar(lane="worker 1", kind="decode", start=at + 0.01, seconds=0.08 * pace),
        ]
    ends = tuple(0.1 * pace * (n + 1) for n in range(4))
    return Timeline(start=11.0, seconds=0.4 * pace, step_ends=ends, bars=tuple(bars))


def full_run(**changes):
    """A run in which everything was seen."""
    loaders = (
        runs.loader(
            stages=STAGES,
            num_measured_batches=20,
            num_measured_samples=640,
            queue_ready=(0,) * 20,
            decoded_bytes_per_sample=1e6,
            file_bytes=400_000,
            cache=(
                CacheTier(name="ram", num_hits=900, num_bytes=3 << 28, budget_bytes=1 << 30, seconds_saved=12.0),
                CacheTier(name="disk", num_hits=100, num_bytes=1 << 28, budget_bytes=1 << 30, seconds_saved=1.0),
            ),
            num_cache_misses=280,
            remote=RemoteReads(num_hits=900, num_downloads=300, num_bytes=3 << 24, num_retries=2, num_direct=0),
        ),
    )
    waiting = {"data_wait": 0.06, **runs.COMPUTING}
    given = {
        "timeline": timeline(),
        "loaders": loaders,
        "steps": runs.steps(phases=waiting, rare={"checkpoint": (17, 0.4)}),
    }
    given["interventions"] = [runs.tried("replay", 0.5)]
    return runs.run(**{**given, **changes})


def on_a_gpu():
    device = Device(index=0, name="NVIDIA L4", memory_bytes=24 << 30, compute_capability="8.9")
    seen = DeviceSample(
        utilization=0.4,
        memory_used_bytes=9 << 30,
        temperature_celsius=61.0,
        power_watts=70.0,
        pcie_read_bytes_per_second=None,
        pcie_write_bytes_per_second=None,
    )
    base = full_run(on=runs.machine(devices=(device,)), facts={"device": "cuda:0"})
    import msgspec

    samples = tuple(msgspec.structs.replace(sample, devices=(seen,)) for sample in base.resources)
    return msgspec.structs.replace(base, resources=samples)


def search(run):
    """A search that kept one fix, dropped one, tried recipes and proved the rest."""
    speedup = Interval(1.8, 1.6, 2.0)
    return Tuning(
        version=RECORD_VERSION,
        hasten="0.1.0",
        id="20260305-150000-78-tune",
        command=run.command,
        directory=run.directory,
        started=run.started,
        machine=run.machine,
        state="done",
        settings={"cache": "auto", "num_workers": 2},
        trials=(
            Trial(
                fix="cache",
                value="auto",
                verdict="faster",
                speedup=speedup,
                baseline_seconds=(0.1,) * 4,
                candidate_seconds=(0.055,) * 4,
                predicted=0.05,
                seconds=42.0,
            ),
            Trial(fix="bf16", value=True, verdict="slower", speedup=Interval(0.7, 0.6, 0.8), note="no units for it"),
            Trial(fix="compile", value=True, verdict="failed", note="the script failed under it"),
        ),
        screening_runs=(
            ScreeningRun(settings={}, metric=0.61, reached=40.0),
            ScreeningRun(settings={"adamw": 0.003, "onecycle": 400}, metric=0.66, reached=12.0),
            ScreeningRun(settings={"onecycle": 400}, metric=0.4),
        ),
        skipped=(Skipped(fix="tf32", reason="it is of NVIDIA GPUs"),),
        suggestions=(
            Suggestion(
                kind="sync_points",
                file="/home/ada/train.py",
                line=31,
                source="total += loss.item()",
                title="Reading a tensor in each step",
                example="total += loss.detach()  # stays a tensor\nif step % 50 == 0: print(total.item())",
                recoverable=0.004,
            ),
        ),
        proof=Proof(
            verdict="proven",
            guarantee="identical",
            speedup=speedup,
            baseline_rate=320.0,
            plan_rate=576.0,
            measured=(
                BothSides(
                    what="seconds a step",
                    baseline=(0.1, 0.102, 0.098),
                    plan=(0.055, 0.056, 0.054),
                    difference=Interval(-0.045, -0.047, -0.043),
                ),
                BothSides(
                    what="loss", baseline=(1.5, 1.6), plan=(1.5, 1.61), difference=Interval(0.005, -0.05, 0.06)
                ),
                BothSides(what="metric", baseline=(0.8,), plan=(0.81,)),
            ),
            baseline_losses=tuple(2.0 - 0.01 * n for n in range(40)),
            plan_losses=tuple(2.0 - 0.011 * n for n in range(40)),
            checks=(
                Check(what="losses", state="passed", text="40 losses seen on both sides"),
                Check(what="batches", state="unknown", text="drawn otherwise"),
            ),
        ),
        seconds=300.0,
        runs=(run.id,),
    )


def input_of(run, **more):
    after = more.get("after")
    return PageInput(run=run, diagnosis=diagnose(run), after_diagnosis=diagnose(after) if after else None, **more)
