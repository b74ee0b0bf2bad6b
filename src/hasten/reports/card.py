"""The card: one screen that shows where the step's time goes and what to do about it.

`Detail` says how much is shown: what a reader needs first, or everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hasten import format
from hasten.records import PHASES, STAGES, Breakdown, Caution, Diagnosis, Finding, LoaderFacts, Phase, Run, Stage
from hasten.reports.ranks import add_ranks
from hasten.reports.sheet import HARD_SPACE, Piece, Sheet
from hasten.reports.surroundings import add_machine, add_overhead, add_use, cache_lines

_COLORS = {
    "data_wait": "red",
    "epoch_start": "magenta",
    "copy": "yellow",
    "forward": "green",
    "loss": "bright_green",
    "backward": "blue",
    "optimizer": "cyan",
    "zero_grad": "bright_cyan",
    "communication": "bright_white",
    "sync": "bright_red",
    "logging": "bright_yellow",
    "validation": "bright_magenta",
    "checkpoint": "bright_blue",
    "script": "white",
}
_REST = "bright_black"
_SMALLEST = 0.01  # share of the step; smaller phases are listed on one line
_ENTRY = 30  # columns of a legend entry


class _Part(NamedTuple):
    name: str
    seconds: float
    glyph: str
    color: str


def add_bar(sheet: Sheet, breakdown: Breakdown) -> None:
    """Add the bar, its legend, and a list of phases that are small or were not seen."""
    seen = [(name, seconds) for name, seconds in _in_order(breakdown) if seconds is not None]
    whole = max(breakdown.step_seconds, sum(max(0.0, seconds) for _, seconds in seen))
    if whole <= 0:
        return
    large = [pair for pair in seen if pair[1] >= _SMALLEST * whole]
    glyphs = _glyphs(sheet)
    parts = [
        _Part(format.phase(name), seconds, glyphs[index % len(glyphs)], _COLORS.get(name, _REST))
        for index, (name, seconds) in enumerate(large)
    ]
    sheet.paragraph(*_segments(parts, width=sheet.width - sheet.gutter))
    _add_legend(sheet, parts, whole=whole)
    small = [
        f"{format.phase(name)} {format.seconds(took)}".replace(" ", HARD_SPACE)
        for name, took in seen
        if (name, took) not in large
    ]
    if small:
        sheet.paragraph((f"under {format.share(_SMALLEST)} each: {', '.join(small)}", "dim"))
    unseen = [format.phase(name) for name, seconds in _in_order(breakdown) if seconds is None]
    if unseen:
        sheet.paragraph((f"{format.NOT_SEEN}: {', '.join(unseen)}", "dim"))


def _in_order(breakdown: Breakdown) -> list[tuple[str, float | None]]:
    phases: list[Phase] = [name for name in PHASES if name in breakdown.phases or name != "communication"]
    return [*((name, breakdown.phases.get(name)) for name in phases), ("unaccounted", breakdown.unaccounted)]


def _glyphs(sheet: Sheet) -> str:
    """Characters of the bar's parts: one block in color, nine patterns in monochrome, ASCII where blocks cannot be shown."""
    if not sheet.can_show("█░▓▒▞▤▥▦▧"):
        return "#.=o*-+:%"
    return "█" if sheet.colored else "█░▓▒▞▤▥▦▧"


def _segments(parts: Sequence[_Part], *, width: int) -> list[Piece]:
    """The bar: each part's cells are proportional to its share of the total."""
    total = sum(part.seconds for part in parts)
    pieces: list[Piece] = []
    before = 0.0
    for part in parts:
        start, before = round(before / total * width), before + part.seconds
        pieces.append((part.glyph * (round(before / total * width) - start), part.color))
    return pieces


def _add_legend(sheet: Sheet, parts: Sequence[_Part], *, whole: float) -> None:
    entries: list[list[Piece]] = [
        [
            (part.glyph, part.color),
            part.name,
            f" {format.seconds(part.seconds)}",
            f" {format.share(part.seconds / whole)}",
        ]
        for part in parts
    ]
    num_columns = max(1, min((sheet.width - sheet.gutter) // _ENTRY, 3, len(entries)))
    num_rows = -(-len(entries) // num_columns)
    rows: list[list[Piece]] = []
    for row in range(num_rows):
        cells: list[Piece] = []
        for index in range(row, num_rows * num_columns, num_rows):
            cells += [*(entries[index] if index < len(entries) else [""] * 4), " "]
        rows.append(cells)
    sheet.table(rows, align="llrrl" * num_columns, gap=1)


def add_loader(sheet: Sheet, run: Run, *, num_stages: int) -> None:
    """Add the training loader that works most, with its stages, and the names of the others."""
    loaders = [loader for loader in run.facts.loaders if loader.role == "train"]
    if not loaders:
        sheet.paragraph(format.NOT_SEEN, label="Loader")
        return
    first, *others = sorted(loaders, key=lambda loader: -sum(stage.seconds for stage in loader.stages))
    sheet.paragraph(", ".join(_header(first)), label="Loader")
    if first.stages and first.num_measured_samples:
        _add_stages(sheet, first, num_stages=num_stages)
    else:
        sheet.paragraph((f"stages: {format.NOT_MEASURED}", "dim"))
    if others:
        sheet.paragraph((f"also: {'; '.join(', '.join(_header(other)) for other in others)}", "dim"))


def _header(loader: LoaderFacts) -> list[str]:
    parts = [loader.name]
    if loader.batch_size is not None:
        parts.append(f"batch {format.count(loader.batch_size)}")
    parts.append(format.count(loader.num_workers, noun="worker") if loader.num_workers else "no workers")
    if loader.num_workers and loader.queue_ready:
        ready = format.amount(sum(loader.queue_ready) / len(loader.queue_ready))
        room = "" if loader.prefetch_factor is None else f" of {loader.prefetch_factor * loader.num_workers}"
        parts.append(f"on average {ready}{room} batches ready")
    if loader.in_memory:
        parts.append("data in memory")
    return parts


def _add_stages(sheet: Sheet, loader: LoaderFacts, *, num_stages: int) -> None:
    num_samples = loader.num_measured_samples
    whole = sum(stage.seconds for stage in loader.stages)
    stages, rest = _largest(loader.stages, num=num_stages)
    rows: list[list[Piece]] = [[(head, "dim") for head in ("per sample", "wall", "CPU", "share", "bytes")]]
    for name, group in [
        *((format.stage(stage.name, detail=stage.detail), [stage]) for stage in stages),
        *rest,
    ]:
        seconds = sum(stage.seconds for stage in group)
        num_bytes = sum(stage.num_bytes for stage in group)
        rows.append(
            [
                name,
                format.seconds(seconds / num_samples),
                format.seconds(sum(stage.cpu_seconds for stage in group) / num_samples),
                format.share(seconds / whole) if whole > 0 else "",
                format.size(num_bytes / num_samples) if num_bytes else "",
            ]
        )
    sheet.table(rows, align="lrrrr")


def _largest(stages: Sequence[Stage], *, num: int) -> tuple[list[Stage], list[tuple[str, list[Stage]]]]:
    """The `num` costliest stages, in the order in which a sample passes them, and the others as one group."""
    ranked = sorted(stages, key=lambda stage: -stage.seconds)
    kept = ranked if len(ranked) <= num else ranked[: num - 1]
    rest = ranked[len(kept) :]
    known = [stage for name in STAGES for stage in stages if stage.name == name]
    ordered = [*known, *(stage for stage in stages if stage.name not in STAGES)]
    return [stage for stage in ordered if stage in kept], [(f"{len(rest)} more", rest)] if rest else []


class Detail(NamedTuple):
    """How many items of each part are shown, and which parts."""

    findings: int
    because: int  # reasons for the first finding
    because_later: int
    stages: int
    notes: int
    surroundings: bool  # what-ifs, the cache, overhead, usage, the machine, the record's path


SHORT = Detail(findings=3, because=2, because_later=1, stages=4, notes=2, surroundings=False)
FULL = Detail(findings=100, because=100, because_later=100, stages=100, notes=100, surroundings=True)


def add_card(sheet: Sheet, run: Run, diagnosis: Diagnosis, *, detail: Detail, record: str) -> None:
    """Add the whole card to the sheet; `record` is the path of the saved run."""
    sheet.headline(diagnosis.verdict)
    for caution in diagnosis.cautions:
        _add_caution(sheet, run, caution)
    sheet.gap()
    _add_step(sheet, run, diagnosis)
    add_bar(sheet, diagnosis.breakdown)
    _add_device(sheet, diagnosis)
    _add_ceiling(sheet, diagnosis)
    if run.ranks is not None:
        add_ranks(sheet, run.ranks)
    sheet.gap()
    add_loader(sheet, run, num_stages=detail.stages)
    sheet.gap()
    _add_findings(sheet, run, diagnosis, detail=detail)
    sheet.gap()
    if detail.surroundings:
        _add_what_ifs(sheet, diagnosis)
        _add_cache(sheet, run, diagnosis)
    _add_notes(sheet, run, detail=detail)
    if detail.surroundings:
        add_overhead(sheet, run, step_seconds=diagnosis.breakdown.step_seconds)
        add_use(sheet, run)
        add_machine(sheet, run)
        if record:
            sheet.paragraph(record, label="Record")


def _add_caution(sheet: Sheet, run: Run, caution: Caution) -> None:
    """What is wrong with the training itself: it comes before all that costs time."""
    sheet.paragraph(caution.title, label="Caution", label_style="bold red")
    sheet.paragraph((f"[{caution.kind}] {caution.because}", "dim"))
    if caution.where is not None:
        sheet.paragraph((format.place(caution.where, directory=run.directory), "dim"))
    sheet.paragraph((caution.remedy, "green"), lead=sheet.arrow)


def _add_step(sheet: Sheet, run: Run, diagnosis: Diagnosis) -> None:
    breakdown = diagnosis.breakdown
    spread = breakdown.spread
    parts = [format.interval(spread, ci=True) if spread is not None else format.seconds(breakdown.step_seconds)]
    if spread is not None and not spread.low <= breakdown.median_seconds <= spread.high:
        parts.append(f"median {format.seconds(breakdown.median_seconds)}")
    if breakdown.samples_per_second is not None:
        parts.append(format.rate(breakdown.samples_per_second))
    parts.append(format.count(breakdown.num_steps, noun="step"))
    sheet.paragraph((parts[0], "bold"), "".join(f", {part}" for part in parts[1:]), label="Step")


def _add_device(sheet: Sheet, diagnosis: Diagnosis) -> None:
    breakdown = diagnosis.breakdown
    if breakdown.device_seconds is not None:
        busy = format.seconds(breakdown.device_seconds)
        share = format.share(_over(breakdown.device_seconds, breakdown.step_seconds))
        text = f"busy {busy} per step ({share}), waiting for data {format.seconds(breakdown.device_wait)}"
        sheet.paragraph(text, label="Device")


def _add_ceiling(sheet: Sheet, diagnosis: Diagnosis) -> None:
    ceiling, step_seconds = diagnosis.ceiling, diagnosis.breakdown.step_seconds
    known = [
        f"{condition}: {format.seconds(seconds)} ({format.ratio(_over(step_seconds, seconds))})"
        for condition, seconds in (
            ("with instant data loading", ceiling.free_batches),
            ("with instant copies too", ceiling.free_copies),
        )
        if seconds is not None
    ]
    if ceiling.loader_alone is not None:
        known.append(f"data loader alone: {format.seconds(ceiling.loader_alone)}")
    if diagnosis.unexplained:
        known.append(f"{format.seconds(diagnosis.unexplained)} of that saving is not explained by any finding")
    sheet.paragraph(", ".join(known) or format.NOT_MEASURED, label="Best case")


def _add_findings(sheet: Sheet, run: Run, diagnosis: Diagnosis, *, detail: Detail) -> None:
    if not diagnosis.findings:
        sheet.paragraph("none", label="Findings")
    for index, finding in enumerate(diagnosis.findings[: detail.findings]):
        lead = f"{index + 1}. "
        cost = _cost(finding, step_seconds=diagnosis.breakdown.step_seconds)
        sheet.pair((finding.title, "bold"), (cost, "bold"), label="" if index else "Findings", lead=lead)
        lead = " " * len(lead)
        reasons = list(finding.because[: detail.because_later if index else detail.because])
        if finding.where is not None:
            source = f": {finding.where.source}" if finding.where.source else ""
            reasons.append(f"{format.place(finding.where, directory=run.directory)}{source}")
        sheet.paragraph((f"[{finding.kind}, {_evidence(finding)}] ", "dim"), *reasons[:1], lead=lead)
        for reason in reasons[1:]:
            sheet.paragraph(reason, lead=lead)
        if finding.remedy:
            sheet.paragraph((finding.remedy, "green"), lead=lead + sheet.arrow)
    if rest := diagnosis.findings[detail.findings :]:
        titles = "; ".join(finding.title for finding in rest)
        sheet.paragraph((f"and {len(rest)} more: {titles}", "dim"))
    if run.untried:
        names = ", ".join(name.replace("_", " ") for name in run.untried)
        sheet.paragraph((f"not tried yet: {names}", "dim"))


def _cost(finding: Finding, *, step_seconds: float) -> str:
    """Time that fixing it would save: "~120 ms per step (38%)"."""
    if finding.interval is not None:
        seconds = format.middle(finding.interval)
    else:
        seconds = format.seconds(finding.recoverable, rough=True)
    return f"~{seconds} per step ({format.share(_over(finding.recoverable, step_seconds))})"


def _evidence(finding: Finding) -> str:
    """How the saving is known: "confirmed: 110 to 131 ms" or "estimated"."""
    ends = "" if finding.interval is None else format.bounds(finding.interval)
    status = "estimated" if finding.confirmed_by is None else "confirmed"
    return f"{status}: {ends}" if ends else status


def _add_what_ifs(sheet: Sheet, diagnosis: Diagnosis) -> None:
    label = "What if"
    for what_if in diagnosis.what_ifs:
        gain = format.ratio(_over(diagnosis.breakdown.step_seconds, what_if.step_seconds))
        text = f"{what_if.change}: by arithmetic {format.seconds(what_if.step_seconds, rough=True)} per step ({gain})"
        reason = f", {what_if.because}" if what_if.because else ""
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
        sheet.paragraph((f"and {format.count(left, noun='more note')}", "dim"))


def _over(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
