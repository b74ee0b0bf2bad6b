"""Which line of the user's source is running: asked for a frame, or sampled from another thread."""

from __future__ import annotations

import gc
import os
import sys
import sysconfig
import threading
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from types import CodeType, FrameType, TracebackType

from hasten.raw_run import LineSeconds, Place, SampledPhase

Lines = tuple[tuple[CodeType, int], ...]

USER, LIBRARY, INSIDE = 2, 1, 0
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")

_HASTEN = os.fspath(Path(__file__).resolve().parents[1]) + os.sep
_WRAPPERS = tuple(os.path.join(_HASTEN, name) + os.sep for name in ("agent", "optimizations", "sandbox"))
_EXAMPLES = os.path.join(_HASTEN, "examples") + os.sep  # scripts like a user's, where hasten is installed
_STANDARD = tuple({os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")})
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_TORCH = tuple(f"{folder}torch{os.sep}" for folder in _PACKAGES)

_kinds: dict[str, int] = {}


def kind_of(code: CodeType) -> int:
    """USER, LIBRARY (an installed package other than torch) or INSIDE (torch, standard library, hasten)."""
    kind = _kinds.get(code.co_filename)
    if kind is None:
        kind = _kinds[code.co_filename] = _kind_of_file(code.co_filename)
    return kind


def _kind_of_file(file: str) -> int:
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


def cut_chain(error: BaseException) -> None:
    """Cut our frames from the tracebacks of an exception and of all that it came from."""
    seen: set[int] = set()  # an exception may be its own cause
    chained: BaseException | None = error
    while chained is not None and id(chained) not in seen:
        seen.add(id(chained))
        chained.__traceback__ = without_ours(chained.__traceback__)
        chained = chained.__cause__ or chained.__context__


PERIOD = 0.01


@contextmanager
def _frames_stay() -> Generator[None]:
    """While another thread's frames are looked at, this thread collects no garbage.

    Python 3.11 makes the object of a frame when it is first asked for, and may collect garbage while it does. What then
    runs lets the other thread continue, and return from that very frame: its memory is another's when the object is made.
    """
    collects = sys.version_info[:2] == (3, 11) and gc.isenabled()
    if collects:
        gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class LineSampler:
    """Samples one thread while `running`."""

    def __init__(
        self, thread: int, phase: Callable[[], SampledPhase], *, switch_interval: float | None = None
    ) -> None:
        """`switch_interval`: how long the interpreter lets the thread continue while the sampler waits, in seconds.

        With the usual 5 ms a thread that computes in Python alone for 4 ms is only ever met where it next gives the
        interpreter up, in somebody else's line.
        """
        self._switch_interval = switch_interval
        self._usual_interval: float | None = None
        self.seconds: dict[tuple[Place | None, SampledPhase], float] = defaultdict(float)
        self._thread = thread
        self._phase = phase
        self._run = threading.Event()
        self._ended = False
        self._watcher: threading.Thread | None = None

    def running(self, wanted: bool) -> None:
        """Start or pause sampling."""
        if wanted and self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="hasten-lines", daemon=True)
            self._watcher.start()
        if wanted:
            self._run.set()
        else:
            self._run.clear()
        self._switch_often(wanted)

    def _switch_often(self, wanted: bool) -> None:
        if wanted and self._switch_interval is not None and self._usual_interval is None:
            self._usual_interval = sys.getswitchinterval()
            sys.setswitchinterval(self._switch_interval)
        elif not wanted and self._usual_interval is not None:
            sys.setswitchinterval(self._usual_interval)
            self._usual_interval = None

    def lines(self) -> list[LineSeconds]:
        """What was found so far."""
        return [LineSeconds(place, phase, seconds) for (place, phase), seconds in self.seconds.items()]

    def end(self) -> None:
        """End the sampling thread."""
        self._ended = True
        self._switch_often(False)
        self._run.set()
        if self._watcher is not None:
            self._watcher.join(timeout=1.0)

    def _watch(self) -> None:
        pause = threading.Event()
        last = None
        while True:
            if not self._run.is_set():
                last = None
                self._run.wait()
            if self._ended:
                return
            pause.wait(PERIOD)
            now = perf_counter()
            with _frames_stay():
                # Both are read under one hold of the interpreter lock, so they belong together.
                frame = sys._current_frames().get(self._thread)  # pyright: ignore[reportPrivateUsage]
                phase = self._phase()
                if frame is not None and last is not None and self._run.is_set():
                    self.seconds[user_place(frame), phase] += now - last
            last = now
            del frame
