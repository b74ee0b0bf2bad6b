"""What only the source can change is shown with its line and an example, and nothing is written."""

import ast
import textwrap

import pytest

from hasten.records import Finding, Where
from hasten.tuning.suggestions import EXAMPLES, suggestions_for


def finding(kind, where):
    return Finding(kind=kind, title="Reading a tensor in each step", recoverable=0.2, where=where)


LINE = Where(file="train.py", line=31, source="total += loss.item()")


def test_a_finding_that_names_a_line_gets_an_example():
    (one,) = suggestions_for([finding("sync_points", LINE)])
    assert (one.file, one.line, one.source, one.recoverable) == ("train.py", 31, LINE.source, 0.2)
    assert "loss.detach()" in one.example


@pytest.mark.parametrize("kind, where", [("sync_points", None), ("full_precision", LINE)])
def test_a_finding_without_a_line_or_with_a_fix_from_outside_gets_none(kind, where):
    assert suggestions_for([finding(kind, where)]) == ()


@pytest.mark.parametrize("kind", EXAMPLES)
def test_every_example_is_python_of_two_lines(kind):
    ast.parse(textwrap.dedent(EXAMPLES[kind]))
    assert EXAMPLES[kind].count("\n") == 1
