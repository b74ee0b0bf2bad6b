"""All errors that hasten raises for users. Each message is one line and says what to do next."""

import contextlib
import signal
from collections.abc import Generator


class HastenError(Exception):
    """Base class of errors that the user can fix: the command prints the message and exits with code 2."""


class CommandError(HastenError, ValueError):
    """The command to measure cannot be started as given."""


class NoStepError(HastenError, RuntimeError):
    """The script ran, but no training step was seen."""


class ScriptError(HastenError, RuntimeError):
    """The script failed; hasten exits with its exit code.

    `exit_code` is the exit code of the script's process, or minus the signal number if a signal killed it.
    """

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Stopped(KeyboardInterrupt):
    """Ctrl-C, or another signal that asks to end: the command ends with 128 + `number`."""

    def __init__(self, message: str = "", *, number: int = signal.SIGINT) -> None:
        super().__init__(*([message] if message else []))
        self.number = number


@contextlib.contextmanager
def saying(message: str) -> Generator[None]:
    """Give an interrupt of this block a message."""
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.args = (message,)
        raise


class RecordError(HastenError, ValueError):
    """A saved run cannot be read: it is corrupt, not a hasten record, or written by a newer version."""


class DataError(HastenError, ValueError):
    """A folder does not contain the data that a workload needs."""


class DirectoryError(HastenError, OSError):
    """A directory that hasten must write to is not writable."""


class WorkerDiedError(HastenError, RuntimeError):
    """A worker process of a Loader died."""


class ClusterError(HastenError, RuntimeError):
    """Other machines cannot do what they were asked for: make the samples of a Loader, or a whole run."""


class StateError(HastenError, ValueError):
    """A Loader cannot resume from this state: it is corrupt or from a different loader."""


class SampleRateError(HastenError, RuntimeError):
    """More samples failed than a Loader is allowed to replace."""


class ImageModeError(HastenError, ValueError):
    """An image has a mode that only Pillow supports."""


class BudgetError(HastenError, ValueError):
    """A cache size is invalid."""


class DeviceError(HastenError, RuntimeError):
    """The device of a Loader is not available."""


class PlanError(HastenError, ValueError):
    """A plan, or a setting that was added to it, is invalid."""


class MeasurementError(HastenError, RuntimeError):
    """A measured block has no result yet."""


class ResumeError(HastenError, ValueError):
    """There is no tuning run to resume, or it was of a different command."""


class NotApplicableError(Exception):
    """An optimization cannot be applied to this training process; the message says why."""
