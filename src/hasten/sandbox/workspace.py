"""A private folder for the launches of one measurement or search, and the sandbox in which they run.

The folder is removed on exit; if hasten is killed, a guard removes it, or else the next measurement does.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path

from hasten.errors import CommandError, DirectoryError
from hasten.folders import is_private
from hasten.patches import warn
from hasten.records import SandboxForm
from hasten.sandbox import guard
from hasten.sandbox.redirect import caches

FORCE = "HASTEN_SANDBOX"  # variable: the form to use, instead of the strongest that works
FORMS: tuple[SandboxForm, ...] = ("overlay", "landlock", "redirect")  # the strongest first
PREFIX = "hasten-"
LOCK = "lock"
UNHELD = "neither overlayfs nor Landlock works here: files that other programs of the script's change stay changed"
PATIENCE = 10.0  # seconds for trying a form, and for the guard to leave
HERE = Path(__file__).parent


class Workspace:
    """A scratch folder whose launches leave nothing on disk; to be used as a context."""

    folder: Path
    form: SandboxForm

    def __enter__(self) -> Workspace:
        self._around = contextlib.ExitStack()
        self._num_launches = 0
        try:
            self.form, base = _choose()
            if self.form == "redirect" and not os.environ.get(FORCE):
                warn(UNHELD)
            _sweep(base)
            self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base)).resolve()
            self._around.callback(guard.remove, os.fspath(self.folder))
            lock = self._around.enter_context((self.folder / f".{LOCK}").open("wb"))
            _hold(lock.fileno())
            (self.folder / f".{LOCK}").rename(self.folder / LOCK)  # only now others may try to take it
            self._around.enter_context(_guarded(self.folder, lock.fileno()))
        except BaseException:
            self._around.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._around.close()

    def new_folder(self) -> Path:
        """A folder for one launch."""
        return Path(tempfile.mkdtemp(prefix="launch-", dir=self.folder))

    @contextlib.contextmanager
    def sandboxed(self, command: Sequence[str]) -> Generator[tuple[list[str], Path]]:
        """The command to start, and where Python's file functions are to write in processes that no overlay covers."""
        self._num_launches += 1
        view = self.folder / "views" / str(self._num_launches)
        outside = view.with_name(f"{view.name}-outside")  # of an overlay: for what a service starts, such as Slurm's
        view.mkdir(parents=True)
        outside.mkdir()
        try:
            if self.form == "redirect":
                yield list(command), view
            else:
                entered = _entered(self.form, view, self.folder, real=caches())
                yield [*entered, *command], view if self.form == "landlock" else outside
        finally:
            guard.remove(os.fspath(view))
            guard.remove(os.fspath(outside))


def _entered(form: SandboxForm, view: Path, shown: Path, *, real: Sequence[str]) -> list[str]:
    """What a command begins with, for a sandbox that writes into `view`, and in which `shown` and `real` are as they are."""
    asked = {"form": form, "scratch": os.fspath(view), "shown": os.fspath(shown), "real": [*real]}
    return [*_program("enter.py"), json.dumps(asked)]


def _program(name: str) -> list[str]:
    return [sys.executable, "-I", "-S", os.fspath(HERE / name)]


@functools.cache
def _choose() -> tuple[SandboxForm, Path]:
    """The strongest form that works here, and the folder for scratch folders. Raises DirectoryError, and CommandError."""
    forced = os.environ.get(FORCE) or None
    if forced not in (None, *FORMS):
        raise CommandError(f"{FORCE}={forced} is no form of the sandbox; there is {', '.join(FORMS)}")
    bases = [path for path in _bases() if path.is_dir() and os.access(path, os.W_OK | os.X_OK)]
    for form in FORMS[:-1] if sys.platform == "linux" else ():
        if forced in (None, form):
            for base in bases:
                if _works(form, base):
                    return form, base
    if not bases:
        raise DirectoryError("no folder for temporary files can be written to; set TMPDIR to one that can")
    if forced not in (None, "redirect"):
        raise CommandError(f"{FORCE}={forced} does not work here; unset it, and the strongest form that does is used")
    return "redirect", bases[0]


def _bases() -> list[Path]:
    """Folders for large temporary files. /var/tmp comes before /tmp, which is often in memory, and full of others' files."""
    named = os.environ.get("TMPDIR")
    return [Path(named)] if named else [Path("/var/tmp"), Path(tempfile.gettempdir())]


def _works(form: SandboxForm, base: Path) -> bool:
    if form == "overlay" and os.stat(".").st_uid != os.geteuid() != 0:
        return False  # in a user namespace nothing can be made in a folder of another user's
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=base) as scratch:
        view = Path(scratch).resolve() / "view"
        view.mkdir()
        entered = _entered(form, view, Path(scratch).resolve(), real=[])
        try:
            tried = subprocess.run(entered, capture_output=True, timeout=PATIENCE, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return False
        finally:
            guard.remove(os.fspath(view))
    return tried.returncode == 0


def _hold(descriptor: int) -> bool:
    """Lock an open file, until nobody has it open any more; False where somebody else holds it."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sweep(base: Path) -> None:
    """Remove scratch folders of this user's that nobody holds: hasten and its guard were both killed."""
    for lock in base.glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError):
            if is_private(lock.parent) and is_private(lock):
                with lock.open("rb") as file:
                    if _hold(file.fileno()):
                        guard.end_all(os.fspath(lock.parent))
                        guard.remove(os.fspath(lock.parent))


@contextlib.contextmanager
def _guarded(folder: Path, lock: int) -> Generator[None]:
    """Somebody who ends what was launched into the folder, should this process be killed."""
    if os.name != "posix":
        yield
        return
    try:
        process = subprocess.Popen(
            [*_program("guard.py"), os.fspath(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[lock],
            start_new_session=True,
        )
    except OSError:  # no more processes: then without
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            process.communicate(b"done", timeout=PATIENCE)
        process.kill()
        process.wait()
