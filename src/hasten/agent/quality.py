"""What training does to the model, recorded to compare two ways of training.

Recorded are the loss of each step, fingerprints of the first batches, samples of the first step's gradients, and which
parameters changed. No step waits: losses are read at the end.
"""

from __future__ import annotations

import base64
import functools
import gc
import hashlib
from collections.abc import Callable, Iterable, Iterator

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from hasten.agent.tree import own_part, tensors_in
from hasten.patches import Patches
from hasten.raw_run import RawQuality

Function = Callable[..., object]
MOST_LOSSES = 20_000
NUM_SAMPLED = 1 << 16  # values of gradients and parameters that are kept
REDUCED = {torch.float16, torch.bfloat16, torch.float32, torch.float64}  # dtypes that torch has norms of
ROW_BYTES = 4096  # of a sample that its fingerprint is made of


class Quality:
    """The losses, batches and gradients of one process."""

    def __init__(self, patches: Patches, *, num_batches: int, perturb: int = 0) -> None:
        self.num_batches = num_batches  # that are fingerprinted
        self._perturb = perturb  # change every parameter by so many last bits before the first batch is used
        self._losses: list[torch.Tensor] = []
        self._batches: list[str] = []
        self._held_out: list[str] = []
        self._means: list[float | None] = []
        self._rows: list[list[str]] = []
        self._gradients: str | None = None
        self._before: list[torch.Tensor] | None = None  # sums of each parameter
        self._first: Optimizer | None = None
        self._depth = 0
        patches.wrap(torch.autograd, "backward", self._noting_loss)
        patches.on_undo(register_optimizer_step_pre_hook(self._before_step).remove)

    def _noting_loss(self, original: Function) -> Function:
        @functools.wraps(original)
        def backward(tensors: object, *arguments: object, **settings: object) -> object:
            if self._depth == 0 and len(self._losses) < MOST_LOSSES:
                loss = tensors[0] if isinstance(tensors, (list, tuple)) and len(tensors) == 1 else tensors
                if isinstance(loss, torch.Tensor) and loss.numel() == 1:
                    self._losses.append(loss.detach().clone())
            self._depth += 1
            try:
                return original(tensors, *arguments, **settings)
            finally:
                self._depth -= 1

        return backward

    def batch(self, batch: object) -> None:
        """Fingerprint a batch that training was handed."""
        if self._perturb:
            change_last_bits(self._perturb)
            self._perturb = 0
        if len(self._batches) >= self.num_batches:
            return
        tensors = list(tensors_in(batch))
        self._batches.append(_digest(tensors))
        first = next((t for t in tensors if t.dim()), None)
        self._means.append(mean_of(tensors))
        rows = [] if first is None else [_short(_bytes_of(row)) for row in first]
        self._rows.append(rows)

    def held_out_batch(self, batch: object) -> None:
        """Fingerprint a batch of a validation."""
        if len(self._held_out) < self.num_batches:
            self._held_out.append(_digest(tensors_in(batch)))

    def _before_step(self, optimizer: Optimizer, _arguments: object, _settings: object) -> None:
        if self._first is not None:
            return
        self._first = optimizer
        parameters = list(_parameters(optimizer))
        self._before = [_sums(p) for p in parameters]
        gradients = _sampled(p.grad for p in parameters if p.grad is not None)
        self._gradients = base64.b64encode(gradients.numpy().tobytes()).decode()

    def raw(self) -> RawQuality:
        """All of it."""
        moved = end = None
        if self._before is not None and self._first is not None:
            now = [_sums(p) for p in _parameters(self._first)]
            moved = [not torch.equal(one.cpu(), other.cpu()) for one, other in zip(self._before, now)]
            end = _digest(now)
        return RawQuality(
            losses=[float(own_part(loss)) for loss in self._losses],
            batches=self._batches,
            held_out=self._held_out,
            means=self._means,
            rows=self._rows,
            gradients=self._gradients,
            moved=moved,
            parameters=end,
        )


def change_last_bits(number: int) -> None:
    """Move every parameter of this process to the next larger number that its dtype has, or so many further."""
    for item in gc.get_objects():
        if type(item) is torch.nn.Parameter and item.is_floating_point() and item.requires_grad:
            following = torch.nextafter(item.data, torch.full_like(item.data, torch.inf))
            item.data = following if number == 1 else item.data + number * (following - item.data)


def _parameters(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _sums(parameter: torch.Tensor) -> torch.Tensor:
    """Two numbers that change when any value of a parameter does; where they lie, they need not be waited for."""
    values = own_part(parameter)
    values = torch.view_as_real(values) if values.is_complex() else values
    if values.layout != torch.strided or not values.numel():
        return torch.zeros(2, dtype=torch.float64)
    if values.dtype not in REDUCED:
        values = values.to(torch.float64)
    return torch.stack([values.sum(dtype=torch.float64), torch.linalg.vector_norm(values, dtype=torch.float64)])


def _sampled(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """At most NUM_SAMPLED values, evenly spread over all of them, as float32 on the CPU."""
    tensors = [t for t in map(own_part, tensors) if t.layout == torch.strided]
    total = sum(t.numel() for t in tensors)
    stride = max(1, total // NUM_SAMPLED)
    parts = [t.reshape(-1)[:: min(stride, max(1, t.numel()))].float().cpu() for t in tensors]
    return torch.cat(parts).contiguous().clone() if parts else torch.empty(0)


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def mean_of(tensors: Iterable[torch.Tensor]) -> float | None:
    """Mean of a batch's first tensor of numbers, for a look at whether batches are what they were; None: there is none."""
    first = next(
        (t for t in tensors if t.dim() and t.device.type == "cpu" and t.numel() and not t.is_complex()), None
    )
    return None if first is None or first.layout != torch.strided else float(first.mean(dtype=torch.float64))


def _digest(tensors: Iterable[torch.Tensor]) -> str:
    """A fingerprint of a batch."""
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        digest.update(str((tensor.dtype, tuple(tensor.shape))).encode())
        digest.update(_bytes_of(tensor))
    return digest.hexdigest()


def _short(data: bytes) -> str:
    """A fingerprint of some of the bytes, evenly spread."""
    step = max(1, len(data) // ROW_BYTES)
    return hashlib.blake2b(data[::step], digest_size=6).hexdigest()
