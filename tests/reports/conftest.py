"""Hand-written runs and diagnoses: what each kind of run looks like when it is told."""

import pytest

from hasten.records import (
    RECORD_VERSION,
    Breakdown,
    CacheNeed,
    Ceiling,
    Device,
    DeviceSample,
    Diagnosis,
    Facts,
    Finding,
    Interval,
    LoaderFacts,
    Machine,
    Overhead,
    ResourceSample,
    Run,
    Stage,
    Step,
    WhatIf,
    Where,
)

GIB = 2**30
LAPTOP = Machine(
    system="Linux-6.1-x86_64",
    python="3.11.7",
    torch="2.6.0",
    torch_cuda=None,
    cpu="AMD Ryzen 5 5500U",
    num_cores=2.0,
    num_cores_present=12,
    cpu_features=("avx2",),
    memory_bytes=int(15.6 * GIB),
    memory_available_bytes=12 * GIB,
    swap_bytes=0,
    shm_bytes=GIB,
    load=0.37,
)
WORKSTATION = Machine(
    system="Windows-11",
    python="3.12.1",
    torch="2.6.0",
    torch_cuda="12.4",
    cpu="13th Gen Intel(R) Core(TM) i7-13700K",
    num_cores=24.0,
    num_cores_present=24,
    cpu_features=("avx2",),
    memory_bytes=32 * GIB,
    memory_available_bytes=21 * GIB,
    swap_bytes=0,
    shm_bytes=None,
    devices=(Device(index=0, name="NVIDIA GeForce RTX 4070", memory_bytes=12 * GIB, compute_capability="8.9"),),
    cuda_usable=True,
)


def steps(num: int, *, seconds: float) -> tuple[Step, ...]:
    return tuple(Step(index=i, start=10 + i * seconds, seconds=seconds, marked=i % 2 == 0) for i in range(num))


def sample(at: float, *, read: int, devices: tuple[DeviceSample, ...] = ()) -> ResourceSample:
    return ResourceSample(
        at=at,
        tree_cpu=1.84,
        machine_cpu=1.96,
        others_cpu=0.12,
        stolen_cpu=None,
        resident_bytes=int(3.2 * GIB),
        available_bytes=9 * GIB,
        page_cache_bytes=None,
        swap_used_bytes=0,
        read_bytes=read,
        written_bytes=0,
        minor_faults=None,
        major_faults=None,
        num_processes=3,
        devices=devices,
    )


def run(*, machine: Machine, facts: Facts, steps: tuple[Step, ...], **others) -> Run:
    return Run(
        hasten="0.1.0",
        version=RECORD_VERSION,
        id="20260305-141502",
        command=("python", "train.py"),
        directory="/home/ada/xray",
        started=1.7e9,
        ended_by="hasten",
        exit_code=None,
        machine=machine,
        facts=facts,
        steps=steps,
        **others,
    )


def data_bound() -> tuple[Run, Diagnosis]:
    stages = (
        Stage(name="read", num_calls=3200, seconds=1.31, cpu_seconds=0.62, num_bytes=3200 * 399_000),
        Stage(name="decode", detail="Pillow", num_calls=3200, seconds=31.1, cpu_seconds=30.2),
        Stage(name="transform", detail="Resize", num_calls=3200, seconds=6.9, cpu_seconds=6.8),
        Stage(name="transform", detail="RandomHorizontalFlip", num_calls=3200, seconds=0.31, cpu_seconds=0.3),
        Stage(name="transform", detail="ToTensor", num_calls=3200, seconds=2.4, cpu_seconds=1.2),
        Stage(name="transform", detail="Normalize", num_calls=3200, seconds=0.9, cpu_seconds=0.9),
        Stage(name="getitem", num_calls=3200, seconds=0.42, cpu_seconds=0.4),
        Stage(name="collate", num_calls=200, seconds=1.9, cpu_seconds=0.8),
    )
    loader = LoaderFacts(
        name="ChestXrays",
        role="train",
        num_workers=2,
        batch_size=16,
        num_batches=7007,
        num_samples=112120,
        prefetch_factor=2,
        stages=stages,
        num_measured_batches=200,
        num_measured_samples=3200,
        queue_ready=(0, 0, 0, 1, 0, 0, 0, 0, 0, 0),
    )
    measured = run(
        machine=LAPTOP,
        facts=Facts(boundary="optimizer", num_threads=2, loaders=(loader,)),
        steps=steps(214, seconds=0.3124),
        resources=tuple(sample(10.0 + i, read=i * 20_000_000) for i in range(60)),
        overhead=Overhead(
            ratio=Interval(1.004, 0.998, 1.011),
            marks_per_step=24,
            seconds_per_mark=6e-7,
            hook_seconds=0.0003,
        ),
    )
    breakdown = Breakdown(
        step_seconds=0.3124,
        median_seconds=0.3098,
        spread=Interval(0.3124, 0.3051, 0.3197),
        phases={
            "data_wait": 0.2151,
            "epoch_start": 0.0021,
            "copy": None,
            "forward": 0.0312,
            "loss": 0.0009,
            "backward": 0.0455,
            "optimizer": 0.0084,
            "zero_grad": 0.0004,
            "sync": 0.0011,
            "logging": 0.0,
            "validation": None,
            "checkpoint": None,
            "script": 0.0036,
        },
        unaccounted=0.0041,
        samples_per_second=51.2,
        num_steps=214,
    )
    findings = (
        Finding(
            kind="slow-decode",
            title="Slow decode: Pillow on PNG",
            recoverable=0.1204,
            interval=Interval(0.1204, 0.1103, 0.1312),
            confirmed_by="free_batches",
            because=(
                "decode takes 69% of the workers' time, 9.7 ms per sample",
                "the same files take 6.1 ms per sample with simplejpeg: 1.6x",
                "with instant data loading the step takes 97 ms",
            ),
            remedy="Decode to grey and resize before ToTensor, or keep the decoded images: they fit here.",
            where=Where(
                file="/home/ada/xray/data.py",
                line=31,
                function="__getitem__",
                source="img = Image.open(path)",
            ),
        ),
        Finding(
            kind="too-few-workers",
            title="Too few workers",
            recoverable=0.0431,
            because=("2 workers are busy 98% of the time and the queue is empty at 9 of 10 steps",),
            remedy="Set num_workers=4.",
            where=Where(file="/home/ada/xray/train.py", line=88, function="main"),
        ),
        Finding(
            kind="unfused-optimizer",
            title="Unfused optimizer",
            recoverable=0.0042,
            because=("Adam steps 121 tensors one by one",),
            remedy="Adam(..., fused=True)",
            where=Where(file="/home/ada/xray/train.py", line=52, function="<module>"),
        ),
    )
    diagnosis = Diagnosis(
        verdict="Data-bound: the step waits 69% of its time for images that two workers decode with Pillow.",
        breakdown=breakdown,
        ceiling=Ceiling(free_batches=0.0973, loader_alone=0.2088, headroom=0.2151),
        findings=findings,
        what_ifs=(
            WhatIf(
                change="twice the cores",
                step_seconds=0.163,
                because="the workers share the cores with the model",
            ),
            WhatIf(
                change="a disk without latency",
                step_seconds=0.309,
                because="reading is 3% of the workers' time",
            ),
        ),
        cache=CacheNeed(
            bytes_per_sample=1024 * 1024,
            num_samples=112120,
            total_bytes=112120 * 2**20,
            k_factor=2.63,
            fits_share=0.11,
        ),
    )
    return measured, diagnosis


def healthy() -> tuple[Run, Diagnosis]:
    loader = LoaderFacts(
        name="TensorDataset",
        role="train",
        num_workers=0,
        batch_size=256,
        num_batches=195,
        num_samples=50000,
        in_memory=True,
        stages=(
            Stage(name="getitem", num_calls=51200, seconds=0.21, cpu_seconds=0.21),
            Stage(name="collate", num_calls=200, seconds=0.19, cpu_seconds=0.18),
        ),
        num_measured_batches=200,
        num_measured_samples=51200,
    )
    used = DeviceSample(
        utilization=0.97,
        memory_used_bytes=int(6.3 * GIB),
        temperature_celsius=64.0,
        power_watts=181.0,
        pcie_read_bytes_per_second=None,
        pcie_write_bytes_per_second=None,
    )
    measured = run(
        machine=WORKSTATION,
        facts=Facts(boundary="optimizer", num_threads=16, device="cuda:0", autocast="bfloat16", loaders=(loader,)),
        steps=steps(402, seconds=0.0742),
        resources=tuple(sample(10.0 + i, read=0, devices=(used,)) for i in range(25)),
        overhead=Overhead(
            ratio=Interval(1.011, 1.004, 1.018), marks_per_step=31, seconds_per_mark=8e-7, hook_seconds=2e-5
        ),
    )
    breakdown = Breakdown(
        step_seconds=0.0742,
        median_seconds=0.0741,
        spread=Interval(0.0742, 0.07395, 0.07447),
        phases={
            "data_wait": 0.0021,
            "epoch_start": 0.0,
            "copy": 0.0011,
            "forward": 0.0214,
            "loss": 0.0013,
            "backward": 0.0391,
            "optimizer": 0.0062,
            "zero_grad": 0.0003,
            "sync": 0.0012,
            "logging": 0.0,
            "validation": None,
            "checkpoint": None,
            "script": 0.0006,
        },
        unaccounted=0.0009,
        samples_per_second=3450.1,
        num_steps=402,
        device_seconds=0.0719,
        device_wait=0.0,
    )
    diagnosis = Diagnosis(
        verdict="No problem found: compute-bound, and within 3% of the step time with instant data loading.",
        breakdown=breakdown,
        ceiling=Ceiling(free_batches=0.0722, free_copies=0.0716, loader_alone=0.0038, headroom=0.002),
        findings=(),
    )
    return measured, diagnosis


def missing_phases() -> tuple[Run, Diagnosis]:
    measured = run(
        machine=LAPTOP,
        facts=Facts(boundary="backward", num_threads=2, frameworks=("lightning",)),
        steps=steps(40, seconds=0.5),
        notes=(
            "no optimizer step was seen: each backward counts as a step",
            "the loader is not a torch DataLoader: its stages are not seen",
        ),
    )
    breakdown = Breakdown(
        step_seconds=0.5,
        median_seconds=0.41,
        spread=Interval(0.5, 0.44, 0.56),
        phases={"forward": None, "backward": 0.31},
        unaccounted=0.19,
        samples_per_second=None,
        num_steps=40,
    )
    diagnosis = Diagnosis(
        verdict="Not known: 38% of the step is unaccounted.",
        breakdown=breakdown,
        ceiling=Ceiling(),
        findings=(),
    )
    return measured, diagnosis


def one_step() -> tuple[Run, Diagnosis]:
    measured = run(machine=LAPTOP, facts=Facts(boundary="optimizer", num_threads=2), steps=steps(1, seconds=13.7))
    breakdown = Breakdown(
        step_seconds=13.7,
        median_seconds=13.7,
        spread=Interval(13.7, 13.7, 13.7),
        phases={"forward": 5.1, "backward": 8.4},
        unaccounted=0.2,
        samples_per_second=1.17,
        num_steps=1,
    )
    diagnosis = Diagnosis(
        verdict="Too short to say: one step was measured.",
        breakdown=breakdown,
        ceiling=Ceiling(),
        findings=(),
    )
    return measured, diagnosis


def hostile() -> tuple[Run, Diagnosis]:
    evil = "/home/ada/xray/[red]日本語[/red]\x1b[31m\n\udcff" + "long_folder_name/" * 8 + "train.py"
    loader = LoaderFacts(
        name="[bold]Set[/bold]",
        role="train",
        num_workers=3,
        batch_size=None,
        num_batches=None,
        num_samples=None,
        stages=tuple(
            Stage(name="transform", detail=f"[{'blink' * 12}]{i}", num_calls=9, seconds=1.0 + i, cpu_seconds=1.0)
            for i in range(14)
        ),
        num_measured_batches=3,
        num_measured_samples=9,
    )
    measured = run(
        machine=LAPTOP,
        facts=Facts(boundary="optimizer", num_threads=2, loaders=(loader, loader)),
        steps=steps(30, seconds=0.02),
        notes=tuple(f"note [{i}] :smile: of many" for i in range(9)),
    )
    findings = tuple(
        Finding(
            kind="sync",
            title=f"[link=file:///etc]Sync point {i}[/link]",
            recoverable=0.001 * (i + 1),
            because=("[/nothing] is closed here", "twice", "thrice"),
            remedy="Call .item() once every 100 steps — not “each” step…",
            where=Where(file=evil, line=7, function="[dim]f"),
        )
        for i in range(12)
    )
    breakdown = Breakdown(
        step_seconds=0.02,
        median_seconds=0.02,
        spread=Interval(0.02, 0.0199, 0.0201),
        phases={"forward": 0.004, "backward": 0.006},
        unaccounted=0.01,
        samples_per_second=412345.0,
        num_steps=30,
    )
    diagnosis = Diagnosis(verdict="[blink]Hm[/blink] \x07", breakdown=breakdown, ceiling=Ceiling(), findings=findings)
    return measured, diagnosis


@pytest.fixture
def cases() -> dict[str, tuple[Run, Diagnosis]]:
    return {
        "data_bound": data_bound(),
        "healthy": healthy(),
        "missing_phases": missing_phases(),
        "one_step": one_step(),
        "hostile": hostile(),
    }
