"""Print a diagnosis, a speed test or a check on the terminal."""

from collections.abc import Sequence

from rich.console import Console

from hasten import format
from hasten.records import CheckLine, Diagnosis, Run
from hasten.reports.card import DETAILS, add_card
from hasten.reports.sheet import Sheet
from hasten.reports.surroundings import cpu_against_device, device_name

_SCREEN = (36, 45)  # fewest and most lines that a card is fitted to; below 36, scrolling beats losing evidence
_STATES = {"good": "green", "warning": "yellow", "bad": "red", "unknown": "dim"}


BASELINE_ONLY = "The baseline, measured alone. The comparison below measured baseline and tuned alternately."


def print_diagnosis(
    run: Run, diagnosis: Diagnosis, *, console: Console, record: str = "", before_tuning: bool = False
) -> None:
    """Print a diagnosis as a card that fits one screen.

    Args:
        run: what was measured.
        diagnosis: the conclusions from it.
        console: where to print.
        record: path of the saved run.
        before_tuning: whether the result of a tuning run follows, with its own figures.
    """
    head = Sheet(console)
    if before_tuning:
        head.paragraph((BASELINE_ONLY, "dim"))
        head.gap()
    _print_card(head, run, diagnosis, console=console, record=record)


def print_speedtest(
    run: Run,
    diagnosis: Diagnosis,
    *,
    workload: str,
    num_images: int | None,
    num_labels: int | None,
    console: Console,
    record: str = "",
    before_tuning: bool = False,
) -> None:
    """Print the workload, the device and how busy it was, then the card as `print_diagnosis` does."""
    head = Sheet(console)
    data = f"{format.count(num_images, noun='image')}, {format.count(num_labels, noun='label')}"
    head.paragraph(f"{workload}: {data}", label="Workload")
    head.paragraph(device_name(run), label="Device")
    head.paragraph(cpu_against_device(run, diagnosis), label="Time")
    if before_tuning:
        head.paragraph((BASELINE_ONLY, "dim"))
    head.gap()
    _print_card(head, run, diagnosis, console=console, record=record)


def print_check(lines: Sequence[CheckLine], *, console: Console) -> None:
    """Print the state of the machine: a line for each topic, with what to change below it."""
    sheet = Sheet(console)
    column = max((len(line.topic) + 2 for line in lines), default=0)
    for line in lines:
        label, style, lead = line.state, _STATES.get(line.state, ""), line.topic.ljust(column)
        sheet.paragraph(line.text, label=label, label_style=style, lead=lead)
        if line.remedy:
            sheet.paragraph((line.remedy, "green"), lead=" " * column + sheet.arrow)
    sheet.gap()
    counts = [(sum(line.state == state for line in lines), state) for state in _STATES]
    sheet.paragraph(", ".join(f"{number} {state}" for number, state in counts if number))
    sheet.print()


def _print_card(head: Sheet, run: Run, diagnosis: Diagnosis, *, console: Console, record: str) -> None:
    """Print `head`, and below it the most detailed card that fits one screen."""
    least, most = _SCREEN
    room = max(least, min(most, console.height - 1)) if console.is_terminal else most
    card = head
    for detail in DETAILS:
        card = Sheet(console)
        add_card(card, run, diagnosis, detail=detail, record=record)
        if len(head.lines) + len(card.lines) <= room:
            break
    head.print()
    card.print()
