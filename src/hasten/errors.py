"""Every error a user can meet. The message is one line and says what to do next."""


class HastenError(Exception):
    """Something the user can mend: the command prints its message and exits with code 2."""


class CommandError(HastenError, ValueError):
    """The command to measure cannot be started as given."""


class NoStepError(HastenError, RuntimeError):
    """The script ran, but no training step was seen."""


class ScriptError(HastenError, RuntimeError):
    """The script ended by itself with an error; its own exit code is handed on.

    `exit_code` is what the script's process returned; minus the signal's number when a signal killed it.
    """

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class RecordError(HastenError, ValueError):
    """A saved run cannot be read: torn, foreign, or written by a newer hasten."""


class DataError(HastenError, ValueError):
    """A folder of training data is not what a workload needs."""


class DirectoryError(HastenError, OSError):
    """A directory that hasten has to write to cannot be written."""


class WorkerDiedError(HastenError, RuntimeError):
    """A worker process of a Loader ended before its work was done."""


class StateError(HastenError, ValueError):
    """A Loader cannot go on from this state: it is of another loader, or torn."""


class SampleRateError(HastenError, RuntimeError):
    """More samples could not be made than a Loader may replace."""


class ImageModeError(HastenError, ValueError):
    """An image has a mode that only Pillow can hold."""


class BudgetError(HastenError, ValueError):
    """A cache's budget cannot be understood."""


class DeviceError(HastenError, RuntimeError):
    """A Loader is to bring its batches to a device that is not there."""


class PlanError(HastenError, ValueError):
    """A plan, or a setting given beside it, cannot be used as it is written."""


class MeasurementError(HastenError, RuntimeError):
    """A measured block has nothing to show yet."""


class ResumeError(HastenError, ValueError):
    """There is no search to go on with, or it was of another command."""
