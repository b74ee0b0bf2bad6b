"""The loader's stages: what a sample costs to make.

In: a Run. Out: rows on a sheet for the training loader that works most. Refuses to know
which stage is to blame.
"""

from collections.abc import Sequence

from hasten import format
from hasten.records import STAGES, LoaderFacts, Run, Stage
from hasten.reports.sheet import Piece, Sheet


def add_loader(sheet: Sheet, run: Run, *, num_stages: int) -> None:
    """Put the busiest training loader with its stages on the sheet, and the name of each other one."""
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
    words = [loader.name]
    if loader.batch_size is not None:
        words.append(f"batch {format.count(loader.batch_size)}")
    words.append(format.count(loader.num_workers, noun="worker") if loader.num_workers else "no workers")
    if loader.num_workers and loader.queue_ready:
        ready = f"queue ready on average {format.amount(sum(loader.queue_ready) / len(loader.queue_ready))}"
        room = "" if loader.prefetch_factor is None else f" of {loader.prefetch_factor * loader.num_workers}"
        words.append(ready + room)
    if loader.in_memory:
        words.append("data held in memory")
    return words


def _add_stages(sheet: Sheet, loader: LoaderFacts, *, num_stages: int) -> None:
    num_samples = loader.num_measured_samples
    whole = sum(stage.seconds for stage in loader.stages)
    stages, rest = _largest(loader.stages, num=num_stages)
    rows: list[list[Piece]] = [[(head, "dim") for head in ("a sample", "wall", "CPU", "share", "bytes")]]
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
    """The `num` longest stages in the order of work, and the others as one group."""
    ranked = sorted(stages, key=lambda stage: -stage.seconds)
    kept = ranked if len(ranked) <= num else ranked[: num - 1]
    rest = ranked[len(kept) :]
    known = [stage for name in STAGES for stage in stages if stage.name == name]
    ordered = [*known, *(stage for stage in stages if stage.name not in STAGES)]
    return [stage for stage in ordered if stage in kept], [(f"{len(rest)} more", rest)] if rest else []
