"""Make text from scripts, records and plans safe to show and to save: no control characters, no secrets."""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "***"
# The option's last word: --api-key, hf_token, wandb.key; not --num-tokens, --tokenizer, --keypoints.
_SECRET = re.compile(
    r"(?:^|[-_.]|(?<=[a-z])(?=[A-Z]))(?:key|apikey|token|password|passwd|passphrase|secret|credentials?)$",
    re.IGNORECASE,
)


def legible(text: str, *, keep: str = "") -> str:
    """The text without control characters, except those in `keep`.

    Each becomes a space; bytes that are not valid text become escapes.
    """
    shown = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(c if c.isprintable() or c in keep else " " for c in shown)


def redacted(words: Sequence[str]) -> tuple[str, ...]:
    """A command line without the values of options whose names look like secrets."""
    result: list[str] = []
    follows = False  # the word is the value of a secret option
    for word in words:
        name, equals, value = word.partition("=")
        if follows and not word.startswith("--"):
            result.append(HIDDEN)
            follows = False
        elif equals and value and _SECRET.search(name):
            result.append(f"{name}={HIDDEN}")
            follows = False
        else:
            result.append(word)
            follows = word.startswith("-") and not equals and _SECRET.search(word) is not None
    return tuple(result)
