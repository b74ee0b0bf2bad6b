"""Whole runs on other machines: one task of a Ray cluster or one Slurm job for each, all at once.

Only what a run comes to is asked there, never how fast it is: pairs for speed stay on this machine. Ray and Slurm start the
tasks, wait for free machines and report failures. The script, its data and this Python must be at the same paths.
"""

from __future__ import annotations

import ast
import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import psutil

from hasten.data.workers.ray_checks import last_line
from hasten.errors import ClusterError, HastenError
from hasten.launch.results import make_folder
from hasten.launch.side import Bench, Output, SideError
from hasten.optimizations.catalog import variables_of
from hasten.protocol import LaunchSpec
from hasten.records import Settings
from hasten.sandbox.workspace import Workspace

OF_A_MACHINE = ("SLURM_", "SBATCH_", "PBS_", "RAY_", "CUDA_VISIBLE", "HOST", "TMPDIR", "LD_PRELOAD")  # variables
LARGE = 16 << 20  # bytes from which a file of the command is data
AT_ONCE = 6  # Slurm jobs that are expected to run at the same time: those of the first three seeds
Result = Callable[[], Output]  # waits for a run. Raises SideError where it fails, ClusterError where its machine does


@dataclass(frozen=True, kw_only=True)
class WholeTask:
    """A run to the end."""

    command: Sequence[str]
    spec: LaunchSpec
    settings: Settings
    patience: float
    directory: str = field(default_factory=os.getcwd)
    variables: Mapping[str, str] = field(
        default_factory=lambda: {k: v for k, v in os.environ.items() if not k.startswith(OF_A_MACHINE)}
    )
    versions: Mapping[str, str | None] = field(default_factory=lambda: _versions())
    files: Mapping[str, str] = field(default_factory=dict)  # of the command, with the digest of their content

    @staticmethod
    def of(bench: Bench, spec: LaunchSpec, settings: Settings) -> WholeTask:
        """The run of a bench's command."""
        return WholeTask(
            command=bench.command,
            spec=spec,
            settings=settings,
            patience=bench.patience,
            files={word: _digest(word) for word in bench.command[1:] if Path(word).is_file()},
        )


class Elsewhere(Protocol):
    """Where whole runs are made."""

    at_once: int  # runs

    def start(self, task: WholeTask) -> Result:
        """Begin a run."""
        ...


@contextlib.contextmanager
def open_elsewhere(text: str, folder: Path) -> Generator[Elsewhere]:
    """The place that `--runs-on` names: "ray" or "slurm", with options as in "slurm:timeout_min=60,gpus_per_node=1".

    Args:
        text: the name and options: for Ray those of a task, for Slurm those of submitit's executor.
        folder: in it Slurm jobs leave their results, in a private folder that is gone afterwards; all machines must see it.

    Raises:
        ClusterError: if there is no such place, or no machine there can make a run.
    """
    name, _, rest = text.partition(":")
    options = _options(rest)
    if name == "ray":
        place = OnRay(**options)
        try:
            yield place
        finally:
            place.close()
    elif name == "slurm":
        with OnSlurm.opened(folder, options) as jobs:
            yield jobs
    else:
        raise ClusterError(f"--runs-on {text}: expected ray or slurm, as in --runs-on slurm:timeout_min=60")


def _options(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word in filter(None, text.split(",")):
        name, is_one, value = word.partition("=")
        if not is_one:
            raise ClusterError(f"--runs-on: {word!r} is no option; write NAME=VALUE")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[name] = value
    return found


class OnRay:
    """Tasks of the Ray cluster that this machine is a node of."""

    def __init__(self, **options: Any) -> None:
        from hasten.data.workers.ray_pool import connected

        try:
            self._ray = connected("--runs-on ray")
        except ImportError as error:
            raise ClusterError(str(error)) from None
        cores = psutil.cpu_count() or 1
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        options = {"num_cpus": min(cores, max((int(n.get("CPU", 0)) for n in nodes), default=0)), **options}
        wanted = {"CPU": options["num_cpus"], "GPU": options.get("num_gpus", 0)}
        if not all(isinstance(number, int | float) for number in wanted.values()) or wanted["CPU"] <= 0:
            raise ClusterError(f"--runs-on ray: a run needs CPUs; num_cpus={options['num_cpus']} gives none")
        fits = [min(int(node.get(k, 0) / number) for k, number in wanted.items() if number) for node in nodes]
        self.at_once = sum(fits)
        if not self.at_once:
            raise ClusterError(f"no node of the Ray cluster has {wanted['CPU']} CPUs and {wanted['GPU']} GPUs")
        try:
            self._task = self._ray.remote(**{"max_retries": 1, **options})(run_task)
        except (TypeError, ValueError) as error:
            raise ClusterError(f"--runs-on ray: {last_line(error)}") from None
        self._started: list[Any] = []

    def start(self, task: WholeTask) -> Result:
        """Begin a run."""
        reference = self._task.remote(task)
        self._started.append(reference)

        def result() -> Output:
            try:
                return _output(self._ray.get(reference))
            except self._ray.exceptions.RayError as error:
                raise ClusterError(f"a run on the Ray cluster failed: {last_line(error)}") from None

        return result

    def close(self) -> None:
        """End what still runs."""
        for reference in self._started:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.cancel(reference)


class OnSlurm:
    """Slurm jobs, by submitit."""

    cluster = "slurm"

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        self._jobs: list[Any] = []
        self.at_once = AT_ONCE

    @classmethod
    @contextlib.contextmanager
    def opened(cls, folder: Path, options: Mapping[str, Any]) -> Generator[OnSlurm]:
        """Jobs that are cancelled at the end."""
        try:
            import submitit
        except ImportError:
            raise ClusterError("--runs-on slurm needs submitit: pip install 'hasten[slurm]'") from None
        if cls.cluster == "slurm" and shutil.which("sbatch") is None:
            raise ClusterError("--runs-on slurm: there is no sbatch here; start hasten on a node of the cluster")
        logging.getLogger("submitit").setLevel(logging.ERROR)  # it warns where Slurm keeps no accounts
        make_folder(folder)
        own = tempfile.mkdtemp(prefix="jobs-", dir=folder)  # tasks hold the environment: nobody else reads them
        executor = submitit.AutoExecutor(folder=own, cluster=cls.cluster)
        try:
            executor.update_parameters(**{"name": "hasten", "timeout_min": 24 * 60, **options})
        except (NameError, TypeError, ValueError, AssertionError) as error:
            shutil.rmtree(own, ignore_errors=True)
            raise ClusterError(f"--runs-on slurm: {last_line(error)}") from None
        jobs = cls(executor)
        try:
            yield jobs
        finally:
            for job in jobs._jobs:
                if not job.done():
                    job.cancel()
            shutil.rmtree(own, ignore_errors=True)

    def start(self, task: WholeTask) -> Result:
        """Begin a run."""
        try:
            job = self._executor.submit(run_task, task)
        except Exception as error:  # of submitit: what sbatch refuses
            raise ClusterError(f"Slurm takes no job: {last_line(error)}") from None
        self._jobs.append(job)

        def result() -> Output:
            try:
                return _output(job.result())
            except SideError:
                raise
            except Exception as error:  # of submitit, which has several kinds
                raise ClusterError(f"Slurm job {job.job_id} failed: {last_line(error)}") from None

        return result


def run_task(task: WholeTask) -> Answer:
    """Make a run on the machine that this is called on; its output, or why there is none."""
    try:
        _enter(task)
        with Workspace() as workspace:
            bench = Bench(task.command, workspace, patience=task.patience)
            environment = variables_of(task.settings, scratch=bench.folder)
            return Answer(output=bench.run_whole(spec=task.spec, environment=environment))
    except SideError as error:
        return Answer(failure=str(error))
    except (HastenError, OSError) as error:
        return Answer(failure=str(error), is_of_machine=True)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What comes back."""

    output: Output | None = None
    failure: str = ""
    is_of_machine: bool = False


def _output(answer: Answer) -> Output:
    if answer.output is not None:
        return answer.output
    raise (ClusterError if answer.is_of_machine else SideError)(answer.failure)


def _enter(task: WholeTask) -> None:
    """Be where the task was made, as far as a machine can. Raises ClusterError."""
    here = os.uname().nodename
    for name, version in _versions().items():
        if task.versions.get(name) != version:
            raise ClusterError(f"{here} has {name} {version}, and {task.versions.get(name)} is needed")
    if not Path(task.directory).is_dir():
        raise ClusterError(f"{here} has no directory {task.directory}: it must be on a disk that all machines share")
    os.chdir(task.directory)
    for name, digest in task.files.items():
        if not Path(name).is_file() or _digest(name) != digest:
            raise ClusterError(f"{here} has another {name} in {task.directory}")
    if "OMP_NUM_THREADS" not in task.variables:
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray sets it
    os.environ.update(task.variables)


def _versions() -> dict[str, str | None]:
    from hasten.data.workers.ray_worker import versions

    return versions(["torch", "hasten"])


def _digest(path: str) -> str:
    """Of a file's content; of a large file, which is data, of its size."""
    size = os.path.getsize(path)
    return sha256(Path(path).read_bytes() if size <= LARGE else str(size).encode()).hexdigest()
