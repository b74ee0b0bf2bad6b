"""Format numbers with their units, for every screen, page and message.

None and numbers that are not finite become `unknown`. The number of digits follows from what is known: an interval is
given to the one or two digits that its width allows, a plain measurement to two or three, a rough one to two.
"""

import math
from collections.abc import Sequence
from typing import TypeGuard

from hasten.records import Interval, Settings, Value, Where

NOT_MEASURED = "not measured"
NOT_SEEN = "not seen"
_CI = "95% CI "

_PHASES = {"data_wait": "data wait", "copy": "H2D copy", "epoch_start": "epoch start"}
_STAGES = {
    "getitem": "other code in __getitem__",
}
_TIMES = (
    (3600.0, "h", 2.0),
    (60.0, "min", 10.0),
    (1.0, "s", 1.0),
    (1e-3, "ms", 1.0),
    (1e-6, "µs", 1.0),
    (1e-9, "ns", 0.0),
)
_SIZES = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))


def setting(name: str, value: Value) -> str:
    """A setting of a plan: "cache = auto", or "bf16" for one that is True."""
    return name if value is True else f"{name} = {value}"


def settings(chosen: Settings, *, none: str = "") -> str:
    """Settings of a plan: "loader, num_workers = 2"; `none` where there are none."""
    return ", ".join(setting(name, value) for name, value in chosen.items()) or none


def added(chosen: Settings) -> str:
    """Fixes that are tried together: "bf16 + cache = auto"."""
    return " + ".join(setting(name, value) for name, value in chosen.items())


def phase(name: str) -> str:
    """The display name of a phase: "data wait" for "data_wait"."""
    return _PHASES.get(name, name)


def ranks(numbers: Sequence[int]) -> str:
    """Ranks by their numbers, the first of many: "rank 1", "ranks 1, 2, 3 and 9 others"."""
    shown = ", ".join(map(str, numbers[:3]))
    rest = f" and {len(numbers) - 3} others" if len(numbers) > 3 else ""
    return f"rank {shown}" if len(numbers) == 1 else f"ranks {shown}{rest}"


def stage(name: str, *, detail: str = "") -> str:
    """The display name of a loader stage: "decode (Pillow)"; a transform is shown by its own name."""
    if name == "transform" and detail:
        return detail
    return f"{_STAGES.get(name, name)} ({detail})" if detail else _STAGES.get(name, name)


def seconds(value: float | None, *, unknown: str = NOT_MEASURED, rough: bool = False) -> str:
    """A duration: "41.2 ms", or "41 ms" if `rough`."""
    if not _known(value):
        return unknown
    digits = 2 if rough else 3
    value = _rounded(value, digits)
    unit, word = _time_unit(value)
    scaled = value / unit
    decimals = max(0, digits - 1 - _magnitude(scaled)) if rough else int(abs(scaled) < 99.95)
    return f"{_decimal(scaled, decimals) if value else '0'} {word}"


def clock(seconds: float) -> str:
    """Elapsed time: "4:05" or "1:02:03"."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def interval(estimate: Interval | None, *, unknown: str = NOT_MEASURED, ci: bool = False) -> str:
    """A duration with its 95% interval, in one unit: "312 ms (305 to 320)"; without one, the duration.

    `ci` spells the interval out, "312 ms (95% CI 305 to 320)": for the first one on a screen.
    """
    if estimate is None or not _known(estimate.value):
        return unknown
    value, ends = _parts(estimate)
    return f"{value} ({_CI if ci else ''}{ends})" if ends else value


def bounds(estimate: Interval) -> str:
    """The ends of an interval of seconds: "305 to 320 ms"; "" without one."""
    value, ends = _parts(estimate)
    return f"{ends} {value.split()[-1]}" if ends else ""


def middle(estimate: Interval) -> str:
    """The estimate of an interval of seconds, to the digits that its width allows: "312 ms"."""
    return _parts(estimate)[0]


def size(num_bytes: float | None, *, unknown: str = NOT_MEASURED) -> str:
    """A size: "390 KiB" or "15.6 GiB"."""
    if not _known(num_bytes):
        return unknown
    for unit, word in _SIZES:
        if abs(num_bytes) >= unit * 0.9995:
            scaled = num_bytes / unit
            return f"{_decimal(scaled, int(abs(scaled) < 99.95))} {word}"
    return f"{round(num_bytes)} B"


def size_of(num_bytes: float, whole: float) -> str:
    """A part of a size: "3.2 of 15.6 GiB"; a unit that both share is written once."""
    used, unit = size(num_bytes).split()
    return f"{used if size(whole).endswith(unit) else f'{used} {unit}'} of {size(whole)}"


def ratio(value: float | None, *, unknown: str = NOT_MEASURED) -> str:
    """A ratio: "1.15x", "3.2x" or "12x"."""
    if not _known(value):
        return unknown
    decimals = 2 if abs(value) < 1.995 else 1 if abs(value) < 9.95 else 0
    return f"{_decimal(value, decimals)}x"


def ratio_interval(estimate: Interval | None, *, unknown: str = NOT_MEASURED, ci: bool = False) -> str:
    """A ratio with its 95% interval: "1.40x (1.35 to 1.46)"; without one, the ratio.

    `ci` spells the interval out, "1.40x (95% CI 1.35 to 1.46)": for the first one on a screen.
    """
    return _ratio_interval(estimate, "", unknown=unknown, ci=ci)


def speedup(estimate: Interval | None, *, unknown: str = NOT_MEASURED, ci: bool = False) -> str:
    """A speedup with its 95% interval: "1.40x faster (1.35 to 1.46)", or "0.90x as fast (0.85 to 0.95)" below 1."""
    comparative = " faster" if estimate is not None and estimate.value >= 1 else " as fast"
    return _ratio_interval(estimate, comparative, unknown=unknown, ci=ci)


def _ratio_interval(estimate: Interval | None, comparative: str, *, unknown: str, ci: bool) -> str:
    if estimate is None or not _known(estimate.value):
        return unknown
    if not _known(estimate.high) or estimate.high == estimate.low:
        return f"{ratio(estimate.value)}{comparative}"
    decimals = 2 if estimate.high - estimate.low < 1.0 else 1
    value, low, high = (_decimal(part, decimals) for part in (estimate.value, estimate.low, estimate.high))
    return f"{value}x{comparative} ({_CI if ci else ''}{low} to {high})"


def share(value: float | None, *, unknown: str = NOT_MEASURED) -> str:
    """A share of one: "41%"; below one percent "0.4%"."""
    if not _known(value):
        return unknown
    percent = value * 100
    if 0 < abs(percent) < 0.05:
        return "<0.1%"
    return f"{_decimal(percent, int(0 < abs(percent) < 0.95))}%"


def share_interval(estimate: Interval | None, *, unknown: str = NOT_MEASURED) -> str:
    """A share of one with its 95% interval: "0.4% (-0.2 to 1.1)"."""
    if estimate is None or not _known(estimate.value):
        return unknown
    width = (estimate.high - estimate.low) * 50
    if not _known(width) or width <= 0:
        return share(estimate.value)
    decimals = 1 if width < 10 else 0
    value, low, high = (_decimal(part * 100, decimals) for part in (estimate.value, estimate.low, estimate.high))
    return f"{value}% ({low} to {high})"


def rate(value: float | None, *, unit: str = "samples", unknown: str = NOT_MEASURED) -> str:
    """A rate: "18.9 samples/s"."""
    if not _known(value):
        return unknown
    rounded = _rounded(value, 3)
    decimals = 0 if abs(rounded) >= 99.95 else 1 if abs(rounded) >= 0.995 else 2
    return f"{rounded:,.{decimals}f} {unit}/s"


def size_rate(value: float | None, *, unknown: str = NOT_MEASURED) -> str:
    """A data rate, of bytes per second: "123 MiB/s"."""
    return f"{size(value)}/s" if _known(value) else unknown


def count(number: int | None, *, noun: str = "", unknown: str = NOT_MEASURED) -> str:
    """A count with its noun: "1 step", "112,120 samples"."""
    if number is None:
        return unknown
    return f"{number:,} {noun}{'' if number == 1 else 's'}" if noun else f"{number:,}"


def amount(value: float | None, *, unknown: str = NOT_MEASURED) -> str:
    """A number, to one decimal if it has one: "2", "0.1"."""
    if not _known(value):
        return unknown
    return f"{round(value):,}" if abs(value) >= 99.95 else _decimal(value, 1).removesuffix(".0")


def celsius(value: float | None, *, unknown: str = NOT_MEASURED) -> str:
    """A temperature: "61 °C"."""
    return f"{value:.0f} °C" if _known(value) else unknown


def watts(value: float | None, *, unknown: str = NOT_MEASURED) -> str:
    """Power: "88 W"."""
    return f"{value:.0f} W" if _known(value) else unknown


def place(where: Where | None, *, directory: str = "", unknown: str = NOT_SEEN) -> str:
    """A place in the source: "train.py:88 in train()". The file is shown relative to `directory`."""
    if where is None:
        return unknown
    file = where.file
    for separator in "/\\":
        root = directory.rstrip("/\\") + separator
        if directory and file.startswith(root):
            file = file[len(root) :]
    if where.function in ("", "<module>"):
        return f"{file}:{where.line}"
    calls = "" if where.function.endswith((")", ">")) else "()"
    return f"{file}:{where.line} in {where.function}{calls}"


def _parts(estimate: Interval) -> tuple[str, str]:
    """The value with its unit, and "low to high" in that unit."""
    width = (estimate.high - estimate.low) / 2
    if not _known(width) or width <= 0:
        return seconds(estimate.value), ""
    unit, word = _time_unit(max(abs(estimate.value), abs(estimate.low), abs(estimate.high)))
    value, low, high = (part / unit for part in (estimate.value, estimate.low, estimate.high))
    decimals = min(-_magnitude(width / unit / 2), 3 - _magnitude(max(abs(low), abs(high))))
    least = _decimal(low, decimals)
    if float(least) == 0 and low > 0:  # a gain that is above zero is not shown as zero
        least = f"{low:.1g}" if low >= 1e-3 else "<0.001"
    return f"{_decimal(value, decimals)} {word}", f"{least} to {_decimal(high, decimals)}"


def _known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _time_unit(value: float) -> tuple[float, str]:
    for unit, word, least in _TIMES:
        if abs(value) >= unit * least * 0.9999999:
            return (1e-3, "ms") if value == 0 else (unit, word)
    raise AssertionError("the last unit takes every value")


def _magnitude(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0


def _rounded(value: float, digits: int) -> float:
    return round(value, digits - 1 - _magnitude(value))


def _decimal(value: float, decimals: int) -> str:
    """`value` to this many decimals, or to tens and hundreds if negative; never "-0"."""
    text = f"{round(value, decimals) + 0.0:.{max(0, decimals)}f}"
    return text.lstrip("-") if float(text) == 0 else text
