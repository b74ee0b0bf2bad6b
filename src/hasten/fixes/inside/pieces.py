"""One forward of a model, in one piece or in several.

In: a module, its forward and what it is called with. Out: its output, and gradients for its parameters and inputs.
Refuses what cannot be cut by samples.

Each piece draws from the random generators what it drew in its forward when it is made again for its backward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast
from weakref import ref

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.optim import Optimizer
from torch.utils import _pytree

from hasten.agent.shortage import make_room, ran_out
from hasten.fixes.inside.chance import chance, chance_on, set_chance
from hasten.fixes.inside.recompute import recomputing, statistics_kept

Forward = Callable[..., object]


OUTPUT = "hasten.output"  # marks where a model ends in the graph of a loss


class UncutError(Exception):
    """The output is not one row for each sample."""


class Work:
    """What a forward is called with, and what its backward needs.

    One is made in every step, and hardly ever is memory short: what only that asks for is looked up when it is asked for.
    """

    def __init__(
        self,
        module: nn.Module,
        forward: Forward,
        arguments: tuple[object, ...],
        settings: dict[str, object],
        *,
        device: str,
    ) -> None:
        self.module = module
        self.pieces = 1
        self.gradients: list[torch.Tensor | None] | None = None  # of the outputs, once backward has reached them
        self._forward = forward
        self._given = arguments, settings
        self._random = chance_on(device)
        self._device = device
        self._autocast_dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        self._outputs: Sequence[ref[torch.Tensor]] = ()
        self._defer: Callable[[Work], bool] = lambda _: False
        self._on_more: Callable[[int], object] = lambda _: None

    @functools.cached_property
    def _flat(self) -> tuple[list[Any], Any]:
        return _pytree.tree_flatten(self._given)

    @property
    def _leaves(self) -> list[Any]:
        return self._flat[0]

    @functools.cached_property
    def num_samples(self) -> int:
        """Rows of the first tensor that has any."""
        return next((len(leaf) for leaf in self._leaves if has_rows(leaf)), 0)

    @functools.cached_property
    def _parameters(self) -> list[nn.Parameter]:
        return [p for p in self.module.parameters() if p.requires_grad]

    def part(self, start: int, end: int) -> object:
        """The output of some of the samples."""
        return self._call(self._cut(start, end))

    def may_be_undone(self) -> bool:
        """Whether a backward that has failed half-way can be made again: all that reached the one output is known."""
        return len(self._outputs) == 1 and self.gradients is not None and self.gradients[0] is not None

    def has_no_gradients(self) -> bool:
        """Whether nothing is accumulated in the model's parameters."""
        return all(p.grad is None for p in self._parameters)

    def is_part_of(self, owners: Iterable[Optimizer | nn.Module]) -> bool:
        """Whether each of the model's parameters belongs to one of these optimizers or modules."""
        owned = {id(parameter) for owner in owners for parameter in _parameters_of(owner)}
        return all(id(parameter) in owned for parameter in self._parameters)

    def alive(self) -> bool:
        """Whether a backward may still come."""
        return self.gradients is None

    # ------------------------------------------------------------------------------------------- forward

    def in_one(self) -> object:
        """The output, its graph held as ever; gradients that reach it are kept."""
        arguments, settings = self._given
        output = self._forward(*arguments, **settings)
        leaves = (output,) if isinstance(output, torch.Tensor) else _pytree.tree_leaves(output)
        tensors = [leaf for leaf in leaves if _needs_grad(leaf)]
        self._outputs = [ref(tensor) for tensor in tensors]
        for number, tensor in enumerate(tensors):
            node = tensor.grad_fn
            if node is not None:  # a parameter that is handed out would keep the hook for ever
                tensor.register_hook(functools.partial(self._note, number))
                node.metadata[OUTPUT] = True  # pyright: ignore[reportIndexIssue]
        return output

    def let_go(self) -> None:
        """Its backward is done: hold neither batch nor gradients, though the output and its hooks may live on."""
        self._given, self.gradients, self._outputs = ((), {}), [], []
        self.__dict__.pop("_flat", None)

    def _note(self, number: int, gradient: torch.Tensor) -> None:
        if not self._outputs:
            return
        known = self.gradients or [None for _ in self._outputs]
        known[number] = gradient.detach()
        self.gradients = known

    def in_blocks(self, blocks: list[nn.Module]) -> object:
        """The output; of its graph no more is held than what goes into the blocks."""
        set_chance(self._random)
        with recomputing(blocks):
            return self._call(self._leaves)

    def in_pieces(self, pieces: int, *, on_more: Callable[[int], object], defer: Callable[[Work], bool]) -> object:
        """The output, nothing of its graph held. Raises UncutError.

        `defer(work)` is asked when backward has reached the output: True where `backward_in_pieces` will be called once
        that backward is over.
        """
        self.pieces = pieces
        self._defer = defer
        self._on_more = on_more
        found: list[list[Any]] = []
        shape: Any = None
        set_chance(self._random)
        self._random = chance()
        with torch.no_grad():
            for start, end in self._bounds(pieces):
                leaves, shape = _pytree.tree_flatten(self._call(self._cut(start, end)))
                _check_rows(leaves, end - start)
                found.append(leaves)
        merged = [torch.cat(parts) if _is_tensor(parts[0]) else parts[0] for parts in zip(*found)]
        places = [n for n, leaf in enumerate(merged) if _is_tensor(leaf) and leaf.is_floating_point()]
        inputs = [leaf for leaf in self._leaves if _needs_grad(leaf)]
        tracked = _Pieces.apply(self, [merged[n] for n in places], *inputs, *self._parameters)
        for place, tensor in zip(places, tracked):  # type: ignore[arg-type]
            merged[place] = tensor
        return _pytree.tree_unflatten(merged, shape)

    # ------------------------------------------------------------------------------------------ backward

    def reached(self, gradients: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
        """Backward has reached the output: gradients of inputs and parameters, or none yet where they are deferred.

        In a backward within a backward, autograd holds on to what a failed piece has allocated until the outer one is
        over. So the pieces wait for that, unless what comes before the model in the graph needs the gradients now.
        """
        if not any(_needs_grad(leaf) for leaf in self._leaves) and self._defer(self):
            self.gradients = list(gradients)
            return [None] * len(self._parameters)
        return self._gradients_in_pieces(self.pieces, gradients, self._on_more)

    def _gradients_in_pieces(
        self, pieces: int, outputs: Sequence[torch.Tensor | None], on_more: Callable[[int], object]
    ) -> list[torch.Tensor | None]:
        """Gradients of the inputs that need one, then of the parameters, from those of the outputs."""
        num_inputs = sum(_needs_grad(leaf) for leaf in self._leaves)
        totals: list[torch.Tensor | None] = [None] * (num_inputs + len(self._parameters))
        after = chance()
        set_chance(self._random)
        waiting = list(self._bounds(pieces))
        while waiting:
            start, end = waiting.pop(0)
            before = chance()
            try:
                self._piece(start, end, outputs, totals, num_inputs)
                continue
            except Exception as error:
                if not ran_out(error) or end - start < 2 or pieces == 1:
                    raise
            # Outside the except clause: the exception's frames hold what the piece has allocated.
            make_room()
            middle = (start + end) // 2
            waiting[:0] = [(start, middle), (middle, end)]
            set_chance(before)
            on_more(-(-self.num_samples // (middle - start)))
        set_chance(after)
        return totals

    def _piece(
        self,
        start: int,
        end: int,
        outputs: Sequence[torch.Tensor | None],
        totals: list[torch.Tensor | None],
        num_inputs: int,
    ) -> None:
        leaves = self._cut(start, end)
        inputs: list[torch.Tensor] = []
        for number, leaf in enumerate(self._leaves):
            if _needs_grad(leaf):
                leaves[number] = leaves[number].detach().requires_grad_()
                inputs.append(leaves[number])
        with torch.enable_grad():
            made = [leaf for leaf in _pytree.tree_leaves(self._call(leaves)) if _is_tensor(leaf)]
        pairs = [
            (tensor, gradient[start:end])
            for tensor, gradient in zip([m for m in made if m.is_floating_point()], outputs)
            if gradient is not None and tensor.requires_grad
        ]
        if not pairs:
            return
        found = torch.autograd.grad(
            [tensor for tensor, _ in pairs],
            [*inputs, *self._parameters],
            [gradient for _, gradient in pairs],
            allow_unused=True,
        )
        for number, gradient in enumerate(cast("Sequence[torch.Tensor | None]", found)):
            if gradient is None:
                continue
            total = totals[number]
            if number < num_inputs:
                whole = [leaf for leaf in self._leaves if _needs_grad(leaf)][number]
                total = totals[number] = torch.zeros_like(whole) if total is None else total
                total[start:end] = gradient
            else:
                totals[number] = gradient if total is None else total.add_(gradient)

    def backward_in_pieces(self, pieces: int, *, on_more: Callable[[int], object]) -> None:
        """Add to the parameters' `grad` what a whole backward would have added."""
        assert self.gradients is not None
        totals = self._gradients_in_pieces(pieces, self.gradients, on_more)
        inputs = [leaf for leaf in self._leaves if _needs_grad(leaf)]
        for tensor, gradient in zip([*inputs, *self._parameters], totals):
            if gradient is not None and tensor.is_leaf:
                tensor.grad = gradient if tensor.grad is None else tensor.grad.add_(gradient)

    def backward_in_blocks(self, blocks: list[nn.Module]) -> None:
        """The same for the whole batch, the blocks made again one by one."""
        with recomputing(blocks), statistics_kept(self.module):
            self.backward_in_pieces(1, on_more=lambda _: None)

    def forget_graph(self, loss: object) -> None:
        """Let go of what half a backward still holds: the script has the loss and the output in its variables."""
        for tensor in (loss, *(output() for output in self._outputs)):
            if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None and not tensor._is_view():
                tensor.detach_()

    def forget_partial(self) -> None:
        """Undo what half a backward has added."""
        for parameter in self._parameters:
            parameter.grad = None

    # ------------------------------------------------------------------------------------------- its parts

    def _call(self, leaves: list[Any]) -> object:
        """The forward, with autocast as it was: backward makes its pieces outside the script's own."""
        arguments, settings = _pytree.tree_unflatten(leaves, self._flat[1])
        dtype = self._autocast_dtype
        with torch.autocast(self._device, dtype=dtype, enabled=dtype is not None):
            return self._forward(*arguments, **settings)

    def _bounds(self, pieces: int) -> Iterator[tuple[int, int]]:
        pieces = min(pieces, self.num_samples)
        for number in range(pieces):
            yield self.num_samples * number // pieces, self.num_samples * (number + 1) // pieces

    def _cut(self, start: int, end: int) -> list[Any]:
        return [
            leaf[start:end] if has_rows(leaf) and len(leaf) == self.num_samples else leaf for leaf in self._leaves
        ]


class _Pieces(torch.autograd.Function):
    """Stands in the graph for the whole model."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Any:
        ctx.work, merged, *_tensors = given
        return tuple(tensor.clone() if tensor._base is not None else tensor for tensor in merged)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, None, *ctx.work.reached(gradients)


def _check_rows(leaves: Sequence[Any], number: int) -> None:
    for leaf in leaves:
        if _is_tensor(leaf) and (not leaf.dim() or len(leaf) != number):
            raise UncutError(
                f"the model's output of shape {tuple(leaf.shape)} is not a row for each of {number} samples"
            )


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def has_rows(value: object) -> bool:
    """Whether a value is a tensor that may have a row for each sample."""
    return isinstance(value, torch.Tensor) and value.dim() > 0


def _needs_grad(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _parameters_of(owner: Optimizer | nn.Module) -> Iterator[torch.Tensor]:
    if isinstance(owner, nn.Module):
        yield from owner.parameters()
    else:
        for group in owner.param_groups:
            yield from group["params"]
