"""Check whether this machine is set up to train fast: the lines of `hasten check`.

Only the machine is judged. What a particular script needs is measured by `hasten diagnose`.
"""

from __future__ import annotations

from collections.abc import Iterable

from hasten import format
from hasten.diagnosis.check_device import check_device, check_precision, check_torch
from hasten.records import CheckLine, DiskSpeed, Machine, ReadRates

DOCKER_SHM = 64 << 20  # a container's default
AMPLE_SHM = 1 << 30
SLOW_RANDOM = 50e6  # bytes per second: about 500 photos of 100 kB per reader
DISKS: dict[str | None, str] = {
    "ssd": "an SSD",
    "hdd": "a spinning disk",
    "virtual": "a virtual disk",
    "network": "a network file system",
    "memory": "memory",
    "overlay": "a container's overlay",
}
LITTLE_FREE = 0.1  # share of the memory
KEEPS_MEMORY = (
    "export MALLOC_MMAP_THRESHOLD_=17179869184 MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_TOP_PAD_=268435456"
)


def check(
    machine: Machine, *, disk: DiskSpeed | None = None, reads: ReadRates | None = None
) -> tuple[CheckLine, ...]:
    """All lines that apply to this system, the device first."""
    return (
        check_device(machine),
        check_torch(machine),
        check_precision(machine),
        _cores(machine),
        *_nodes(machine),
        _memory(machine),
        _swap(machine),
        *_shm(machine),
        *_disk(disk),
        *_reads(reads),
        _decoders(machine),
        *_resizing(machine),
        *_threads(machine),
        *_allocator(machine),
        _load(machine),
    )


def _cores(machine: Machine) -> CheckLine:
    usable, present = machine.num_cores, machine.num_cores_present
    if usable < present:
        return CheckLine(
            "cores",
            "warning",
            f"{usable:g} of {present} cores are usable: {machine.cpu}.",
            "If that is not intended, raise the limit: `docker run --cpus`, `resources.limits.cpu`, "
            "`taskset`, the scheduler's `--cpus-per-task`.",
        )
    if present < 2:
        text = f"Only one core for both data loading and training: {machine.cpu}."
        return CheckLine("cores", "warning", text, "Use a machine with at least two cores.")
    return CheckLine("cores", "good", f"{present} cores, all usable: {machine.cpu}.")


def _nodes(machine: Machine) -> Iterable[CheckLine]:
    """Whether a process may run far from its memory, or from its GPU."""
    if machine.num_numa_nodes < 2:
        return
    bound = "`torchrun --numa-binding node`" if machine.devices else "`numactl --cpunodebind 0 --membind 0`"
    yield CheckLine(
        "NUMA",
        "unknown",
        f"{machine.num_numa_nodes} nodes: cores of one reach the memory of another more slowly.",
        f"Try to bind each process to one node, {bound}; `hasten prove` shows whether it pays.",
    )


def _memory(machine: Machine) -> CheckLine:
    usable, free = machine.memory_bytes, machine.memory_available_bytes
    text = f"{format.size(usable)}, {format.size(free)} available"
    present = machine.memory_present_bytes
    limited = present is not None and usable < 0.95 * present
    if limited:
        text += f"; limited by the container (the machine has {format.size(present)})"
    if free < LITTLE_FREE * usable:
        remedy = "Stop other programs that use memory" + (", or raise the container's limit." if limited else ".")
        return CheckLine("memory", "bad", text + ".", remedy)
    if limited:
        remedy = "If that is not intended, raise it: `docker run --memory`, `resources.limits.memory`."
        return CheckLine("memory", "warning", text + ".", remedy)
    return CheckLine("memory", "good", text + ".")


def _swap(machine: Machine) -> CheckLine:
    if machine.swap_bytes == 0:
        return CheckLine("swap", "good", "None: if memory runs out, a run fails instead of becoming very slow.")
    return CheckLine("swap", "good", f"{format.size(machine.swap_bytes)}.")


def _shm(machine: Machine) -> Iterable[CheckLine]:
    """Loader workers pass their batches through /dev/shm, which exists only on Linux."""
    size = machine.shm_bytes
    if size is None:
        return
    text = f"/dev/shm holds {format.size(size)}"
    remedy = (
        "Start the container with `--shm-size=8g` or `--ipc=host` (Kubernetes: an `emptyDir` with "
        "`medium: Memory` at /dev/shm), or the host with `mount -o remount,size=8G /dev/shm`."
    )
    if size <= DOCKER_SHM:
        yield CheckLine(
            "shared memory", "bad", text + ": loader workers crash with a bus error when it is full.", remedy
        )
    elif size < AMPLE_SHM:
        text += ": not much for the batches of several workers."
        yield CheckLine("shared memory", "warning", text, remedy)
    else:
        yield CheckLine("shared memory", "good", text + ".")


def _disk(disk: DiskSpeed | None) -> Iterable[CheckLine]:
    if disk is None:
        return
    place = f"{disk.folder}, on {DISKS.get(disk.kind, 'a disk of unknown kind')}"
    place += f" ({disk.file_system})" if disk.file_system else ""
    in_order, at_random = disk.sequential_bytes_per_second, disk.random_bytes_per_second
    if at_random is None or in_order is None:
        state = "good" if disk.kind == "memory" else "unknown"
        remedy = "" if state == "good" else "Pass a folder on the same disk that can be measured."
        yield CheckLine("disk", state, f"{place}: not measured: {disk.note}.", remedy)
        return
    rates = (
        f"{place}: {format.size_rate(in_order)} sequential, "
        f"{format.size_rate(at_random)} in random reads of {format.size(disk.random_read_bytes)}."
    )
    if at_random < SLOW_RANDOM:
        remedy = (
            "Copy the data to a local SSD, pack small files into large ones that are read sequentially, "
            "or keep it in memory if it fits."
        )
        yield CheckLine("disk", "bad" if at_random < SLOW_RANDOM / 2 else "warning", rates, remedy)
    else:
        yield CheckLine("disk", "good", rates)


def _reads(reads: ReadRates | None) -> Iterable[CheckLine]:
    """Whether one reader gets what a remote store gives, and how many do."""
    if reads is None:
        return
    best = max(reads.rates, key=lambda rate: rate.bytes_per_second)
    text = f"{reads.place} ({reads.file_system}): " if reads.file_system else f"{reads.place}: "
    failed = sum(rate.num_failed for rate in reads.rates)
    lost = f" {failed} reads failed." if failed else ""
    if reads.bound == "bandwidth":
        text += f"bandwidth-bound: one reader gets {format.size_rate(reads.rates[0].bytes_per_second)}, all there is."
        remedy = "A cache on the local disk helps from the second epoch on: `disk_cache`."
    else:
        factor = best.bytes_per_second / reads.rates[0].bytes_per_second
        more = " or more" if reads.num_readers == reads.rates[-1].num_readers else ""
        text += (
            f"latency-bound: {best.num_readers} readers get {format.ratio(factor)} the rate of one; "
            f"{reads.num_readers}{more} hide the latency."
        )
        remedy = (
            f"`num_workers={reads.num_readers}`{more}, or a cache on the local disk, which reads ahead: `disk_cache`."
        )
    yield CheckLine("reads", "warning" if failed or reads.num_readers > 1 else "good", text + lost, remedy)


def _decoders(machine: Machine) -> CheckLine:
    """The image decoding libraries, and whether they are the fast builds."""
    found = machine.libraries
    pillow = found.get("pillow-simd") or found.get("pillow")
    if pillow is None:
        text = "Pillow is not installed."
        return CheckLine("image decoding", "unknown", text, "`pip install pillow` if you train on images.")
    fast = [f"{name} {found[name]}" for name in ("libjpeg-turbo", "zlib-ng", "simplejpeg") if name in found]
    text = f"Pillow {pillow}" + (f" with {', '.join(fast)}" if fast else "")
    if "libjpeg-turbo" not in found:
        remedy = "`pip install --force-reinstall --only-binary :all: pillow`: its wheels include it."
        return CheckLine("image decoding", "bad", text + ", built without libjpeg-turbo.", remedy)
    if "zlib-ng" not in found and "pillow-simd" not in found:
        remedy = "`pip install --upgrade --only-binary :all: pillow` (PNG decodes slower with plain zlib)."
        return CheckLine("image decoding", "warning", text + ", built without zlib-ng.", remedy)
    if "simplejpeg" not in found:
        remedy = "`pip install simplejpeg`: decodes JPEG files faster, to the same pixels."
        return CheckLine("image decoding", "warning", text + ", without simplejpeg.", remedy)
    return CheckLine("image decoding", "good", text + ".")


def _resizing(machine: Machine) -> Iterable[CheckLine]:
    """Whether Pillow resizes with SIMD instructions on x86."""
    found = machine.libraries
    if "pillow-simd" in found:
        yield CheckLine(
            "image resizing", "good", f"Pillow-SIMD {found['pillow-simd']} resizes with SIMD instructions."
        )
    elif "pillow" in found and "avx2" in machine.cpu_features:
        remedy = (
            "`hasten tune` tries `resize`, which is within 1/255 of Pillow's bilinear; for every filter, "
            "`pip install pillow-simd` instead of pillow (builds from source)."
        )
        yield CheckLine("image resizing", "warning", "Pillow resizes without SIMD instructions.", remedy)


def _threads(machine: Machine) -> Iterable[CheckLine]:
    """The number of OpenMP threads, and how they wait for each other."""
    settings, usable = machine.environment, machine.num_cores
    asked = settings.get("OMP_NUM_THREADS")
    # A list is for nested parallel regions; the first number is the outermost.
    number = int(asked.split(",")[0]) if asked and asked.split(",")[0].strip().isdigit() else None
    whole = max(1, int(usable))
    exports = f"export OMP_NUM_THREADS={whole}"
    if number is None and usable < machine.num_cores_present:
        text = f"OpenMP may start up to {machine.num_cores_present} threads, but only {usable:g} cores are usable."
        yield CheckLine("threads", "warning", text, f"`{exports}`")
    elif number is not None and number > usable:
        text = f"OMP_NUM_THREADS={asked} is more than the {usable:g} usable cores."
        yield CheckLine("threads", "bad", text, f"`{exports}`")
    elif number == 1 and usable >= 2:
        text = f"OMP_NUM_THREADS=1 leaves {usable - 1:g} cores unused when training on the CPU."
        yield CheckLine("threads", "warning", text, "`unset OMP_NUM_THREADS`, if that is not intended.")
    else:
        how_many = "PyTorch's default" if number is None else f"{number}, set by OMP_NUM_THREADS"
        yield CheckLine("threads", "good", f"OpenMP threads: {how_many}.")
    spinning = _spinning(settings)
    if spinning:
        text = f"{spinning} makes waiting threads spin and keep their cores busy, even if other threads need them."
        yield CheckLine("threads", "warning", text, f"`unset {spinning.partition('=')[0]}`")


def _spinning(settings: dict[str, str]) -> str | None:
    active = {
        "OMP_WAIT_POLICY": ("active",),
        "KMP_BLOCKTIME": ("infinite",),
        "GOMP_SPINCOUNT": ("infinite", "infinity"),
    }
    for name, values in active.items():
        if settings.get(name, "").lower() in values:
            return f"{name}={settings[name]}"
    return None


def _allocator(machine: Machine) -> Iterable[CheckLine]:
    """The malloc that a run will use, and whether it returns memory to the system; configurable on Linux only."""
    if not machine.system.startswith("Linux"):
        return
    settings = machine.environment
    preloaded = settings.get("LD_PRELOAD", "")
    other = next((name for name in ("jemalloc", "tcmalloc", "mimalloc") if name in preloaded), None)
    tuned = [name for name in settings if name.startswith("MALLOC_")]
    tuned += ["GLIBC_TUNABLES"] if "glibc.malloc" in settings.get("GLIBC_TUNABLES", "") else []
    if other:
        yield CheckLine("allocator", "good", f"{other}, through LD_PRELOAD.")
    elif tuned:
        yield CheckLine("allocator", "good", f"The system allocator, configured by {', '.join(tuned)}.")
    elif machine.devices or machine.accelerator not in (None, "cpu"):
        yield CheckLine("allocator", "good", "The system allocator; a step's tensors are on the device.")
    else:
        text = "The system allocator returns the memory of each large tensor and page-faults it in again for the next one."
        remedy = f"`{KEEPS_MEMORY}` for CPU training; `hasten diagnose` measures what it would save."
        yield CheckLine("allocator", "warning", text, remedy)


def _load(machine: Machine) -> CheckLine:
    load, cores = machine.load, machine.num_cores_present
    if load is None:
        return CheckLine("load", "unknown", "This system does not report its load.", "Check the task manager.")
    share = load / cores
    text = f"{load:.1f} processes running or waiting on {cores} cores, mean of the last minute"
    if share > 0.3:
        remedy = "Stop other programs, or measure later: they slow training down and make measurements noisy."
        return CheckLine("load", "bad" if share > 1 else "warning", text + ".", remedy)
    return CheckLine("load", "good", text + ".")
