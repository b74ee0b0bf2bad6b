"""Which optimization to try next, and when to stop.

The search is greedy: what promises most for the seconds that its trial takes is tried first, on top of what was kept. In the
beginning those that answer other causes are tried along with it, if the diagnosis has seen each of them to help, or one of
them and there is no time for one trial each: so there is a plan soon. After each optimization that is kept the run is
diagnosed again, because the bottleneck has moved. A trial that ran out of its share of time before it was clear continues if
it shows more than what is waiting. Some help only beside another: when nothing else is left, these pairs are tried. At the
end the plan is tried without each of its settings, because some make others needless. The search ends when nothing is left
that may save 2% of the step, or its time is over.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hasten import format
from hasten.diagnosis.situation import Situation
from hasten.errors import PlanError
from hasten.optimizations.catalog import CATALOG, checked, start_seconds_of
from hasten.optimizations.optimization import NotProposed, Optimization, Proposal
from hasten.optimizations.schedules import IN_WHOLE_RUNS
from hasten.records import Settings, Skipped, Trial, Value
from hasten.tuning.evaluator import draws_other_numbers
from hasten.tuning.trial import may_continue
from hasten.tuning.trial_config import TRIAL_SECONDS

ENOUGH = 2.0  # times what trials of each are expected to take: with less time they are tried at once
MUCH = 0.2  # of the best promise: what is tried along with it
MUCH_ANEW = 0.5  # the same, of a fix under which samples draw other random numbers: its proof takes more launches
RIVAL = 1 / 3  # of the best promise: what promises as much shares the time that is left with it
MOST_STARTS = 6  # launches of a trial, each of which may take its start's time
SMALL_GAIN = 1.15  # a speedup below which a fix may owe it to what has been kept since

Tried = frozenset[tuple[str, Value]]
# Settings, what is added to them, the seconds a step that it promises, and its share of the time that is left.
Try = Callable[[Settings, Settings, float, float], Trial]
Diagnose = Callable[[Settings], Situation | None]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A fix with a value, worth a trial."""

    fix: Optimization
    proposal: Proposal
    seconds: float = TRIAL_SECONDS  # that its trial takes, as a rule
    so_far: Trial | None = None  # its trial, if that can continue

    @property
    def item(self) -> tuple[str, Value]:
        """Its line in a plan."""
        return self.fix.name, self.proposal.value

    @property
    def promise(self) -> float:
        """Seconds a step that it may save, for as long as a trial usually takes."""
        return self.saves * TRIAL_SECONDS / self.seconds

    @property
    def saves(self) -> float:
        """Seconds a step that it may save: as predicted, or as its trial shows so far."""
        if self.so_far is None or self.so_far.speedup is None:
            return self.proposal.saves
        return statistics.fmean(self.so_far.baseline_seconds) * (1 - 1 / self.so_far.speedup.value)


def usual_seconds(added: Settings) -> float:
    """What a trial takes where steps and epochs are short."""
    return TRIAL_SECONDS + start_seconds_of(added)


def candidates(
    situation: Situation,
    *,
    tried: Tried = frozenset(),
    recipes: bool = False,
    trial_seconds: Callable[[Settings], float] = usual_seconds,
) -> tuple[list[Candidate], list[Skipped]]:
    """What is worth trying, most promising first; and what is not, with the reason."""
    found: list[Candidate] = []
    skipped: list[Skipped] = []
    for fix in CATALOG.values():
        if situation.settings.get(fix.name, False) is not False:
            continue
        if fix.guarantee == "recipe" and not recipes:
            skipped.append(Skipped(fix=fix.name, reason="it changes the recipe; --recipe tries those too"))
            continue
        proposed = fix.propose(situation)
        if isinstance(proposed, str):
            proposed = NotProposed(reason=proposed, state="does not apply")
        if isinstance(proposed, NotProposed):
            skipped.append(Skipped(fix=fix.name, reason=proposed.reason, state=proposed.state))
            continue
        proposed = [p for p in proposed if (fix.name, p.value) not in tried]
        if not proposed:
            continue
        worth = [p for p in proposed if p.saves >= situation.least]
        if not worth:
            most = max(p.saves for p in proposed) / situation.case.step
            skipped.append(Skipped(fix=fix.name, reason=f"it would save {format.share(most)} of the step at most"))
        found += [
            Candidate(fix=fix, proposal=proposal, seconds=trial_seconds({fix.name: proposal.value}))
            for proposal in worth
        ]
    return _most_promising_first(found), skipped


def _most_promising_first(found: Sequence[Candidate]) -> list[Candidate]:
    # What only the user can answer for is tried last: its gain is a suggestion.
    return sorted(found, key=lambda c: (c.fix.only_by_user, -c.promise))


def search(
    first: Situation,
    *,
    try_fix: Try,
    diagnose_again: Diagnose,
    time_left: Callable[[], float],
    on_end: Callable[[Situation, Sequence[Candidate]], object] = lambda _s, _c: None,
    recipes: bool = False,
    tried: Tried = frozenset(),
    trial_seconds: Callable[[Settings], float] = usual_seconds,
) -> Iterator[tuple[Settings, Trial]]:
    """Yield the settings so far and each trial as it ends.

    `on_end` is given the last diagnosis and what there was no time to try; `trial_seconds`: what a trial of a fix takes,
    as a rule.
    """
    situation, settings = first, dict(first.settings)
    at_once = not settings  # several fixes may be tried at once, in the beginning
    unclear: list[Candidate] = []  # tried with these settings, and not clear yet
    beside: list[tuple[Settings, Settings]] = []  # pairs that were tried: the settings, and what was added
    in_vain: Tried = frozenset()  # alone, before something else was kept: only a new finding has one tried again
    hopes: Tried = frozenset()  # what gained nothing with these settings
    twice: Tried = frozenset()  # what was given a second chance
    while True:
        waiting, _ = candidates(situation, tried=tried, recipes=recipes, trial_seconds=trial_seconds)
        waiting = [c for c in waiting if c.item not in in_vain or c.proposal.is_sure]
        waiting = _most_promising_first([c for c in [*waiting, *unclear] if _agrees(settings, c)])
        # With a plan in hand, a trial is begun only where the time that is left is at least half of what it takes.
        left = time_left()
        in_time = [c for c in waiting if left > (c.seconds / 2 if settings else 0.0)]
        pairs = _pairs(situation, settings, beside, left - trial_seconds({})) if not waiting else iter(())
        if pair := next(pairs, None):
            beside.append((settings, pair))
            trial = try_fix(settings, pair, 0.0, 1.0)
            if trial.verdict == "faster":
                settings = {**settings, **pair}
            yield settings, trial
            continue
        if not in_time:
            on_end(situation, waiting)
            return
        chosen = _bundle(in_time, situation) if at_once else []
        sure = [c for c in chosen if c.proposal.is_sure]
        if time_left() > ENOUGH * sum(c.seconds for c in chosen) or not sure:
            chosen = sure  # of the others each gain shall be known for itself; among guesses alone one mostly harms
        if len(chosen) < 2:
            chosen = in_time[:1]
        at_once = False
        added = {c.fix.name: c.proposal.value for c in chosen}
        rivals = {c.fix.name for c in in_time if c.promise >= RIVAL * chosen[0].promise} - {*added}
        trial = try_fix(settings, added, sum(c.proposal.saves for c in chosen), 1 / (1 + len(rivals)))
        so_far = chosen[0].so_far
        if len(added) == 1 or trial.verdict == "faster":
            tried |= {*added.items()}
        if len(added) == 1 and trial.verdict in ("no difference", "inconclusive"):
            hopes |= {*added.items()}
        unclear = [c for c in unclear if c.so_far is not so_far]
        if len(added) == 1 and may_continue(trial) and _num_pairs(trial) > _num_pairs(so_far):
            continued = replace(chosen[0], so_far=trial)
            unclear += [continued] if continued.saves >= situation.least else []
        if trial.verdict == "faster" and not chosen[0].fix.only_by_user:
            settings = {**settings, **added}
            tried -= {c.item for c in unclear}  # they start over, on top of what was kept
            second = hopes - twice - {c.item for c in unclear}
            tried, in_vain, twice, hopes = tried - second, in_vain | second, twice | second, frozenset()
            unclear = []
            yield settings, trial
            again = diagnose_again(settings) if time_left() > TRIAL_SECONDS / 2 else None
            situation = again if again is not None else situation
        else:
            yield settings, trial


def _pairs(
    situation: Situation, settings: Settings, tried: Sequence[tuple[Settings, Settings]], spare: float
) -> Iterator[Settings]:
    """What may help only beside another: both, or the one that is missing beside what was kept."""
    for fix in CATALOG.values():
        if fix.name in settings:
            value = settings[fix.name]
        elif (value := _value_of(fix, situation)) is None:
            continue
        both = {fix.name: value, **fix.helped_by(situation, value)}
        added = {name: value for name, value in both.items() if name not in settings}
        start = max((CATALOG[name].start_seconds for name in added), default=0.0)
        is_new = len(both) > 1 and added and (settings, added) not in tried
        if is_new and spare > MOST_STARTS * start and _is_valid({**settings, **added}):
            yield added


def _value_of(fix: Optimization, situation: Situation) -> Value | None:
    """The value of an optimization that applies, whatever it promises by itself; None if it does not."""
    proposed = fix.propose(situation)
    if isinstance(proposed, NotProposed):
        return True if fix.kind == "switch" and proposed.state == "does not help" else None
    if isinstance(proposed, str) or not proposed:
        return None
    return max(proposed, key=lambda one: one.saves).value


def _is_valid(settings: Settings) -> bool:
    try:
        return checked(settings) == settings
    except PlanError:
        return False


def _num_pairs(trial: Trial | None) -> int:
    return len(trial.baseline_seconds) if trial is not None else 0


def _bundle(waiting: Sequence[Candidate], situation: Situation) -> list[Candidate]:
    """What promises most, with all that promises much beside it, answers another cause and is quickly tried.

    Of two that influence each other a promise says little of what both come to: they are tried at once only if each was
    measured to help by itself. What harms beside the other is left out at the end.
    """
    chosen = [waiting[0]]
    for candidate in [c for c in waiting[1:] if not c.fix.only_by_user]:
        fix, others = candidate.fix, [c.fix for c in chosen]
        much = MUCH_ANEW if draws_other_numbers(fix.name) else MUCH
        promises = candidate.promise >= much * waiting[0].promise
        apart = all(not {*fix.answers} & {*other.answers} for other in others)
        apart &= not any(_influence(candidate, other, situation) for other in chosen)
        agrees = all(fix.name not in other.excludes and other.name not in fix.excludes for other in others)
        if promises and apart and agrees and not fix.needs and not fix.start_seconds and fix.guarantee != "recipe":
            chosen.append(candidate)
    return chosen


def _influence(one: Candidate, other: Candidate, situation: Situation) -> bool:
    if one.proposal.is_sure and other.proposal.is_sure:
        return False
    return one.fix.name in other.fix.helped_by(situation, other.proposal.value) or (
        other.fix.name in one.fix.helped_by(situation, one.proposal.value)
    )


def _agrees(settings: Settings, candidate: Candidate) -> bool:
    fix = candidate.fix
    return not {*settings}.intersection((fix.name, *fix.excludes)) and fix.is_supported(settings)


def leave_out(
    settings: Settings, *, gains: Mapping[str, float], try_fix: Try, time_left: Callable[[], float]
) -> Iterator[tuple[Settings, Trial]]:
    """Kept fixes against the plan without them: one that gains nothing beside the others goes.

    `gains` are their speedups when they were kept. Those that gained much, and answer what no other fix of the plan
    answers, are not asked again.
    """
    for name in list(settings):
        if len(settings) < 2 or time_left() <= 0:
            return
        if name in IN_WHOLE_RUNS:
            continue
        rest = {other: value for other, value in settings.items() if other != name}
        if not all(CATALOG[other].is_supported(rest) for other in rest) or not _may_be_needless(name, rest, gains):
            continue
        trial = try_fix(rest, {name: settings[name]}, 0.0, 1.0)
        if trial.verdict in ("slower", "no difference", "failed"):
            settings = checked(rest)
        yield settings, trial


def _may_be_needless(name: str, rest: Settings, gains: Mapping[str, float]) -> bool:
    shared = any({*CATALOG[name].answers} & {*CATALOG[other].answers} for other in rest)
    return shared or gains.get(name, 1.0) < SMALL_GAIN
