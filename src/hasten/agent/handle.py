"""What an optimization may do to the training process, and how all of it is undone."""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable, Iterable
from typing import TypeVar

from torch import nn
from torch.optim.optimizer import Optimizer

from hasten.agent.models import Around, Models, Once
from hasten.agent.root import Forward
from hasten.errors import NotApplicableError
from hasten.patches import Patches
from hasten.protocol import FixSpec

Registered = TypeVar("Registered")
Function = Callable[..., object]


class Handle:
    """One optimization's handle on the training process.

    Args:
        name: of the optimization.
        models: of this process.
        on_refuse: is given the reason once the optimization turns out not to be applicable.
    """

    def __init__(self, name: str, models: Models, *, on_refuse: Callable[[str], object] = lambda _: None) -> None:
        self.name = name
        self.models = models
        self.patches = Patches()
        self.is_enabled = False
        self._on_refuse = on_refuse

    def enable(self, installer: str, value: object) -> None:
        """Apply the optimization: call `installer` ("module:function") with this handle and the value."""
        self.is_enabled = True
        self.attempt(lambda: pkgutil.resolve_name(installer)(self, value))
        if not self.is_enabled:
            self.patches.undo()  # what it did before it failed

    def disable(self) -> None:
        """Undo everything; it can be enabled again."""
        self.is_enabled = False
        self.patches.undo()

    def refuse(self, reason: str) -> None:
        """Say that the optimization is not applied."""
        if self.is_enabled:
            self.is_enabled = False
            self._on_refuse(reason)

    def attempt(self, action: Callable[[], object]) -> None:
        """Do something; a failure disables the optimization, not the script."""
        if not self.is_enabled:
            return
        try:
            action()
        except NotApplicableError as error:
            self.refuse(str(error))
        except Exception as error:
            self.refuse(f"it failed: {error!r}")

    def on_model(self, action: Callable[[nn.Module], object]) -> None:
        """Have `action(root)` called once for each root that trains, before its next forward."""
        self._keep(self.models.model_actions, Once(lambda module: self.attempt(lambda: action(module))))
        self._find_models()

    def around_forward(self, around: Around) -> None:
        """Have the roots' forward called as `around(module, forward, arguments, settings)`; the first given is outermost."""

        def guarded(
            module: nn.Module, forward: Forward, arguments: tuple[object, ...], settings: dict[str, object]
        ) -> object:
            if not self.is_enabled:
                return forward(*arguments, **settings)
            return around(module, forward, arguments, settings)

        def leave_alone() -> None:
            """What is round a compiled forward would be traced, and compiled again."""
            self.refuse("the script compiles its model itself")

        self._keep(self.models.arounds, guarded)
        self._keep(self.models.on_compile, leave_alone)
        if self.models.trains_compiled:
            leave_alone()
        self._find_models()

    def on_optimizer(self, action: Callable[[Optimizer], object]) -> None:
        """Have `action(optimizer)` called once for each optimizer, before its next step."""
        self._keep(self.models.optimizer_actions, Once(lambda optimizer: self.attempt(lambda: action(optimizer))))

    def wrap(self, owner: object, name: str, make: Callable[[Function], Function]) -> None:
        """Replace a function with `make(function)`, for as long as the optimization is enabled."""

        def guarded(original: Function) -> Function:
            changed = make(original)

            @functools.wraps(original)
            def call(*arguments: object, **settings: object) -> object:
                return (changed if self.is_enabled else original)(*arguments, **settings)

            return call

        self.patches.wrap(owner, name, guarded)

    def _keep(self, registered: list[Registered], one: Registered) -> None:
        registered.append(one)
        self.patches.on_undo(lambda: registered.remove(one))

    def _find_models(self) -> None:
        if not self.models.roots():  # in a script that has made steps they are known
            self.models.discover()


def enable_all(
    fixes: Iterable[FixSpec], models: Models, patches: Patches, *, report: Callable[[str, str], object]
) -> None:
    """Enable these; `patches` undoes them, and `report` is given name and reason of those that are not applicable."""
    for fix in fixes:
        handle = Handle(fix.name, models, on_refuse=lambda reason, name=fix.name: report(name, reason))
        patches.on_undo(handle.disable)
        handle.enable(fix.installer, fix.value)
