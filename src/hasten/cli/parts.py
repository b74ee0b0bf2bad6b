"""What the verbs have in common: options, numbers on the command line, consoles."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.errors import CommandError
from hasten.safe_text import legible

if TYPE_CHECKING:
    from rich.console import Console

    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]  # pyright: ignore[reportPrivateUsage]

_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
WHAT_TO_RUN = "(SCRIPT.py | -m MODULE | COMMAND) [its arguments ...]"


def add_verb(
    verbs: Verbs, name: str, says: str, run: Callable[[argparse.Namespace], int], *, usage: str | None = None
) -> argparse.ArgumentParser:
    """A verb, with what all of them have; `run` is called with what was parsed."""
    verb = verbs.add_parser(name, help=says, description=says, allow_abbrev=False, usage=usage)
    verb.set_defaults(run=run, verb=name, options=verb._option_string_actions)  # pyright: ignore[reportPrivateUsage]
    verb.add_argument("--json", action="store_true", help="print the whole record as JSON")
    return verb


def add_measuring(verb: argparse.ArgumentParser, *, seconds: float) -> None:
    """How long to measure."""
    verb.add_argument("--steps", type=positive, metavar="N", help="measure N steps (default: until steady)")
    verb.add_argument(
        "--seconds",
        type=above_0,
        default=seconds,
        metavar="S",
        help=f"measure at most S seconds ({seconds:g})",
    )
    verb.add_argument("--wait", type=above_0, default=60.0, metavar="S", help="wait S seconds for a step (60)")
    verb.add_argument("--quick", action="store_true", help="one run only: causes are inferred, not confirmed")


def positive(text: str) -> int:
    """A whole number of 1 or more, for argparse."""
    number = int(text) if text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return number


def above_0(text: str) -> float:
    """A number above 0, for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def percent(text: str) -> float:
    """A share of one, of a text as "5%" or "0.05", for argparse."""
    number = text.removesuffix("%").strip()
    try:
        share = float(number) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0.0 <= share < 100.0:
        raise argparse.ArgumentTypeError(f'{text!r} is no share; write "5%" or "0.05"')
    return share


def time_span(text: str) -> float:
    """Seconds of a text as "90s", "10m" or "1h", for argparse."""
    found = re.fullmatch(r"([\d.]+)\s*([a-z]*)", text)
    if found is not None and not found[2]:
        raise argparse.ArgumentTypeError(f"{text!r} has no unit; write {text}s for seconds or {text}m for minutes")
    if found is None or found[2] not in _UNITS:
        raise argparse.ArgumentTypeError(f'{text!r} is not a duration; write "90s", "10m" or "1h"')
    return above_0(found[1]) * _UNITS[found[2]]


def add_command(verb: argparse.ArgumentParser) -> None:
    """The words of the user's own command, to its end."""
    verb.add_argument("-m", dest="module", action="store_true", help="the next word is a module, as in python -m")
    verb.add_argument("words", nargs=argparse.REMAINDER, metavar="SCRIPT", help="the script and its arguments")


def command_of(wanted: argparse.Namespace) -> list[str]:
    """The user's own command, without a "--" before it.

    Raises:
        CommandError: there is none, or an option of hasten's stands behind the script's name, where the script would
            get it. A script whose source names such an option gets it; so does any script behind "--".
    """
    words: list[str] = wanted.words
    if words[:1] == ["--"]:
        return words[1:]
    if not words:
        raise CommandError(f"no script given; write for example `hasten {wanted.verb} train.py`")
    misplaced = None if wanted.module else _misplaced(words, wanted.options)
    if misplaced is not None:
        rest = [word for word in words[1:] if word != misplaced]
        raise CommandError(
            f"{misplaced} stands behind {words[0]}, which does not know it; options of hasten come first: "
            f"`hasten {wanted.verb} {misplaced} ... {words[0]}`"
            f" (or, if it is the script's, `hasten {wanted.verb} -- {words[0]} {misplaced} ...`)"
            if rest
            else f"{misplaced} stands behind {words[0]}, which does not know it; write "
            f"`hasten {wanted.verb} {misplaced} {words[0]}`"
        )
    return words


def _misplaced(words: Sequence[str], options: Collection[str]) -> str | None:
    """The first option of ours behind a script whose source does not hold its name."""
    script = Path(words[0])
    if script.suffix != ".py" or not script.is_file():
        return None
    source = script.read_text(encoding="utf-8", errors="replace")
    found = (word.partition("=")[0] for word in words[1:])
    return next((name for name in found if name in options and name.lstrip("-") not in source), None)


def tell(line: str) -> None:
    """Say a line on standard error; what it quotes may hold anything."""
    print("hasten:", legible(line, keep="\n\t"), file=sys.stderr)


def console(*, stderr: bool = False) -> Console:
    """Where to print."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def print_json(value: object) -> None:
    """One line of JSON on standard output."""
    from hasten.records import encode

    sys.stdout.write(encode(value).decode() + "\n")
