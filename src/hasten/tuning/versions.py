"""Two versions of a script: is the new one faster, and does it train as well?

Nothing is known of what was changed, so how strict the comparison is follows from what both are seen to do at equal seeds.
Equal batches and losses, to the bit, are the same computation. Equal batches whose first loss and gradients agree within
rounding, or within what fewer bits explain, compute the same; then the course of the losses decides, as in the quality check
of a plan. A first loss that is another is another model, or another loss: lower values of it prove nothing. Where batches
are others because samples draw other random numbers, both are compared once these follow from each sample's index. Where
they are others still, epochs must hold as many samples, and the first losses must agree over seeds.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import statistics
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hasten import __version__
from hasten.diagnosis.case import Case
from hasten.errors import CommandError
from hasten.launch.launch import command_argv
from hasten.launch.results import RESULTS
from hasten.launch.side import BaselineError, Bench, Frequencies, SideError
from hasten.measurement.diagnose import situation_of
from hasten.measurement.measure import MeasureOptions, measure
from hasten.raw_run import RawQuality
from hasten.records import RECORD_VERSION, Check, Facts, Guarantee, Run, Settings, VersionProof
from hasten.safe_text import redacted
from hasten.sandbox.workspace import Workspace
from hasten.stats import mean_interval
from hasten.tuning import quality
from hasten.tuning.budget import Progress
from hasten.tuning.evaluator import FEWEST, RANDOM_BY_INDEX, SEEDS, Evaluator, rounding, verdict_of
from hasten.tuning.trial import compare
from hasten.tuning.trial_config import config_for

COUNTED = 1.6  # times: what is counted in a few seconds differs by less for no reason
SAME_DATA = 0.02  # relative difference of the samples of an epoch that a dropped last batch explains
SAME_START = 0.02  # relative difference of first losses over seeds
# What a sample draws follows from its index; and workers that stay take no numbers from the generator of the order.
SAME_DRAWS: Settings = {**RANDOM_BY_INDEX, "num_workers": 1, "persistent_workers": True}


@dataclass(frozen=True, kw_only=True)
class Version:
    """A command, and how it is shown."""

    argv: Sequence[str]
    module: bool = False
    shown: tuple[str, ...] = ()  # as the user wrote it

    @property
    def name(self) -> tuple[str, ...]:
        """What a record calls it."""
        return self.shown or redacted(("-m", *self.argv) if self.module else self.argv)


@contextlib.contextmanager
def of_revision(revision: str, new: Version) -> Generator[Version]:
    """The script or module as it was in a commit, with the files beside it, in a folder that is gone afterwards.

    It runs in the same working directory, so data is found where it is now. Raises CommandError.
    """
    name = new.argv[0] if new.argv else ""
    if not new.module and not name.endswith(".py"):
        raise CommandError(
            "--git needs a script or a module: `hasten prove --git REVISION train.py ...`, or -m train"
        )
    files = [f"{name.replace('.', '/')}.py", f"{name.replace('.', '/')}/__main__.py"] if new.module else [name]
    script = next((Path(file).resolve() for file in files if Path(file).is_file()), None)
    if script is None:
        what = f"no {files[0]} in the working directory" if new.module else f"no such script: {name}"
        raise CommandError(f"{what}; check the path and the working directory")
    beside = Path.cwd() if new.module else script.parent
    try:
        git = ["git", "-C", os.fspath(beside)]
        root = subprocess.run([*git, "rev-parse", "--show-toplevel"], capture_output=True, text=True, check=True)
        top = Path(root.stdout.strip()).resolve()
        git = ["git", "-C", os.fspath(top)]
        archive = subprocess.run([*git, "archive", "--format=tar", revision], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
        text = said.decode(errors="replace") if isinstance(said, bytes) else said
        raise CommandError(f"git has no {revision} of {name}: {text.strip().splitlines()[-1]}") from None
    with tempfile.TemporaryDirectory(prefix="hasten-old-") as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as members:
            members.extraction_filter = lambda member, _to: member  # the user's own files, links out of them included
            members.extractall(folder)
        place = Path(folder) / script.relative_to(top) if script.is_relative_to(top) else None
        if place is None or not place.is_file():
            raise CommandError(f"{name} is not in {revision}; compare two files: `hasten prove OLD.py -- NEW.py`")
        if new.module:  # -m would look for it in the working directory
            place = Path(folder) / beside.resolve().relative_to(top) / "start_old_version.py"
            place.write_text(f"import runpy\nrunpy.run_module({name!r}, run_name='__main__', alter_sys=True)\n")
        shown = name if new.module else script.relative_to(top).as_posix()
        yield Version(argv=[os.fspath(place), *new.argv[1:]], shown=redacted((f"{revision}:{shown}", *new.argv[1:])))


def prove_versions(
    old: Version,
    new: Version,
    *,
    seconds: float = 300.0,
    patience: float = 60.0,
    root: Path = RESULTS,
    script_output: int | None = None,
    on_progress: Progress = lambda _w, _d, _o: None,
) -> VersionProof:
    """Compare two versions. Raises HastenError for what the user can fix.

    Args:
        old: the version that is held against.
        new: the version to be proven.
        seconds: what the comparison may take, about.
        patience: seconds to wait for a script's first step.
        root: where the two measured runs are kept.
        script_output: file descriptor for what the scripts print while they are measured; None: leave it.
        on_progress: is given what is done, the seconds spent, and of how many.
    """
    began = time.monotonic()

    def report(what: str) -> None:
        on_progress(what, time.monotonic() - began, seconds)

    def left() -> float:
        return seconds - (time.monotonic() - began)

    commands = [command_argv(version.argv, module=version.module) for version in (old, new)]
    with Workspace() as workspace:
        runs: list[Run] = []
        for version, name in ((old, "old"), (new, "new")):
            report(f"measuring the {name} version")
            options = MeasureOptions(seconds=6.0, patience=patience, quick=True, script_output=script_output)
            run, _ = measure(version.argv, module=version.module, options=options, root=root, workspace=workspace)
            runs.append(run)
        benches = [Bench(command, workspace, patience=patience) for command in commands]
        one, other = (_evaluator(bench, runs[0], report, left, is_old=bench is benches[0]) for bench in benches)
        checks, guarantee = _checked(one, other, runs)
        report("comparing the speed")
        trial = compare(
            (benches[0], {}),
            (benches[1], {}),
            fix="version",
            frequencies=Frequencies.of(runs[0].facts),
            candidates=Frequencies.of(runs[1].facts),
            config=config_for(situation_of(runs[0], {}), {}),
            gives_up=False,
            time_left=left,
        )
    before, now = (side.evaluated_before({}) for side in (one, other))
    return VersionProof(
        version=RECORD_VERSION,
        hasten=__version__,
        old=old.name,
        new=new.name,
        machine=runs[0].machine,
        verdict=trial.verdict,
        quality=verdict_of(checks),
        speedup=trial.speedup,
        old_seconds=trial.baseline_seconds,
        new_seconds=trial.candidate_seconds,
        guarantee=guarantee,
        checks=tuple(checks),
        old_losses=quality.finite(before.losses) if before is not None else (),
        new_losses=quality.finite(now.losses) if now is not None else (),
        differences=tuple(differences(*(run.facts for run in runs))),
        notes=(trial.note,) if trial.note else (),
        seconds=time.monotonic() - began,
    )


def _evaluator(
    bench: Bench, run: Run, report: Callable[[str], None], left: Callable[[], float], *, is_old: bool
) -> Evaluator:
    """Launches of one version; for as many steps as the old one's pace allows, so that both make the same number."""
    case: Case = situation_of(run, {}).case
    return Evaluator(
        bench=bench,
        step_seconds=case.step,
        steps_per_epoch=case.facts.steps_per_epoch,
        batches_per_step=case.batches,
        on_launch=lambda _: report("comparing what is learned"),
        time_left=left,
        is_reference=is_old,
    )


def _checked(one: Evaluator, other: Evaluator, runs: Sequence[Run]) -> tuple[list[Check], Guarantee | None]:
    checks: list[Check] = []
    try:
        return checks, _check(one, other, runs, checks)
    except BaselineError as error:
        checks.append(quality.unknown("training", f"the old version did not train: {error}"))
        return checks, None
    except SideError as error:
        checks.append(quality.failed("training", str(error)))
        return checks, None


def _check(one: Evaluator, other: Evaluator, runs: Sequence[Run], checks: list[Check]) -> Guarantee | None:
    """Add the checks; return how closely both compute the same."""
    old, new = one.evaluate({}), other.evaluate({})
    checks += [quality.losses_seen(old, new), quality.parameters_move(old, new)]
    same_data = _same_data(*(run.facts for run in runs))
    checks += [same_data] if same_data is not None else []
    if checks[0].state != "passed" or any(check.state == "failed" for check in checks):
        return None
    checks.append(quality.samples_vary(old, new, comes_again=one.comes_again))
    again = one.evaluate({}, number=1)
    batches = _same_batches(old, new, again)
    held_out = quality.held_out_equal(old, new, again)
    drawn: Settings = {}  # under which both are compared
    if batches.state != "passed" and old.batches and new.batches:
        repeated = _same_batches_by_index(one, other)
        if repeated is not None:
            batches, drawn = repeated, SAME_DRAWS
            if one.time_left() > 4 * SEEDS[0] * one.launch_seconds:
                own = one.seeds({}, {}, SEEDS[0])[0], other.seeds({}, {}, SEEDS[0])[0]
                checks.append(quality.named("random draws", quality.within_band(*own, is_script=True)))
            old, new, again = one.evaluate(drawn), other.evaluate(drawn), one.evaluate(drawn, number=1)
    checks += [batches] + ([held_out] if held_out is not None else [])
    same_batches = batches.state == "passed" or not (old.batches or new.batches)
    identical = quality.losses_identical(old, new, again)
    if same_batches and identical.state == "passed":
        checks.append(identical)
        return "identical"
    # Otherwise equal seeds give no equal start, and only several seeds can tell.
    if same_batches and not quality.differs_from_itself(old, again):
        rounded = rounding(old, new, again, lambda bits: one.evaluate(drawn, perturb=bits))
        if rounded.state == "passed":
            checks.append(rounded)
            return "rounding"
        start = quality.same_start(old, new)
        checks.append(start)
        if start.state == "failed":
            return None
    sides = one.seeds(drawn, drawn, SEEDS[0])[0], other.seeds(drawn, drawn, SEEDS[0])[0]
    if not any(check.what == "start" for check in checks):
        checks.append(_start_over_seeds([s.losses[0] for s in sides[0]], [s.losses[0] for s in sides[1]]))
    band = quality.within_band(*sides)
    if band.state != "passed" and band.what == "band" and one.time_left() > 4 * one.launch_seconds:
        # Three seeds are wrong one time in forty: before a version is said to train worse, more must say so, too.
        harmed = band.state == "failed"
        number = SEEDS[1] if harmed else quality.seeds_wanted(*sides, fewest=SEEDS[0], most=SEEDS[1])
        in_time = min(SEEDS[1], one.time_left() / max(2 * one.launch_seconds, 1e-3))
        number = min(number, SEEDS[0] + int(in_time))
        if number >= (FEWEST if harmed else SEEDS[0] + 1):
            band = quality.within_band(one.seeds(drawn, drawn, number)[0], other.seeds(drawn, drawn, number)[0])
    checks.append(band)
    return "precision"


def _same_batches(old: RawQuality, new: RawQuality, again: RawQuality) -> Check:
    check = quality.batches_equal(old, new, again)
    if check.state == "passed" or not old.batches or not new.batches:
        return check
    number = min(len(old.rows), len(new.rows))
    before, now = ({row for batch in side.rows[:number] for row in batch} for side in (old, new))
    if before and len(before & now) > 0.9 * len(before | now):
        return quality.unknown("batches", "the same samples come in another order")
    return quality.unknown("batches", "other samples come first, or they draw other random numbers")


def _same_batches_by_index(one: Evaluator, other: Evaluator) -> Check | None:
    """Under hasten's loader, where a sample's random numbers follow from its index, both train on the same batches.

    None if not, or if that loader does not hand out each version's own samples.
    """
    try:
        old, new = one.evaluate(SAME_DRAWS), other.evaluate(SAME_DRAWS)
    except SideError:
        return None
    for version, repeated in ((one, old), (other, new)):
        if quality.own_samples(version.evaluate({}), repeated, remade=repeated).state != "passed":
            return None
    equal = quality.batches_equal(old, new, old)
    text = f"samples draw other random numbers; with the same ones, {equal.text}"
    return quality.passed("batches", text) if equal.state == "passed" else None


def _start_over_seeds(old: Sequence[float], new: Sequence[float]) -> Check:
    """First losses of other batches agree on average."""
    apart = mean_interval([(b - a) / max(abs(a), 1e-12) for a, b in zip(old, new)])
    if not math.isfinite(apart.value) or (abs(apart.value) > SAME_START and not apart.low <= 0 <= apart.high):
        text = (
            f"the first loss is {statistics.fmean(new):.6g}, and was {statistics.fmean(old):.6g}, at {len(old)} seeds"
        )
        return quality.failed("start", f"{text}: the model or the loss is another")
    return quality.passed("start", f"the first losses agree on average over {len(old)} seeds")


def _samples_of(facts: Facts) -> float | None:
    """Samples of an epoch of training."""
    train = next((loader for loader in facts.loaders if loader.role == "train"), None)
    if train is None or train.num_batches is None or train.batch_size is None:
        return None
    return train.num_batches * train.batch_size


def _same_data(old: Facts, new: Facts) -> Check | None:
    """An epoch holds as many samples as before; None where epochs are not known."""
    before, now = _samples_of(old), _samples_of(new)
    if before is None or now is None:
        return None
    if now < (1 - SAME_DATA) * before and before - now >= _largest_batch(old, new):
        return quality.failed("data", f"an epoch has about {now:,.0f} samples, and had {before:,.0f}")
    return quality.passed("data", f"an epoch has about {now:,.0f} samples, as before")


def _largest_batch(*facts: Facts) -> int:
    return max(
        (loader.batch_size or 0 for each in facts for loader in each.loaders if loader.role == "train"), default=0
    )


def differences(old: Facts, new: Facts) -> list[str]:
    """What two versions do differently, as far as it was seen."""

    def of(facts: Facts) -> dict[str, str]:
        train = next((loader for loader in facts.loaders if loader.role == "train"), None)
        optimizer = next(iter(facts.optimizers), None)
        model = next(iter(facts.models), None)
        seen: dict[str, object] = {
            "batch size": train.batch_size if train is not None else None,
            "samples of an epoch": _samples_of(facts),
            "loader workers": train.num_workers if train is not None else None,
            "optimizer": optimizer.name if optimizer is not None else None,
            "trained parameters": optimizer.num_parameters if optimizer is not None else None,
            "model": model.name if model is not None else None,
            "dtypes of the model": ", ".join(model.dtypes) if model is not None else None,
            "autocast": "on" if facts.autocast else "off",
            "threads": facts.num_threads,
            "device": facts.device,
        }
        return {what: f"{value}" for what, value in seen.items() if value is not None}

    before, now = of(old), of(new)
    found = [
        f"{what}: {before.get(what, 'none')} before, now {now.get(what, 'none')}"
        for what in dict.fromkeys([*before, *now])
        if before.get(what) != now.get(what)
    ]
    then, since = old.steps_per_validation or 0.0, new.steps_per_validation or 0.0  # counted in a short window
    if then and since and max(then, since) >= COUNTED * min(then, since):
        found.append(f"steps between validations: about {then:.2g} before, now {since:.2g}")
    return found
