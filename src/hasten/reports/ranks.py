"""The table of ranks, for screens and pages: a few rows however many there are."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from hasten import format
from hasten.records import PHASES, Phase, RankRow, Ranks
from hasten.reports.sheet import Piece, Sheet

MOST_ROWS = 8  # beyond, those that stand out, and the median of the others
NUM_SHOWN = 3  # of the ranks that others wait for, and of those that wait longest
MOST_PHASES = 4  # that have a column: those that take longest


def summary(ranks: Ranks) -> str:
    """How many there are, where, and what is known of them."""
    hosts = "" if ranks.num_hosts == 1 else f" on {ranks.num_hosts} hosts"
    parts = [f"{ranks.world_size}{hosts} ({ranks.backend})"]
    if ranks.num_steps:
        steps = format.count(ranks.num_steps, noun="step")
        parts.append(f"{steps} of {format.seconds(ranks.step_seconds)} compared; what a rank waits is for later ones")
    if ranks.missing:
        parts.append(f"no record of {format.ranks(ranks.missing)}")
    return ", ".join(parts)


def rank_table(ranks: Ranks) -> list[list[str]]:
    """A head, and a row for each rank that is shown; empty where none was compared."""
    if not ranks.rows:
        return []
    longest = {p: max(row.phases.get(p, 0.0) for row in ranks.rows) for p in PHASES}
    chosen = sorted(longest, key=lambda p: -longest[p])[:MOST_PHASES]
    phases: list[Phase] = [p for p in PHASES if p in chosen]
    with_hosts = ranks.num_hosts > 1
    head = ["rank", *(["host"] if with_hosts else []), *map(format.phase, phases), "waits"]
    shown, others = _chosen(ranks)
    rows = [[str(row.rank), *([row.host] if with_hosts else []), *_cells(row, phases)] for row in shown]
    if others:
        rows.append(["others", *([""] if with_hosts else []), *_cells(_median(others, phases), phases)])
    return [head, *rows]


def _cells(row: RankRow, phases: Sequence[Phase]) -> list[str]:
    return [*(format.seconds(row.phases.get(p, 0.0)) for p in phases), format.seconds(row.waiting)]


def _chosen(ranks: Ranks) -> tuple[list[RankRow], list[RankRow]]:
    """The rows that are shown, and the others."""
    rows = list(ranks.rows)
    if len(rows) <= MOST_ROWS:
        return rows, []
    late = set(ranks.late.ranks[:NUM_SHOWN]) if ranks.late is not None else set[int]()
    by_waiting = sorted(rows, key=lambda row: row.waiting)
    late |= {row.rank for row in (*by_waiting[:NUM_SHOWN], *by_waiting[-NUM_SHOWN:])}
    return [row for row in rows if row.rank in late], [row for row in rows if row.rank not in late]


def _median(rows: Sequence[RankRow], phases: Sequence[Phase]) -> RankRow:
    middle: dict[Phase, float] = {p: statistics.median(row.phases.get(p, 0.0) for row in rows) for p in phases}
    return RankRow(rank=-1, host="", phases=middle, waiting=statistics.median(row.waiting for row in rows))


def add_ranks(sheet: Sheet, ranks: Ranks) -> None:
    """Add the table of ranks to a card."""
    sheet.gap()
    sheet.paragraph(summary(ranks), label="Ranks")
    table = rank_table(ranks)
    if table:
        head: list[Piece] = [(cell, "dim") for cell in table[0]]
        body: list[list[Piece]] = [[*row] for row in table[1:]]
        sheet.table([head, *body], align="l" + "r" * (len(head) - 1))
