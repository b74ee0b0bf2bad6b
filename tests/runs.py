"""Hand-written runs: a healthy one, and changes to it."""

from hasten.records import (
    RECORD_VERSION,
    Device,
    Facts,
    HotLine,
    Interval,
    Intervention,
    LoaderFacts,
    Machine,
    ResourceSample,
    Run,
    Step,
    SyncPoint,
    Where,
)

GIB = 1 << 30
STEP = 0.1
COMPUTING = {"forward": 0.03, "loss": 0.002, "backward": 0.05, "optimizer": 0.01, "zero_grad": 0.001}
HEALTHY = {"data_wait": 0.002, **COMPUTING}
GPU = Device(index=0, name="NVIDIA L4", memory_bytes=24 * GIB, compute_capability="8.9")
LINE = Where(file="/home/ada/train.py", line=31, function="step", source="total += weigh(x)")


def machine(**changes):
    given = {
        "system": "Linux-6.1-x86_64",
        "python": "3.12",
        "torch": "2.9",
        "torch_cuda": None,
        "cpu": "A CPU",
        "num_cores": 2.0,
        "num_cores_present": 2,
        "cpu_features": ("avx2",),
        "memory_bytes": 16 * GIB,
        "memory_available_bytes": 12 * GIB,
        "swap_bytes": 0,
        "shm_bytes": GIB,
        "fault_seconds": 1e-6,
    }
    return Machine(**{**given, **changes})


def loader(**changes):
    given = {
        "name": "Films",
        "role": "train",
        "num_workers": 2,
        "batch_size": 32,
        "num_batches": 100,
        "num_samples": 3200,
        "prefetch_factor": 2,
        "persistent_workers": True,
        "where": Where(file="/home/ada/train.py", line=12),
    }
    return LoaderFacts(**{**given, **changes})


def steps(*, phases=None, seconds=STEP, count=40, rare=None, num_samples=32, num_batches=1, device=None):
    """Steps of `seconds`, every second one marked.

    `rare` is {phase: (every, seconds)}: each `every`-th step takes so much longer.
    """
    made, at = [], 10.0
    for index in range(count):
        marked = index % 2 == 1
        own = dict(HEALTHY if phases is None else phases)
        if not marked:
            own = {k: v for k, v in own.items() if k == "data_wait"}
        longer = {p: s for p, (every, s) in (rare or {}).items() if index % every == every - 1}
        took = seconds + sum(longer.values())
        made.append(
            Step(
                index=index,
                start=at,
                seconds=took,
                marked=marked,
                phases={**own, **longer},
                device=device or {} if marked else {},
                num_batches=num_batches,
                num_samples=num_samples,
                starts_epoch="epoch_start" in longer,
            )
        )
        at += took
    return tuple(made)


def run(*, facts=None, loaders=None, on=None, interventions=(), **changes):
    """A run; healthy where nothing is changed."""
    given_facts = {
        "boundary": "optimizer",
        "num_threads": 2,
        "num_calls": 60.0,
        "call_overhead": 10e-6,
        "steps_per_epoch": 100.0,
        "where": {"forward": Where(file="/home/ada/train.py", line=20)},
        "loaders": (loader(),) if loaders is None else loaders,
    }
    given = {
        "hasten": "0.1.0",
        "version": RECORD_VERSION,
        "id": "20260305-141502-77",
        "command": ("train.py",),
        "directory": "/home/ada",
        "started": 1.7e9,
        "ended_by": "hasten",
        "exit_code": None,
        "machine": on or machine(),
        "facts": Facts(**{**given_facts, **(facts or {})}),
        "steps": steps(),
        "resources": samples(),
        "interventions": tuple(interventions),
    }
    return Run(**{**given, **changes})


def tried(name, ratio, *, step=STEP, **settings):
    """An intervention of this ratio, sure to 0.02; of None: tried, and not measured."""
    if ratio is None:
        return Intervention(name=name, note="no step was measured", settings=settings)
    return Intervention(
        name=name,
        ratio=Interval(value=ratio, low=ratio - 0.02, high=ratio + 0.02),
        baseline_seconds=step,
        candidate_seconds=ratio * step,
        num_steps=40,
        settings=settings,
    )


def samples(*, tree=1.0, others=0.0, major_faults=0.0, swapped=0, available=12 * GIB, count=6):
    """The machine every second from the run's first step; `major_faults` a second."""
    return tuple(
        ResourceSample(
            at=10.0 + 0.5 * index,
            tree_cpu=tree,
            machine_cpu=tree + others,
            others_cpu=others,
            stolen_cpu=None,
            resident_bytes=GIB,
            available_bytes=available,
            page_cache_bytes=None,
            swap_used_bytes=swapped * index,
            read_bytes=0,
            written_bytes=0,
            minor_faults=0,
            major_faults=int(major_faults * 0.5 * index),
            num_processes=3,
        )
        for index in range(count)
    )


def hot(seconds, *, phase="script", where=LINE, **changes):
    return HotLine(where=where, phase=phase, seconds=seconds, **changes)


def sync(seconds, *, calls=32.0, kind=".item()", where=LINE):
    return SyncPoint(kind=kind, where=where, calls=calls, seconds=seconds)
