"""What the terminal shows.

In: records, and a console. Out: text printed on that console, for a screen, a pipe or a log alike.
Refuses to measure, to conclude, and to know where results are kept.
"""

from collections.abc import Sequence

from rich.console import Console

from hasten import format
from hasten.records import CheckLine, Diagnosis, Run
from hasten.reports.card import DETAILS, add_card
from hasten.reports.sheet import Sheet
from hasten.reports.surroundings import cpu_against_device, device_name

_SCREEN = (36, 45)  # lines that a card is fitted to: below, evidence is worth more than not scrolling
_STATES = {"good": "green", "warning": "yellow", "bad": "red", "unknown": "dim"}


ALONE = "The unmodified script, measured by itself. Below, both sides of the comparison, measured in turns."


def print_diagnosis(
    run: Run, diagnosis: Diagnosis, *, console: Console, record: str = "", before_tuning: bool = False
) -> None:
    """Print a diagnosis as a card of one screen.

    Args:
        run: what was measured.
        diagnosis: what was concluded from it.
        console: where to print.
        record: where the run is kept.
        before_tuning: whether the result of a tuning run is printed below, with figures of its own.
    """
    head = Sheet(console)
    if before_tuning:
        head.paragraph((ALONE, "dim"))
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
    """Print what a speed test ran, on what, and how busy CPU and device were, then the card as `print_diagnosis` does."""
    head = Sheet(console)
    data = f"{format.count(num_images, noun='image')}, {format.count(num_labels, noun='label')}"
    head.paragraph(f"{workload}: {data}", label="Workload")
    head.paragraph(device_name(run), label="Device")
    head.paragraph(cpu_against_device(run, diagnosis), label="Time")
    if before_tuning:
        head.paragraph((ALONE, "dim"))
    head.gap()
    _print_card(head, run, diagnosis, console=console, record=record)


def print_check(lines: Sequence[CheckLine], *, console: Console) -> None:
    """Print the state of the machine, a line a topic, with what to change beneath it."""
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
    """Print `head` and beneath it the fullest card that one screen takes."""
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
