"""The verbs. Each reads its words, calls one room and prints.

Argparse rather than typer: everything after the script's name belongs to the script, which `nargs=REMAINDER` says in
one word, and nothing has to be installed or imported for it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from hasten import __version__
from hasten.cli.measuring import add_check, add_diagnose
from hasten.cli.parts import tell
from hasten.cli.results import add_compare, add_report
from hasten.cli.speedtest import add_speedtest
from hasten.cli.tuning import add_run, add_tune
from hasten.errors import HastenError, ScriptError

NOTHING_LEFT = "interrupted; nothing is left running"


def main(words: Sequence[str] | None = None) -> int:
    """Run one verb; return the exit code."""
    parser = _parser()
    wanted = parser.parse_args(words)
    try:
        return int(wanted.run(wanted) or 0)
    except ScriptError as error:
        tell(str(error))
        return error.exit_code if error.exit_code > 0 else 128 - error.exit_code
    except HastenError as error:
        tell(str(error))
        return 2
    except KeyboardInterrupt as interrupt:
        tell(interrupt.args[0] if interrupt.args else NOTHING_LEFT)
        return 130
    except BrokenPipeError:
        # Whoever read our output has seen enough; Python would complain again while it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hasten",
        description="Finds out where a PyTorch training script spends its time, and what would make it faster.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"hasten {__version__}")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for add in (add_check, add_diagnose, add_tune, add_run, add_report, add_compare, add_speedtest):
        add(verbs)
    return parser
