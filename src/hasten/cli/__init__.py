"""The command line: `main`, and one module for each group of commands.

It uses argparse and not typer, because everything after the script's name belongs to the script: `nargs=REMAINDER` does that.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from hasten import __version__
from hasten.cli.measuring import add_check, add_diagnose
from hasten.cli.parts import print_error
from hasten.cli.results import add_compare, add_explain, add_report
from hasten.cli.speedtest import add_speedtest
from hasten.cli.tuning import add_prove, add_run, add_tune
from hasten.errors import HastenError, ScriptError

INTERRUPTED = "interrupted; all processes were stopped"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code. `argv` is sys.argv[1:] by default."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        return int(args.run(args) or 0)
    except ScriptError as error:
        print_error(str(error))
        return error.exit_code if error.exit_code > 0 else 128 - error.exit_code
    except HastenError as error:
        print_error(str(error))
        return 2
    except KeyboardInterrupt as interrupt:
        print_error(interrupt.args[0] if interrupt.args else INTERRUPTED)
        return 130
    except BrokenPipeError:
        # The reader closed the pipe; without this, Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hasten",
        description="Find out where a PyTorch training script spends its time, and make it faster.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"hasten {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (
        add_check,
        add_diagnose,
        add_tune,
        add_run,
        add_report,
        add_compare,
        add_prove,
        add_speedtest,
        add_explain,
    ):
        add(subparsers)
    return parser
