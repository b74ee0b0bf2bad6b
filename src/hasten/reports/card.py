"""The card: one screen that says where the step's time goes and what to do.

In: a Run and its Diagnosis. Out: lines on a sheet, as many as the screen takes: what matters least is left
out first, and the card says so. Refuses to conclude: every figure stands in the records or is a share, a sum
or a mean of such.
"""

from typing import NamedTuple

from hasten import format
from hasten.records import Diagnosis, Finding, Run
from hasten.reports.bar import add_bar
from hasten.reports.sheet import Sheet
from hasten.reports.stages import add_loader
from hasten.reports.surroundings import add_machine, add_overhead, add_use, cache_lines


class Detail(NamedTuple):
    """How much of everything there is room for."""

    findings: int = 8
    because: int = 4
    because_later: int = 4  # of the findings after the first
    stages: int = 10
    what_ifs: int = 4
    reasons: bool = True  # why a what-if is predicted
    notes: int = 4
    titles: bool = True  # of the findings that are left out
    gaps: int = 2  # 2: between all parts, 1: around the findings, 0: none


DETAILS = (
    Detail(),
    Detail(because=3, because_later=2, stages=8, what_ifs=3, notes=3),
    Detail(because=3, because_later=1, stages=7, what_ifs=3, reasons=False, notes=3),
    Detail(findings=5, because=2, because_later=1, stages=6, what_ifs=3, reasons=False, notes=2, gaps=1),
    Detail(findings=4, because=2, because_later=1, stages=5, what_ifs=2, reasons=False, notes=2, gaps=1),
    Detail(4, because=2, because_later=1, stages=4, what_ifs=2, reasons=False, notes=1, gaps=0),
    Detail(3, because=1, because_later=1, stages=4, what_ifs=2, reasons=False, notes=1, titles=False, gaps=0),
    Detail(2, because=1, because_later=0, stages=3, what_ifs=1, reasons=False, notes=1, titles=False, gaps=0),
)


def add_card(sheet: Sheet, run: Run, diagnosis: Diagnosis, *, detail: Detail, record: str) -> None:
    """Put the whole card on the sheet; `record` is where the run is kept."""
    sheet.headline(diagnosis.verdict)
    sheet.gap()
    _add_step(sheet, run, diagnosis)
    add_bar(sheet, diagnosis.breakdown)
    _add_device(sheet, diagnosis)
    _add_ceiling(sheet, diagnosis)
    _gap(sheet, wanted=detail.gaps > 1)
    add_loader(sheet, run, num_stages=detail.stages)
    _gap(sheet, wanted=detail.gaps > 0)
    _add_findings(sheet, run, diagnosis, detail=detail)
    _gap(sheet, wanted=detail.gaps > 0)
    _add_what_ifs(sheet, diagnosis, detail=detail)
    _add_cache(sheet, run, diagnosis)
    _gap(sheet, wanted=detail.gaps > 1)
    _add_notes(sheet, run, detail=detail)
    add_overhead(sheet, run, step_seconds=diagnosis.breakdown.step_seconds)
    add_use(sheet, run)
    add_machine(sheet, run)
    if record:
        sheet.paragraph(f"{record} (as a page: hasten report --html FILE)", label="Record")


def _gap(sheet: Sheet, *, wanted: bool) -> None:
    if wanted:
        sheet.gap()


def _add_step(sheet: Sheet, run: Run, diagnosis: Diagnosis) -> None:
    breakdown = diagnosis.breakdown
    spread = breakdown.spread
    words = [format.interval(spread) if spread is not None else format.seconds(breakdown.step_seconds)]
    if spread is not None and not spread.low <= breakdown.median_seconds <= spread.high:
        words.append(f"median {format.seconds(breakdown.median_seconds)}")
    if breakdown.samples_per_second is not None:
        words.append(format.rate(breakdown.samples_per_second))
    words.append(format.count(breakdown.num_steps, noun="step"))
    sheet.paragraph((words[0], "bold"), "".join(f", {word}" for word in words[1:]), label="Step")


def _add_device(sheet: Sheet, diagnosis: Diagnosis) -> None:
    breakdown = diagnosis.breakdown
    if breakdown.device_seconds is not None:
        busy = format.seconds(breakdown.device_seconds)
        part = format.share(_over(breakdown.device_seconds, breakdown.step_seconds))
        text = f"busy {busy} of the step ({part}), waiting for data {format.seconds(breakdown.device_wait)}"
        sheet.paragraph(text, label="Device")


def _add_ceiling(sheet: Sheet, diagnosis: Diagnosis) -> None:
    ceiling, step_seconds = diagnosis.ceiling, diagnosis.breakdown.step_seconds
    known = [
        f"{words}: {format.seconds(seconds)} ({format.ratio(_over(step_seconds, seconds))})"
        for words, seconds in (
            ("batches for free", ceiling.free_batches),
            ("copies for free too", ceiling.free_copies),
        )
        if seconds is not None
    ]
    if ceiling.loader_alone is not None:
        known.append(f"loader alone: {format.seconds(ceiling.loader_alone)}")
    sheet.paragraph(", ".join(known) or format.NOT_MEASURED, label="Ceiling")


def _add_findings(sheet: Sheet, run: Run, diagnosis: Diagnosis, *, detail: Detail) -> None:
    findings = sorted(diagnosis.findings, key=lambda finding: -finding.recoverable)
    if not findings:
        sheet.paragraph("none", label="Findings")
    for index, finding in enumerate(findings[: detail.findings]):
        lead = f"{index + 1}. "
        cost = _cost(finding, step_seconds=diagnosis.breakdown.step_seconds)
        sheet.pair((finding.title, "bold"), (cost, "bold"), label="" if index else "Findings", lead=lead)
        lead = " " * len(lead)
        reasons = list(finding.because[: detail.because_later if index else detail.because])
        if finding.where is not None:
            source = f": {finding.where.source}" if finding.where.source else ""
            reasons.append(f"{format.place(finding.where, directory=run.directory)}{source}")
        sheet.paragraph((f"[{_known_by(finding)}] ", "dim"), *reasons[:1], lead=lead)
        for reason in reasons[1:]:
            sheet.paragraph(reason, lead=lead)
        if finding.remedy:
            sheet.paragraph((finding.remedy, "green"), lead=lead + sheet.arrow)
    if rest := findings[detail.findings :]:
        titles = f": {'; '.join(finding.title for finding in rest)}" if detail.titles else " in the record"
        sheet.paragraph((f"and {len(rest)} smaller{titles}", "dim"))
    if run.untried:
        names = ", ".join(name.replace("_", " ") for name in run.untried)
        sheet.paragraph((f"not tried yet: {names}", "dim"))


def _cost(finding: Finding, *, step_seconds: float) -> str:
    """What would be recovered: "~120 ms a step (38%)"."""
    if finding.interval is not None:
        seconds = format.middle(finding.interval)
    else:
        seconds = format.seconds(finding.recoverable, rough=True)
    return f"~{seconds} a step ({format.share(_over(finding.recoverable, step_seconds))})"


def _known_by(finding: Finding) -> str:
    """How the cost is known: "confirmed: 110 to 131 ms" or "estimated"."""
    ends = "" if finding.interval is None else format.bounds(finding.interval)
    known = "estimated" if finding.confirmed_by is None else "confirmed"
    return f"{known}: {ends}" if ends else known


def _add_what_ifs(sheet: Sheet, diagnosis: Diagnosis, *, detail: Detail) -> None:
    label = "What if"
    for what_if in diagnosis.what_ifs[: detail.what_ifs]:
        gain = format.ratio(_over(diagnosis.breakdown.step_seconds, what_if.step_seconds))
        text = f"{what_if.change}: {format.seconds(what_if.step_seconds, rough=True)} a step ({gain})"
        reason = f", {what_if.because}" if detail.reasons and what_if.because else ""
        sheet.paragraph(text, (reason, "dim"), label=label)
        label = ""


def _add_cache(sheet: Sheet, run: Run, diagnosis: Diagnosis) -> None:
    for number, line in enumerate(cache_lines(run, diagnosis)):
        sheet.paragraph(line, label="" if number else "Cache")


def _add_notes(sheet: Sheet, run: Run, *, detail: Detail) -> None:
    label = "Notes"
    for note in run.notes[: detail.notes]:
        sheet.paragraph(note, label=label)
        label = ""
    if (left := len(run.notes) - detail.notes) > 0:
        sheet.paragraph((f"and {format.count(left, noun='more note')} in the record", "dim"))


def _over(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
