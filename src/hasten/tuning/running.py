"""Run the script under a plan: on POSIX systems this process becomes the script's own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hasten import format
from hasten.errors import CommandError
from hasten.launch.environment import plugin_environment
from hasten.launch.results import FOLLOWED, make_root
from hasten.optimizations.catalog import specs_of, variables_of
from hasten.protocol import FOLDER_VARIABLE, SPEC_VARIABLE, Following, LaunchSpec, to_json
from hasten.safe_text import redacted
from hasten.tuning.plan import Plan, script_of


def run_under(plan: Plan, command: Sequence[str], *, recorded: Sequence[str], root: Path) -> int:
    """Run the command under the plan; its exit code, where this process cannot become the command's.

    `recorded`: the command as the user wrote it.
    """
    environment = environment_of(plan, recorded=recorded, root=root)
    if environment.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        print(
            "hasten: the plan is not applied: TORCH_DEVICE_BACKEND_AUTOLOAD=0 prevents it; unset it", file=sys.stderr
        )
    else:
        fixes = format.settings(plan.settings, none="no fixes")
        print(f"hasten: running with {fixes}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        if os.name == "posix":
            os.execvpe(command[0], list(command), environment)
        return subprocess.call(command, env=environment)
    except OSError as error:
        raise CommandError(f"{command[0]} cannot be started ({error.strerror}); try `python {command[0]}`") from None


def environment_of(plan: Plan, *, recorded: Sequence[str], root: Path) -> dict[str, str]:
    """The environment of a run under a plan."""
    make_root(root)
    following = Following(
        script=script_of(recorded),
        settings=plan.settings,
        log=os.fspath((root / FOLLOWED).resolve()),
        proof=plan.seen if plan.command == redacted(recorded) else None,
    )
    environment = plugin_environment(variables_of(plan.settings))
    if FOLDER_VARIABLE not in environment:  # a command that is being measured stays so
        environment[SPEC_VARIABLE] = to_json(
            LaunchSpec(mode="follow", fixes=specs_of(plan.settings), following=following)
        )
    return environment
