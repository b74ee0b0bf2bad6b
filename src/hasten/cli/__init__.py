"""The command line: `main`, and one module for each group of commands.

It uses argparse and not typer, because everything after the script's name belongs to the script: `nargs=REMAINDER` does that.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from hasten import __version__
from hasten.cli.measuring import add_check, add_diagnose
from hasten.cli.parts import Subparsers, print_error
from hasten.cli.results import add_compare, add_explain, add_merge, add_report
from hasten.cli.speedtest import add_speedtest
from hasten.cli.tuning import add_prove, add_run, add_tune
from hasten.cli.upkeep import add_clean, add_completion, add_mcp
from hasten.errors import CommandError, HastenError, ScriptError, Stopped

INTERRUPTED = "interrupted; all processes were stopped"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
COMMANDS = (
    add_diagnose,
    add_tune,
    add_run,
    add_prove,
    add_report,
    add_merge,
    add_compare,
    add_explain,
    add_check,
    add_speedtest,
    add_clean,
    add_completion,
    add_mcp,
)
EPILOG = """\
start with:
  hasten diagnose train.py --epochs 3    about a minute: where the time goes, what would help
  hasten tune train.py --epochs 3        10 minutes: tries the fixes, writes hasten.toml
  hasten run train.py --epochs 3         your script, unmodified, with the fixes

exit codes:
  0 success   1 slower or worse (compare, prove)   2 wrong usage   3 inconclusive (compare --strict)
  130 interrupted   128 + N: your script was ended by signal N
  otherwise the exit code of your script, if it failed
"""
# What people type who know other tools.
OTHER_NAMES = {
    "profile": "diagnose",
    "analyze": "diagnose",
    "bench": "speedtest",
    "benchmark": "speedtest",
    "demo": "speedtest",
    "optimize": "tune",
    "train": "run",
    "exec": "run",
    "show": "report",
    "diff": "compare",
    "verify": "prove",
    "doctor": "check",
    "version": "--version",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code. `argv` is sys.argv[1:] by default."""
    try:
        args = _parsed(list(sys.argv[1:] if argv is None else argv))
        return int(args.run(args) or 0)
    except ScriptError as error:
        print_error(str(error))
        return error.exit_code if error.exit_code > 0 else 128 - error.exit_code
    except HastenError as error:
        print_error(str(error))
        return 2
    except KeyboardInterrupt as interrupt:
        print_error(interrupt.args[0] if interrupt.args else INTERRUPTED)
        return 128 + (interrupt.number if isinstance(interrupt, Stopped) else Stopped().number)
    except BrokenPipeError:
        # The reader closed the pipe; without this, Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        print_error(f"cannot write {error.filename or 'the result'} ({error.strerror}); make room, or run elsewhere")
        return 2


def _parsed(words: list[str]) -> argparse.Namespace:
    """The parsed command line. Raises CommandError where it is wrong."""
    parser, commands = parsers()
    if words[:1] == ["help"]:  # `hasten help tune`, as other tools have it
        words = [*words[1:2], "--help"]
    if not words:
        parser.print_help(sys.stderr)
        raise SystemExit(2)
    if not words[0].startswith("-") and words[0] not in commands:
        raise CommandError(_unknown_command(words, commands))
    args, unknown = parser.parse_known_args(words)
    if unknown:
        raise CommandError(_unknown_option(unknown[0], args.subcommand, commands))
    args.parser, args.commands = parser, commands
    return args


def parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser of the command line, and those of the commands by name."""
    parser = _Parser(
        prog="hasten",
        description="Find out where a PyTorch training script spends its time, and make it faster.",
        epilog=EPILOG,
    )
    parser.add_argument("-V", "--version", action=_Version, help="show the versions of hasten, Python and PyTorch")
    subparsers: Subparsers = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    for add in COMMANDS:
        add(subparsers)
    return parser, dict(subparsers.choices)


class _Parser(argparse.ArgumentParser):
    """Reports a wrong usage in one line, with exit code 2."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """End with the message, and how to get the help of this command."""
        print_error(f"{message}; see `{self.prog} --help`")
        raise SystemExit(2)


class _Version(argparse.Action):
    """Prints the versions that a bug report needs, without importing torch."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_args: object) -> NoReturn:
        """Print and end."""
        from importlib.metadata import PackageNotFoundError, version

        try:
            torch = version("torch")
        except PackageNotFoundError:
            torch = "not installed"
        print(f"hasten {__version__} (Python {platform.python_version()}, torch {torch}, {platform.platform()})")
        raise SystemExit(0)


def _unknown_command(words: Sequence[str], commands: Mapping[str, object]) -> str:
    """What to say of a command line whose first word is not a command."""
    first = words[0]
    if first.endswith((".py", ".ipynb")):
        return f"no command given; try `hasten diagnose {' '.join(words)}`"
    near = OTHER_NAMES.get(first) or next(iter(difflib.get_close_matches(first, commands)), None)
    return (
        f"no such command: {first}; did you mean `hasten {near}`?"
        if near is not None
        else f"no such command: {first}; choose from {', '.join(commands)}"
    )


def _unknown_option(word: str, command: str, commands: Mapping[str, argparse.ArgumentParser]) -> str:
    """What to say of an option, or of an argument too many, that a command does not have."""
    if not word.startswith("-"):
        return f"{command} does not take another argument: {word}; see `hasten {command} --help`"
    option = word.partition("=")[0]
    if option in _options_of(commands[command]):
        return f"put {option} after the command: `hasten {command} {option} ...`"
    having = [name for name, parser in commands.items() if option in _options_of(parser)]
    if having:
        return f"{command} has no option {option}; `hasten {having[0]}` has it"
    near = difflib.get_close_matches(option, _options_of(commands[command]), n=1, cutoff=0.7)
    hint = f"did you mean {near[0]}?" if near else f"see `hasten {command} --help`"
    return f"{command} has no option {option}; {hint}"


def _options_of(parser: argparse.ArgumentParser) -> list[str]:
    return list(parser._option_string_actions)  # pyright: ignore[reportPrivateUsage]
