"""What each follow-up launch did to the step, as Interventions; and what another decoder would save."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from hasten.agent.segments import JOINED
from hasten.launch.folding import epoch_starts, segment_means, validation_cycles
from hasten.launch.recorder import Recorded
from hasten.measurement.followups import FollowUpRun
from hasten.raw_run import DEVICE_REPLAY, JOIN, PLAIN, REPLAY
from hasten.records import Interval, Intervention
from hasten.stats import ratio_interval, scaled


def read_switches(recorded: Recorded) -> list[Intervention]:
    """What the alternating run said of each switch, of replay and of the loader alone."""
    raw, steps = recorded.raw, recorded.steps
    names, baselines = (dict.fromkeys(s.name for s in steps if s.is_baseline == is_one) for is_one in (False, True))
    found = [
        _compared(name, recorded, segment_means(steps, name, is_baseline=True))
        for name in names
        if name in baselines and name not in raw.not_applied
    ]
    found += [Intervention(name=name, note=f"not applied: {why}") for name, why in raw.not_applied.items()]
    if DEVICE_REPLAY in names and DEVICE_REPLAY not in raw.not_applied:
        found.append(_compared(DEVICE_REPLAY, recorded, segment_means(steps, REPLAY)))
    if {JOIN, REPLAY} <= {*names} and JOIN not in raw.not_applied:
        joined = _compared(JOIN, recorded, segment_means(steps, REPLAY))
        ratio = joined.ratio
        if ratio is not None:
            # A sample's share: the joined step makes JOINED times as many.
            per_sample = Interval(*scaled((ratio.value, ratio.low, ratio.high), lambda r: r / JOINED))
            settings = {"joined": str(JOINED)}
            found.append(msgspec.structs.replace(joined, name="small_batch", ratio=per_sample, settings=settings))
    if raw.drained is not None:
        found.append(
            Intervention(
                name="drain",
                candidate_seconds=statistics.fmean(raw.drained) if raw.drained else None,
                num_steps=len(raw.drained),
                note=raw.drain_trouble,
            )
        )
    return found


def _compared(name: str, recorded: Recorded, baseline: Sequence[float]) -> Intervention:
    number = sum(s.name == name and not s.is_baseline and s.counted for s in recorded.steps)
    return compare(name, segment_means(recorded.steps, name), baseline, num_steps=number)


TOO_FEW = "too few steps were measured"


def compare(
    name: str,
    candidate: Sequence[float],
    baseline: Sequence[float],
    *,
    num_steps: int,
    settings: Mapping[str, str] | None = None,
) -> Intervention:
    """An Intervention from the segment means of both sides."""
    if min(len(candidate), len(baseline)) < 2:
        return Intervention(name=name, note=TOO_FEW, settings=dict(settings or {}))
    return Intervention(
        name=name,
        ratio=Interval(*ratio_interval(candidate, baseline)),
        baseline_seconds=statistics.median(baseline),
        candidate_seconds=statistics.median(candidate),
        num_steps=num_steps,
        settings=dict(settings or {}),
    )


def against(further: FollowUpRun, recorded: Recorded, base: Recorded) -> Intervention:
    """A launch of its own against a plain one, by what it is about."""
    settings, number = further.settings, len(recorded.measured)
    if further.name == "validation_gradients":
        sides = validation_cycles(recorded.measured), validation_cycles(base.measured)
    elif further.name == "worker_startup":
        sides = epoch_starts(recorded.measured), epoch_starts(base.measured)
    else:
        sides = segment_means(recorded.steps, PLAIN), segment_means(base.steps, PLAIN)
    return compare(further.name, *sides, num_steps=number, settings=settings)


MOST_FILES = 12
ROUNDS = 4


def compare_decoders(files: Sequence[str]) -> tuple[Interval, str] | None:
    """Pillow's seconds over simplejpeg's on the JPEG files among `files`; None when there are none."""
    contents = [data for data in (_read(f) for f in files[: 4 * MOST_FILES]) if data[:3] == b"\xff\xd8\xff"]
    contents = contents[:MOST_FILES]
    if len(contents) < 4:
        return None
    import io

    import simplejpeg
    from PIL import Image

    def pillow(data: bytes) -> object:
        return Image.open(io.BytesIO(data)).convert("RGB")

    def other(data: bytes) -> object:
        return simplejpeg.decode_jpeg(data, colorspace="RGB")

    times: dict[object, list[float]] = {pillow: [], other: []}
    try:
        for _ in range(ROUNDS):
            for decode in (pillow, other, other, pillow):
                start = time.thread_time()
                for data in contents:
                    decode(data)
                times[decode].append(time.thread_time() - start)
    except (OSError, ValueError, Image.DecompressionBombError):
        return None  # a file that only one of them reads says nothing about speed
    return Interval(*ratio_interval(times[pillow], times[other])), "simplejpeg"


def _read(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError:
        return b""
