"""From a command to a plan: diagnose, try, leave out, prove, write."""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from hasten import __version__, format
from hasten.diagnosis.situation import Situation
from hasten.errors import HastenError, RecordError, saying
from hasten.launch.launch import command_argv
from hasten.launch.results import RESULTS, make_folder, new_folder
from hasten.launch.side import Bench, Frequencies
from hasten.measurement.diagnose import situation_of
from hasten.measurement.measure import FIRST_LAUNCH, MeasureOptions, measure
from hasten.optimizations import schedules
from hasten.optimizations.catalog import CATALOG, GROUPS, checked, start_seconds_of, variables_of, weakest
from hasten.records import RECORD_VERSION, Proof, Run, Settings, Skipped, Trial, Tuning, from_json
from hasten.safe_text import redacted
from hasten.sandbox.workspace import Workspace
from hasten.stats import Estimate
from hasten.tuning import quality
from hasten.tuning.budget import Budget, Journal, Progress, Reserve, charged, last_tuning, num_steps_of, reserve
from hasten.tuning.evaluator import LASTING, Evaluator, check_quality, verdict_of
from hasten.tuning.metric import screening_runs, soonest
from hasten.tuning.prove import not_checked, prove
from hasten.tuning.search import Candidate, candidates, leave_out, search
from hasten.tuning.suggestions import suggestions_for
from hasten.tuning.trial import Sides, may_continue, try_fix
from hasten.tuning.trial_config import TRIAL_SECONDS, TrialConfig, base_spec, config_for, trial_seconds

BEFORE_TRIALS = "interrupted while the script was measured: nothing was tried, and the plan is as it was"
INTERRUPTED = "interrupted; all trials so far are saved, and `hasten tune --resume` with the same command continues"
INPUT = {optimization.name for optimization in GROUPS["Input"]}
EARLY = 1.5  # times what is kept for the proof at the end: with less left, the first plan is not proven before
_rank = ("broken", "not proven", "proven").index
SHARED = {"replay", "thread_contention", "passive_waiting"}  # experiments that measure cores shared with the loader
DIAGNOSIS = 3.0  # of `diagnose_seconds`: how long the further runs of a diagnosis may take


def tune(
    argv: Sequence[str],
    *,
    module: bool = False,
    budget: Budget | None = None,
    resume: bool = False,
    root: Path = RESULTS,
    on_progress: Progress = lambda _w, _d, _o: None,
    on_result: Callable[[str], object] = lambda _: None,
    on_plan: Callable[[Tuning], object] = lambda _: None,
) -> Tuning:
    """Search for a plan. Raises HastenError for what the user can fix; what was found by then is saved.

    `on_plan` receives the search with a plan that was proven on the way to a better one.
    """
    command = command_argv(argv, module=module)
    recorded = redacted(("-m", *argv) if module else argv)
    before = last_tuning(root, recorded) if resume else None
    search = _Tuning(command, recorded, argv, module, budget or Budget(), root, on_progress, on_result, on_plan)
    return search.run(before)


@dataclass
class _Tuning:
    """One search."""

    command: Sequence[str]
    recorded: tuple[str, ...]
    argv: Sequence[str]
    module: bool
    budget: Budget
    root: Path
    on_progress: Progress
    on_result: Callable[[str], object]
    on_plan: Callable[[Tuning], object]
    evaluators: dict[bool, Evaluator] = field(default_factory=dict)  # by whether samples or workers are kept
    # What trials that may continue have measured, by settings and what was added.
    unclear: dict[tuple[object, object], Sides] = field(default_factory=dict)

    def run(self, before: Tuning | None) -> Tuning:
        """The whole search, saved as it goes."""
        spent = before.seconds if before is not None else 0.0
        tunings = self.root / "tunings"
        folder = make_folder(tunings / before.id) if before is not None else new_folder(tunings, ending="-tune")
        journal = Journal(folder, self.budget.seconds, self.on_progress, self.on_result, spent_before=spent)
        self.journal = journal
        try:
            self._search_in(journal, before)
        finally:
            journal.clear()
        return journal.tuning

    def _search_in(self, journal: Journal, before: Tuning | None) -> None:
        with Workspace() as self.workspace:
            self.bench = Bench(self.command, self.workspace, patience=self.budget.patience)
            with saying(BEFORE_TRIALS):
                first, run_id = self._first(before)
            journal.reserve = self._reserve(first)
            begun = self._begun(journal.folder.name, first, run_id)
            if before is not None and before.runs:  # its baseline may have been measured again
                again = {"runs": (run_id, *before.runs[1:]), "step_seconds": begun.step_seconds, "cache": begun.cache}
                begun = msgspec.structs.replace(before, **again)
            journal.begin(begun)
            try:
                with saying(INTERRUPTED):
                    self._search(first)
                    self._screen(first)
                    self._prove(first)
                    self._improve(first)
                journal.keep(state="done")
            except KeyboardInterrupt:
                journal.keep(state="interrupted")
                raise
            except HastenError as error:
                journal.keep(state="interrupted", notes=(*journal.tuning.notes, str(error)))
                raise

    def _first(self, before: Tuning | None) -> tuple[Situation, str]:
        """The baseline, diagnosed: measured now, or read where an earlier search has measured it."""
        if before is not None and before.runs:
            path = self.root / "runs" / before.runs[0] / "run.json"
            with contextlib.suppress(OSError, RecordError):
                return situation_of(from_json(Run, path.read_bytes(), source=str(path)), {}), before.runs[0]
        run = self._measured({}, "measuring the unmodified script")
        first = situation_of(run, {})
        self.on_result(f"{format.seconds(first.case.step)} a step. {first.diagnosis.verdict}")
        return first, run.id

    def _measured(
        self, settings: Settings, what: str, *, quick: bool = False, config: TrialConfig | None = None
    ) -> Run:
        self.journal.report(what)
        config = config or TrialConfig()
        with tempfile.TemporaryFile() as output:
            options = MeasureOptions(
                seconds=self.budget.diagnose_seconds / (2 if quick else 1),
                patience=self.budget.patience + start_seconds_of(settings),
                quick=quick,
                script_output=output.fileno(),
                begun_within=DIAGNOSIS * self.budget.diagnose_seconds,
                spec=base_spec(settings, config),
                environment=variables_of(settings, scratch=self.bench.folder),
            )
            run, _ = measure(
                self.argv,
                module=self.module,
                options=options,
                root=self.root,
                workspace=self.workspace,
                on_progress=lambda inner, _d, _o: self.journal.report(
                    what if inner == FIRST_LAUNCH else f"{what}: {inner}"
                ),
            )
        return run

    def _begun(self, name: str, first: Situation, run_id: str) -> Tuning:
        run, case = first.case.run, first.case
        samples = [s.num_samples for s in run.steps if s.num_samples is not None]
        return Tuning(
            version=RECORD_VERSION,
            hasten=__version__,
            id=name,
            command=self.recorded,
            directory=os.getcwd(),
            started=time.time(),
            machine=run.machine,
            state="running",
            suggestions=suggestions_for(first.diagnosis.findings),
            step_seconds=case.step,
            samples_per_step=sum(samples) / len(samples) if samples else None,
            cache=first.diagnosis.cache,
            runs=(run_id,),
            run_settings=({},),
        )

    def _search(self, first: Situation) -> None:
        tuning = self.journal.tuning
        # Of a resumed search: what time interrupted is tried again.
        ended = [trial for trial in tuning.trials if not trial.together and not may_continue(trial)]
        tried = frozenset(item for trial in ended for item in trial.added.items())
        if tuning.proof is not None:  # what it took out stays out
            tried |= {i for t in tuning.trials for i in t.added.items() if i[0] in tuning.proof.broken_by}
        start = first
        if tuning.settings:
            start = self._diagnosed_again(first, tuning.settings) or replace(first, settings=tuning.settings)
        for settings, trial in search(
            start,
            try_fix=functools.partial(self._try, first),
            diagnose_again=lambda settings: self._diagnosed_again(first, settings),
            time_left=self.journal.left_for_search,
            on_end=self._keep_untried,
            recipes=self.budget.recipes,
            tried=tried,
            trial_seconds=functools.partial(trial_seconds, first),
        ):
            self.journal.add(settings, trial)
        kept = {
            t.fix: t.speedup.value  # of one that was tried with others its own gain is not known
            for t in self.journal.tuning.trials
            if t.verdict == "faster" and t.speedup is not None and not t.together
        }
        half = self.journal.tuning.trials[-1].seconds / 2 if self.journal.tuning.trials else 0.0
        for settings, trial in leave_out(
            self.journal.tuning.settings,
            gains=kept,
            try_fix=functools.partial(self._try, first),
            time_left=lambda: self.journal.left_for_search() - half,
        ):
            self.journal.add(settings, trial)

    def _improve(self, first: Situation) -> None:
        """Continue the search while there is time: the proof may have taken less than was kept for it."""
        journal = self.journal
        while self.budget.metric is None and any(one.state == "no time" for one in journal.tuning.skipped):
            settings, proof = journal.tuning.settings, journal.tuning.proof
            if journal.left_for_search() < TRIAL_SECONDS or (proof is not None and proof.verdict == "broken"):
                return
            if proof is not None and proof.verdict == "proven":  # it stays written if the rest is interrupted
                self.on_plan(journal.tuning)
            self._search(first)
            if journal.tuning.settings == settings:
                journal.keep(proof=proof)
                return
            self._prove(first)
            again, left = journal.tuning.proof, bool(journal.tuning.settings)
            if proof is not None and (again is None or not left or _rank(again.verdict) < _rank(proof.verdict)):
                journal.keep(settings=settings, proof=proof)
                return

    def _screen(self, first: Situation) -> None:
        """Recipes that make no step faster, by how soon they reach the metric's target."""
        metric, tuning = self.budget.metric, self.journal.tuning
        if not self.budget.recipes or metric is None or metric.target is None:
            return
        num_steps = num_steps_of(first.case.run, self.budget.num_epochs)
        if num_steps is None:
            self.journal.note("schedules were not tried: how long training takes is not known; say it by --epochs")
        elif first.case.train is not None and (size := first.case.train.batch_size):
            num_steps *= size / float(tuning.settings.get("batch_size", size))
        # A resumed search has run some of them, and may have chosen among them.
        settings = {name: value for name, value in tuning.settings.items() if name not in schedules.IN_WHOLE_RUNS}
        run = [screened.settings for screened in tuning.screening_runs]
        for screened in screening_runs(
            self.bench,
            settings,
            [found for found in ({}, *schedules.combinations(num_steps)) if found not in run],
            metric,
            time_left=self.journal.left_for_screening,
            on_launch=self.journal.report,
        ):
            self.journal.keep(screening_runs=(*self.journal.tuning.screening_runs, screened))
        self.journal.keep(settings=checked({**settings, **soonest(self.journal.tuning.screening_runs)}))

    def _keep_untried(self, last: Situation, waiting: Sequence[Candidate]) -> None:
        """Every fix without a trial is named with the reason, those that there was no time for first."""
        tuning = self.journal.tuning
        tried = {name for trial in tuning.trials for name in trial.added}
        late: dict[str, Skipped] = {}
        for candidate in waiting:  # the best value of a fix comes first
            name, share = candidate.fix.name, format.share(candidate.proposal.saves / last.case.step)
            if name not in tried:
                late.setdefault(name, Skipped(fix=name, reason=f"it may save {share} of the step", state="no time"))
        _, skipped = candidates(last, recipes=self.budget.recipes)
        others = [one for one in skipped if one.fix not in tried and one.fix not in late]
        self.journal.keep(skipped=(*late.values(), *others))

    def _try(self, first: Situation, settings: Settings, added: Settings, promised: float, share: float) -> Trial:
        until = self.journal.spent() + share * self.journal.left_for_search()
        earlier = next((t for t in self.journal.tuning.trials if t.settings == settings and t.added == added), None)
        if earlier is not None and earlier.verdict in ("faster", "slower", "no difference"):
            return earlier  # of the search that this one resumes
        self.journal.report(f"trying {format.added(added)}")
        this = (tuple(settings.items()), tuple(added.items()))
        sides = self.unclear.pop(this, Sides())
        trial = try_fix(
            self.bench,
            settings,
            added,
            frequencies=Frequencies.of(first.case.facts),
            config=config_for(first, {**settings, **added}, added=added),
            sides=sides,
            time_left=lambda: min(self.journal.left_for_search(), until - self.journal.spent()),
            on_pair=lambda number, estimate: self.journal.report(_trying(format.added(added), number, estimate)),
        )
        if may_continue(trial):
            self.unclear[this] = sides
        trial = msgspec.structs.replace(trial, predicted=promised)
        trial = charged(trial, num_steps=num_steps_of(first.case.run, self.budget.num_epochs))
        return trial if settings or trial.verdict != "faster" else self._proven_early(first, added, trial)

    def _proven_early(self, first: Situation, added: Settings, trial: Trial) -> Trial:
        """The first plan that is faster: a proof now means a plan soon, and sound ground for the rest of the search."""
        journal, evaluator = self.journal, self._evaluator(first, added)
        recipe = any(CATALOG[name].guarantee == "recipe" or CATALOG[name].only_by_user for name in added)
        needed = max(EARLY * journal.reserve.all, evaluator.seconds(first.case.run.first_step_seconds or 0.0))
        if recipe or self.budget.metric or not self.budget.checks_quality or journal.left() < needed:
            return trial
        began = journal.spent()
        checks = check_quality(evaluator, added, looks_again=False)
        journal.reserve = journal.reserve.after(journal.spent() - began)
        verdict = verdict_of(checks)
        if verdict == "broken":
            reason = next(check.text for check in checks if check.state == "failed")
            return msgspec.structs.replace(trial, verdict="failed", note=reason)
        if verdict == "proven":
            speed = quality.passed("speed", f"faster in {len(trial.baseline_seconds)} pairs")
            proof = Proof(verdict=verdict, guarantee=weakest(added), speedup=trial.speedup, checks=(*checks, speed))
            so_far = msgspec.structs.replace(
                journal.tuning, settings=added, proof=self._with_rates(proof, trial), seconds=journal.spent()
            )
            self.on_plan(so_far)
        return trial

    def _diagnosed_again(self, first: Situation, settings: Settings) -> Situation | None:
        # Experiments on the baseline stay valid only as long as the step is much the same; so they are
        # made again where as much time is left for trials of what they find.
        quick = self.journal.left_for_search() < 2 * DIAGNOSIS * self.budget.diagnose_seconds
        try:
            run = self._measured(
                settings, "measuring with the plan so far", quick=quick, config=config_for(first, settings)
            )
        except HastenError as error:
            self.journal.note(f"the run with {', '.join(settings)} could not be diagnosed again: {error}")
            return None
        tuning = self.journal.tuning
        self.journal.keep(runs=(*tuning.runs, run.id), run_settings=(*tuning.run_settings, settings))
        if quick:
            fixed = SHARED if INPUT & {*settings} else set[str]()
            held = tuple(tried for tried in first.case.run.interventions if tried.name not in fixed)
            untried = tuple(name for name in run.untried if name not in {tried.name for tried in held})
            run = msgspec.structs.replace(run, interventions=held, untried=untried)
        return situation_of(run, settings)

    def _prove(self, first: Situation) -> None:
        settings, began = self.journal.tuning.settings, self.journal.spent()
        if not settings:
            return
        proof, settings, trial = prove(
            self._evaluator(first, settings),
            settings,
            frequencies=Frequencies.of(first.case.facts),
            config=config_for(first, settings),
            time_left=self.journal.left,
            metric=self.budget.metric,
            check=check_quality if self.budget.checks_quality else not_checked,
            known=next((t for t in self.journal.tuning.trials if not t.settings and t.added == settings), None),
            on_pair=lambda number, estimate: self.journal.report(_trying("the whole plan", number, estimate)),
        )
        self.journal.keep(settings=settings, proof=self._with_rates(proof, trial))
        self.journal.reserve = Reserve(proof=self.journal.spent() - began)

    def _evaluator(self, first: Situation, settings: Settings) -> Evaluator:
        keeps = bool(LASTING & {*settings})
        if keeps not in self.evaluators:  # what was launched for one proof serves the next
            self.evaluators[keeps] = Evaluator(
                bench=self.bench,
                step_seconds=first.case.step,
                steps_per_epoch=first.case.facts.steps_per_epoch,
                batches_per_step=first.case.batches,
                keeps=keeps,
                on_launch=lambda what: self.journal.report(f"proof: {what}"),
                time_left=self.journal.left,
            )
        return self.evaluators[keeps]

    def _reserve(self, first: Situation) -> Reserve:
        """What comes after the trials, so that they leave as much."""
        return reserve(
            first,
            self._evaluator(first, {}),
            left=self.journal.left(),
            metric=self.budget.metric,
            num_steps=num_steps_of(first.case.run, self.budget.num_epochs),
            recipes=self.budget.recipes,
            checks_quality=self.budget.checks_quality,
        )

    def _with_rates(self, proof: Proof, trial: Trial | None) -> Proof:
        samples = self.journal.tuning.samples_per_step
        if trial is None or samples is None or not trial.baseline_seconds:
            return proof
        return msgspec.structs.replace(
            proof,
            baseline_rate=samples / statistics.fmean(trial.baseline_seconds),
            plan_rate=samples / statistics.fmean(trial.candidate_seconds),
        )


def _trying(what: str, number: int, estimate: Estimate) -> str:
    return f"trying {what}: {format.ratio(estimate.value)} after {format.count(number, noun='pair')}"
