"""Whether a model's batch may be cut: whether each sample's output depends on that sample alone.

In: a forward of a model. Out: why it may not be cut, or nothing. Refuses to trust what a model looks like: two samples
are put through it together and one by one, and the outputs must agree.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.nn.modules.dropout import _DropoutNd  # pyright: ignore[reportPrivateUsage]
from torch.utils import _pytree

from hasten.agent.patches import Patches
from hasten.agent.shortage import ran_out
from hasten.fixes.inside.chance import chance, set_chance
from hasten.fixes.inside.pieces import OUTPUT, Work, has_rows

AGREE = 1e-3  # relative to the largest output: samples that see each other differ by far more, kernels by far less
DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def cannot_cut(work: Work) -> str | None:
    """Why this forward cannot be made in pieces, as far as it shows."""
    if work.num_samples < 2:
        return "it has fewer than two samples"
    for name, module in work.module.named_modules():
        if isinstance(module, _BatchNorm) and module.training:
            return f"{name or type(module).__name__} computes statistics over the whole batch"
    return has_hooks(work.module)


def has_hooks(model: nn.Module) -> str | None:
    """Why gradients cannot come in parts: somebody looks at each whole one."""
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            return f"the gradient of {name} has a hook"
    return None


def reached_past_output(model: nn.Module, loss: object) -> bool:
    """Whether gradients come to the model's parameters other than through its output: a penalty on them, a tied use."""
    own = {id(parameter) for parameter in model.parameters()}
    losses: Any = loss if isinstance(loss, (list, tuple)) else [loss]
    waiting: list[Any] = [tensor.grad_fn for tensor in losses if isinstance(tensor, torch.Tensor)]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen or OUTPUT in node.metadata:
            continue
        seen.add(node)
        if id(getattr(node, "variable", None)) in own:
            return True
        waiting += [following for following, _ in node.next_functions]
    return False


def samples_see_each_other(work: Work) -> str | None:
    """Why the outputs of two samples together are not those of each by itself; None where they are."""
    module = work.module
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        with torch.no_grad(), _without_chance(module):
            together, first, second = (_outputs(work, *bounds) for bounds in ((0, 2), (0, 1), (1, 2)))
        if any(not torch.equal(buffer, before) for buffer, before in buffers):
            return "a forward changes what the model keeps beside its parameters"
    except Exception as error:
        if ran_out(error):
            raise
        return f"it cannot be given some of its samples ({str(error).splitlines()[0] if str(error) else error!r})"
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
    if not together or not all(leaf is None or isinstance(leaf, torch.Tensor) for leaf in together):
        return "its output is not made of tensors alone"
    for whole, one, other in zip(together, first, second):
        if whole is None:
            continue
        if not (has_rows(whole) and len(whole) == 2 and has_rows(one) and len(one) == 1):
            return f"its output of shape {tuple(whole.shape)} is not a row for each sample"
        apart = torch.cat([one, other])
        if whole.shape != apart.shape or not _agree(whole, apart):
            return "a sample's output depends on the others in its batch"
    return None


def _outputs(work: Work, start: int, end: int) -> list[Any]:
    return _pytree.tree_leaves(work.part(start, end))


def _agree(whole: torch.Tensor, apart: torch.Tensor) -> bool:
    if not whole.is_floating_point():
        return torch.equal(whole, apart)
    largest = whole.abs().max().clamp_min(1e-6)
    return bool(((whole - apart).abs().max() <= _tolerance(whole) * largest).item())


def _tolerance(output: torch.Tensor) -> float:
    """Kernels for other batch sizes round otherwise: a few times, in the precision that was computed in."""
    device, dtypes = output.device.type, [output.dtype]
    if torch.is_autocast_enabled(device):
        dtypes.append(torch.get_autocast_dtype(device))
    return max(AGREE, *(4 * torch.finfo(dtype).eps for dtype in dtypes))


def _kept(given: object, *_: object, **__: object) -> object:
    return given


@contextlib.contextmanager
def _without_chance(model: nn.Module) -> Generator[None]:
    """Within it nothing is dropped; afterwards every generator is where it was."""
    patches = Patches()
    dropping = [m for m in model.modules() if isinstance(m, _DropoutNd) and m.training]
    states = chance()
    for module in dropping:
        module.training = False
    for name in DROPOUTS:
        patches.set(functional, name, _kept)
    try:
        yield
    finally:
        patches.undo()
        for module in dropping:
            module.training = True
        set_chance(states)
