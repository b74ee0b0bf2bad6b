"""From the user's command to a saved Run: the first launch, the follow-up launches, and the record."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from hasten import __version__, format
from hasten.errors import NoStepError, ScriptError
from hasten.launch.launch import OUTPUT, Launch, Outcome, command_argv, failure, why_no_step
from hasten.launch.ranks import compare as compare_ranks
from hasten.launch.ranks import lost_ranks, save_ranks, steps_of_all
from hasten.launch.recorder import Recorded
from hasten.launch.results import RESULTS, new_folder
from hasten.launch.shares import shares_of
from hasten.launch.timeline import timeline_of
from hasten.machine.disk import read_twice
from hasten.machine.machine import read_machine
from hasten.measurement.followups import (
    TOO_FEW,
    FollowUpRun,
    against,
    broken_segment,
    choose,
    may_be_luck,
    of_two_pairs,
    promising,
    read_switches,
    with_decoders,
)
from hasten.optimizations.optimization import LEAST_SECONDS, WORTH
from hasten.protocol import LaunchSpec
from hasten.raw_run import busiest
from hasten.records import RECORD_VERSION, Intervention, Machine, RankSteps, ResourceSample, Run, to_json
from hasten.safe_text import redacted
from hasten.sandbox.workspace import Workspace

FIRST_LAUNCH = "measuring the script"
ONE_OF_SEVERAL = "one of {} training processes was recorded: they have no process group"
SHOWN_CAUSES = 3  # of a launch, in the progress line
# Seconds from the start in which a diagnosis begins a launch: an answer takes a minute, of slow steps up to three.
BEGUN_WITHIN, BEGUN_WITHIN_IF_SLOW = 45.0, 150.0
SLOW_STEP = 0.3  # seconds, from which a step needs more time for the same certainty
Progress = Callable[[str, float, float], object]  # what is done, seconds done, seconds expected


def _unheard(_what: str, _done: float, _expected: float) -> None:
    """Nobody wants to know of progress."""


@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """How to measure."""

    steps: int | None = None
    seconds: float = 60.0  # at most, for the first run's window
    patience: float = 60.0  # for the first step
    quick: bool = False  # no further runs
    begun_within: float = math.inf  # seconds from the start in which further runs may begin
    begun_within_if_slow: float = 0.0  # the same where a step takes long
    on_stopped: Callable[[KeyboardInterrupt], object] | None = None
    script_output: int | None = None  # file descriptor for the script's standard output; None: leave it
    spec: LaunchSpec = field(default_factory=LaunchSpec)  # fixes and seeds of every launch
    environment: Mapping[str, str] = field(default_factory=dict)

    def begun_within_at(self, step_seconds: float) -> float:
        """Seconds from the start in which further runs may begin: slow steps get more, in proportion."""
        in_proportion = self.begun_within * step_seconds / SLOW_STEP
        return max(self.begun_within, min(in_proportion, self.begun_within_if_slow))


def measure(
    argv: Sequence[str],
    *,
    module: bool = False,
    options: MeasureOptions | None = None,
    root: Path = RESULTS,
    workspace: Workspace | None = None,
    on_progress: Progress = _unheard,
) -> tuple[Run, Path]:
    """Measure a command where it stands; return its Run and the folder that holds `run.json`.

    `root` is where results are kept, `.hasten` beside the working directory by default. Raises HastenError for
    what the user can fix: NoStepError when no step was seen, ScriptError when the script itself failed. With
    `options.on_stopped` an interrupt after the first launch is passed to it, and what is known then is returned.
    """
    options = options or MeasureOptions()
    command = command_argv(argv, module=module)
    folder = new_folder(root / "runs")
    try:
        with Workspace() if workspace is None else contextlib.nullcontext(workspace) as around:
            measuring = _Measuring(command, argv, around, options, on_progress, module=module)
            run = measuring.run(folder.name)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)  # no folder for a run that has no record
        raise
    try:
        (folder / "run.json").write_bytes(to_json(run))
        save_ranks(measuring.ranks, folder)
    except OSError as error:  # what was measured is shown all the same
        shutil.rmtree(folder, ignore_errors=True)
        run = msgspec.structs.replace(run, notes=(*run.notes, f"this result is not saved: {error.strerror}"))
    return run, folder


class _Measuring:
    """The launches of one measurement."""

    def __init__(
        self,
        command: Sequence[str],
        argv: Sequence[str],
        workspace: Workspace,
        options: MeasureOptions,
        on_progress: Progress,
        *,
        module: bool,
    ) -> None:
        self.command = command
        self.argv = redacted(("-m", *argv) if module else argv)
        self.workspace = workspace
        self.options = options
        self.on_progress = on_progress
        self.notes: list[str] = []
        self.ranks: list[RankSteps] = []
        self.failed = False  # after steps that were measured
        self.started = time.monotonic()
        self.begun_within = options.begun_within

    def run(self, name: str) -> Run:
        """Make all launches and put the Run together."""
        started = time.time()
        machine = read_machine()
        if machine.devices:
            machine = read_machine(ask_torch=True)
        spec = replace(self.options.spec, mode="measure", seconds=self.options.seconds, num_steps=self.options.steps)
        outcome = self._launch(FIRST_LAUNCH, spec, expected=self.options.seconds)
        recorded = self._recorded(outcome)
        facts = recorded.facts() if self.options.quick else with_decoders(recorded.facts())
        self.ranks = steps_of_all(outcome.raws)
        ranks = compare_ranks(self.ranks) if self.ranks else None
        num_training = _num_training(outcome)
        facts = msgspec.structs.replace(
            facts,
            num_training_processes=num_training,
            ranks_per_host=ranks.ranks_per_host if ranks is not None else 1,
            forced_threads=ranks is not None and ranks.forced_threads,
        )
        further: list[Intervention] = []
        file_read = None
        shares = shares_of(recorded, outcome.samples, outcome.started)
        self.begun_within = self.options.begun_within_at(shares.step)
        start, end = recorded.window
        chosen = choose(
            facts,
            shares,
            machine,
            on=[fix.name for fix in self.options.spec.fixes],
            length=end - start if recorded.raw.ended_by == "script" else math.inf,
        )
        if not self.options.quick and not self.failed:
            further, chosen = self._further(chosen, recorded)
            files = [f for loader in facts.loaders if loader.role == "train" for f in loader.files]
            file_read = read_twice(files) if files else None
        run = run_of(
            recorded,
            name=name,
            command=self.argv,
            started=started,
            zero=outcome.started,
            machine=machine,
            samples=outcome.samples,
            sampler_cpu=outcome.sampler_cpu / max(outcome.seconds, 1e-9),
        )
        if num_training > 1 and ranks is None:
            self.notes.insert(0, ONE_OF_SEVERAL.format(num_training))
        return msgspec.structs.replace(
            run,
            exit_code=outcome.exit_code,
            facts=facts,
            interventions=tuple(further),
            untried=_untried(chosen, further),
            file_read=file_read,
            sandbox=self.workspace.form,
            ranks=ranks,
            notes=tuple(self.notes),
        )

    # ------------------------------------------------------------------------------------------ launches

    def _launch(
        self,
        what: str,
        spec: LaunchSpec,
        *,
        expected: float,
        environment: Mapping[str, str] | None = None,
    ) -> Outcome:
        folder, quiet = self.workspace.new_folder(), spec.mode != "measure"
        with contextlib.ExitStack() as stack:
            output = self.options.script_output
            if quiet:
                output = stack.enter_context((folder / OUTPUT).open("wb")).fileno()
            launch = Launch(
                command=self.command,
                spec=spec,
                folder=folder,
                workspace=self.workspace,
                environment={**self.options.environment, **(environment or {})},
                output=output,
                quiet=quiet,
                patience=self.options.patience,
                on_status=lambda status: self.on_progress(what, status.seconds, expected),
            )
            return launch.run()

    def _recorded(self, outcome: Outcome) -> Recorded:
        """The record of the process that trained. Raises when there is none."""
        code = outcome.exit_code
        trained = [raw for raw in outcome.raws if raw.first_step_at is not None]
        lost = lost_ranks(trained)
        if code not in (0, None) and not lost:
            raise ScriptError(failure(code, outcome), exit_code=code)
        if not trained:
            raise NoStepError(why_no_step(outcome))
        raw = busiest(trained)
        lines = [s for s in outcome.stages if s.loader is None or s.pid == raw.pid]
        recorded = Recorded(raw, lines)
        if not recorded.measured:
            raise NoStepError(
                f"the script ended after {raw.num_steps} optimizer steps, too few to measure; "
                "give it more data or epochs"
            )
        if code not in (0, None):
            self.failed = True
            self.notes.append(
                f"the script failed with exit code {code} after {len(recorded.measured)} steps; {format.ranks(lost)} on "
                "another host may have ended: its own message is above"
            )
        for trouble in (raw.facts_trouble, raw.trouble):
            if trouble:
                self.notes.append(f"something could not be measured: {trouble}")
        if raw.outside_sandbox:
            self.notes.append(
                "the processes were started by a service such as Slurm's, outside the sandbox: files that other programs "
                "than Python change stay changed; to be safe, start hasten within the job, around torchrun or python"
            )
        if raw.redirected_late:
            self.notes.append(
                "until `import torch` the script's file writes were not redirected; does it start Python with -S or -I?"
            )
        if raw.ended_by == "script":
            self.notes.append(f"the script ended by itself after {len(recorded.measured)} measured steps")
        return recorded

    def _further(
        self, chosen: Sequence[FollowUpRun], base: Recorded
    ) -> tuple[list[Intervention], Sequence[FollowUpRun]]:
        """What they showed, and those that were worth their time: what may save most first."""
        found: list[Intervention] = []
        waiting, begun = list(chosen), list[FollowUpRun]()
        while waiting and not self._time_over():
            further = max(waiting, key=lambda f: min(f.expected, f.most(found)))
            waiting.remove(further)
            if further.most(found) < WORTH:
                continue
            begun.append(further)
            causes = [cause.replace("_", " ") for cause in further.causes] or ["data loading"]
            subject = ", ".join(causes[:SHOWN_CAUSES]) + (", ..." if len(causes) > SHOWN_CAUSES else "")
            what = f"trying without {subject} (launch {len(begun)} of up to {len(begun) + len(waiting)})"
            try:
                found += self._tried(what, further, base)
            except KeyboardInterrupt as stop:
                if self.options.on_stopped is None:
                    raise
                self.options.on_stopped(stop)
                self.notes.append("interrupted before all causes were tried")
                waiting.append(begun.pop())
                break
        return found, [*begun, *(further for further in waiting if further.most(found) >= WORTH)]

    def _tried(self, what: str, further: FollowUpRun, base: Recorded) -> list[Intervention]:
        """What one further launch showed."""
        if further.interventions is not None:
            return self._alternating(what, further)
        outcome = self._one(what, further)
        if outcome is None:
            return []
        tried = against(further, _read(outcome), base)
        if promising(tried):
            # The first run was minutes ago, and a shared machine drifts: what counts is a plain run beside it.
            plain = self._one(what + ", baseline", further.baseline())
            tried = against(further, _read(outcome), _read(plain)) if plain is not None else tried
        if may_be_luck(tried) and not self._time_over(further.seconds):
            plain, outcome = (self._one(what + ", again", one) for one in (further.baseline(), further))
            if plain is not None and outcome is not None:
                tried = of_two_pairs(tried, against(further, _read(outcome), _read(plain)))
        return [tried]

    def _time_over(self, needed: float = 0.0) -> bool:
        return time.monotonic() - self.started + needed > self.begun_within

    def _alternating(self, what: str, further: FollowUpRun) -> list[Intervention]:
        """All switches of one launch; what it does not come to, in further ones."""
        found: dict[str, Intervention] = {}
        left: FollowUpRun | None = further
        while left is not None and not self._time_over():
            outcome = self._one(what, left)
            if outcome is None:
                break
            recorded = _read(outcome)
            found.update({tried.name: tried for tried in read_switches(recorded)})
            broken = broken_segment(recorded)
            if broken is not None:
                self.notes.append(f"{broken}: the script failed under it: {outcome.last_line}")
            left = left.remaining_after(recorded)
        return list(found.values())

    def _one(self, what: str, further: FollowUpRun) -> Outcome | None:
        """One further launch; None, and a note, when the script did not train under it."""
        base, asked = self.options.spec, further.interventions
        fixes = {fix.name: fix for fix in (*base.fixes, *further.fixes)}  # its own in the place of their namesakes
        spec = replace(base, mode="plain", seconds=further.seconds, fixes=tuple(fixes.values()), brief=further.brief)
        expected = further.seconds + LEAST_SECONDS
        if asked is not None:
            within = self.begun_within - (time.monotonic() - self.started)
            spec = replace(spec, mode="interventions", interventions=replace(asked, within=within))
            expected += LEAST_SECONDS * len(asked.switches)
        try:
            outcome = self._launch(what, spec, expected=expected, environment=further.environment)
        except NoStepError as error:
            self.notes.append(f"{further.name}: {error}")
            return None
        if not any(raw.num_steps for raw in outcome.raws):
            self.notes.append(f"{further.name}: the script failed under it: {outcome.last_line}")
            return None
        return outcome


def _untried(chosen: Sequence[FollowUpRun], made: Sequence[Intervention]) -> tuple[str, ...]:
    causes = [cause for further in chosen for cause in further.causes]
    known = {tried.name for tried in made if tried.ratio is not None or tried.note != TOO_FEW}
    return tuple(cause for cause in causes if cause not in known)


def _read(outcome: Outcome) -> Recorded:
    """The record of the process that made most steps."""
    return Recorded(busiest(outcome.raws), outcome.stages, exit_code=outcome.exit_code)


def run_of(
    recorded: Recorded,
    *,
    name: str,
    command: tuple[str, ...],
    started: float,
    zero: float,
    machine: Machine,
    samples: Sequence[ResourceSample],
    sampler_cpu: float,
) -> Run:
    """The Run of one process's record; its clock's zero is `zero`, `started` the same instant since 1970."""
    first = recorded.raw.first_step_at
    return Run(
        version=RECORD_VERSION,
        hasten=__version__,
        id=name,
        command=command,
        directory=os.getcwd(),
        started=started,
        ended_by=recorded.raw.ended_by,
        exit_code=None,
        machine=machine,
        facts=recorded.facts(),
        steps=recorded.steps_record(zero=zero),
        first_step_seconds=None if first is None else first - zero,
        hot_lines=recorded.hot_lines(),
        sync_points=recorded.sync_points(),
        resources=tuple(samples),
        overhead=recorded.overhead(sampler_cpu=sampler_cpu),
        timeline=timeline_of(recorded, zero=zero),
    )


def _num_training(outcome: Outcome) -> int:
    return max(1, sum(1 for raw in outcome.raws if raw.first_step_at is not None))
