"""Is this machine set up to train fast? The lines of `hasten check`.

In: a Machine, and a DiskSpeed where one was measured. Out: CheckLines, each good or with what to change.
Refuses to read the machine itself, and to guess what a script needs of it: that is what `diagnose` measures.
"""

from __future__ import annotations

from collections.abc import Iterable

from hasten import format
from hasten.diagnosis.check_device import check_device, check_precision, check_torch
from hasten.records import CheckLine, DiskSpeed, Machine

DOCKER_SHM = 64 << 20  # what a container gets when nobody asks for more
AMPLE_SHM = 1 << 30
SLOW_RANDOM = 50e6  # bytes a second: some 500 photographs of 100 kB a reader
DISKS: dict[str | None, str] = {
    "ssd": "an SSD",
    "hdd": "a spinning disk",
    "virtual": "a virtual disk",
    "network": "a network file system",
    "memory": "memory",
    "overlay": "a container's overlay",
}
LITTLE_FREE = 0.1  # of the memory
KEEPS_MEMORY = (
    "export MALLOC_MMAP_THRESHOLD_=17179869184 MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_TOP_PAD_=268435456"
)


def check(machine: Machine, *, disk: DiskSpeed | None = None) -> tuple[CheckLine, ...]:
    """Every line that this system can be told about, the device first."""
    return (
        check_device(machine),
        check_torch(machine),
        check_precision(machine),
        _cores(machine),
        _memory(machine),
        _swap(machine),
        *_shm(machine),
        *_disk(disk),
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
            f"{usable:g} of {present} cores may be used here: {machine.cpu}.",
            "Where that is not meant, lift the limit: `docker run --cpus`, `resources.limits.cpu`, "
            "`taskset`, the scheduler's `--cpus-per-task`.",
        )
    if present < 2:
        text = f"One core has to load and train in turn: {machine.cpu}."
        return CheckLine("cores", "warning", text, "Give the machine a second core.")
    return CheckLine("cores", "good", f"{present} cores, all usable: {machine.cpu}.")


def _memory(machine: Machine) -> CheckLine:
    usable, free = machine.memory_bytes, machine.memory_available_bytes
    text = f"{format.size(usable)}, {format.size(free)} of it available"
    present = machine.memory_present_bytes
    limited = present is not None and usable < 0.95 * present
    if limited:
        text += f"; the container's limit, of {format.size(present)} present"
    if free < LITTLE_FREE * usable:
        remedy = "End what else holds memory" + (", or raise the container's limit." if limited else ".")
        return CheckLine("memory", "bad", text + ".", remedy)
    if limited:
        remedy = "Where that is not meant, raise it: `docker run --memory`, `resources.limits.memory`."
        return CheckLine("memory", "warning", text + ".", remedy)
    return CheckLine("memory", "good", text + ".")


def _swap(machine: Machine) -> CheckLine:
    if machine.swap_bytes == 0:
        return CheckLine("swap", "good", "None: when memory runs out, a run ends instead of crawling.")
    return CheckLine("swap", "good", f"{format.size(machine.swap_bytes)}.")


def _shm(machine: Machine) -> Iterable[CheckLine]:
    """Loader workers hand their batches over in /dev/shm; only Linux has it."""
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
            "shared memory", "bad", text + ": loader workers will die of a bus error once it is full.", remedy
        )
    elif size < AMPLE_SHM:
        text += ": little for several workers' batches."
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
        remedy = "" if state == "good" else "Name a folder of the same disk that can be measured."
        yield CheckLine("disk", state, f"{place}: not measured, for {disk.note}.", remedy)
        return
    rates = (
        f"{place}: {format.size_rate(in_order)} in order, "
        f"{format.size_rate(at_random)} in pieces of {format.size(disk.random_read_bytes)}."
    )
    if at_random < SLOW_RANDOM:
        remedy = (
            "Copy the data to a local SSD, pack small files into large ones that are read in order, "
            "or keep it in memory where it fits."
        )
        yield CheckLine("disk", "bad" if at_random < SLOW_RANDOM / 2 else "warning", rates, remedy)
    else:
        yield CheckLine("disk", "good", rates)


def _decoders(machine: Machine) -> CheckLine:
    """Which libraries turn files into pixels, and whether they are the fast builds."""
    found = machine.libraries
    pillow = found.get("pillow-simd") or found.get("pillow")
    if pillow is None:
        text = "Pillow is not installed."
        return CheckLine("image decoding", "unknown", text, "`pip install pillow` if you train on images.")
    fast = [f"{name} {found[name]}" for name in ("libjpeg-turbo", "zlib-ng", "simplejpeg") if name in found]
    text = f"Pillow {pillow}" + (f" with {', '.join(fast)}" if fast else "")
    if "libjpeg-turbo" not in found:
        remedy = "`pip install --force-reinstall --only-binary :all: pillow`: its wheels are built with it."
        return CheckLine("image decoding", "bad", text + ", built without libjpeg-turbo.", remedy)
    if "zlib-ng" not in found and "pillow-simd" not in found:
        remedy = "`pip install --upgrade --only-binary :all: pillow` (PNG decodes slower with plain zlib)."
        return CheckLine("image decoding", "warning", text + ", built without zlib-ng.", remedy)
    if "simplejpeg" not in found:
        remedy = "`pip install simplejpeg`: the same pixels from a JPEG, sooner."
        return CheckLine("image decoding", "warning", text + ", without simplejpeg.", remedy)
    return CheckLine("image decoding", "good", text + ".")


def _resizing(machine: Machine) -> Iterable[CheckLine]:
    """Whether Pillow resizes with the vector instructions of an x86 processor."""
    found = machine.libraries
    if "pillow-simd" in found:
        yield CheckLine(
            "image resizing", "good", f"Pillow-SIMD {found['pillow-simd']} resizes with vector instructions."
        )
    elif "pillow" in found and "avx2" in machine.cpu_features:
        remedy = (
            "`hasten tune` tries `resize`, which is within 1/255 of Pillow's bilinear; for every filter, "
            "`pip install pillow-simd` in place of pillow (it builds from source)."
        )
        yield CheckLine("image resizing", "warning", "Pillow resizes without vector instructions.", remedy)


def _threads(machine: Machine) -> Iterable[CheckLine]:
    """How many OpenMP threads there will be, and how they wait for each other."""
    settings, usable = machine.environment, machine.num_cores
    asked = settings.get("OMP_NUM_THREADS")
    # A list is for nested regions; the first number is the outermost.
    number = int(asked.split(",")[0]) if asked and asked.split(",")[0].strip().isdigit() else None
    whole = max(1, int(usable))
    exports = f"export OMP_NUM_THREADS={whole}"
    if number is None and usable < machine.num_cores_present:
        text = f"OpenMP may start up to {machine.num_cores_present} threads where {usable:g} cores may be used."
        yield CheckLine("threads", "warning", text, f"`{exports}`")
    elif number is not None and number > usable:
        text = f"OMP_NUM_THREADS={asked} is more than the {usable:g} cores that may be used."
        yield CheckLine("threads", "bad", text, f"`{exports}`")
    elif number == 1 and usable >= 2:
        text = f"OMP_NUM_THREADS=1 leaves {usable - 1:g} cores out of training on the CPU."
        yield CheckLine("threads", "warning", text, "`unset OMP_NUM_THREADS`, if that is not meant.")
    else:
        how_many = "as many as torch chooses" if number is None else f"{number}, as OMP_NUM_THREADS says"
        yield CheckLine("threads", "good", f"OpenMP threads: {how_many}.")
    spinning = _spinning(settings)
    if spinning:
        text = f"{spinning} makes waiting threads hold their cores, also when others need them."
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
    """Which malloc the run will have, and whether it keeps what it was given; only Linux lets one choose."""
    if not machine.system.startswith("Linux"):
        return
    settings = machine.environment
    preloaded = settings.get("LD_PRELOAD", "")
    other = next((name for name in ("jemalloc", "tcmalloc", "mimalloc") if name in preloaded), None)
    tuned = [name for name in settings if name.startswith("MALLOC_")]
    tuned += ["GLIBC_TUNABLES"] if "glibc.malloc" in settings.get("GLIBC_TUNABLES", "") else []
    if other:
        yield CheckLine("allocator", "good", f"{other}, by LD_PRELOAD.")
    elif tuned:
        yield CheckLine("allocator", "good", f"The system's, tuned by {', '.join(tuned)}.")
    elif machine.devices or machine.accelerator not in (None, "cpu"):
        yield CheckLine("allocator", "good", "The system's; the tensors of a step lie on the device.")
    else:
        text = "The system's own gives each large tensor's memory back and faults it in again at the next one."
        remedy = f"`{KEEPS_MEMORY}` for training on the CPU; `hasten diagnose` measures what it costs a script."
        yield CheckLine("allocator", "warning", text, remedy)


def _load(machine: Machine) -> CheckLine:
    load, cores = machine.load, machine.num_cores_present
    if load is None:
        return CheckLine("load", "unknown", "This system does not tell its load.", "Look at its task manager.")
    share = load / cores
    text = f"{load:.1f} processes ran or waited on {cores} cores over the last minute"
    if share > 0.3:
        remedy = "End what else runs, or measure later: it takes time from training and makes figures uneven."
        return CheckLine("load", "bad" if share > 1 else "warning", text + ".", remedy)
    return CheckLine("load", "good", text + ".")
