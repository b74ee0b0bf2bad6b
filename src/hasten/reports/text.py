"""Print a diagnosis, a speed test, a check or a comparison on the terminal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from hasten import format
from hasten.records import CheckLine, Comparison, Diagnosis, Interval, ReadRate, ReadRates, Run, Tuning
from hasten.reports.card import FULL, SHORT, add_card
from hasten.reports.sheet import Sheet
from hasten.reports.surroundings import cpu_against_device, device_name
from hasten.reports.tuning import VERDICTS, add_next
from hasten.stats import scaled

_STATES = {"good": "green", "warning": "yellow", "bad": "red", "unknown": "dim"}


def print_diagnosis(
    run: Run,
    diagnosis: Diagnosis,
    *,
    console: Console,
    record: str = "",
    verbose: bool = False,
    next: str = "",
    details: str = "",
) -> None:
    """Print a diagnosis as a card.

    Args:
        run: what was measured.
        diagnosis: the conclusions from it.
        console: where to print.
        record: path of the saved run; "": it was not saved.
        verbose: whether to show everything, also what surrounds the measurement.
        next: the command to run next; "": not shown.
        details: the command that shows more; "": not shown.
    """
    card = Sheet(console)
    add_card(card, run, diagnosis, detail=FULL if verbose else SHORT, record=record)
    add_next(card, next, details=details)
    card.print()


def print_workload(
    run: Run, diagnosis: Diagnosis, *, name: str, num_images: int | None, num_labels: int | None, console: Console
) -> None:
    """Print what a speed test trained, on which device, and how busy that was."""
    head = Sheet(console)
    data = f"{format.count(num_images, noun='image')}, {format.count(num_labels, noun='label')}"
    head.paragraph(f"{name}: {data}", label="Workload")
    head.paragraph(device_name(run), label="Device")
    head.paragraph(cpu_against_device(run, diagnosis), label="Time")
    head.gap()
    head.print()


def print_saved(lines: Sequence[tuple[str, str, str, str]], *, console: Console) -> None:
    """Print saved results, each as (id, time, command, result)."""
    sheet = Sheet(console)
    for name, when, command, result in lines:
        sheet.lines.append(Text(f"{name}  {when}", style="bold"))
        sheet.paragraph(command, lead="  ")
        sheet.paragraph(result, lead="  ")
    sheet.print()


def print_check(lines: Sequence[CheckLine], *, console: Console, reads: ReadRates | None = None) -> None:
    """Print the state of the machine: a line for each topic, with what to change below it; and the rates of reads."""
    sheet = Sheet(console)
    column = max((len(line.topic) + 2 for line in lines), default=0)
    for line in lines:
        label, style, lead = line.state, _STATES.get(line.state, ""), line.topic.ljust(column)
        sheet.paragraph(line.text, label=label, label_style=style, lead=lead)
        if line.remedy:
            sheet.paragraph((line.remedy, "green"), lead=" " * column + sheet.arrow)
    sheet.gap()
    if reads is not None:
        rows = [("readers", "latency", "reads/s", "rate"), *map(_read_row, reads.rates)]
        sheet.table(rows, align="rrrr", label="Reads")
        sheet.gap()
    counts = [(sum(line.state == state for line in lines), state) for state in _STATES]
    sheet.paragraph(", ".join(f"{number} {state}" for number, state in counts if number))
    sheet.print()


def _read_row(rate: ReadRate) -> tuple[str, ...]:
    shown = format.seconds(rate.latency_seconds), format.amount(rate.num_reads / rate.seconds)
    return str(rate.num_readers), *shown, format.size_rate(rate.bytes_per_second)


def print_before_and_after(tunings: Sequence[tuple[str, Tuning]], *, console: Console) -> None:
    """Print a row for each workload: baseline and tuned samples/s, speedup with its interval, quality check."""
    sheet = Sheet(console)
    rows: list[tuple[str, ...]] = [("", "baseline", "tuned", "speedup", "quality check")]
    first = True  # the first interval is spelled out
    for name, tuning in tunings:
        proof = tuning.proof
        if proof is None or not tuning.settings:
            rows.append((name, "", "", "", "empty plan" if not tuning.settings else "not proven"))
            continue
        shown = [format.rate(rate) if rate is not None else "" for rate in (proof.baseline_rate, proof.plan_rate)]
        ratio = format.ratio_interval(proof.target_speedup or proof.speedup, ci=first)
        goal = " to the target" if proof.target_speedup is not None else ""
        rows.append((name, *shown, ratio + goal, VERDICTS[proof.verdict]))
        first = False
    sheet.table(rows, align="lrrll", label="Speed")
    sheet.print()


def comparison_headline(found: Comparison) -> str:
    """The verdict, the ratio of the step times with its interval, and the limit, in one line."""
    limit = f"{format.share(found.max_slowdown)} slower"
    ratio = f"new step time {format.ratio_interval(found.ratio, ci=True)} the old one"
    if found.verdict == "faster":
        speedup = Interval(*scaled((found.ratio.value, found.ratio.low, found.ratio.high), lambda ratio: 1 / ratio))
        return f"{format.speedup(speedup, ci=True)}. OK: the limit is {limit}."
    if found.verdict == "slower":
        return f"Slower than the limit: {ratio}; the limit is {limit}."
    if found.verdict == "no difference":
        return f"No significant slowdown: {ratio}. OK: the limit is {limit}."
    return f"Inconclusive: {ratio}; the limit of {limit} is inside the interval."


def _median(seconds: tuple[float, ...]) -> str:
    """Median of step times, which the ratio is one of, to about 1%."""
    median = statistics.median(seconds)
    return format.middle(Interval(value=median, low=0.99 * median, high=1.01 * median))


def print_comparison(found: Comparison, *, console: Console) -> None:
    """Print the verdict, the ratio of the step times, both step times and the notes."""
    sheet = Sheet(console)
    sheet.headline(comparison_headline(found))
    sheet.gap()
    rows = [
        (name, _median(seconds), f"median of {format.count(len(seconds), noun='measurement')}")
        for name, seconds in (("old", found.old_seconds), ("new", found.new_seconds))
    ]
    sheet.table(rows, align="lrl", label="Step")
    for number, note in enumerate(found.notes):
        sheet.paragraph(note, label="" if number else "Notes")
    sheet.print()
