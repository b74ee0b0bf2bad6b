"""The project speaks the language of its field: none of the words that it once had for itself."""

import re

import pytest
from package_structure import PACKAGE, ROOT

# A pattern for each way of saying that is gone, with what to write instead.
REPLACED = {
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bbatches for free\b": "with instant data loading",
    r"\bscript (as it is|by itself)\b": "baseline",
    r"\btime of record\b": "uninstrumented step time",
    r"\btimes as soon\b": "times sooner",
    r"\b(goes|went|going) on\b": "continues",
    r"\bis no (TOML|size|share|setting)\b": "is not a valid ...",
    r"\bc[oa]mes? to (its|an|their) end\b": "finishes",
    r"\bstands? aside\b": "is disabled after an internal error",
    r"\bsee into\b": "instrument",
    r"\bin doubt\b(?!, not proven)": "not validated on this machine",
    r"\bmade anew\b|\bdrawn anew\b|\b(begin|start)s? anew\b": "recreated, random, starts over",
    r"\bfilms?\b": "X-ray images",
    r"\bmore rarely\b": "less often",
    r"\b(Crew|Errand|Kit|Parcel|Witness|Judge|Manner|Heat|Wanted|Nest)\b": "see the standard term",
    r"\b(told|tells|telling)\b": "report, show, explain",
    r"^(In|Out): |\bRefuses (to|what)\b": "one sentence that says what the module is for",
    r"\bwhoever\b": "the process that ...",
    r"\bstretch(es)?\b": "segment",
    r"\d %": "10%",
    r"\b(colour|licence|behaviour|favour|neighbour|centre)\w*|\b\w+(isation|ising)\b": "American spelling",
}
# Words of another language than ours: of the system, of standards and of other libraries.
ALLOWED = re.compile(
    r"raising|advertising|rising|arising|promising|surprising|comprising|noising|grey", re.IGNORECASE
)
# The log and the changelog quote what things were called.
FILES = [
    *sorted(PACKAGE.rglob("*.py")),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.name != "log.md"),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
]


def replaced_words(text):
    """(line number, what stands there, what to write instead) of each."""
    found = []
    for pattern, instead in REPLACED.items():
        for match in re.finditer(pattern, text, re.MULTILINE):
            if not ALLOWED.fullmatch(match[0]):
                found.append((text.count("\n", 0, match.start()) + 1, match[0], instead))
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_words_of_the_field_are_used(path):
    assert replaced_words(path.read_text(encoding="utf-8")) == []


def test_a_word_that_was_replaced_is_seen():
    text = '"""Tells the crew.\n\nIn: films. Out: the behaviour, 5 % of it, mended.\n"""'
    assert {found for _, found, _ in replaced_words(text)} == {"In: ", "films", "behaviour", "5 %", "mended"}
