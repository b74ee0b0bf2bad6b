"""What an optimization may do to the training process, and how all of it is undone."""

from __future__ import annotations

import contextlib
import multiprocessing
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from torch import nn
from torch.optim.optimizer import Optimizer

from hasten.agent.models import Action, Around, Forward, Models, OptimizerAction
from hasten.errors import NotApplicableError
from hasten.patches import Patches, warn
from hasten.protocol import FixesReport, FixSpec, LaunchSpec, write

Registered = TypeVar("Registered")


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
        try:
            pkgutil.resolve_name(installer)(self, value)
        except NotApplicableError as error:
            self.refuse(str(error))
        except Exception as error:
            self.refuse(f"it failed: {error!r}")

    def disable(self) -> None:
        """Undo everything; it can be enabled again."""
        self.is_enabled = False
        self.patches.undo()

    def refuse(self, reason: str) -> None:
        """Say that the optimization is not applied."""
        if self.is_enabled:
            self.is_enabled = False
            self._on_refuse(reason)

    def on_model(self, action: Callable[[nn.Module], object]) -> None:
        """Have `action(root)` called once for each root, before its first training forward from now on."""
        made = Action(lambda module: self._attempt(lambda: action(module)))
        self._keep(self.models.actions, made)
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
        made = OptimizerAction(lambda optimizer: self._attempt(lambda: action(optimizer)))
        self._keep(self.models.optimizer_actions, made)

    def _keep(self, registered: list[Registered], one: Registered) -> None:
        registered.append(one)
        self.patches.on_undo(lambda: registered.remove(one))

    def _find_models(self) -> None:
        if not self.models.all():  # in a script that has made steps they are known
            self.models.discover()

    def _attempt(self, action: Callable[[], object]) -> None:
        """Do something; a failure disables the optimization, not the script."""
        if not self.is_enabled:
            return
        try:
            action()
        except NotApplicableError as error:
            self.refuse(str(error))
        except Exception as error:
            self.refuse(f"it failed: {error!r}")
            warn(f"{self.name} could not be applied ({error!r}); training continues without it")


def apply(spec: LaunchSpec, folder: Path, patches: Patches, models: Models) -> None:
    """Enable every optimization of the spec.

    Those that could not be applied are reported in the launch's folder, or on standard error in a run under a plan.
    """
    not_applied: dict[str, str] = {}
    said: set[str] = set()

    def report(name: str, reason: str) -> None:
        not_applied[name] = reason
        if spec.following is None:
            with contextlib.suppress(OSError):
                write(FixesReport(not_applied=not_applied), folder)
        elif name not in said and multiprocessing.parent_process() is None:
            said.add(name)
            sys.stderr.write(f"hasten: {name} is not applied: {reason}\n")

    enable_all(spec.fixes, models, patches, report)


def enable_all(
    fixes: tuple[FixSpec, ...], models: Models, patches: Patches, report: Callable[[str, str], object]
) -> dict[str, Handle]:
    """Enable these; `patches` undoes them, and `report` is given name and reason of those that are not applicable."""
    handles: dict[str, Handle] = {}
    for fix in fixes:
        handle = handles[fix.name] = Handle(
            fix.name, models, on_refuse=lambda reason, name=fix.name: report(name, reason)
        )
        patches.on_undo(handle.disable)
        handle.enable(fix.installer, fix.value)
    return handles
