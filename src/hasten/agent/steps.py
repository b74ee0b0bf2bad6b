"""What ends a training step in this process.

A step ends when the key optimizer steps: the first one that did. Without an optimizer object it ends with a backward. So it
does where there is one that never steps: gradients that are cleared again and again are used by the script's own code.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary, ref

from torch.optim.optimizer import Optimizer

BACKWARDS_ALONE = 8  # without any optimizer object, a backward ends a step
BACKWARDS_CLEARED = 32  # with one that never steps, and gradients that are cleared
BACKWARDS_AT_MOST = 256  # and others
MOST_OTHERS = 64  # steps of another optimizer, after which the key one is taken to be done


class Boundary:
    """The optimizer of a process whose steps count."""

    def __init__(self) -> None:
        self.key: Callable[[], Optimizer | None] | None = None  # the optimizer whose step ends a step
        self.by_backward = False
        self.num_backwards = 0
        self._num_cleared = 0  # backwards whose gradients were cleared
        self._holds_gradients = False
        self.optimizers_made = False  # whether or not one has stepped
        self._num_others: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()  # of each, since the key one's last

    def backward(self) -> bool:
        """A backward has ended; True when a training step ends with it."""
        self.num_backwards += 1
        self._holds_gradients = True
        least = BACKWARDS_AT_MOST if self.optimizers_made else BACKWARDS_ALONE
        if self.key is None and (self.num_backwards >= least or self._num_cleared >= BACKWARDS_CLEARED):
            self.by_backward = True
        return self.by_backward

    def clear(self) -> None:
        """Gradients are being cleared."""
        self._num_cleared += self._holds_gradients
        self._holds_gradients = False

    def step(self, optimizer: Optimizer) -> bool:
        """An optimizer step has ended; True when a training step ends with it."""
        key = self.key() if self.key is not None else None
        if optimizer is key:
            self._num_others.clear()
            return True
        number = self._num_others[optimizer] = self._num_others.get(optimizer, 0) + 1
        if key is not None and number <= MOST_OTHERS:
            return False
        self.key, self.by_backward = ref(optimizer), False
        self._num_others.clear()
        return True

    def forked(self) -> None:
        """This is a forked child now: its own steps count."""
        self.key, self.by_backward, self.num_backwards, self._num_cleared = None, False, 0, 0
