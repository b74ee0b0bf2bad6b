"""The machine, at rest and over time."""

from __future__ import annotations

from typing import Literal

from hasten.records.codec import Record

DiskKind = Literal["ssd", "hdd", "virtual", "network", "memory", "overlay"]


class Device(Record, frozen=True):
    """One accelerator."""

    index: int
    name: str
    memory_bytes: int
    compute_capability: str | None = None  # "9.0"
    driver: str | None = None


class Machine(Record, frozen=True):
    """The machine of a run. Fields are None if the system does not report them."""

    system: str  # "Linux-6.1-x86_64"
    python: str
    torch: str | None
    torch_cuda: str | None  # CUDA version that PyTorch was built for; None for a CPU-only build
    cpu: str
    num_cores: float  # usable by this process: affinity and cgroup quota
    num_cores_present: int
    cpu_features: tuple[str, ...]  # of: avx2 avx512 avx512_bf16 amx_bf16 neon neon_bf16; empty: unknown
    memory_bytes: int  # usable: the smaller of RAM and the cgroup limit
    memory_available_bytes: int
    swap_bytes: int
    shm_bytes: int | None
    devices: tuple[Device, ...] = ()
    cuda_usable: bool | None = None  # according to PyTorch; None: not checked
    load: float | None = None  # one-minute load average when the run started
    environment: dict[str, str] = {}  # OMP_*, MKL_*, MALLOC_*, LD_PRELOAD, CUDA_* as set for the run
    memory_present_bytes: int | None = None  # RAM of the whole machine, regardless of the cgroup limit
    cuda_problem: str | None = None  # PyTorch's message if it cannot use CUDA
    accelerator: str | None = None  # what PyTorch can use: "cuda" "mps" "xpu", "cpu" for none; None: not checked
    torch_archs: tuple[str, ...] = ()  # "sm_90" ...: architectures that this CUDA build has kernels for
    driver_cuda: str | None = None  # newest CUDA version the NVIDIA driver supports, "13.0"
    device_problem: str | None = None  # why NVML is installed but does not work
    num_nvidia_cards: int | None = None  # NVIDIA display controllers on the PCI bus, with or without a driver
    fault_seconds: float | None = None  # to fault in a page of memory and give it back; None: not measured
    num_numa_nodes: int = 1  # with memory of their own
    libraries: dict[str, str] = {}  # versions by name of package or bundled library: Pillow, libjpeg-turbo ...


class DeviceSample(Record, frozen=True):
    """One accelerator at one point in time, from NVML."""

    utilization: float | None  # 0..1
    memory_used_bytes: int | None
    temperature_celsius: float | None
    power_watts: float | None
    pcie_read_bytes_per_second: float | None  # into the device
    pcie_write_bytes_per_second: float | None  # out of the device


class ResourceSample(Record, frozen=True):
    """The machine at one point in time. Rates are means since the previous sample; counters are since the start."""

    at: float  # seconds on the run's clock
    tree_cpu: float  # cores in use by the measured process tree
    machine_cpu: float  # cores in use on the whole machine
    others_cpu: float  # cores in use by other processes
    stolen_cpu: float | None  # cores lost to the hypervisor or to cgroup throttling
    resident_bytes: int  # of the tree; shared pages are counted once if the system supports it (PSS)
    available_bytes: int  # cgroup-aware
    page_cache_bytes: int | None
    swap_used_bytes: int
    read_bytes: int | None  # the tree's disk reads so far
    written_bytes: int | None
    minor_faults: int | None  # the tree's page faults so far
    major_faults: int | None
    num_processes: int
    devices: tuple[DeviceSample, ...] = ()
    throttled_cpu: float | None = None  # the part of stolen_cpu that is cgroup throttling


class DiskSpeed(Record, frozen=True):
    """The speed of a folder's disk, measured with a temporary file. Rates are None if they could not be measured."""

    folder: str
    file_system: str | None  # "ext4"
    kind: DiskKind | None  # None: unknown
    sequential_bytes_per_second: float | None  # cold, one reader
    random_bytes_per_second: float | None  # cold, one reader, reads of random_read_bytes
    random_read_bytes: int
    file_bytes: int  # size of the temporary file; 0: none was written
    free_bytes: int | None
    note: str = ""  # why a rate is missing


class ReadRate(Record, frozen=True):
    """Reads by a number of concurrent readers."""

    num_readers: int
    num_reads: int
    num_bytes: int
    seconds: float
    latency_seconds: float  # of one read, the median
    num_failed: int = 0  # reads that raised an error; not counted above

    @property
    def bytes_per_second(self) -> float:
        """Bytes per second of all readers together."""
        return self.num_bytes / self.seconds if self.seconds else 0.0


class ReadRates(Record, frozen=True):
    """How fast raw bytes are read from a network mount or a URL."""

    place: str
    file_system: str  # "nfs4", "s3"
    rates: tuple[ReadRate, ...]
    num_readers: int  # fewest that reach 90% of the best rate
    bound: Literal["latency", "bandwidth"]  # of one reader
    read_again: bool = False  # there were too few bytes to read each once
