"""What the terminal shows is right at every width, in every encoding, in a pipe and from hostile names."""

import io
import re

import msgspec
import pytest
from paper import WIDTHS, Paper, assert_golden
from rich.console import Console

from hasten.records import CheckLine, Finding
from hasten.reports.explanations import print_explanation
from hasten.reports.text import print_check, print_diagnosis, print_workload

CASES = ["data_bound", "healthy", "missing_phases", "one_step", "hostile"]
CHECK = (
    CheckLine(
        topic="device",
        state="bad",
        text="torch cannot use the NVIDIA GeForce RTX 4070: torch 2.6.0 is a CPU-only build",
        remedy="pip install torch --index-url https://download.pytorch.org/whl/cu124",
    ),
    CheckLine(topic="precision", state="good", text="bfloat16 by AMX"),
    CheckLine(
        topic="cores",
        state="warning",
        text="2 of 12: a cgroup allows 2.0 cores",
        remedy="docker run --cpus 8",
    ),
    CheckLine(topic="disk /data", state="unknown", text="kind not told; 1.2 GiB/s in sequence, 41 MiB/s at random"),
)


def card(case, *, verbose=False, **options) -> str:
    run, diagnosis = case
    paper = Paper(**options)
    record, next = ".hasten/runs/20260305-141502/run.json", "hasten tune train.py"
    details = "" if verbose else "hasten report -v"
    print_diagnosis(run, diagnosis, console=paper.console, record=record, verbose=verbose, next=next, details=details)
    return paper.text


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", CASES)
def test_the_card_reads_as_it_was_approved(cases, name, width):
    assert_golden(card(cases[name], width=width), f"{name}_{width}")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_check_reads_as_it_was_approved(width):
    paper = Paper(width=width)
    print_check(CHECK, console=paper.console)
    assert_golden(paper.text, f"check_{width}")


@pytest.mark.parametrize("name", CASES)
def test_everything_reads_as_it_was_approved(cases, name):
    assert_golden(card(cases[name], verbose=True), f"{name}_verbose_80")


def test_the_workload_of_a_speed_test_reads_as_it_was_approved(cases):
    paper = Paper()
    print_workload(*cases["data_bound"], name="xray", num_images=1024, num_labels=15, console=paper.console)
    assert_golden(paper.text, "workload_80")


def test_a_console_without_block_characters_gets_a_bar_of_signs(cases):
    assert_golden(card(cases["data_bound"], encoding="ascii"), "data_bound_ascii_80")


@pytest.mark.parametrize("name", [name for name in CASES if name != "hostile"])
def test_the_card_fits_one_screen(cases, name):
    assert len(card(cases[name], width=80).splitlines()) <= 45


def test_what_is_left_out_is_counted_and_verbose_leaves_nothing_out(cases):
    short, full = card(cases["hostile"]), card(cases["hostile"], verbose=True)
    assert "more: " in short and "more notes" in short
    assert "more: " not in full and "more note" not in full
    assert "Details   hasten report -v" in short and "Details" not in full


@pytest.mark.parametrize("width", [9, 20, 33, 40, 49, 50, 60, 80, 200])
@pytest.mark.parametrize("name", CASES)
def test_no_line_is_wider_than_the_console(cases, name, width):
    text = card(cases[name], width=width, encoding="cp437")
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("width", range(28, 101, 3))
@pytest.mark.parametrize("name", ["data_bound", "healthy", "one_step"])
def test_no_number_is_torn_from_its_unit(cases, name, width):
    torn = re.findall(r"\d\n *(?:%|[µm]?s|[KMG]iB|to \d|steps?).*", card(cases[name], width=width))
    assert torn == []


def test_a_setting_is_not_torn_where_another_follows_it():
    paper = Paper(width=60)
    setting = "MALLOC_MMAP_THRESHOLD_=17179869184 MALLOC_TRIM_THRESHOLD_=17179869184"
    print_check(
        (CheckLine(topic="allocator", state="warning", text="slow", remedy=f"export {setting}"),),
        console=paper.console,
    )
    assert "MALLOC_TRIM_THRESHOLD_=17179869184" in paper.text


@pytest.mark.parametrize("encoding", ["ascii", "cp437", "cp850", "cp1252", "cp932", "latin-1"])
@pytest.mark.parametrize("name", CASES)
def test_every_code_page_can_take_the_card(cases, name, encoding):
    assert "Machine" in card(cases[name], encoding=encoding, verbose=True)


def test_a_pipe_gets_no_escape_codes(cases):
    assert "\x1b" not in card(cases["data_bound"])


def test_a_terminal_gets_colours(cases):
    text = card(cases["data_bound"], force_terminal=True, color_system="standard", height=50)
    assert "\x1b[31m█" in text


def test_without_colour_shades_tell_the_phases_apart(cases):
    text = card(cases["data_bound"], force_terminal=True, color_system="standard", no_color=True, height=50)
    assert re.search(r"\x1b\[[\d;]*(?:3|9)\dm", text) is None
    assert all(shade in text for shade in "█░▓▒")


def test_markup_and_control_characters_in_names_are_shown_not_obeyed(cases):
    text = card(cases["hostile"], force_terminal=True, color_system="standard", height=50)
    assert "[red]日本語[/red]\\x1b[31m" in text
    assert "[blink]Hm[/blink] \\x07" in text
    assert ":smile:" in text
    assert "\x07" not in text


def test_a_phase_not_seen_is_told_apart_from_one_that_took_no_time(cases):
    text = card(cases["data_bound"], width=80)
    assert re.search(r"under 1% each: [^:]*logging 0 ms\n", text)
    assert re.search(r"not seen: H2D copy, validation, checkpoint\n", text)


def test_findings_come_in_the_order_of_the_verdict_and_of_every_other_report(cases):
    run, diagnosis = cases["data_bound"]
    turned = msgspec.structs.replace(diagnosis, findings=diagnosis.findings[::-1])
    assert re.search(rf"1\. {re.escape(turned.findings[0].title[:20])}", card((run, turned)))


def test_a_finding_without_evidence_or_place_is_still_told(cases):
    run, diagnosis = cases["healthy"]
    bare = msgspec.structs.replace(diagnosis, findings=(Finding(kind="sync", title="Sync points", recoverable=0.0),))
    assert re.search(r"1\. Sync points +~0 ms per step \(0%\)\n +\[sync, estimated\]\n", card((run, bare)))


def test_a_device_that_was_trained_on_is_never_no_gpu(cases):
    run, diagnosis = cases["data_bound"]
    on_apple = msgspec.structs.replace(run, facts=msgspec.structs.replace(run.facts, device="mps:0"))
    assert "no GPU" not in card((on_apple, diagnosis), verbose=True)
    assert "mps:0" in card((on_apple, diagnosis), verbose=True)


def test_a_step_of_no_length_breaks_nothing(cases):
    run, diagnosis = cases["one_step"]
    breakdown = msgspec.structs.replace(
        diagnosis.breakdown, step_seconds=0.0, phases={"forward": 0.0}, unaccounted=0.0
    )
    assert "1 step" in card((run, msgspec.structs.replace(diagnosis, breakdown=breakdown)))


def test_a_check_of_nothing_prints_nothing():
    paper = Paper()
    print_check((), console=paper.console)
    assert paper.text.strip() == ""


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_an_explanation_is_shown_in_every_code_page(encoding):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print_explanation("**slow_read**\n\n- µs and — “quotes”", console=Console(file=file, width=60))
    file.flush()
    shown = file.buffer.getvalue().decode(encoding)
    assert "slow_read" in shown and "quotes" in shown
