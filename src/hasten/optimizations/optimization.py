"""What an optimization is: how it is suspected, tried, applied, named and documented.

Standard library only, and so is each optimization's file when it is imported: hasten's own process reads what it says, and
the training process imports it to apply it. What needs torch is imported where it is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeGuard

from hasten.errors import BudgetError, PlanError
from hasten.protocol import GRADIENT_PHASES, FixSpec, Phase, Value

if TYPE_CHECKING:
    from hasten.agent.handle import Handle
    from hasten.diagnosis.case import Case
    from hasten.diagnosis.situation import Situation
    from hasten.launch.shares import Shares
    from hasten.records import (
        Facts,
        FindingKind,
        Guarantee,
        Interval,
        Intervention,
        LoaderFacts,
        Machine,
        SkippedState,
        Where,
    )

Kind = Literal["switch", "number", "rate", "size", "word", "names"]
NAMES = re.compile(r"[\w.]+:[\w.]+(,[\w.]+:[\w.]+)*")  # of functions, as "package.module:function"
LEAST_SIZE = 1 << 20  # bytes: a "size" below is one whose unit was forgotten
LEAST_SECONDS = 4.0  # window of an experiment
WORTH = 0.05  # share of the step below which a cause is not pursued
BF16_UNITS = {"amx_bf16", "avx512_bf16"}  # features of a CPU
MEASURED = "it was measured, and another answer to the same finding saves more"
SUSPECTED = "what was measured leaves it open"
UNMEASURED = "on scripts like this it helps; it was not measured here yet"

Enable = Callable[["Handle", Value], object]


def spec_of(name: str, enable: Enable, value: Value) -> FixSpec:
    """The message that has the training process call `enable`."""
    return FixSpec(name=name, installer=f"{enable.__module__}:{enable.__name__}", value=value)


# -------------------------------------------------------------------------------------------- suspecting and trying


@dataclass(frozen=True, kw_only=True)
class Symptoms:
    """What the first launch of a measurement showed, to choose experiments by."""

    facts: Facts
    shares: Shares
    machine: Machine

    @cached_property
    def train(self) -> LoaderFacts | None:
        """The training loader."""
        return next((loader for loader in self.facts.loaders if loader.role == "train"), None)

    @property
    def cores(self) -> float:
        """Cores that this process has: several ranks share those of the host."""
        return self.machine.num_cores / self.facts.ranks_per_host

    @property
    def on_cpu(self) -> bool:
        """Whether the model is trained on the CPU."""
        return self.facts.device == "cpu"

    @property
    def waits(self) -> bool:
        """Whether training waits for batches."""
        return self.shares.of("data_wait") >= WORTH

    @property
    def crowds(self) -> bool:
        """Whether loader workers may keep training from a core."""
        workers = self.train.num_workers if self.train is not None else 0
        return bool(workers) and (self.facts.run_delay or 0.0) >= WORTH * self.shares.step

    @property
    def computes(self) -> bool:
        """Whether computing is a fifth of the step and more, in a model that the script does not compile."""
        compiled = any(model.compiled for model in self.facts.models)
        return not compiled and self.shares.of(*GRADIENT_PHASES) >= 0.2

    @property
    def in_float32(self) -> bool:
        """Whether the script computes in float32 and has chosen no precision."""
        dtypes = {dtype for model in self.facts.models for dtype in model.dtypes}
        return "float32" in dtypes and "float64" not in dtypes and not self.facts.autocast


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """How measuring confirms a cause: the step with the optimization enabled against the step without.

    Enabled and disabled between two steps of one process, in the order A B B A; or, where that is not possible, in a
    launch of its own.
    """

    cause: str  # that it confirms
    suspect: Callable[[Symptoms], Value | None]  # the value to try; None: there is no reason to
    title: str = ""  # of what is tried, within a sentence
    enable: Enable | None = None  # if it is another function than the optimization's own
    toggled: bool = True  # within one process
    settle: int = 1  # steps after a change that are not counted
    seconds: Callable[[Symptoms], float] = lambda _: LEAST_SECONDS  # window of a launch of its own
    acts_in: Phase | None = None  # the one phase whose work it changes; None: any
    usual: float = 0.05  # share of the step that it saves where it helps; on a CPU, of these phases:
    saves_of: tuple[Phase, ...] = ()
    lost: Callable[[Symptoms], float] = lambda _: 0.0  # seconds per step that were seen to be lost to the cause
    spares_loading: bool = False  # it saves no more than instant data loading does

    def expected(self, symptoms: Symptoms) -> float:
        """Share of the step that it may save: what may save most is tried first."""
        step = symptoms.shares.step
        share = symptoms.shares.of(*self.saves_of) if self.saves_of and symptoms.on_cpu else 1.0
        return max(self.usual * share, self.lost(symptoms) / step if step else 0.0)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The finding that an experiment confirms."""

    kind: FindingKind
    title: str
    remedy: str
    phase: Phase = "forward"  # where in the user's source
    cause: str = ""  # of the experiment; the kind by default
    evidence: Callable[[Case], Sequence[str]] = lambda _: ()
    where: Callable[[Case], Where | None] = lambda _: None
    saved: Callable[[Case, Intervention], tuple[float, Interval]] | None = (
        None  # where it is not the ratio times the step
    )

    @property
    def confirmed_by(self) -> str:
        """The cause whose experiment confirms it."""
        return self.cause or self.kind


# -------------------------------------------------------------------------------------------------------- proposing


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A value worth a trial."""

    value: Value
    saves: float  # expected, in seconds per step
    because: str
    is_sure: bool = False  # the diagnosis measured a gain, and its interval excludes none


@dataclass(frozen=True, kw_only=True)
class NotProposed:
    """Why an optimization is not worth a trial."""

    reason: str
    state: SkippedState


Propose = Callable[["Situation"], "list[Proposal] | NotProposed | str"]  # a text: why it does not apply


def from_finding(
    *kinds: str,
    value: Value = True,
    otherwise: str,
    prior: Callable[[Situation], float | None] = lambda _: None,
) -> Propose:
    """Propose one value for what findings or experiments of these kinds let one expect.

    Args:
        kinds: of findings, and of the causes that experiments confirm.
        value: of the optimization.
        otherwise: why there is nothing to expect.
        prior: seconds per step that the optimization saves on scripts like this one; None where it does not apply.
    """

    def propose(situation: Situation) -> list[Proposal] | NotProposed | str:
        finding = situation.finding(*kinds)
        measured = [tried for kind in kinds if (tried := situation.intervention(kind)) is not None]
        sure = finding is not None and finding.confirmed_by in kinds
        if finding is not None and (sure or not measured):  # else another optimization's experiment confirmed it
            return [Proposal(value=value, saves=finding.recoverable, because=finding.title, is_sure=sure)]
        saved = max((found[0] for kind in kinds if (found := situation.case.measured(kind))), default=0.0)
        if saved >= WORTH * situation.case.step:
            return [Proposal(value=value, saves=saved, because=MEASURED, is_sure=True)]
        likely = prior(situation)
        expected = max(situation.expected(kind, likely or 0.0) for kind in kinds)
        if expected > 0.0:
            return [Proposal(value=value, saves=expected, because=SUSPECTED if measured else UNMEASURED)]
        if measured:
            return no_gain(measured[0])
        return NotProposed(reason=otherwise, state="not tried") if likely else otherwise

    return propose


def no_gain(tried: Intervention) -> NotProposed:
    """What the diagnosis measured of an optimization that does not help."""
    from hasten import format
    from hasten.records import Interval

    ratio = tried.ratio
    assert ratio is not None
    if ratio.low <= 0.0:  # too few steps for an interval
        return NotProposed(reason="no gain was seen in the diagnosis", state="does not help")
    speedup = Interval(value=1 / ratio.value, low=1 / ratio.high, high=1 / ratio.low)
    unclear = "; too noisy to exclude a gain" if speedup.high > 1 / (1 - WORTH) else ""
    return NotProposed(
        reason=f"{format.ratio_interval(speedup)} as fast in the diagnosis{unclear}", state="does not help"
    )


# ------------------------------------------------------------------------------------------------ the optimization


@dataclass(frozen=True, kw_only=True)
class Optimization:
    """Something that can be changed from outside, as one line of a plan."""

    name: str  # its key in hasten.toml: the field's own word
    title: str  # what it does
    guarantee: Guarantee
    answers: tuple[FindingKind, ...]
    propose: Propose
    enable: Enable | None = None  # in the training process
    environment: Callable[[Value], Mapping[str, str]] = lambda _: {}  # what must be set before torch is imported
    experiments: tuple[Experiment, ...] = ()
    problems: tuple[Problem, ...] = ()
    kind: Kind = "switch"
    words: tuple[str, ...] = ()  # what a "word" may be; a "number" or a "size" may be one of them as well
    least: int = 1  # of a "number"
    start_seconds: float = 0.0  # that it may need before the first step
    keeps_in: str = ""  # the variable that names the folder in which it keeps what it made for later processes
    needs: tuple[str, ...] = ()  # optimizations of which one must be enabled with it
    excludes: tuple[str, ...] = ()  # optimizations that must not
    helped_by: Callable[[Situation, Value], Mapping[str, Value]] = lambda _s, _v: {}  # beside which it may gain more
    only_by_user: bool = False  # it holds only on the user's word: tried and suggested, never switched on
    on_any_machine: bool = False  # what it gains does not depend on the machine

    def is_supported(self, enabled: Container[str]) -> bool:
        """Whether what it needs is among the optimizations that are enabled."""
        return not self.needs or any(name in enabled for name in self.needs)

    def check(self, value: object) -> Value:
        """The value, if it is valid; False always is: off. Raises PlanError."""
        if value is False or self._fits(value):
            return value
        raise PlanError(f"invalid value for {self.name}: {_shown(value)}; use {self.allowed}")

    def _fits(self, value: object) -> TypeGuard[Value]:
        if self.kind == "switch":
            return value is True
        if isinstance(value, str) and value in self.words:
            return True
        if self.kind == "number":
            return isinstance(value, int) and not isinstance(value, bool) and value >= self.least
        if self.kind == "rate":
            return isinstance(value, float) and 0.0 < value < 1.0
        if self.kind == "names":
            return isinstance(value, str) and NAMES.fullmatch(value) is not None
        return self.kind == "size" and isinstance(value, (str, int)) and _is_size(value)

    @property
    def allowed(self) -> str:
        """What may be written, in words."""
        words = [f'"{word}"' for word in self.words]
        first = {
            "switch": ["true or false"],
            "number": [f"a whole number of {self.least} or more"],
            "rate": ["a learning rate such as 0.001"],
            "size": ['a size such as "8 GiB", "500 MB" or "50%"'],
            "word": [],
            "names": ['functions as "package.module:function", with commas between them'],
        }[self.kind]
        allowed = " or ".join([*first, *words])
        return allowed if self.kind == "switch" else f"{allowed}, or false to leave it to the script"


def _is_size(value: str | int) -> bool:
    from hasten.data.memo.budget import parse_budget

    if isinstance(value, bool):
        return False
    try:
        return parse_budget(value, whole=1 << 40) >= LEAST_SIZE
    except BudgetError:
        return False


def _shown(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
