"""Chart of a cache: how full its tiers are, and where the samples came from.

In: a Run. Out: a chart. Refuses to conclude.
"""

from __future__ import annotations

from hasten.records import LoaderFacts, Run
from hasten.reports import format
from hasten.reports.page.chart import Chart, Spec, draw, named_rows, says

WORDS = {"ram": "memory", "disk": "disk"}


def cache_tiers(run: Run, *, in_search: bool) -> Chart | None:
    """A bar a tier, filled as far as it is; beneath them the samples that were asked for, by where they came from.

    `in_search`: the run was diagnosed in a search, with the same few batches over and over.
    """
    loader = max(run.facts.loaders, key=_num_asked, default=None)
    if loader is None or not loader.cache or not _num_asked(loader):
        return None
    rows: list[dict[str, object]] = []
    for tier in loader.cache:
        name = WORDS.get(tier.name, tier.name)
        told = f"{name}: {format.size(tier.num_bytes)} of {format.size(tier.budget_bytes)} taken"
        share = tier.num_bytes / tier.budget_bytes if tier.budget_bytes else 0.0
        rows.append(_row(f"{name}, filled", share, name, told))
    asked = _num_asked(loader)
    for what, number in _sources(loader).items():
        told = f"{format.count(number, noun='sample')} of {format.count(asked)} {what}"
        rows.append(_row(f"samples {what}", number / asked, what.removeprefix("from "), told))
    order = [str(row["row"]) for row in rows]
    kinds = list(dict.fromkeys(str(row["kind"]) for row in rows))
    colours = {"memory": "var(--forward)", "disk": "var(--read)", "made anew": "var(--data_wait)"}

    def spec(width: int) -> Spec:
        return {
            "width": width,
            "height": 28 * len(rows) + 40,
            "data": {"values": rows},
            "mark": {"type": "bar", "height": {"band": 0.7}},
            "encoding": {
                "y": named_rows("row", order, width),
                "x": {
                    "field": "share",
                    "type": "quantitative",
                    "title": "share",
                    "scale": {"domain": [0, 1]},
                    "axis": {"format": "%", "tickCount": 5},
                },
                "color": {
                    "field": "kind",
                    "type": "nominal",
                    "scale": {"domain": kinds, "range": [colours.get(kind, "var(--rest)") for kind in kinds]},
                    "legend": None,
                },
                "description": says(),
            },
        }

    saved = sum(tier.seconds_saved for tier in loader.cache)
    hits = sum(tier.num_hits for tier in loader.cache)
    when = "while the same few batches came again and again" if in_search else "from the run's start to its end"
    caption = (
        f"{loader.name}: {format.share(hits / asked)} of the samples asked for were kept, {when}; "
        f"that saved its workers {format.seconds(saved, rough=True)} of preparing them."
    )
    return draw("cache", "What the cache holds, and what it gave", caption, spec)


def _num_asked(loader: LoaderFacts) -> int:
    return sum(tier.num_hits for tier in loader.cache) + (loader.num_cache_misses or 0)


def _sources(loader: LoaderFacts) -> dict[str, int]:
    """How many samples came from where."""
    found = {f"from {WORDS.get(tier.name, tier.name)}": tier.num_hits for tier in loader.cache}
    return {**found, "made anew": loader.num_cache_misses or 0}


def _row(row: str, share: float, kind: str, told: str) -> dict[str, object]:
    return {"row": row, "share": share, "kind": kind, "says": told}
