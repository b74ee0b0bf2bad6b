"""When memory runs out: the same batch, in smaller pieces, or the model block by block.

In: a handle. Out: the roots' forward may run piece by piece, and what a piece holds for its backward is gone before the
next begins. The script's loop, loss and batch are untouched, so any loss over the whole batch stays exact. Models whose
samples depend on each other (batch statistics) are not cut: their blocks are computed again for backward. Refuses what
has neither pieces nor blocks.

The loss's gradient at the model's output is kept, and the model's own backward is made from it piece by piece, as in
Gao and others, Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup (2021).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from hasten.agent.handle import Handle
from hasten.agent.models import Forward
from hasten.agent.patches import Patches, warn
from hasten.agent.shortage import make_room, may_run_out, ran_out
from hasten.devices import accelerator, cuda
from hasten.fixes.inside.cutting import cannot_cut, has_hooks, reached_past_output, samples_see_each_other
from hasten.fixes.inside.pieces import Work
from hasten.fixes.inside.recompute import Statistics, blocks_of
from hasten.protocol import Value

Function = Callable[..., object]
MOST_PIECES = 1024
FIRST = 100  # forwards of training: where memory is going to run out, it does so in these as a rule
EVERY = 64  # forwards between two looks at how much memory is left


def keep_device_memory(handle: Handle, _value: Value) -> None:
    """The script's calls to empty the allocator's cache do nothing; where memory runs out, PyTorch empties it itself."""

    def make(original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def empty_cache() -> None:
            return None

        return empty_cache

    for module in accelerator.cache_holders():
        handle.patches.wrap(module, "empty_cache", make)


def micro_batch(handle: Handle, value: Value) -> None:
    """At most so many samples held for backward at once; "auto": all of them, until memory runs out."""
    survival = _survive(handle)
    if value != "auto":
        survival.most_samples = int(value)


def _survive(handle: Handle) -> _Survival:
    survival = next((s for s in _known if s.models is handle.models), None)
    if survival is None:
        survival = _Survival(handle)
        _known.append(survival)
        handle.patches.on_undo(lambda: _known.remove(survival) if survival in _known else None)
    return survival


class _Model:
    """What is known of a model that is trained here."""

    def __init__(self, module: nn.Module) -> None:
        self.module = ref(module)
        self.device = next(module.parameters()).device.type
        self.statistics = Statistics(module)
        self.exchanges = _exchanges()  # a group of processes is there before its models are


class _Survival:
    """How a site's forwards are made, and what their backward needs when memory runs out in it."""

    def __init__(self, handle: Handle) -> None:
        self.models = handle.models
        self.most_samples: int | None = None
        self._pieces: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
        self._uncut: WeakKeyDictionary[nn.Module, str | None] = WeakKeyDictionary()  # why not, once it was tried
        self._blocks: WeakKeyDictionary[nn.Module, list[nn.Module]] = WeakKeyDictionary()  # of models made by them
        self._models: dict[int, _Model] = {}  # by the module's number, which is given again once the module is gone
        self._whole: list[Work] = []  # forwards since the last step that were made in one piece, two of them at most
        self._waiting: list[Work] | None = None  # forwards in pieces that the running backward has reached
        self._zeroed: list[Optimizer | nn.Module] = []  # whose gradients are zero since the last backward
        self._num_forwards = 0
        self._is_armed = False
        self._has_run_out = False
        self._hooks = Patches()
        handle.around_forward(self._forward)
        handle.patches.on_undo(self._hooks.undo)

    # ------------------------------------------------------------------------------------------- forward

    def _forward(
        self, module: nn.Module, forward: Forward, arguments: tuple[object, ...], settings: dict[str, object]
    ) -> object:
        if not (module.training and torch.is_grad_enabled()):
            return forward(*arguments, **settings)
        self._look()
        if not self._is_armed:
            try:
                return forward(*arguments, **settings)
            except Exception as error:
                if not ran_out(error):
                    raise
            self._has_run_out = True
            self._look()
        return self._prepared(module, forward, arguments, settings)

    def _look(self) -> None:
        """Be armed where memory may run out; else a step costs next to nothing more."""
        self._num_forwards += 1
        if self._num_forwards > FIRST and self._num_forwards % EVERY and not self._has_run_out:
            return
        needed = self._num_forwards <= FIRST or self._has_run_out or self.most_samples is not None or may_run_out()
        if needed == self._is_armed:
            return
        self._is_armed = needed
        self._hooks.undo()
        if needed:
            self._hooks.wrap(torch.autograd, "backward", self._backward)
            self._hooks.wrap(Optimizer, "zero_grad", self._zeroing)
            self._hooks.wrap(nn.Module, "zero_grad", self._zeroing)
        else:
            self._whole, self._zeroed = [], []

    def _prepared(
        self, module: nn.Module, forward: Forward, arguments: tuple[object, ...], settings: dict[str, object]
    ) -> object:
        """A forward that is made again in another way where memory runs out, in it or in its backward."""
        model = self._models.get(id(module))
        if model is None or model.module() is not module:
            model = self._models[id(module)] = _Model(module)
        if model.exchanges or cuda.is_capturing():
            return forward(*arguments, **settings)
        work = Work(module, forward, arguments, settings, device=model.device)
        pieces = self._wanted(work) if self._pieces or self.most_samples else 1
        if pieces > 1 and self._why_uncut(work) is None:
            return self._in_pieces(work, pieces)
        if self._blocks and module in self._blocks:
            return work.in_blocks(self._blocks[module])
        model.statistics.keep()
        try:
            output = work.in_one()
            self._whole = [*[w for w in self._whole if w.alive()][-1:], work] if self._whole else [work]
            return output
        except Exception as error:
            if not ran_out(error):
                raise
            failed = error.with_traceback(None)  # its frames hold the activations
        self._has_run_out = True
        model.statistics.restore()
        make_room()
        reason = self._why_uncut(work)
        if reason is None:
            return self._in_pieces(work, 2)
        if self._finds_blocks(module):
            return work.in_blocks(self._blocks[module])
        warn(f"out of memory, and the batch cannot be cut: {reason}")
        raise failed

    def _wanted(self, work: Work) -> int:
        pieces = self._pieces.get(work.module, 1)
        if self.most_samples is not None and work.num_samples:
            return max(pieces, -(-work.num_samples // self.most_samples))
        return pieces

    def _why_uncut(self, work: Work) -> str | None:
        reason = cannot_cut(work)
        if reason is None and work.module not in self._uncut:
            self._uncut[work.module] = samples_see_each_other(work)
        return reason or self._uncut.get(work.module)

    def _in_pieces(self, work: Work, pieces: int) -> object:
        more = functools.partial(self._more, work.module)
        while True:
            make_room()
            try:
                output = work.in_pieces(pieces, on_more=more, defer=self._deferred)
            except Exception as error:
                if not ran_out(error) or pieces >= min(MOST_PIECES, work.num_samples):
                    raise
                pieces = min(2 * pieces, work.num_samples)
            else:
                more(pieces)
                return output

    def _more(self, module: nn.Module, pieces: int) -> None:
        if self._pieces.get(module, 1) < pieces and self.most_samples is None:
            self._pieces[module] = pieces
            warn(f"out of memory: from now on each batch goes through the model in {pieces} pieces; no step is lost")

    def _finds_blocks(self, module: nn.Module) -> bool:
        """Whether the model has blocks to be made again; from now on they are."""
        blocks = blocks_of(module) if has_hooks(module) is None else []
        if blocks:
            self._blocks[module] = blocks
            warn(f"out of memory: from now on {len(blocks)} blocks of the model are made again; no step is lost")
        return bool(blocks)

    # ------------------------------------------------------------------------------------------ backward

    def _backward(self, original: Function) -> Function:
        @functools.wraps(original)
        def backward(*arguments: object, **settings: object) -> object:
            whole, self._whole = self._whole, []
            zeroed, self._zeroed = self._zeroed, []
            if len(whole) != 1:
                return self._with_pieces(original, arguments, settings)
            work = whole[0]
            clean = not zeroed and work.has_no_gradients()
            try:
                result = original(*arguments, **settings)
                if not _is_special(*arguments, **settings):  # no other backward comes through this graph
                    work.let_go()
                return result
            except Exception as error:
                # Half a backward cannot be taken off gradients that were there before.
                may_repeat = (clean or work.is_part_of(zeroed)) and not _is_special(*arguments, **settings)
                if not (ran_out(error) and may_repeat and self._has_a_way(work)):
                    raise
                loss = arguments[0] if arguments else settings.get("tensors")
                if reached_past_output(work.module, loss):
                    raise
                failed = error.with_traceback(None)  # its frames hold the activations
            self._has_run_out = True
            work.forget_graph(loss)
            self._again(work, failed)
            return None

        return backward

    def _with_pieces(self, original: Function, arguments: tuple[object, ...], settings: dict[str, object]) -> object:
        """A backward, and then that of the forwards that were made in pieces."""
        waiting = self._waiting
        if waiting is not None:  # a backward within a backward
            return original(*arguments, **settings)
        waiting = self._waiting = []
        try:
            result = original(*arguments, **settings)
        finally:
            self._waiting = None
        for work in waiting:
            work.backward_in_pieces(work.pieces, on_more=functools.partial(self._more, work.module))
        return result

    def _deferred(self, work: Work) -> bool:
        if self._waiting is None or any(work is other for other in self._waiting):
            return False
        self._waiting.append(work)
        return True

    def _has_a_way(self, work: Work) -> bool:
        if not work.may_be_undone() or has_hooks(work.module) is not None:
            return False
        return cannot_cut(work) is None or self._finds_blocks(work.module)

    def _again(self, work: Work, failed: Exception) -> None:
        """The model's own backward once more, from the gradients that reached its output; `failed` where it cannot be."""
        work.forget_partial()
        make_room()
        reason = self._why_uncut(work)
        if reason is None:
            work.backward_in_pieces(2, on_more=functools.partial(self._more, work.module))
            self._more(work.module, 2)
        elif work.module in self._blocks or self._finds_blocks(work.module):
            work.backward_in_blocks(self._blocks[work.module])
        else:
            warn(f"out of memory, and the batch cannot be cut: {reason}")
            raise failed

    def _zeroing(self, original: Function) -> Function:
        @functools.wraps(original)
        def zero_grad(of: Optimizer | nn.Module, *arguments: object, **settings: object) -> object:
            self._zeroed.append(of)
            return original(of, *arguments, **settings)

        return zero_grad


_known: list[_Survival] = []


def _is_special(
    _tensors: object = None,
    _gradients: object = None,
    retain_graph: object = None,
    create_graph: object = False,
    *_others: object,
    inputs: object = None,
    **_settings: object,
) -> bool:
    """Whether a backward is asked for more than gradients in all leaves."""
    return bool(retain_graph) or bool(create_graph) or inputs is not None


def _exchanges() -> bool:
    """Whether gradients are exchanged with other processes: nothing may be done twice then."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
