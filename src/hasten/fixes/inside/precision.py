"""Reduced precision for a model that asked for none.

In: a site. Out: products are made in fewer bits; what the script sees stays float32. Refuses scripts that have chosen
a precision themselves.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from hasten.fixes.inside.loss_scale import scale_losses
from hasten.fixes.inside.site import Forward, NotApplicableError, Site
from hasten.measurement.inside.nests import to_float32


def bf16(site: Site, fix: str, _value: object) -> None:
    """The roots' forward under bfloat16 autocast, and their output in float32.

    Around each forward alone: where autocast is on from one step to the next, the cached casts of the weights are
    never renewed, and training stands still without a word.
    """
    site.on_model(fix, lambda module: _check_autocast(fix, module))
    site.around_forward(fix, _under(torch.bfloat16))


def fp16(site: Site, fix: str, _value: object) -> None:
    """The roots' forward under float16 autocast, the loss scaled so that small gradients survive."""
    if not torch.cuda.is_available():
        raise NotApplicableError("float16 training needs a CUDA device")
    site.on_model(fix, lambda module: _check_autocast(fix, module))
    site.around_forward(fix, _under(torch.float16))
    scale_losses(site, fix)


def tf32(site: Site, _fix: str, _value: object) -> None:
    """Products of float32 on NVIDIA's tensor cores, with 10 bits of mantissa."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0):
        raise NotApplicableError("it needs an NVIDIA GPU of compute capability 8.0 or later")
    _keep(site, torch.backends.cuda.matmul, "allow_tf32", True)
    _keep(site, torch.backends.cudnn, "allow_tf32", True)


def matmul_precision(site: Site, _fix: str, value: object) -> None:
    """Products inside float32 matrix multiplications in fewer bits: "high" or "medium"."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(str(value))
    site.patches.on_undo(lambda: torch.set_float32_matmul_precision(before))


def _keep(site: Site, owner: object, name: str, value: object) -> None:
    before = getattr(owner, name)
    setattr(owner, name, value)
    site.patches.on_undo(lambda: setattr(owner, name, before))


def _check_autocast(fix: str, module: nn.Module) -> None:
    """Refuse models that have a precision of their own."""
    parameters = list(module.parameters())
    dtypes = {p.dtype for p in parameters if p.is_floating_point()}
    device = parameters[0].device.type
    if dtypes != {torch.float32}:
        names = ", ".join(sorted(str(d).removeprefix("torch.") for d in dtypes))
        raise NotApplicableError(f"the model's parameters are {names}, not float32")
    if torch.is_autocast_enabled(device):
        raise NotApplicableError("the script uses autocast itself")
    if fix == "bf16" and device == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise NotApplicableError("this GPU has no bfloat16 units")


def _under(dtype: torch.dtype) -> Callable[[nn.Module, Forward, tuple[object, ...], dict[str, object]], object]:
    def around(
        module: nn.Module, forward: Forward, arguments: tuple[object, ...], settings: dict[str, object]
    ) -> object:
        device = next(module.parameters()).device.type
        if torch.is_autocast_enabled(device):  # by the script, since
            return forward(*arguments, **settings)
        with torch.autocast(device, dtype=dtype):
            output = forward(*arguments, **settings)
        return to_float32(output, dtype)

    return around
