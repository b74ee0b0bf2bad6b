"""`hasten.toml`: the plan that a person reads, edits and commits.

Each setting is a line with what it gained. Unknown keys and invalid values are refused in one line that says where they
are.
"""

from __future__ import annotations

import os
import shlex
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from hasten import format
from hasten.errors import DirectoryError, PlanError
from hasten.optimizations.catalog import CATALOG, checked, enabled_in, nearest
from hasten.protocol import SeenInProof
from hasten.records import Machine, Proof, Settings, Trial, Tuning, Value
from hasten.reports.tuning import SUGGESTION, cache_line, outcome, pure_line, suggested, taken_out, why_empty
from hasten.safe_text import legible
from hasten.tuning.evaluator import LASTING
from hasten.tuning.quality import FEWEST_LOSSES

NAME = "hasten.toml"
SECTIONS = ("made", "machine", "fixes", "cache")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Settings, and what they were proven on."""

    settings: Settings
    command: tuple[str, ...] = ()
    proof: str = "not proven"
    seen: SeenInProof | None = None  # see `what_was_seen`
    machine: Mapping[str, str] = field(default_factory=dict)
    source: str = NAME

    @property
    def is_proven(self) -> bool:
        """Whether it was faster and passed the quality check when it was made."""
        return self.proof == "proven"


def read_plan(path: Path) -> Plan:
    """The plan of a file. Raises PlanError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PlanError(f"there is no plan at {path}; `hasten tune` makes one, `--auto` makes one first") from None
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path} cannot be read ({error}); recreate it with `hasten tune`") from None
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # what is nested too deep, or has too many digits, among them
        raise PlanError(
            f"{path} is not valid TOML ({error}); fix the line, or recreate the file with `hasten tune`"
        ) from None
    for name, section in data.items():
        if name not in SECTIONS:
            hint = f"put it under [fixes]: {name} = ..." if name in CATALOG else f"there is {', '.join(SECTIONS)}"
            raise PlanError(f"{path}: unknown section or key {name}; {hint}")
        if not isinstance(section, dict):
            raise PlanError(f"{path}: {name} must be a section, written [{name}]")
    try:
        settings = checked({**data.get("fixes", {}), **_pure(data.get("cache", {}))})
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from None
    made = _of_kinds(data.get("made", {}), _MADE, path, "made")
    machine = data.get("machine", {})
    return Plan(
        settings={name: value for name, value in settings.items() if value is not False},  # left to the script
        command=tuple(made.get("command", ())),
        proof=made.get("proof", "not proven"),
        seen=_seen(made),
        machine={str(name): str(value) for name, value in machine.items()},
        source=str(path),
    )


def _pure(section: Mapping[str, Any]) -> dict[str, object]:
    """The functions that the user vouches for, as a setting. Raises PlanError."""
    names = section.get("pure", [])
    if {*section} - {"pure"} or not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise PlanError('[cache] holds pure = ["package.module:function", ...] and nothing else')
    return {"pure": ",".join(names)} if names else {}


_MADE: dict[str, tuple[type, ...]] = {
    "hasten": (str,),
    "date": (str,),
    "command": (list,),
    "proof": (str,),
    "baseline_rate": (int, float),
    "plan_rate": (int, float),
    "loss": (int, float),
    "loss_spread": (int, float),
    "loss_steps": (int,),
    "batch_mean": (int, float),
    "batch_spread": (int, float),
}


def _of_kinds(
    section: Mapping[str, Any], kinds: Mapping[str, tuple[type, ...]], path: Path, name: str
) -> dict[str, Any]:
    for key, value in section.items():
        if key not in kinds:
            raise PlanError(f"{path}: unknown key {key} in [{name}]; {nearest(key, kinds)}")
        if not isinstance(value, kinds[key]) or isinstance(value, bool):
            raise PlanError(f"{path}: {key} in [{name}] is of the wrong kind; take the line out")
    if any(not isinstance(word, str) for word in section.get("command", ())):
        raise PlanError(f"{path}: command in [{name}] must be a list of words")
    return dict(section)


def with_changes(plan: Plan, changes: Sequence[str]) -> Plan:
    """The plan with `name=value` settings of the command line. Raises PlanError."""
    settings: dict[str, object] = dict(plan.settings)
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise PlanError(f"--set {change} has no value; write {_examples(name)}")
        settings[name.strip()] = _value(text.strip())
    return Plan(
        settings=checked(settings),
        command=plan.command,
        proof=plan.proof if checked(settings) == plan.settings else "not proven",
        seen=plan.seen,
        machine=plan.machine,
        source=plan.source,
    )


def _examples(name: str) -> str:
    """How a setting is written on the command line."""
    is_switch = name in CATALOG and CATALOG[name].kind == "switch"
    return f"--set {name}=true or --set {name}=false" if is_switch else f"--set {name}=VALUE"


def _value(text: str) -> Value:
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except (ValueError, RecursionError):
        return text  # a word need not be quoted on the command line


def doubts(plan: Plan, machine: Machine, command: Sequence[str]) -> list[str]:
    """What speaks against the plan here, one line each. Raises PlanError when it is of another script."""
    script, here = script_of(plan.command), script_of(command)
    if script and here and Path(script).name != Path(here).name:
        raise PlanError(
            f"{plan.source} is of {script}, not of {here}; run `hasten tune {here}`, or name a plan with --plan"
        )
    on = enabled_in(plan.settings)
    if not on:
        return []
    lines: list[str] = []
    now = machine_lines(machine)
    other = [name for name, value in plan.machine.items() if now.get(name) not in (None, value)]
    if other:
        was = ", ".join(f"{name} {plan.machine[name]}" for name in other)
        doubted = [name for name in on if not CATALOG[name].on_any_machine]
        which = f"; not validated on this machine: {', '.join(doubted)}" if doubted else ""
        lines.append(f"the plan was made on another machine ({was}){which}; `hasten tune` proves it here")
    if plan.command and plan.proof != "proven":
        lines.append(f"the plan is {plan.proof}")
    return lines


def script_of(command: Sequence[str]) -> str:
    """The script's file, or the module's name, in the words of a command; empty where neither is there."""
    return next(
        (word for word in command if word.endswith(".py")), "".join(command[1:2]) if command[:1] == ("-m",) else ""
    )


def machine_lines(machine: Machine) -> dict[str, str]:
    """What a plan depends on, as it is written and compared."""
    lines = {"cpu": machine.cpu, "cores": f"{machine.num_cores:g}", "torch": machine.torch or "unknown"}
    if machine.devices:
        lines["device"] = ", ".join(device.name for device in machine.devices)
    return lines


# --------------------------------------------------------------------------------------------------- writing


def check_place(path: Path) -> None:
    """Raises DirectoryError where no plan can be written: better before a search than behind it."""
    if path.is_dir():
        raise DirectoryError(f"cannot write {path} (it is a folder); name a file with --plan")
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.touch()
        part.unlink()
    except OSError as error:
        raise DirectoryError(f"cannot write {path} ({error.strerror}); name another place with --plan") from None


def write_plan(path: Path, tuning: Tuning) -> None:
    """Write the plan of a search; the functions that the user vouches for stay in it. Raises DirectoryError."""
    try:
        vouched = read_plan(path).settings.get("pure")
    except PlanError:  # there is none, or none that can be read
        vouched = None
    try:
        part = path.with_name(f".{path.name}.{os.getpid()}")
        part.write_text(plan_text(tuning, vouched=str(vouched or "")), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise DirectoryError(f"cannot write {path} ({error.strerror}); name another place with --plan") from None


def plan_text(tuning: Tuning, *, vouched: str = "") -> str:
    """The plan as a file's text; `vouched`: functions that the user vouches for, with commas between them."""
    proof = tuning.proof
    words = legible(shlex.join(tuning.command))
    lines = [f"# hasten's plan for {words}", *(f"# {legible(line)}" for line in _header(tuning)), "#"]
    lines += [
        "# Each line under [fixes] is a setting: change it, or set it to false.",
        f"# `hasten run {words}` trains under this plan.",
        "",
        "[made]",
        f"hasten = {_toml(tuning.hasten)}",
        f"date = {_toml(time.strftime('%Y-%m-%d', time.gmtime(tuning.started)))}",
        f"command = [{', '.join(_toml(word) for word in tuning.command)}]",
        f"proof = {_toml(proof.verdict if proof is not None else 'not proven')}",
    ]
    if proof is not None and proof.baseline_rate and proof.plan_rate:
        lines += [f"baseline_rate = {proof.baseline_rate:.5g}  # samples per second"]
        lines += [f"plan_rate = {proof.plan_rate:.5g}"]
    if proof is not None:
        seen = vars(what_was_seen(proof, tuning.settings))
        lines += [f"{name} = {value:.6g}" for name, value in seen.items() if value is not None]
    lines += [
        "",
        "[machine]",
        *(f"{k} = {_toml(v)}" for k, v in machine_lines(tuning.machine).items()),
        "",
        "[fixes]",
    ]
    return "\n".join([*lines, *_fix_lines(tuning), *_cache_section(tuning, vouched)]) + "\n"


def _cache_section(tuning: Tuning, vouched: str) -> list[str]:
    """What the user vouches for; else what they may, as a comment."""
    if vouched:
        return ["", "[cache]", pure_line(vouched)]
    trial = suggested(tuning)
    if trial is None:
        return []
    speed = format.ratio_interval(trial.speedup)
    return [
        "",
        *(
            f"# {legible(line)}"
            for line in (f"{speed} as fast: {SUGGESTION}", "[cache]", pure_line(str(trial.value)))
        ),
    ]


def what_was_seen(proof: Proof, settings: Settings) -> SeenInProof:
    """What `hasten run` looks at: how low the loss was under the plan after the proof's steps, and what batches were like.

    The loss is left out if epochs may have been cut short, because the same few batches are learned sooner.
    """
    found = SeenInProof()
    losses = [loss for loss in proof.plan_losses if loss is not None]
    end = losses[2 * len(losses) // 3 :]
    if len(losses) >= FEWEST_LOSSES and len(losses) == len(proof.plan_losses) and not LASTING & {*settings}:
        seeds = next((sides.plan for sides in proof.measured if sides.what == "loss"), ())
        spread = max(statistics.stdev(values) for values in (end, seeds) if len(values) > 1)
        found = SeenInProof(loss=statistics.fmean(end), loss_spread=spread, loss_steps=len(losses))
    if len(proof.plan_batches) >= FEWEST_LOSSES:
        batches = proof.plan_batches
        found = replace(found, batch_mean=statistics.fmean(batches), batch_spread=statistics.stdev(batches))
    return found


def _seen(made: Mapping[str, Any]) -> SeenInProof | None:
    found = {name: made[name] for name in vars(SeenInProof()) if name in made}
    return SeenInProof(**found) if found else None


def _header(tuning: Tuning) -> list[str]:
    proof = tuning.proof
    if not tuning.settings:
        return [f"Empty: {why_empty(tuning)}."]
    if proof is None:
        return ["NOT PROVEN: the search did not get that far."]
    speed = f"{format.ratio_interval(proof.speedup)}; " if proof.speedup is not None else ""
    if proof.target_speedup is not None:
        speed = f"reaches the target {format.ratio_interval(proof.target_speedup)} sooner; "
    if proof.verdict == "proven":
        return [f"Proven: {speed}quality check passed ({proof.guarantee})."]
    reasons = [check.text for check in proof.checks if check.state != "passed"]
    return [f"{proof.verdict.upper()}: {speed}" + "; ".join(reasons)]


def _fix_lines(tuning: Tuning) -> list[str]:
    trials: dict[str, Trial] = {}
    for trial in tuning.trials:
        for name in trial.added:
            if trial.verdict == "faster" or name not in trials or name not in tuning.settings:
                trials[name] = trial
    rows: list[tuple[str, str]] = []
    for name, fix in CATALOG.items():
        trial = trials.get(name)
        if name in tuning.settings:
            gained = ""
            if trial is not None and trial.speedup is not None:
                others = [other for other in trial.added if other != name]
                beside = f" together with {', '.join(others)}" if others else ""
                gained = f"{format.ratio_interval(trial.speedup)}{beside}, "
            where = f"; {line}" if fix.kind == "size" and (line := cache_line(tuning)) else ""
            rows.append((f"{name} = {_toml(tuning.settings[name])}", f"{gained}{fix.guarantee}: {fix.title}{where}"))
        elif trial is not None and not fix.only_by_user:
            value = _toml(trial.added[name])
            rows.append((f"{name} = false", f"tried ({value}): {_why_dropped(name, trial, tuning)}"))
    width = max((len(setting) for setting, _ in rows), default=0)
    return [f"{setting:<{width}}  # {legible(comment)}" for setting, comment in rows]


def _why_dropped(name: str, trial: Trial, tuning: Tuning) -> str:
    if tuning.proof is not None and name in tuning.proof.broken_by:
        return taken_out(tuning.proof)[name]
    speed = f", {format.ratio_interval(trial.speedup)}" if trial.speedup is not None else ""
    if trial.verdict == "faster":
        return "no further gain with the other settings"
    return f"{outcome(trial, tuning)}{speed}" + (f" ({trial.note})" if trial.note else "")


def _toml(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        text = value.encode("utf-8", "backslashreplace").decode()  # a file's name may hold bytes that are no text
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'
    return str(value)
