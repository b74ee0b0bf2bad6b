"""Text from elsewhere, made safe to show and to keep: no control characters, no secrets.

In: text that a script, a record or a plan holds. Out: the same to read, and harmless. Refuses to guess what a value is: an
option's name says whether it is a secret.
"""

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
    """The text without what controls a terminal, a page or a chart, but for the characters to `keep`.

    Each becomes a space; bytes that are no text become escapes.
    """
    shown = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(c if c.isprintable() or c in keep else " " for c in shown)


def redacted(words: Sequence[str]) -> tuple[str, ...]:
    """A command's words, without the values of options that are named like secrets."""
    told: list[str] = []
    follows = False  # the word is the value of a secret option
    for word in words:
        name, equals, value = word.partition("=")
        if follows and not word.startswith("--"):
            told.append(HIDDEN)
            follows = False
        elif equals and value and _SECRET.search(name):
            told.append(f"{name}={HIDDEN}")
            follows = False
        else:
            told.append(word)
            follows = word.startswith("-") and not equals and _SECRET.search(word) is not None
    return tuple(told)
