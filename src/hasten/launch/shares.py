"""Where the time of a first launch went, as far as choosing follow-up launches needs it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hasten.launch.folding import epoch_starts
from hasten.launch.recorder import Recorded
from hasten.records import COMPUTING, RARE, Phase, ResourceSample


@dataclass(kw_only=True)
class Shares:
    """Mean seconds of the measured steps by phase, as far as choosing needs them."""

    step: float
    regular: float
    phases: Mapping[str, float]
    faults: float | None  # minor page faults a step of the whole tree
    others_cpu: float

    def of(self, *phases: str) -> float:
        """Share of these phases in the step."""
        return sum(self.phases.get(p, 0.0) for p in phases) / self.step if self.step else 0.0


def shares_of(recorded: Recorded, samples: Sequence[ResourceSample], zero: float) -> Shares:
    """What choosing further runs has to know of the first."""
    steps = recorded.measured
    phases: dict[str, float] = {}
    seen: set[Phase] = {p for s in steps for p in s.phases}
    for phase in seen:
        rare = phase in (*RARE, "data_wait")
        among = steps if rare else recorded.marked
        phases[phase] = sum(s.phases.get(phase, 0.0) for s in among) / max(1, len(among))
    for phase in COMPUTING:  # a host that only asks for it is done sooner than the device
        device = sum(s.device.get(phase, 0.0) for s in recorded.marked) / max(1, len(recorded.marked))
        phases[phase] = max(phases.get(phase, 0.0), device)
    if "epoch_start" in phases:
        phases["epoch_start"] = sum(epoch_starts(steps)) / len(steps)
    start, end = recorded.window
    inside = [s for s in samples if start <= s.at + zero <= end]
    faults = None
    if len(inside) >= 2 and inside[0].minor_faults is not None and inside[-1].minor_faults is not None:
        seconds = inside[-1].at - inside[0].at
        mean = (end - start) / len(steps)
        faults = (inside[-1].minor_faults - inside[0].minor_faults) / max(seconds, 1e-9) * mean
    return Shares(
        step=statistics.fmean(s.seconds for s in steps),
        regular=statistics.fmean([s.regular for s in steps if not s.starts_epoch] or [0.0]),
        phases=phases,
        faults=faults,
        others_cpu=statistics.fmean([s.others_cpu for s in inside] or [0.0]),
    )
