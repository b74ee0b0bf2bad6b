"""The same few batches, over and over: what a step costs once its samples are kept can then be seen within seconds.

In: how many batches. Out: a loader's sampler gives its first entries again and again, in an epoch as long as ever, or
in epochs that end with the last of them. Refuses to change `len(loader)`: the script's own arithmetic stays.

Speed is asked in epochs as long as ever: where an epoch ends, workers are started and queues are empty, and in short
epochs little else would be seen. What a second epoch is made of is asked in short ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch.utils.data import DataLoader

from hasten.agent.samplers import wrap_samplers
from hasten.patches import Patches


def repeat_batches(number: int, patches: Patches, *, ends: bool) -> None:
    """Have every loader of this process hand out its first batches again and again."""
    first: dict[tuple[int, int | None], list[object]] = {}  # of a dataset, in batches of a size

    def repeated(sampler: Iterable[object], loader: DataLoader[object], dataset: int) -> _Repeated:
        return _Repeated(sampler, number, first.setdefault((dataset, loader.batch_size), []), ends=ends)

    wrap_samplers(patches, repeated)


class _Repeated:
    """The first few of a sampler's entries in the place of all that follow."""

    def __init__(self, of: Iterable[object], number: int, first: list[object], *, ends: bool) -> None:
        self._of = of
        self._number = number
        self._first = first
        self._ends = ends

    def __iter__(self) -> Iterator[object]:
        for position, entry in enumerate(self._of):
            if self._ends and position == self._number:
                return
            if len(self._first) <= position % self._number:
                self._first.append(entry)
            yield self._first[position % self._number]

    def __len__(self) -> int:
        return len(self._of)  # type: ignore[arg-type]
