"""What the terminal shows of searches and comparisons is right at every width, in every encoding and in a pipe."""

import re

import msgspec
import pytest
from pages import full_run, search
from paper import WIDTHS, Paper, assert_golden

from hasten.records import Check, Comparison, Interval
from hasten.reports.text import print_before_and_after, print_comparison
from hasten.reports.tuning import headline, print_tuning
from hasten.tuning.evaluator import verdict_of
from hasten.tuning.prove import NOT_CHECKED

COMPARISON = Comparison(
    verdict="inconclusive",
    ratio=Interval(1.04, 0.98, 1.1),
    max_slowdown=0.05,
    old_seconds=(0.1, 0.11),
    new_seconds=(0.104, 0.109),
    notes=("the machines differ: Intel Xeon and AMD EPYC",),
)


def tuned(console):
    record = ".hasten/tunings/20260305-150000-78-tune/tuning.json"
    print_tuning(
        search(full_run()),
        console=console,
        record=record,
        plan="hasten.toml",
        next="hasten run train.py --lr 0.1",
        details="hasten report -v",
    )


def tuned_verbose(console):
    record = ".hasten/tunings/20260305-150000-78-tune/tuning.json"
    print_tuning(search(full_run()), console=console, record=record, verbose=True)


def compared(console):
    print_comparison(COMPARISON, console=console)


def several(console):
    tuning = search(full_run())
    print_before_and_after([("xray", tuning), ("classify", tuning)], console=console)


TEXTS = {"tuned": tuned, "tuned_verbose": tuned_verbose, "compared": compared, "several": several}


def text_of(name, **options):
    paper = Paper(**options)
    TEXTS[name](paper.console)
    return paper.text


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", TEXTS)
def test_the_text_is_the_one_that_was_agreed_on(name, width):
    assert_golden(text_of(name, width=width), f"{name}_{width}")


@pytest.mark.parametrize("width", [20, 33, 40, 60, 80, 200])
@pytest.mark.parametrize("name", TEXTS)
def test_no_line_is_wider_than_the_console(name, width):
    assert max(map(len, text_of(name, width=width, encoding="cp437").splitlines())) <= width


@pytest.mark.parametrize("encoding", ["ascii", "cp437", "cp850", "cp1252", "cp932", "latin-1"])
@pytest.mark.parametrize("name", TEXTS)
def test_every_code_page_can_take_it(name, encoding):
    assert "1." in text_of(name, encoding=encoding)


@pytest.mark.parametrize("name", TEXTS)
def test_a_pipe_gets_no_escape_codes_and_no_colour_is_no_colour(name):
    assert "\x1b" not in text_of(name)
    shown = text_of(name, force_terminal=True, color_system="standard", no_color=True, height=50)
    assert re.search(r"\x1b\[[\d;]*(?:3|9)\dm", shown) is None


def test_a_plan_whose_quality_was_not_checked_says_so_and_is_not_proven():
    tuning = search(full_run())
    check = Check(what="quality", state="unknown", text=NOT_CHECKED)
    short = msgspec.structs.replace(tuning.proof, verdict="not proven", checks=(check,))
    assert headline(msgspec.structs.replace(tuning, proof=short)).endswith(
        "Quality was not checked; search took 300 s."
    )
    assert verdict_of([check]) == "not proven"
