"""The device, whether torch can use it, and what number formats it is fast in.

In: a Machine. Out: one CheckLine each. Refuses to import torch and to ask the driver.
"""

from __future__ import annotations

from hasten import format
from hasten.records import CheckLine, Device, Machine

# First compute capability that computes in a format on tensor cores.
FORMATS = {"fp16": (7, 0), "TF32": (8, 0), "bf16": (8, 0), "fp8": (8, 9), "fp4": (10, 0)}
# Taken for a driver and a device that do not say what they are.
OLDEST_DRIVER: tuple[int, int] = (12, 0)
USUAL_DEVICE: tuple[int, int] = (8, 0)
INDEX = "https://download.pytorch.org/whl/"


def check_device(machine: Machine) -> CheckLine:
    """What accelerator there is; none is no fault."""
    if machine.devices:
        first = machine.devices[0]
        number = f"{len(machine.devices)} x " if len(machine.devices) > 1 else ""
        driver = f", driver {first.driver}" if first.driver else ""
        newest = f" (for CUDA up to {machine.driver_cuda})" if machine.driver_cuda else ""
        text = f"{number}{first.name}, {format.size(first.memory_bytes)}{driver}{newest}."
        return CheckLine("device", "good", text)
    if machine.device_problem:
        mismatch = "mismatch" in machine.device_problem.lower()
        remedy = "Reboot, so that the new driver is loaded." if mismatch else "Reinstall the NVIDIA driver."
        text = f"The NVIDIA driver is installed but does not work: {machine.device_problem}."
        return CheckLine("device", "bad", text, remedy)
    if machine.num_nvidia_cards:
        text = f"{machine.num_nvidia_cards} NVIDIA card(s) on the PCI bus, but no driver to be found."
        remedy = "Install the NVIDIA driver; in a container, start it with `--gpus all`."
        return CheckLine("device", "bad", text, remedy)
    if machine.accelerator not in (None, "cpu"):
        return CheckLine("device", "good", f"An accelerator that torch calls {machine.accelerator}.")
    return CheckLine("device", "good", "No GPU: training runs on the CPU.")


def check_torch(machine: Machine) -> CheckLine:
    """Whether torch can use the device, and if not, why and how to get a build that can."""
    if machine.torch is None:
        text = "PyTorch is not installed in this environment."
        return CheckLine("torch", "bad", text, f"`{_install(machine)}`")
    if (machine.cuda_problem or "").startswith("torch does not"):
        text = f"torch {machine.torch}: {machine.cuda_problem}."
        return CheckLine("torch", "bad", text, f"`{_install(machine)}`")
    if not machine.devices:
        return _torch_without_device(machine)
    if machine.torch_cuda is None:
        text = f"torch {machine.torch} is a build without CUDA: {machine.devices[0].name} lies idle."
        return CheckLine("torch", "bad", text, f"`{_install(machine)}`")
    if machine.cuda_usable is None:
        text = f"torch {machine.torch} is built for CUDA {machine.torch_cuda}; whether it can is not known."
        return CheckLine("torch", "unknown", text, "`python -c 'import torch; torch.cuda.init()'`")
    if not machine.cuda_usable:
        return _unusable(machine)
    return _kernels(machine)


def _torch_without_device(machine: Machine) -> CheckLine:
    if machine.accelerator not in (None, "cpu"):
        return CheckLine("torch", "good", f"torch {machine.torch} uses {machine.accelerator}.")
    built = f" (a CUDA {machine.torch_cuda} build)" if machine.torch_cuda else ""
    return CheckLine("torch", "good", f"torch {machine.torch}{built} uses the CPU.")


def _unusable(machine: Machine) -> CheckLine:
    hidden = machine.environment.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in ("", "-1"):
        text = f"CUDA_VISIBLE_DEVICES={hidden!r} hides every device from torch."
        return CheckLine("torch", "warning", text, "`unset CUDA_VISIBLE_DEVICES`, if that is not meant.")
    if _is_older(machine.driver_cuda, machine.torch_cuda):
        text = (
            f"torch {machine.torch} needs a driver for CUDA {machine.torch_cuda}; "
            f"this one is for CUDA up to {machine.driver_cuda}."
        )
        # Below CUDA 12 there is no current build to go back to.
        other = "" if _is_older(machine.driver_cuda, "12.0") else f", or `{_install(machine)}`"
        return CheckLine("torch", "bad", text, f"Update the NVIDIA driver{other}.")
    reason = (machine.cuda_problem or "it gave no reason").rstrip(".")
    text = f"torch {machine.torch} cannot use the device: {reason}."
    remedy = (
        f"See that `nvidia-smi` works for this user; reboot if the driver was updated; else `{_install(machine)}`."
    )
    return CheckLine("torch", "bad", text, remedy)


def _kernels(machine: Machine) -> CheckLine:
    text = f"torch {machine.torch}, built for CUDA {machine.torch_cuda}, uses the device"
    for device in machine.devices:
        if machine.torch_archs and not _has_kernels(device, archs=machine.torch_archs):
            text = f"torch {machine.torch} has no kernels for {device.name} (sm_{_sm(device)})."
            return CheckLine("torch", "bad", text, f"`{_install(machine)}`")
    return CheckLine("torch", "good", text + ".")


def _has_kernels(device: Device, *, archs: tuple[str, ...]) -> bool:
    """A kernel runs on its own major version from its minor on; intermediate code on anything later."""
    own = _version(device.compute_capability)
    if own is None:
        return True
    for arch in archs:
        kind, _, digits = arch.partition("_")
        if not digits.rstrip("af").isdigit():
            continue
        number = int(digits.rstrip("af"))
        built = (number // 10, number % 10)
        if (kind == "sm" and built[0] == own[0] and built <= own) or (kind == "compute" and built <= own):
            return True
    return False


def check_precision(machine: Machine) -> CheckLine:
    """The number formats that this hardware computes in faster than in float32."""
    known = capabilities(machine)
    if known:
        least = min(known)  # a run over several devices has what the weakest has
        formats = [name for name, first in FORMATS.items() if least >= first]
        found = f"tensor cores for {', '.join(formats)}" if formats else "no tensor cores"
        return CheckLine("precision", "good", f"Compute capability {least[0]}.{least[1]}: {found}.")
    if machine.devices or machine.accelerator not in (None, "cpu"):
        text = "The device does not tell what number formats it is fast in."
        return CheckLine("precision", "unknown", text, "See its data sheet.")
    features = machine.cpu_features
    if not features:
        text = "This system does not tell the CPU's instruction sets."
        return CheckLine("precision", "unknown", text, "See the CPU's data sheet for AMX and AVX512-BF16.")
    units = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16", "neon_bf16": "NEON-BF16"}
    found = [word for name, word in units.items() if name in features]
    text = f"bf16 in the CPU's hardware ({', '.join(found)})." if found else "float32: no bf16 in hardware."
    return CheckLine("precision", "good", text)


def _install(machine: Machine) -> str:
    """The pip command for a build that can use the device there is."""
    packages = "torch torchvision" if "torchvision" in machine.libraries else "torch"
    command = f"pip install --upgrade --force-reinstall {packages}"
    return f"{command} --index-url {INDEX}{_build(machine)}" if machine.devices else command


def _build(machine: Machine) -> str:
    """The newest of PyTorch's CUDA builds that driver and device both allow.

    Within CUDA 12 any driver runs any build; builds for 12.8 and later left out devices before Turing.
    """
    driver = _version(machine.driver_cuda) or OLDEST_DRIVER
    least = min(capabilities(machine), default=USUAL_DEVICE)
    if least < (7, 5):
        return "cu126"
    if driver >= (13, 0):
        return "cu130"
    return "cu128" if driver >= (12, 8) or least >= (10, 0) else "cu126"


def _is_older(driver: str | None, needed: str | None) -> bool:
    """Whether a driver is too old for a build of another CUDA version: only the major version counts."""
    have, want = _version(driver), _version(needed)
    return have is not None and want is not None and have[0] < want[0]


def capabilities(machine: Machine) -> list[tuple[int, int]]:
    """Compute capability (major, minor) of each device that tells its own."""
    known = [_version(device.compute_capability) for device in machine.devices]
    return [one for one in known if one is not None]


def _sm(device: Device) -> str:
    return (device.compute_capability or "").replace(".", "")


def _version(text: str | None) -> tuple[int, int] | None:
    major, _, minor = (text or "").partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None
