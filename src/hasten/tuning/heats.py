"""Recipes, one whole run each: which of them is worth a proof?

In: the plan so far, a metric with a target. Out: Heats, and the settings with the recipe that reached the target first.
Refuses to claim anything: one run is luck, and the proof that follows is made at seeds of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hasten import format
from hasten.launch.side import Bench, SideError
from hasten.records import Heat, Settings
from hasten.tuning.judge import FAR
from hasten.tuning.metric import Metric

SHIFT = -FAR  # a seed that no proof takes


def heats(
    bench: Bench,
    settings: Settings,
    recipes: Sequence[Settings],
    metric: Metric,
    *,
    time_left: Callable[[], float],
    on_launch: Callable[[str], object] = lambda _: None,
) -> Iterator[Heat]:
    """A whole run of the plan with each recipe, as long as there is time for one as long as the last."""
    longest = 0.0
    for recipe in recipes:
        if time_left() <= longest:
            return
        on_launch(f"a whole run with {format.settings(recipe, none='the recipe as it is')}")
        try:
            run = metric.run(bench, {**settings, **recipe}, shift=SHIFT)
            longest = max(longest, run.seconds)
        except SideError as error:
            yield Heat(settings=recipe, note=str(error))
        else:
            yield Heat(settings=recipe, metric=run.value, reached=run.reached)


def soonest(ended: Sequence[Heat]) -> Settings:
    """The recipe that reached the target first; none where no recipe was sooner than none."""
    there = [heat for heat in ended if heat.reached is not None]
    return min(there, key=lambda heat: heat.reached or 0.0).settings if there else {}
