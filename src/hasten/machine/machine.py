"""Read what the machine is: hardware, software and limits. What a system does not report is None.

torch is not imported into this process: its version is read from files, and what it can use is asked in a separate process,
on request.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import mmap
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import psutil

from hasten.cgroup import find_cgroup, read_memory, read_quota
from hasten.devices.nvml import Nvml
from hasten.records import Machine

# The kernel's flag -> our name for it.
FEATURES = {
    "avx2": "avx2",
    "avx512f": "avx512",
    "avx512_bf16": "avx512_bf16",
    "amx_bf16": "amx_bf16",
    "asimd": "neon",
    "bf16": "neon_bf16",
}
# Variables that affect threads, memory allocation or the choice of a device.
ENVIRONMENT = (
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD",
    "TCMALLOC_", "MIMALLOC_", "PYTHONMALLOC", "CUDA_", "NVIDIA_", "CUBLAS_", "CUDNN_", "NCCL_", "PYTORCH_",
    "TORCH_", "TORCHINDUCTOR_", "ATEN_", "ONEDNN_", "DNNL_", "ROCR_", "HIP_",
)  # fmt: skip
SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY")
FAULT_BYTES = 4 << 20  # of memory, to measure page faults with
DISTRIBUTIONS = (
    "torchvision", "pillow", "pillow-simd", "simplejpeg", "opencv-python", "opencv-python-headless", "numpy",
    "albumentations", "nvidia-dali-cuda130", "nvidia-dali-cuda120",
)  # fmt: skip

# Prints one line of JSON. A driver that is too old is a warning of is_available(); other problems are errors
# of init(), which also says "not compiled with CUDA enabled".
PROBE = """
import json, warnings
with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    import torch
    usable = torch.cuda.is_available()
problem = next((str(one.message) for one in heard if "CUDA" in str(one.message)), None)
if not usable and problem is None:
    try:
        torch.cuda.init()
    except Exception as error:
        problem = str(error)
found = torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"
print(json.dumps({"cuda": usable, "problem": None if usable else problem, "accelerator": found,
                  "archs": torch.cuda.get_arch_list() if usable else []}))
"""


class TorchAnswer(msgspec.Struct, frozen=True):
    """What torch reports about itself; all None if it was not asked or did not answer."""

    cuda: bool | None = None
    problem: str | None = None
    accelerator: str | None = None
    archs: tuple[str, ...] = ()


def read_machine(*, ask_torch: bool = False) -> Machine:
    """The machine now. `ask_torch` starts a process that imports torch, which can take seconds."""
    memory = psutil.virtual_memory()
    limit = read_memory(find_cgroup("memory"))
    version, built_for = read_torch()
    answer = probe_torch() if ask_torch and version is not None else TorchAnswer()
    nvml = Nvml()
    try:
        devices, driver = nvml.devices(), nvml.driver
    finally:
        nvml.close()
    return Machine(
        system=f"{platform.system()}-{platform.release()}-{platform.machine()}",
        python=platform.python_version(),
        torch=version,
        torch_cuda=built_for,
        cpu=_cpu_name(),
        num_cores=_num_cores(),
        num_cores_present=psutil.cpu_count() or 1,
        cpu_features=_cpu_features(),
        memory_bytes=memory.total if limit is None else min(memory.total, limit.limit),
        memory_available_bytes=memory.available if limit is None else min(memory.available, limit.available),
        swap_bytes=psutil.swap_memory().total,
        shm_bytes=_shm_bytes(),
        devices=devices,
        cuda_usable=answer.cuda,
        load=_load(),
        environment=pick_environment(os.environ),
        memory_present_bytes=memory.total,
        cuda_problem=answer.problem,
        accelerator=answer.accelerator,
        torch_archs=answer.archs,
        driver_cuda=driver.cuda,
        device_problem=driver.problem,
        num_nvidia_cards=_num_nvidia_cards(Path("/sys/bus/pci/devices")),
        num_numa_nodes=_num_numa_nodes(Path("/sys/devices/system/node")),
        fault_seconds=measure_fault() if sys.platform == "linux" else None,
        libraries=_libraries(),
    )


def measure_fault() -> float | None:
    """Seconds that Linux takes to fault in a page of zeros and to take it back; None where faults are not counted singly.

    It takes from a quarter of a microsecond to several, most of them on virtual machines.
    """
    import resource

    best: float | None = None
    for _ in range(3):
        before, start = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt, time.perf_counter()
        with mmap.mmap(-1, FAULT_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            memory[:: mmap.PAGESIZE] = bytes(FAULT_BYTES // mmap.PAGESIZE)
        taken, faults = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
        if faults >= FAULT_BYTES // mmap.PAGESIZE:  # fewer: pages come in larger ones
            best = min(taken / faults, best or taken)
    return best


def read_torch() -> tuple[str | None, str | None]:
    """torch's version and the CUDA version it was built for, without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None, None
    try:
        return parse_torch_version(Path(spec.origin).with_name("version.py").read_text(encoding="utf-8"))
    except OSError:
        return _version("torch"), None


def parse_torch_version(text: str) -> tuple[str | None, str | None]:
    """`__version__` and `cuda` of a torch/version.py."""
    version = re.search(r"^__version__\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.M)
    cuda = re.search(r"^cuda\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.M)
    return version and version[1], cuda and cuda[1]


def probe_torch(*, seconds: float = 120.0) -> TorchAnswer:
    """Ask torch, in a separate process, what it can use."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=seconds, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return TorchAnswer(problem=f"torch did not answer in {seconds:.0f} s")
    return parse_answer(done.stdout, errors=done.stderr)


def parse_answer(output: str, *, errors: str = "") -> TorchAnswer:
    """Parse the probe's last line; anything else means that torch cannot be imported."""
    lines = output.strip().splitlines()
    try:
        return msgspec.json.decode(lines[-1] if lines else "", type=TorchAnswer)
    except msgspec.MsgspecError:
        said = errors.strip().splitlines()
        return TorchAnswer(problem=f"torch does not import: {said[-1]}" if said else "torch does not import")


def pick_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that affect speed, without any that may contain a secret."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(ENVIRONMENT) and not SECRET.search(name)
    }


def parse_cpu_name(cpuinfo: str) -> str | None:
    """The model of the first processor in /proc/cpuinfo; None on ARM kernels, which do not report it."""
    found = re.search(r"^(?:model name|cpu model|Model)\s*:\s*(.+)$", cpuinfo, re.M)
    return found and found[1].strip()


def parse_cpu_features(cpuinfo: str) -> tuple[str, ...]:
    """Our names for the instruction sets in /proc/cpuinfo that speed up training."""
    found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", cpuinfo, re.M)
    flags = set(found[1].split()) if found else set[str]()
    return tuple(word for flag, word in FEATURES.items() if flag in flags)


def _cpu_name() -> str:
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        try:
            said = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False).stdout
        except (OSError, subprocess.TimeoutExpired):
            said = ""
        return said.strip() or platform.machine()
    return parse_cpu_name(_cpuinfo()) or platform.processor() or platform.machine()


def _cpu_features() -> tuple[str, ...]:
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return ("neon",)
    return parse_cpu_features(_cpuinfo())


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _num_cores() -> float:
    if sys.platform == "linux":
        allowed = len(os.sched_getaffinity(0))
    elif sys.platform == "win32":
        allowed = len(psutil.Process().cpu_affinity() or ()) or psutil.cpu_count() or 1
    else:
        allowed = psutil.cpu_count() or 1
    quota = read_quota(find_cgroup("cpu"))
    return float(allowed) if quota is None else min(float(allowed), quota)


def _shm_bytes() -> int | None:
    try:
        return shutil.disk_usage("/dev/shm").total if sys.platform == "linux" else None
    except OSError:
        return None


def _load() -> float | None:
    try:
        # On Windows psutil starts a thread that only then begins to average.
        return None if sys.platform == "win32" else psutil.getloadavg()[0]
    except OSError:
        return None


def _num_nvidia_cards(devices: Path) -> int | None:
    """Display and compute controllers of NVIDIA on the PCI bus; None if the bus is not readable."""
    if not devices.is_dir():
        return None
    return sum(
        1
        for device in devices.iterdir()
        if _line(device / "vendor") == "0x10de" and _line(device / "class").startswith(("0x03", "0x12"))
    )


def _num_numa_nodes(nodes: Path) -> int:
    """Nodes that have cores."""
    return max(1, sum(1 for node in nodes.glob("node[0-9]*") if _line(node / "cpulist")))


def _line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _libraries() -> dict[str, str]:
    """Versions of the image decoding libraries, and of the libraries that Pillow was built with."""
    found = {name: version for name in DISTRIBUTIONS if (version := _version(name)) is not None}
    if "pillow" in found or "pillow-simd" in found:
        found |= _pillow_build()
    return found


def _pillow_build() -> dict[str, str]:
    try:
        from PIL import features

        found: dict[str, str] = {}
        for name, feature in (("libjpeg-turbo", "libjpeg_turbo"), ("zlib-ng", "zlib_ng")):
            if features.check(feature):
                found[name] = str(features.version(feature) or "yes")
    except (ImportError, OSError, ValueError):
        return {}  # installed, but its libraries are missing
    return found


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
