"""Which segments a measured process goes through, as the parent's spec says."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from hasten.agent import facts, replay
from hasten.agent.handle import Handle
from hasten.agent.instant import InstantSamples
from hasten.agent.segments import (
    JOINED,
    Program,
    Segment,
    Switch,
    alternate,
    endless,
    first_steps,
    in_turns,
    measure,
    plain,
)
from hasten.agent.session import Session
from hasten.agent.status import leave
from hasten.patches import Patches
from hasten.protocol import TURN_ASKED, TURN_GIVEN, Interventions, LaunchSpec, SwitchSpec
from hasten.raw_run import DEVICE_REPLAY, INSTANT, JOIN, MARKED, PLAIN, REPLAY

SLOW_STEP = 0.3  # seconds


def program_of(spec: LaunchSpec, session: Session, patches: Patches) -> Program:
    """The program that the spec asks for."""
    history, seconds = session.scheduler.history, spec.seconds
    if spec.brief:
        session.scheduler.least_warm_up = 0.0
    if spec.mode == "measure":
        return measure(history, num_steps=spec.num_steps, seconds=seconds, last=_counting(session))
    if spec.mode == "here":
        return endless()
    if spec.mode == "hold":
        # One condition for as long as the script runs: for benchmarks of the marks themselves.
        return iter([Segment(name=MARKED if spec.full else PLAIN, full=spec.full, min_seconds=seconds)])
    if spec.mode == "first steps":
        assert spec.num_steps is not None
        session.scheduler.warms_up = False
        return first_steps(history, num_steps=spec.num_steps, seconds=seconds)
    if spec.mode == "plain":
        return plain(history, seconds=seconds)
    if spec.mode == "in turns":
        turns = Turns(session.folder)

        def wait() -> None:
            session.scheduler.rested += turns.wait()

        session.scheduler.start = lambda now: now + turns.wait()
        return in_turns(history, seconds=seconds, wait=wait)
    return _interventions(spec.interventions, session, patches, seconds, brief=spec.brief)


def _counting(session: Session) -> Segment:
    """Steps whose operators and calls are counted."""
    operators, calls = facts.OperatorCount(session.marks.phase), facts.CallCount(session.marks.phase)
    modes = contextlib.ExitStack()

    def enter() -> None:
        # A mode inside a compiled step would have it traced again.
        if not session.models.compiled:
            modes.enter_context(operators)
            modes.enter_context(calls)
            modes.callback(note)

    def note() -> None:
        steps = session.scheduler.num_steps_of_segment
        session.num_operators, session.num_flops = operators.num_operators // steps, operators.num_flops // steps
        session.num_calls = calls.num_calls // steps

    return Segment(name="count", full=True, min_seconds=0.0, min_steps=1, enter=enter, leave=modes.close)


def switch_of(session: Session, patches: Patches, spec: SwitchSpec) -> Switch:
    """An optimization that is enabled and disabled between two steps, to see what it gains."""

    def note(reason: str) -> None:
        session.not_applied[spec.cause] = reason

    handle = Handle(spec.fix.name, session.models, on_refuse=note)
    patches.on_undo(handle.disable)
    return Switch(
        name=spec.cause,
        on=lambda: handle.enable(spec.fix.installer, spec.fix.value),
        off=handle.disable,
        settle=spec.settle,
    )


def _interventions(
    asked: Interventions, session: Session, patches: Patches, seconds: float, *, brief: bool
) -> Program:
    switches = [switch_of(session, patches, one) for one in asked.switches]
    player = replay.Replay(session, patches)
    session.on_batch = player.on_batch

    history = session.scheduler.history

    def time_left() -> float:
        return asked.within - history.age

    def instruments(slow: bool) -> Program:
        if asked.replay:
            yield from _replaying(REPLAY, player.on, player.off, session, seconds, rounds=1 if slow else 2)
        # Whether the batches that lie ready are gone soon enough to see what comes after them.
        if asked.instant and history.queued * history.warm_step < seconds:
            player.off()
            held = InstantSamples(session.folder)
            yield from _replaying(INSTANT, held.on, held.off, session, seconds, rounds=1 if slow else 2)
            held.off()
        if asked.join:  # held against replay: its batches come from where those did
            yield from _held(JOIN, lambda: player.join(JOINED), seconds)
            player.off()
        if asked.device_replay is not None:
            player.to_device(asked.device_replay)
            yield from _held(DEVICE_REPLAY, player.on, seconds)
            player.forget()
        player.off()

    def switching(slow: bool) -> Program:
        # A slow step fills a segment alone: fewer segments, or a switch would take half a minute.
        yield from alternate(
            history,
            switches,
            seconds=seconds,
            rounds=2 if slow else 3,
            min_steps=asked.min_steps,
            time_left=time_left,
        )

    def program() -> Program:
        slow = brief or history.warm_step > SLOW_STEP
        # Where batches are not waited for, replay shows little: what may gain most comes first.
        if asked.switches_first:
            yield from switching(slow)
            if time_left() > 0:
                yield from instruments(slow)
        else:
            yield from instruments(slow)
            yield from switching(slow)
        if asked.drain:
            session.drained, session.drain_trouble = replay.drain(session, seconds=seconds / 2)

    return program()


def _replaying(
    name: str, on: Callable[[], object], off: Callable[[], object], session: Session, seconds: float, *, rounds: int
) -> Program:
    """Loaded and held batches in the order A B B A A B, so that the machine's drift falls on both."""
    last = False
    for held in (*(False, True, True, False) * rounds, False, True):
        # While batches are replayed the workers fill their queue: what lies there is no measure of their pace.
        queued = session.loaders.queue_length() if name == INSTANT or (last and not held) else 0
        yield Segment(
            name=name,
            is_baseline=not held,
            min_seconds=seconds / 8,
            min_steps=1,
            settle=2 + queued if held != last else 0,
            regular=True,
            enter=on if held else off,
        )
        last = held


def _held(name: str, enter: Callable[[], object], seconds: float) -> Program:
    for index in range(4):
        settle = 2 if index == 0 else 0
        yield Segment(name=name, min_seconds=seconds / 4, min_steps=1, settle=settle, regular=True, enter=enter)


class Turns:
    """The turns of the one process of a launch that is measured."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pipes: tuple[int, int] | None = None

    def wait(self) -> float:
        """Seconds until it was this process's turn."""
        began = perf_counter()
        answer = b""
        with contextlib.suppress(OSError):  # nobody at the other end
            self._pipes = self._pipes or self._open()
            os.write(self._pipes[0], b".")
            answer = os.read(self._pipes[1], 1)
        if not answer:  # hasten is gone
            leave(None)
        return perf_counter() - began

    def _open(self) -> tuple[int, int]:
        """Both pipes. Raises OSError when hasten is gone: to open them without O_NONBLOCK would wait for it for ever."""
        asks = os.open(self._folder / TURN_ASKED, os.O_WRONLY | os.O_NONBLOCK)
        given = os.open(self._folder / TURN_GIVEN, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(given, True)
        return asks, given
