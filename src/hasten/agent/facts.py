"""What the script is: its models, optimizers and switches, read once when the window closes."""

from __future__ import annotations

import contextlib
import inspect
import sys
import time
from collections.abc import Callable
from itertools import islice

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from hasten.agent.root import is_compiled
from hasten.agent.session import Session
from hasten.agent.tree import own_part, tensors_in
from hasten.devices import cuda
from hasten.protocol import GRADIENT_PHASES
from hasten.raw_run import RawFacts, RawModel, RawOptimizer

FRAMEWORKS = ("lightning", "pytorch_lightning", "transformers", "accelerate", "fastai", "timm", "deepspeed")
MOST_ELEMENTS = 20_000_000  # looked at for subnormal numbers
EMPTY_CALLS = 100  # of which the overhead of one is measured


class OperatorCount(TorchDispatchMode):
    """Counts the operators of one step's computing and their floating point operations."""

    def __init__(self, phase: Callable[[], str]) -> None:
        super().__init__()
        self._phase = phase
        self.num_operators = 0
        self.num_flops = 0

    def __torch_dispatch__(
        self, func: object, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        out = func(*args, **(kwargs or {}))  # type: ignore[operator]
        if self._phase() not in (*GRADIENT_PHASES, "optimizer"):
            return out
        self.num_operators += 1
        flops = flop_registry.get(getattr(func, "_overloadpacket", None))
        if flops is not None:
            with contextlib.suppress(Exception):  # a formula that does not know these arguments
                self.num_flops += int(flops(*args, **(kwargs or {}), out_val=out))
        return out


class CallCount(TorchFunctionMode):
    """Counts the calls that Python makes into torch in forward, loss and backward: one for a whole nn.GRU."""

    def __init__(self, phase: Callable[[], str]) -> None:
        super().__init__()
        self._phase = phase
        self.num_calls = 0

    def __torch_function__(
        self, func: object, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        name = getattr(func, "__name__", "")
        # Reading an attribute (x.shape) is a call of its getter, and launches nothing.
        self.num_calls += self._phase() in GRADIENT_PHASES and name not in ("__get__", "__set__", "size", "dim")
        return func(*args, **(kwargs or {}))  # type: ignore[operator]


def gather(session: Session) -> RawFacts:
    """Everything that is known of the script."""
    models = tuple(_model(module, trained=session.models.is_trained(module)) for module in session.models.roots())
    parameters = session.models.parameters()
    others = (device for model in models for device in model.devices if device != "cpu")
    device = parameters[0].device.type if parameters else next(others, "cpu")
    return RawFacts(
        num_threads=torch.get_num_threads(),
        anomaly_detection=torch.is_anomaly_enabled(),
        profiler=session.profiler_seen,
        deterministic=torch.are_deterministic_algorithms_enabled(),
        cudnn_benchmark=cuda.autotunes() if device == "cuda" else None,
        tf32=cuda.allows_tf32() if device == "cuda" else None,
        num_input_shapes=len(session.forwards.shapes),
        frameworks=tuple(name for name in FRAMEWORKS if name in sys.modules),
        device=device,
        models=models,
        optimizers=tuple(_optimizer(o) for o in session.models.optimizers),
        subnormal_share=_subnormal_share(session),
        gather_seconds=_gather_seconds(session),
        call_overhead=_call_overhead(),
    )


def _optimizer(optimizer: torch.optim.Optimizer) -> RawOptimizer:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    first = optimizer.param_groups[0]
    return RawOptimizer(
        id=id(optimizer),
        name=type(optimizer).__name__,
        num_parameters=sum(p.numel() for p in parameters),
        num_tensors=len(parameters),
        fused=_flag(first.get("fused")),
        foreach=_flag(first.get("foreach")),
    )


def _flag(value: object) -> bool | None:
    return None if value is None else bool(value)


def _model(module: nn.Module, *, trained: bool) -> RawModel:
    parameters = list(module.parameters())
    inner = list(module.modules())
    convolutions = [m for m in inner if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d))]
    weights = [c.weight for c in convolutions if c.weight.dim() == 4 and c.weight.shape[2:] != (1, 1)]
    return RawModel(
        name=type(getattr(module, "_orig_mod", module)).__name__,
        num_parameters=sum(p.numel() for p in parameters),
        num_modules=len(inner),
        dtypes=tuple(sorted({str(p.dtype).removeprefix("torch.") for p in parameters})),
        devices=tuple(sorted({p.device.type for p in parameters})),
        num_convolutions=len(convolutions),
        channels_last=bool(weights) and all(w.is_contiguous(memory_format=torch.channels_last) for w in weights),
        compiled=trained and is_compiled(module),
        data_parallel=any(isinstance(m, nn.DataParallel) and len(m.device_ids) > 1 for m in inner),
    )


def _subnormal_share(session: Session) -> float | None:
    """Share of subnormal numbers among the floats of parameters, gradients, buffers and optimizer states."""
    parameters = session.models.parameters()
    held = [t for o in session.models.optimizers for s in o.state.values() for t in tensors_in(s, most=4)]
    grads = [p.grad for p in parameters if p.grad is not None]
    buffers = [b for m in session.models.roots() for b in m.buffers()]
    seen = most = 0
    for tensor in map(own_part, [*buffers, *parameters, *grads, *held]):
        if not tensor.is_floating_point() or tensor.device.type != "cpu" or tensor.numel() == 0:
            continue
        values = tensor.reshape(-1)[: max(0, MOST_ELEMENTS - seen)].abs()
        seen += values.numel()
        most += int(((values > 0) & (values < torch.finfo(values.dtype).tiny)).sum())
        if seen >= MOST_ELEMENTS:
            break
    return most / seen if seen else None


def _gather_seconds(session: Session) -> float | None:
    """Seconds to copy the last batch twice: what gathering its rows at once from held data would take."""
    tensors = list(islice(tensors_in(session.last_batch), 16))
    if not tensors or any(t.device.type != "cpu" for t in tensors):
        return None
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        for tensor in tensors:
            tensor.clone()
        best = min(best, time.perf_counter() - start)
    return 2 * best


def _call_overhead() -> float:
    """Seconds of a call into torch on numbers so few that computing them takes no time, its part of backward included."""
    backward = inspect.unwrap(torch.autograd.grad)  # this one is not the script's
    times: list[float] = []
    with torch.inference_mode(False), torch.enable_grad():
        ones = torch.ones(1, 1, dtype=torch.float32, device="cpu")
        parameters = ones.clone().requires_grad_(), ones[0].clone().requires_grad_()
        for _ in range(5):
            start, x = time.perf_counter(), ones
            for _ in range(EMPTY_CALLS // 2):
                x = torch.tanh(functional.linear(x, *parameters))
            backward(x, parameters)
            times.append((time.perf_counter() - start) / EMPTY_CALLS)
    return min(times)
