"""What-ifs that can be turned on and off between two steps of a running script.

In: the session. Out: switches by name, for a program to alternate. Refuses to say whether one is worth it.

Each is what a person would write into the script to mend one fault; none is left on when the process ends, for the
process ends with its window.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from hasten.measurement.inside import scratch
from hasten.measurement.inside.nests import to_float32
from hasten.measurement.inside.patches import Patches
from hasten.measurement.inside.programs import Switch
from hasten.measurement.inside.session import Session

FUSED = ("Adam", "AdamW", "SGD", "Adagrad")


def make(name: str, session: Session) -> Switch:
    """The switch of this name; `name=value` hands it a value. Raises KeyError for an unknown one."""
    name, _, value = name.partition("=")
    return MAKERS[name](session, value)


def _anomaly(_session: Session, _value: str) -> Switch:
    patches = Patches()

    def on() -> None:
        torch.autograd.set_detect_anomaly(False)
        # A script that turns it on in every step would win otherwise.
        patches.set(torch, "set_anomaly_enabled", _refuse)

    def off() -> None:
        patches.undo()
        torch.autograd.set_detect_anomaly(True)

    return Switch(name="anomaly_detection", on=on, off=off)


def _refuse(*_arguments: object, **_settings: object) -> None:
    """Take no notice."""


def _denormals(_session: Session, _value: str) -> Switch:
    return Switch(
        name="denormals",
        on=lambda: torch.set_flush_denormal(True),
        off=lambda: torch.set_flush_denormal(False),
        # What has gone subnormal stays so until it is computed anew.
        settle=2,
    )


def _zero_grad(_session: Session, _value: str) -> Switch:
    patches = Patches()

    def to_none(original: Callable[..., object]) -> Callable[..., object]:
        def zero_grad(self: object, set_to_none: bool = True) -> object:
            return original(self, True)

        return zero_grad

    def on() -> None:
        patches.wrap(Optimizer, "zero_grad", to_none)
        patches.wrap(nn.Module, "zero_grad", to_none)

    return Switch(name="zero_grad_in_place", on=on, off=patches.undo, settle=2)


def _fused(session: Session, _value: str) -> Switch:
    before: list[tuple[dict[str, object], object, object]] = []

    def groups() -> list[tuple[Optimizer, dict[str, object]]]:
        known = [o for o in session.boundary.optimizers.values() if type(o).__name__ in FUSED]
        return [(o, group) for o in known for group in o.param_groups]

    def move_steps(optimizer: Optimizer, *, with_parameters: bool) -> None:
        for parameter, state in optimizer.state.items():
            step = state.get("step")
            if isinstance(step, torch.Tensor):
                state["step"] = step.to(parameter.device if with_parameters else "cpu")

    def on() -> None:
        for optimizer, group in groups():
            before.append((group, group.get("fused"), group.get("foreach")))
            group["fused"], group["foreach"] = True, False
            move_steps(optimizer, with_parameters=True)

    def off() -> None:
        for group, fused, foreach in before:
            group["fused"], group["foreach"] = fused, foreach
        before.clear()
        for optimizer, _ in groups():
            move_steps(optimizer, with_parameters=False)

    return Switch(name="unfused_optimizer", on=on, off=off)


def _bfloat16(session: Session, _value: str) -> Switch:
    handles: list[Callable[[], None]] = []
    contexts: list[torch.autocast] = []

    def enter(module: nn.Module, _arguments: object) -> None:
        parameter = next(module.parameters(), None)
        device = parameter.device.type if parameter is not None else "cpu"
        contexts.append(torch.autocast(device, dtype=torch.bfloat16))
        contexts[-1].__enter__()

    def leave(_module: nn.Module, _arguments: object, output: object) -> object:
        # Around the root's forward only: switched on globally, the cached casts of the weights never renew.
        if contexts:
            contexts.pop().__exit__(None, None, None)
        return to_float32(output, torch.bfloat16)

    def on() -> None:
        assert session.roots is not None
        for module in session.roots.modules():
            if any(True for _ in module.parameters()):
                handles.append(module.register_forward_pre_hook(enter).remove)
                handles.append(module.register_forward_hook(leave, always_call=True).remove)

    def off() -> None:
        while handles:
            handles.pop()()

    return Switch(name="full_precision", on=on, off=off)


def _tf32(_session: Session, _value: str) -> Switch:
    def turn(state: bool) -> None:
        torch.backends.cuda.matmul.allow_tf32 = state
        torch.backends.cudnn.allow_tf32 = state

    return Switch(name="tf32", on=lambda: turn(True), off=lambda: turn(False))


def _channels_last(session: Session, _value: str) -> Switch:
    handles: list[Callable[[], None]] = []

    def convert(layout: torch.memory_format) -> None:
        assert session.roots is not None
        for module in session.roots.modules():
            for weight in module.parameters():
                if weight.dim() == 4:
                    weight.data = weight.data.contiguous(memory_format=layout)
        for optimizer in session.boundary.optimizers.values():
            for parameter, state in optimizer.state.items():
                for key, tensor in state.items():
                    if isinstance(tensor, torch.Tensor) and tensor.dim() == 4:
                        state[key] = tensor.contiguous(memory_format=layout)
                if parameter.grad is not None and parameter.grad.dim() == 4:
                    parameter.grad = parameter.grad.contiguous(memory_format=layout)

    def inputs(_module: nn.Module, arguments: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(
            a.contiguous(memory_format=torch.channels_last) if isinstance(a, torch.Tensor) and a.dim() == 4 else a
            for a in arguments
        )

    def on() -> None:
        assert session.roots is not None
        convert(torch.channels_last)
        for module in session.roots.modules():
            handles.append(module.register_forward_pre_hook(inputs).remove)

    def off() -> None:
        while handles:
            handles.pop()()
        convert(torch.contiguous_format)

    return Switch(name="channels_first", on=on, off=off)


def _threads(_session: Session, value: str) -> Switch:
    before = torch.get_num_threads()
    return Switch(
        name="thread_contention",
        on=lambda: torch.set_num_threads(int(value)),
        off=lambda: torch.set_num_threads(before),
        settle=2,
    )


def _autotune(_session: Session, value: str) -> Switch:
    def turn(state: bool) -> None:
        torch.backends.cudnn.benchmark = state

    wanted = value != "off"
    # The first steps of a shape are spent on choosing an algorithm.
    return Switch(name="cudnn_autotune", on=lambda: turn(wanted), off=lambda: turn(not wanted), settle=5)


def _checkpoint(_session: Session, _value: str) -> Switch:
    return Switch(
        name="checkpoint_often",
        on=lambda: scratch.save_nothing(True),
        off=lambda: scratch.save_nothing(False),
        settle=2,
    )


MAKERS: dict[str, Callable[[Session, str], Switch]] = {
    "anomaly_detection": _anomaly,
    "checkpoint_often": _checkpoint,
    "denormals": _denormals,
    "zero_grad_in_place": _zero_grad,
    "unfused_optimizer": _fused,
    "full_precision": _bfloat16,
    "tf32": _tf32,
    "channels_first": _channels_last,
    "thread_contention": _threads,
    "cudnn_autotune": _autotune,
}
