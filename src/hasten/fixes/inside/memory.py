"""When memory runs out: the same batch, in smaller pieces, or the model block by block.

In: a site. Out: the roots' forward may run piece by piece, and what a piece holds for its backward is gone before the
next begins. The script's loop, loss and batch are untouched, so any loss over the whole batch stays exact. Models whose
samples depend on each other (batch statistics) are not cut: their blocks are computed again for backward. Refuses what
has neither pieces nor blocks.

The loss's gradient at the model's output is kept, and the model's own backward is made from it piece by piece, as in
Gao and others, Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup (2021).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from hasten.fixes.inside.pieces import Work, cannot_cut
from hasten.fixes.inside.recompute import Statistics, blocks_of
from hasten.fixes.inside.shortage import make_room, ran_out
from hasten.fixes.inside.site import Forward, Site
from hasten.measurement.inside.patches import warn

Function = Callable[..., object]
MOST_PIECES = 1024


def chunked_forward(site: Site, fix: str, value: object) -> None:
    """The roots' training forward in so many pieces, each made once more for its backward."""
    _survive(site, fix).num_pieces = int(value)  # type: ignore[call-overload]


def micro_batch(site: Site, fix: str, value: object) -> None:
    """At most so many samples held for backward at once; "auto": all of them, until memory runs out."""
    survival = _survive(site, fix)
    if value != "auto":
        survival.most_samples = int(value)  # type: ignore[call-overload]


def _survive(site: Site, fix: str) -> _Survival:
    survival = next((s for s in _known if s.site is site), None)
    if survival is None:
        survival = _Survival(site, fix)
        _known.append(survival)
        site.patches.on_undo(lambda: _known.remove(survival) if survival in _known else None)
    return survival


class _Survival:
    """How a site's forwards are made, and what their backward needs when memory runs out in it."""

    def __init__(self, site: Site, fix: str) -> None:
        self.site = site
        self.fix = fix
        self.num_pieces = 1
        self.most_samples: int | None = None
        self._blocks: WeakKeyDictionary[nn.Module, list[nn.Module]] = WeakKeyDictionary()  # of models made by them
        self._statistics: WeakKeyDictionary[nn.Module, Statistics] = WeakKeyDictionary()
        self._whole: list[Work] = []  # forwards since the last step that were made in one piece
        self._waiting: list[Work] | None = None  # forwards in pieces that the running backward has reached
        self._clean = True  # gradients are None or zero: nothing was accumulated since the last zero_grad
        site.around_forward(fix, self._forward)
        site.patches.wrap(torch.autograd, "backward", self._backward)
        site.patches.wrap(Optimizer, "zero_grad", self._zeroing)
        site.patches.wrap(nn.Module, "zero_grad", self._zeroing)

    # ------------------------------------------------------------------------------------------- forward

    def _forward(
        self, module: nn.Module, forward: Forward, arguments: tuple[object, ...], settings: dict[str, object]
    ) -> object:
        if not (module.training and torch.is_grad_enabled()):
            return forward(*arguments, **settings)
        work = Work(module, forward, arguments, settings)
        reason = cannot_cut(work)
        if reason is None and self._wanted(work) > 1:
            return self._in_pieces(work, self._wanted(work))
        if module in self._blocks:
            return work.in_blocks(self._blocks[module])
        statistics = self._kept(module)
        try:
            output = work.in_one()
            self._whole = [w for w in self._whole if w.alive()] + [work]
            return output
        except Exception as error:
            if not ran_out(error):
                raise
            failed = error.with_traceback(None)  # its frames hold the activations
        if reason is None:
            return self._in_pieces(work, 2)
        if not self._finds_blocks(module):
            warn(f"out of memory, and the batch cannot be cut: {reason}")
            raise failed
        statistics.restore()
        make_room()
        return work.in_blocks(self._blocks[module])

    def _kept(self, module: nn.Module) -> Statistics:
        if module not in self._statistics:
            self._statistics[module] = Statistics(module)
        else:
            self._statistics[module].keep()
        return self._statistics[module]

    def _finds_blocks(self, module: nn.Module) -> bool:
        """Whether the model has blocks to be made again; from now on they are."""
        blocks = blocks_of(module)
        if blocks:
            self._blocks[module] = blocks
            warn(f"out of memory: from now on {len(blocks)} blocks of the model are made again; no step is lost")
        return bool(blocks)

    def _wanted(self, work: Work) -> int:
        if self.most_samples is not None and work.num_samples:
            return max(self.num_pieces, -(-work.num_samples // self.most_samples))
        return self.num_pieces

    def _in_pieces(self, work: Work, pieces: int) -> object:
        while True:
            make_room()
            try:
                output = work.in_pieces(pieces, on_more=self._more, defer=self._deferred)
            except Exception as error:
                if not ran_out(error) or pieces >= min(MOST_PIECES, work.num_samples):
                    raise
                pieces = min(2 * pieces, work.num_samples)
            else:
                self._more(pieces)
                return output

    def _more(self, pieces: int) -> None:
        if self.num_pieces < pieces and self.most_samples is None:
            self.num_pieces = pieces
            warn(f"out of memory: from now on each batch goes through the model in {pieces} pieces; no step is lost")

    # ------------------------------------------------------------------------------------------ backward

    def _backward(self, original: Function) -> Function:
        @functools.wraps(original)
        def backward(*arguments: object, **settings: object) -> object:
            whole, self._whole = self._whole, []
            if len(whole) != 1:
                return self._with_pieces(original, arguments, settings)
            work = whole[0]
            aside = [] if self._clean else work.put_aside()
            try:
                result = original(*arguments, **settings)
            except Exception as error:
                if not ran_out(error) or work.gradients is None or not self._has_a_way(work):
                    raise
            else:
                self._clean = False
                Work.add_back(aside)
                return result
            work.forget_graph(arguments[0] if arguments else settings.get("tensors"))
            self._again(work)
            Work.add_back(aside)
            self._clean = False
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
            work.backward_in_pieces(work.pieces, on_more=self._more)
        return result

    def _deferred(self, work: Work) -> bool:
        if self._waiting is None or any(work is other for other in self._waiting):
            return False
        self._waiting.append(work)
        return True

    def _again(self, work: Work) -> None:
        """The model's own backward once more, from the gradients that reached its output."""
        work.forget_partial()
        make_room()
        if work.module in self._blocks:
            work.backward_in_blocks(self._blocks[work.module])
            return
        work.backward_in_pieces(2, on_more=self._more)
        self._more(2)

    def _has_a_way(self, work: Work) -> bool:
        return cannot_cut(work) is None or self._finds_blocks(work.module)

    def _zeroing(self, original: Function) -> Function:
        @functools.wraps(original)
        def zero_grad(*arguments: object, **settings: object) -> object:
            self._clean = True
            return original(*arguments, **settings)

        return zero_grad


_known: list[_Survival] = []
