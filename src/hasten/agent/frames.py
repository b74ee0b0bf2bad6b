"""Which line of the user's source is running.

In: Python frames. Out: (file, line, function). Refuses to know why anybody asks.

A frame is the user's when its file belongs neither to an installed package, nor to the standard library, nor to
hasten. Where a whole stack has no such frame (the script is itself an installed module), the innermost frame
outside torch, the standard library and hasten stands in for it.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from types import CodeType, FrameType, TracebackType

from hasten.raw_run import Place

Lines = tuple[tuple[CodeType, int], ...]

USER, LIBRARY, INSIDE = 2, 1, 0
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")

_HASTEN = os.fspath(Path(__file__).resolve().parents[1]) + os.sep
_WRAPPERS = tuple(os.path.join(_HASTEN, name) + os.sep for name in ("agent", "measurement", "optimizations"))
_EXAMPLES = os.path.join(_HASTEN, "examples") + os.sep  # scripts like a user's, where hasten is installed
_STANDARD = tuple({os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")})
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_TORCH = tuple(f"{folder}torch{os.sep}" for folder in _PACKAGES)

_kinds: dict[str, int] = {}


def kind_of(code: CodeType) -> int:
    """USER, LIBRARY (an installed package other than torch) or INSIDE (torch, standard library, hasten)."""
    kind = _kinds.get(code.co_filename)
    if kind is None:
        kind = _kinds[code.co_filename] = _judge(code.co_filename)
    return kind


def _judge(file: str) -> int:
    if file.startswith("<") and "ipython" not in file:
        # Frozen modules, exec'd strings, generated code: nobody can open that line.
        return INSIDE
    path = os.path.realpath(file)
    if path.startswith(_EXAMPLES):
        return USER
    if path.startswith(_HASTEN) or any(part in path for part in _TORCH):
        return INSIDE
    if any(part in path for part in _PACKAGES):
        return LIBRARY
    return INSIDE if path.startswith(_STANDARD) else USER


def user_place(frame: FrameType | None) -> Place | None:
    """Return the innermost user line at or above `frame`; failing that, the innermost library line."""
    library: FrameType | None = None
    while frame is not None:
        kind = kind_of(frame.f_code)
        if kind == USER:
            return _place(frame)
        if kind == LIBRARY and library is None:
            library = frame
        frame = frame.f_back
    if library is None:
        return None
    return _place(library)


def lines_above(frame: FrameType | None) -> Lines:
    """Every line, of the user's and of libraries but torch, that is running at or above `frame`; the innermost first."""
    found: list[tuple[CodeType, int]] = []
    while frame is not None:
        if kind_of(frame.f_code) != INSIDE:
            found.append((frame.f_code, _line_of(frame)))
        frame = frame.f_back
    return tuple(found)


def _line_of(frame: FrameType) -> int:
    """The line that a frame is at; its function's first where Python has none for the instruction."""
    line: int | None = frame.f_lineno
    return frame.f_code.co_firstlineno if line is None else line


def _place(frame: FrameType) -> Place:
    """A comprehension is a line of the function that it stands in; before Python 3.12 it has a frame of its own."""
    file, line, outer = frame.f_code.co_filename, _line_of(frame), frame
    while outer.f_code.co_name in COMPREHENSIONS and outer.f_back is not None:
        outer = outer.f_back
    return file, line, (outer if outer.f_code.co_filename == file else frame).f_code.co_name


def caller_is_user(depth: int) -> bool:
    """Whether the frame `depth` calls above the caller of this function is the user's own."""
    return kind_of(sys._getframe(depth + 1).f_code) == USER  # pyright: ignore[reportPrivateUsage]


def without_ours(trace: TracebackType | None) -> TracebackType | None:
    """The user's traceback without the frames of hasten's wrappers."""
    kept: list[TracebackType] = []
    while trace is not None:
        if not os.path.realpath(trace.tb_frame.f_code.co_filename).startswith(_WRAPPERS):
            kept.append(trace)
        trace = trace.tb_next
    for outer, inner in zip(kept, [*kept[1:], None]):
        outer.tb_next = inner
    return kept[0] if kept else None
