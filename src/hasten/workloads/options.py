"""What the bundled scripts' command lines have in common: numbers with a least value, and one line for what is wrong.

In: words, and the script's training. Out: numbers; exit code 2 for an image that cannot be used. Refuses to know PyTorch.
"""

import argparse
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from folders import ImageError


def at_least(least: int) -> Callable[[str], int]:
    """A whole number of `least` or more, for argparse."""

    def number(text: str) -> int:
        if not text.lstrip("-").isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"at least {least}")
        return int(text)

    return number


@contextmanager
def told_in_one_line() -> Generator[None]:
    """End the script with exit code 2 where an image or its folder cannot be used."""
    try:
        yield
    except ImageError as error:  # from a worker it comes inside a traceback, whose last line it is
        sys.stderr.write(str(error).strip().splitlines()[-1].split("ImageError: ")[-1] + "\n")
        sys.exit(2)
