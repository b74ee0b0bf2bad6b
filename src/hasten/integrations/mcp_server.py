"""An MCP server: coding agents call hasten's commands as tools, with progress, cancellation and structured results.

Each tool runs the command of its name in a process of its own, so that a cancelled call ends it as Ctrl-C would, and nothing
of it stays behind.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import msgspec
from anyio.streams.text import TextReceiveStream
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

from hasten import __version__, format
from hasten.records import Diagnosis, Run, Tuning, VersionProof
from hasten.reports.tuning import headline, trial_line, version_headline

INSTRUCTIONS = """\
hasten measures PyTorch training scripts, finds what slows them down, and proves what makes them faster.
1. `diagnose` the script (about a minute). It changes nothing: the script's writes are discarded.
2. Either `tune` it (10 minutes): fixes that need no change of the source are proven and written to hasten.toml, and
   `hasten run SCRIPT ...` applies them. Or edit the source as a finding says.
3. `prove` every edit: it compares the old with the new version, for speed and for what is learned.
Never claim a speedup that was not proven. Let nothing else run on the machine meanwhile."""
PROGRESS = re.compile(r"hasten: \[([\d:]+)(?: of about [\d:]+)?\] (.*)")
LAST_LINES = 15  # of the script's output, in the message of a command that failed
GRACE = 20.0  # seconds that a cancelled command gets to end its processes
_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_RUNS = ToolAnnotations(read_only_hint=False, open_world_hint=True)  # a command that the model gives
# As the console script does: `python -m` would put the user's folder, with a statistics.py perhaps, first on the path.
_START = "import runpy, sys; sys.path.pop(0); runpy.run_module('hasten', run_name='__main__')"


@dataclass
class FoundCause:
    """One thing that slows the training down."""

    kind: str
    title: str
    saves_seconds_per_step: float
    saves_share: float
    confirmed: bool
    reasons: list[str]
    where: str
    remedy: str


@dataclass
class DiagnosisSummary:
    """Where the step's time goes, and what would help."""

    run: str
    verdict: str
    seconds_per_step: float
    samples_per_second: float | None
    phases: dict[str, float]
    findings: list[FoundCause]
    notes: list[str]


@dataclass
class TuningSummary:
    """What a tuning run found."""

    tuning: str
    result: str
    proven: bool
    speedup: list[float] | None
    settings: dict[str, bool | int | float | str]
    trials: list[str]
    suggestions: list[str]
    plan: str
    next: str


@dataclass
class ProofSummary:
    """How a new version compares with the old one."""

    result: str
    speed: str
    quality: str
    speedup: list[float] | None
    checks: list[str]
    differences: list[str]


@dataclass
class Explanation:
    """What a finding or a fix means, as Markdown."""

    text: str


async def diagnose(
    command: str, directory: str, ctx: Context, seconds: float = 20.0, quick: bool = False
) -> DiagnosisSummary:
    """Measure an unmodified training script and show where its time goes, and what would make it faster.

    Takes about a minute. Writes of the script are discarded.

    Args:
        command: the command line, for example "train.py --lr 0.1", "-m package.train" or "torchrun train.py".
        directory: the directory to run it in.
        seconds: how long its first run is measured, at most.
        quick: a single run: causes are estimated, not confirmed.
    """
    words = ["diagnose", "--seconds", f"{seconds:g}", *(["--quick"] if quick else [])]
    return _diagnosis_of(await _answer(words, command, directory, ctx))


async def tune(
    command: str, directory: str, ctx: Context, minutes: float = 10.0, metric: str | None = None
) -> TuningSummary:
    """Try fixes that need no change of the source, keep those that are proven, and write them to hasten.toml.

    Args:
        command: the command line, as in `diagnose`.
        directory: the directory to run it in; hasten.toml is written there.
        minutes: the time that it may take.
        metric: a regular expression with one group for a number in the script's output that must not get worse.
    """
    words = ["tune", "--budget", f"{60 * minutes:g}s", *(["--metric", metric] if metric else [])]
    found = await _answer(words, command, directory, ctx)
    return _tuning_of(msgspec.convert(found["tuning"], Tuning), plan=found["plan"])


async def prove(
    new: str, directory: str, ctx: Context, old: str | None = None, revision: str | None = None, minutes: float = 5.0
) -> ProofSummary:
    """Compare a changed script with its old version: is it faster, and does it train as well?

    Args:
        new: the command line of the new version.
        directory: the directory to run both in.
        old: the command line of the old version; or give `revision`.
        revision: the Git commit in which the script is the old version, for example "HEAD".
        minutes: the time that it may take.
    """
    if (old is None) == (revision is None):
        raise ToolError("give either `old` or `revision`")
    words = ["prove", "--budget", f"{60 * minutes:g}s", *(["--git", revision] if revision is not None else [])]
    command = new if old is None else f"{old} -- {new}"
    found = await _answer(words, command, directory, ctx)
    return _proof_of(msgspec.convert(found["proof"], VersionProof))


async def report(directory: str, ctx: Context, run: str = "last") -> DiagnosisSummary | TuningSummary:
    """Show an earlier result again, without running anything.

    Args:
        directory: the directory in which the command was run.
        run: the id of a run or a tuning run, "last", or "last~1".
    """
    found = await _answer(["report", run], "", directory, ctx)
    tuning = found.get("tuning")
    return _diagnosis_of(found) if tuning is None else _tuning_of(msgspec.convert(tuning, Tuning), plan="hasten.toml")


async def explain(ctx: Context, name: str | None = None) -> Explanation:
    """Say what a finding or a fix means, how it is detected and what to do; without a name, list all names."""
    found = await _answer(["explain", *([name] if name else [])], "", ".", ctx)
    return Explanation(text=found["explanation"])


def make_server() -> MCPServer:
    """The server with its tools."""
    server = MCPServer("hasten", version=__version__, instructions=INSTRUCTIONS)
    for tool, kind in (
        (diagnose, _RUNS),
        (tune, _RUNS),
        (prove, _RUNS),
        (report, _READS),
        (explain, _READS),
    ):
        server.tool(annotations=kind)(tool)
    return server


# ------------------------------------------------------------------------------------------------- the commands


async def _answer(words: list[str], command: str, directory: str, ctx: Context) -> dict[str, Any]:
    """The JSON of a command. Raises ToolError with its own message."""
    if not Path(directory).is_dir():
        raise ToolError(f"no such directory: {directory}")
    try:
        argv = [sys.executable, "-c", _START, words[0], "--json", *words[1:], *shlex.split(command)]
    except ValueError as error:
        raise ToolError(f"{command!r} is not a valid command line ({error})") from None
    printed: list[str] = []
    said: list[str] = []
    async with await anyio.open_process(argv, cwd=directory, stdin=subprocess.DEVNULL) as process:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_collect, process.stdout, printed)
                tasks.start_soon(_follow, process.stderr, said, ctx)
            code = await process.wait()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await _stop(process)
            raise
    text = "".join(printed)
    if code not in (0, 1) or not text.startswith(("{", "[")):
        own = [line.removeprefix("hasten: ") for line in said if line.startswith("hasten: ")]
        others = [line for line in said[-LAST_LINES:] if not line.startswith("hasten: ")]
        raise ToolError("\n".join([*own[-1:], *others]) or f"{words[0]} ended with exit code {code}")
    return msgspec.json.decode(text)


async def _collect(stream: Any, into: list[str]) -> None:
    async for text in TextReceiveStream(stream):
        into.append(text)


async def _follow(stream: Any, into: list[str], ctx: Context) -> None:
    """Pass progress lines on to the client; keep all others, the script's output among them."""
    rest = ""
    async for text in TextReceiveStream(stream, errors="replace"):
        *lines, rest = re.split(r"[\r\n]", rest + text)  # a progress bar of the script ends its lines with \r
        for line in lines:
            progress = PROGRESS.match(line)
            if progress is None:
                into.append(line)
                del into[:-100]
            else:
                await ctx.report_progress(_seconds(progress[1]), message=progress[2])
    if rest:
        into.append(rest)


def _seconds(clock: str) -> float:
    """Seconds of "1:02" or "1:00:02"."""
    total = 0
    for part in clock.split(":"):
        total = 60 * total + int(part)
    return float(total)


async def _stop(process: anyio.abc.Process) -> None:
    """End a command as Ctrl-C would: it ends what it has started."""
    try:
        process.send_signal(signal.SIGINT)
        with anyio.move_on_after(GRACE):
            await process.wait()
            return
        process.kill()
    except ProcessLookupError:
        pass


# -------------------------------------------------------------------------------------------------- the results


def _diagnosis_of(found: dict[str, Any]) -> DiagnosisSummary:
    run, diagnosis = msgspec.convert(found["run"], Run), msgspec.convert(found["diagnosis"], Diagnosis)
    breakdown = diagnosis.breakdown
    return DiagnosisSummary(
        run=run.id,
        verdict=diagnosis.verdict,
        seconds_per_step=breakdown.step_seconds,
        samples_per_second=breakdown.samples_per_second,
        phases={name: seconds for name, seconds in breakdown.phases.items() if seconds is not None},
        findings=[
            FoundCause(
                kind=finding.kind,
                title=finding.title,
                saves_seconds_per_step=finding.recoverable,
                saves_share=finding.recoverable / breakdown.step_seconds if breakdown.step_seconds > 0 else 0.0,
                confirmed=finding.confirmed_by is not None,
                reasons=list(finding.because),
                where=format.place(finding.where, directory=run.directory, unknown=""),
                remedy=finding.remedy,
            )
            for finding in diagnosis.findings
        ],
        notes=list(run.notes),
    )


def _tuning_of(tuning: Tuning, *, plan: str) -> TuningSummary:
    proof = tuning.proof
    return TuningSummary(
        tuning=tuning.id,
        result=headline(tuning),
        proven=bool(tuning.settings) and proof is not None and proof.verdict == "proven",
        speedup=_numbers(proof.speedup) if proof is not None else None,
        settings=dict(tuning.settings),
        trials=[trial_line(trial, tuning) for trial in tuning.trials],
        suggestions=[f"{one.file}:{one.line}: {one.title}\n{one.example}" for one in tuning.suggestions],
        plan=plan,
        next=shlex.join(["hasten", "run", *tuning.command]) if tuning.settings else "",
    )


def _proof_of(proof: VersionProof) -> ProofSummary:
    return ProofSummary(
        result=version_headline(proof),
        speed=proof.verdict,
        quality=proof.quality,
        speedup=_numbers(proof.speedup),
        checks=[f"{check.state}: {check.text}" for check in proof.checks],
        differences=list(proof.differences),
    )


def _numbers(interval: Any) -> list[float] | None:
    """Value, low and high end."""
    return None if interval is None else [interval.value, interval.low, interval.high]
