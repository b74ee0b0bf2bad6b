"""What a fix is, and what it is proposed on.

In: one diagnosed run. Out: values worth trying, with the seconds they promise, or why the fix cannot help. Refuses to
try anything.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from hasten import format
from hasten.diagnosis.breakdown import break_down
from hasten.diagnosis.case import Case
from hasten.diagnosis.ceiling import find_ceiling
from hasten.diagnosis.diagnose import diagnose
from hasten.errors import BudgetError, PlanError
from hasten.records import Diagnosis, Finding, Guarantee, Interval, Intervention, Run, Settings, SkippedState, Value

GUARANTEES: tuple[Guarantee, ...] = get_args(Guarantee)
Kind = Literal["switch", "number", "rate", "size", "word", "names"]
NAMES = re.compile(r"[\w.]+:[\w.]+(,[\w.]+:[\w.]+)*")  # of functions, as "package.module:function"
LEAST_SIZE = 1 << 20  # bytes: a "size" below is one whose unit was forgotten
WORTH = 0.02  # share of the step that a fix must promise to be tried
SUSPICIOUS = 0.04  # the same, where it was only suspected and nothing is mended yet
SUSPECTED = "what was measured leaves it open"
UNMEASURED = "on scripts like this it helps; it was not measured here yet"


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A value worth trying."""

    value: Value
    saves: float  # seconds a step that it promises
    because: str


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What is known when fixes are proposed."""

    case: Case
    diagnosis: Diagnosis
    settings: Settings  # what is on already

    def finding(self, *kinds: str) -> Finding | None:
        """The costliest finding of these kinds."""
        found = [f for f in self.diagnosis.findings if f.kind in kinds]
        return max(found, key=lambda f: f.recoverable, default=None)

    def intervention(self, name: str) -> Intervention | None:
        """A further run of this name that gave a ratio."""
        return next((i for i in self.case.run.interventions if i.name == name and i.ratio is not None), None)

    def expected(self, name: str, prior: float = 0.0) -> float:
        """Seconds a step that a fix may save of which the diagnosis is not sure.

        Args:
            name: the intervention that would confirm it.
            prior: what such a fix saves on scripts like this, in seconds a step. It counts where the intervention was
                wanted and not made, or was too noisy to exclude it.
        """
        tried = self.intervention(name)
        if tried is None:
            return prior if name in self.case.run.untried else 0.0
        assert tried.ratio is not None
        seen, most = ((1 - ratio) * self.case.regular for ratio in (tried.ratio.value, tried.ratio.low))
        if prior and tried.ratio.high >= 1.0 and most >= SUSPICIOUS * self.case.step:
            # Too noisy to tell: what was seen and what is usual count alike, as far as it leaves that open.
            return max(0.0, min(most, (prior + seen) / 2))
        return self.suspected(name)

    def suspected(self, name: str) -> float:
        """Seconds a step that a further run may have saved, though it was not sure of it.

        A finding asks for certainty, a trial does not: it is there to give it. Where nothing is mended yet it is half of
        what was seen, for chance had its part. Where a fix is kept, the script is worth a longer search: what is sure and
        too little for a finding counts, and of what is not sure the mean of the estimate and of the interval's better end,
        for a few noisy steps that saw nothing do not say that there is nothing. Nor do they say that there is much: what
        they leave open promises no more than what is just worth a trial, and so is tried last.
        """
        tried = self.intervention(name)
        if tried is None or tried.ratio is None or tried.ratio.value > 1.0:
            return 0.0
        sure = tried.ratio.high < 1.0
        seen = (1 - tried.ratio.value) * self.case.regular
        if not self.settings:
            saved = 0.0 if sure else seen / 2
            return saved if saved >= SUSPICIOUS * self.case.step else 0.0
        if sure:
            return seen if seen >= WORTH * self.case.step else 0.0
        hoped = (seen + (1 - tried.ratio.low) * self.case.regular) / 2
        return max(seen / 2, WORTH * self.case.step) if hoped >= WORTH * self.case.step else 0.0

    @property
    def headroom(self) -> float:
        """Seconds a step that input fixes can save at most, epoch starts included."""
        return max(self.case.headroom or 0.0, self.suspected("replay")) + self.case.phase("epoch_start")

    @property
    def least(self) -> float:
        """Seconds a step that make a fix worth its trial."""
        return WORTH * self.case.step


def situation_of(run: Run, settings: Settings) -> Situation:
    """What fixes are proposed on."""
    breakdown = break_down(run)
    return Situation(
        case=Case(run, breakdown, find_ceiling(run, breakdown)), diagnosis=diagnose(run), settings=settings
    )


@dataclass(frozen=True, kw_only=True)
class NotProposed:
    """Why a fix is not worth a trial."""

    reason: str
    state: SkippedState


Propose = Callable[[Situation], "list[Proposal] | NotProposed | str"]  # a text: why it does not apply


@dataclass(frozen=True, kw_only=True)
class Fix:
    """Something that can be changed from outside, as one line of a plan."""

    name: str  # its key in hasten.toml: the field's own word
    title: str  # what it does, for a person
    guarantee: Guarantee
    answers: tuple[str, ...]  # kinds of findings
    propose: Propose
    kind: Kind = "switch"
    words: tuple[str, ...] = ()  # what a "word" may be; a "number" or a "size" may be one of them as well
    least: int = 1  # of a "number"
    installer: str = ""  # "module:function", called in the training process
    variables: Callable[[Value], Mapping[str, str]] = field(default=lambda _: {})  # what must precede torch
    start_seconds: float = 0.0  # that it may need before the first step, beside the script's own
    keeps_in: str = ""  # the variable that names the folder in which it keeps what it made for later processes
    needs: tuple[str, ...] = ()  # fixes of which one must be on with it
    excludes: tuple[str, ...] = ()  # fixes that must not
    is_users_word: bool = False  # it holds only on the user's word: tried and suggested, never switched on

    def finds(self, on: Container[str]) -> bool:
        """Whether what it needs is among the fixes that are on."""
        return not self.needs or any(name in on for name in self.needs)

    def check(self, value: object) -> Value:
        """The value, if it is one for this fix; False always is: off. Raises PlanError."""
        if value is False or self._fits(value):
            return value  # type: ignore[return-value]
        raise PlanError(f"invalid value for {self.name}: {_shown(value)}; use {self.allowed}")

    def _fits(self, value: object) -> bool:
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
            "rate": ["a learning rate as 0.001"],
            "size": ['a size as "8 GiB", "500 MB" or "50%"'],
            "word": [],
            "names": ['functions as "package.module:function", with commas between them'],
        }[self.kind]
        return " or ".join([*first, *words, *([] if self.kind == "switch" else ["false"])])


def _is_size(value: object) -> bool:
    from hasten.data.memo.budget import parse_budget

    if isinstance(value, bool):
        return False
    try:
        num_bytes = parse_budget(value, whole=1 << 40)  # type: ignore[arg-type]
    except BudgetError:
        return False
    return num_bytes >= LEAST_SIZE


def _shown(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)


def nearest(name: str, known: Mapping[str, object]) -> str:
    """A hint at what was meant, or at where the names stand."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else "docs/fixes.md names them all"


def from_finding(
    *kinds: str,
    value: Value = True,
    otherwise: str,
    prior: Callable[[Situation], float | None] = lambda _: None,
) -> Propose:
    """Propose one value for what findings or interventions of these kinds let one expect.

    Args:
        kinds: of findings, and of the interventions that confirm them.
        value: of the fix.
        otherwise: why there is nothing to expect.
        prior: seconds a step that the fix saves on scripts like this one; None where it does not apply.
    """

    def propose(situation: Situation) -> list[Proposal] | NotProposed | str:
        finding = situation.finding(*kinds)
        if finding is not None:
            return [Proposal(value=value, saves=finding.recoverable, because=finding.title)]
        likely = prior(situation)
        expected = max(situation.expected(kind, likely or 0.0) for kind in kinds)
        measured = [tried for kind in kinds if (tried := situation.intervention(kind)) is not None]
        if expected > 0.0:
            return [Proposal(value=value, saves=expected, because=SUSPECTED if measured else UNMEASURED)]
        if measured:
            return no_gain(measured[0])
        return NotProposed(reason=otherwise, state="not tried") if likely else otherwise

    return propose


def no_gain(tried: Intervention) -> NotProposed:
    """What the diagnosis measured of a fix that does not help."""
    ratio = tried.ratio
    assert ratio is not None
    speedup = Interval(value=1 / ratio.value, low=1 / ratio.high, high=1 / ratio.low)
    return NotProposed(reason=f"{format.ratio_interval(speedup)} as fast in the diagnosis", state="does not help")
