"""What `hasten.measure()`, `hasten.diagnose()` and `hasten.tune()` return."""

from __future__ import annotations

import html
import io
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.errors import DirectoryError
from hasten.launch.results import RESULTS, make_root

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from hasten.records import Diagnosis, Finding, Interval, Run, Settings, Tuning


class Result(ABC):
    """A measured run and the conclusions from it. It shows itself as text, and in a notebook as a picture."""

    _diagnosis: Diagnosis | None = None

    @property
    @abstractmethod
    def record(self) -> Run:
        """The measured `Run`."""

    @property
    def diagnosis(self) -> Diagnosis:
        """The conclusions: verdict, breakdown, ceiling, findings."""
        from hasten.measurement.diagnose import diagnose

        if self._diagnosis is None:
            self._diagnosis = diagnose(self.record)
        return self._diagnosis

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What slows the training down, costliest first."""
        return self.diagnosis.findings

    def to_pandas(self) -> pd.DataFrame:
        """Return a DataFrame with one row per step: start and duration in seconds, samples, seconds of each phase.

        Raises:
            ImportError: if pandas is not installed.
        """
        from hasten.reports.export import COLUMNS, phases_of, rows_of

        try:
            import pandas as pd
        except ImportError:
            raise ImportError("to_pandas() needs pandas; `pip install pandas`, or use record.steps") from None
        return pd.DataFrame(rows_of(self.record), columns=[*COLUMNS, *phases_of(self.record)])

    def to_html(self, path: str | Path) -> Path:
        """Write the HTML page, which opens offline, and return its path.

        Raises:
            DirectoryError: if the file cannot be written.
        """
        from hasten.reports.page.page import PageInput, page

        return _write(Path(path), page(PageInput(run=self.record, diagnosis=self.diagnosis)).encode())

    def save(self, path: str | Path | None = None) -> Path:
        """Write the record as JSON, and return its path. `hasten report` shows it and `hasten compare` compares it.

        Args:
            path: the file; by default `.hasten/runs/ID/run.json`, where `hasten report` finds it.

        Raises:
            DirectoryError: if the file cannot be written.
        """
        from hasten.records import to_json

        if path is None:
            make_root(RESULTS)
            path = RESULTS / "runs" / self.record.id / "run.json"
        return _write(Path(path), to_json(self.record))

    def _print(self, console: Console) -> None:
        from hasten.reports.text import print_diagnosis

        print_diagnosis(self.record, self.diagnosis, console=console)

    def _repr_html_(self) -> str | None:
        from hasten.reports.page.page import PageInput, essentials

        return essentials(PageInput(run=self.record, diagnosis=self.diagnosis))

    def __repr__(self) -> str:
        return _as_text(self._print)


class Diagnosed(Result):
    """A diagnosed script.

    Attributes:
        path: the folder of the saved result.
    """

    def __init__(self, record: Run, path: Path) -> None:
        self._record = record
        self.path = path

    @property
    def record(self) -> Run:
        """The measured `Run`."""
        return self._record


class Tuned(Diagnosed):
    """A tuned script: `record` is the unmodified script's run, `tuning` the search for its plan.

    Attributes:
        plan: path of the plan that was written.
        tuning: trials, quality check and suggestions.
    """

    def __init__(self, tuning: Tuning, record: Run, path: Path, plan: Path) -> None:
        super().__init__(record, path)
        self.tuning = tuning
        self.plan = plan

    @property
    def settings(self) -> Settings:
        """The fixes that were kept, and their values; empty if none helped."""
        return self.tuning.settings

    @property
    def speedup(self) -> Interval | None:
        """Baseline / tuned step time with its 95% confidence interval; None if the plan is empty or was not compared."""
        return self.tuning.proof.speedup if self.tuning.proof is not None and self.settings else None

    @property
    def is_proven(self) -> bool:
        """Whether the plan is faster and passed the quality check."""
        return bool(self.settings) and self.tuning.proof is not None and self.tuning.proof.verdict == "proven"

    def save(self, path: str | Path | None = None) -> Path:
        """Copy the tuning run and its runs to a folder, and return the path of its record.

        Args:
            path: a folder like `.hasten`; by default nothing is copied, because `hasten report` finds the tuning run already.

        Raises:
            DirectoryError: if a file cannot be written.
        """
        saved = self.path / "tuning.json"
        if path is None:
            return saved
        root = self.path.parent.parent
        for name in (f"runs/{run}/run.json" for run in self.tuning.runs):
            if (root / name).is_file():
                _write(Path(path, name), (root / name).read_bytes())
        return _write(Path(path, "tunings", self.tuning.id, saved.name), saved.read_bytes())

    def to_html(self, path: str | Path) -> Path:
        """Write the HTML page of the tuning run, and return its path. Raises DirectoryError if it cannot be written."""
        from hasten.reports.page.page import PageInput, page

        content = PageInput(run=self.record, diagnosis=self.diagnosis, tuning=self.tuning)
        return _write(Path(path), page(content).encode())

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"

    def _print(self, console: Console) -> None:
        from hasten.reports.tuning import print_tuning

        print_tuning(self.tuning, console=console, plan=str(self.plan))


def _as_text(print_on: Callable[[Console], object]) -> str:
    from rich.console import Console

    paper = io.StringIO()
    print_on(Console(file=paper, width=80, color_system=None, force_jupyter=False))
    return paper.getvalue().rstrip()


def _write(path: Path, content: bytes) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise DirectoryError(f"cannot write {path} ({error.strerror}); use another path") from None
    return path
