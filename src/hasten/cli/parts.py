"""What the commands share: options, argument types, consoles, output."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from hasten.errors import CommandError
from hasten.safe_text import legible

if TYPE_CHECKING:
    from rich.console import Console

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # pyright: ignore[reportPrivateUsage]

_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
WHAT_TO_RUN = "(SCRIPT.py | -m MODULE | COMMAND) [its arguments ...]"


def add_subcommand(
    subparsers: Subparsers,
    name: str,
    description: str,
    run: Callable[[argparse.Namespace], int],
    *,
    examples: Mapping[str, str],
    usage: str | None = None,
    prints_json: bool = True,
) -> argparse.ArgumentParser:
    """Add a subcommand with the options that all of them have; `run` gets the parsed arguments."""
    width = max(map(len, examples))
    lines = [f"  {example:{width}}    {what}".rstrip() for example, what in examples.items()]
    parser = subparsers.add_parser(
        name,
        help=description,
        description=textwrap.fill(description, 79),
        epilog="\n".join(["examples:", *lines]),
        usage=usage,
    )
    parser.set_defaults(run=run, subcommand=name, options=parser._option_string_actions)  # pyright: ignore[reportPrivateUsage]
    if prints_json:
        parser.add_argument("--json", action="store_true", help="print the full record as JSON")
    return parser


def add_verbose(parser: argparse.ArgumentParser) -> None:
    """Add the option for a longer report."""
    parser.add_argument("-v", "--verbose", action="store_true", help="show everything that was measured and tried")


def add_measuring(parser: argparse.ArgumentParser, *, seconds: float) -> None:
    """Add the options for how long to measure."""
    parser.add_argument("--steps", type=positive, metavar="N", help="measure N steps (default: until steady)")
    parser.add_argument(
        "--seconds",
        type=above_0,
        default=seconds,
        metavar="S",
        help=f"measure at most S seconds [default: {seconds:g}]",
    )
    parser.add_argument(
        "--wait", type=above_0, default=60.0, metavar="S", help="give up after S seconds without a step [default: 60]"
    )
    parser.add_argument("--quick", action="store_true", help="a single run: causes are estimated, not confirmed")


def positive(text: str) -> int:
    """An argparse type: an integer of 1 or more."""
    number = int(text) if text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of 1 or more")
    return number


def whole(text: str) -> int:
    """An argparse type: an integer of 0 or more."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of 0 or more")
    return int(text)


def above_0(text: str) -> float:
    """An argparse type: a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def percent(text: str) -> float:
    """An argparse type: a share of one, from "5%" or "0.05"."""
    number = text.removesuffix("%").strip()
    try:
        share = float(number) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if share >= 1.0 and not text.endswith("%"):
        raise argparse.ArgumentTypeError(f"{text!r} has no unit; use {text}% for percent")
    if not 0.0 <= share < 100.0:
        raise argparse.ArgumentTypeError(f'{text!r} is not a valid percentage; use "5%" or "0.05"')
    return share


def time_span(text: str) -> float:
    """An argparse type: seconds, from "90s", "10m" or "1h"."""
    found = re.fullmatch(r"([\d.]+)\s*([a-z]*)", text)
    if found is not None and not found[2]:
        above_0(text)
        raise argparse.ArgumentTypeError(f"{text!r} has no unit; use {text}s for seconds or {text}m for minutes")
    if found is None or found[2] not in _UNITS:
        raise argparse.ArgumentTypeError(f'{text!r} is not a valid duration; use "90s", "10m" or "1h"')
    return above_0(found[1]) * _UNITS[found[2]]


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the user's command: everything up to the end of the line."""
    parser.add_argument("-m", dest="module", action="store_true", help="run a module, as in python -m")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="SCRIPT", help="the script and its arguments")


def command_of(args: argparse.Namespace) -> list[str]:
    """The user's command, without a leading "--".

    Raises:
        CommandError: no command was given, or an option of hasten comes after the script's name, where it would be passed
            to the script. It is passed on if the script's source contains the option or lacks others too, or after "--".
    """
    words: list[str] = args.words
    if words[:1] == ["--"]:
        return words[1:]
    if not words:
        what, example = ("module", "-m package.train") if args.module else ("script", "train.py")
        raise CommandError(f"no {what} given; try for example `hasten {args.subcommand} {example}`")
    # After "--" comes another command of `prove`, or what is the script's own in any case.
    before = words[: words.index("--")] if "--" in words else words
    misplaced = _misplaced(before, args.options, module=args.module)
    if misplaced is not None:
        rest = [word for word in words[1:] if word != misplaced]
        what = f"-m {words[0]}" if args.module else words[0]
        raise CommandError(
            f"{misplaced} comes after {words[0]}, which does not use it; put options of hasten first: "
            f"`hasten {args.subcommand} {misplaced} ... {what}`"
            + (
                ""
                if args.module
                else f" (or, to pass it to the script, `hasten {args.subcommand} -- {what} {misplaced} ...`)"
            )
            if rest
            else f"{misplaced} comes after {words[0]}, which does not use it; use "
            f"`hasten {args.subcommand} {misplaced} {what}`"
        )
    return words


def _misplaced(words: Sequence[str], options: Collection[str], *, module: bool) -> str | None:
    """The first option of hasten after a script whose source does not contain it; None without one.

    None too where the source lacks an option that hasten does not have: then the script's options are read elsewhere.
    """
    script = Path(f"{words[0].replace('.', '/')}.py" if module else words[0])
    if script.suffix != ".py" or not os.access(script, os.R_OK) or not script.is_file():
        return None
    source = script.read_text(encoding="utf-8", errors="replace").replace("-", "_")
    given = [word.partition("=")[0] for word in words[1:] if word.startswith("-")]
    unknown = [name for name in given if name.lstrip("-").replace("-", "_") not in source]
    return unknown[0] if unknown and all(name in options for name in unknown) else None


def hasten_line(command: str, words: Sequence[str], *options: str) -> str:
    """A command line of hasten for a recorded command, to be copied into a shell."""
    return shlex.join(["hasten", command, *options, *words])


def more(run: str = "", *, verbose: bool = False) -> str:
    """The commands that show more of a result; "" if it was shown in full. `run`: its name, unless it is the last."""
    return (
        "" if verbose else f"hasten report{run and ' '}{run} -v, or as a page: hasten report{run and ' '}{run} --open"
    )


def print_error(line: str) -> None:
    """Print a line to standard error, without control characters."""
    print("hasten:", legible(line, keep="\n\t"), file=sys.stderr)


def console(*, stderr: bool = False) -> Console:
    """The console to print on."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def print_json(value: object) -> None:
    """Print one line of JSON to standard output."""
    from hasten.records import encode

    sys.stdout.write(encode(value).decode() + "\n")
