"""Memory that was freed stays with the process; or another allocator."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes.util import find_library
from typing import TYPE_CHECKING

from hasten.errors import PlanError
from hasten.optimizations.optimization import WORTH, Experiment, Optimization, Problem, Symptoms, from_finding
from hasten.protocol import GRADIENT_PHASES, Value

if TYPE_CHECKING:
    from hasten.diagnosis.situation import Situation

KEEP_MEMORY = {  # glibc: never give memory back to the system
    "MALLOC_MMAP_THRESHOLD_": "17179869184",
    "MALLOC_TRIM_THRESHOLD_": "17179869184",
    "MALLOC_TOP_PAD_": "268435456",
}
PRELOADS = {"jemalloc": ("jemalloc",), "tcmalloc": ("tcmalloc_minimal", "tcmalloc")}


def _environment(value: Value) -> Mapping[str, str]:
    if value == "glibc":
        return KEEP_MEMORY
    found = next(filter(None, map(find_library, PRELOADS[str(value)])), None)
    if found is None:
        raise PlanError(f'allocator = "{value}" is not installed here; install it, or write "glibc"')
    return {"LD_PRELOAD": found}


def _suspect(symptoms: Symptoms) -> str | None:
    faults, each = symptoms.shares.faults, symptoms.machine.fault_seconds
    if not symptoms.on_cpu or faults is None or each is None:
        return None
    return "glibc" if faults * each >= WORTH * symptoms.shares.regular else None


def _prior(situation: Situation) -> float | None:
    faults, each = situation.case.faults_per_step, situation.case.run.machine.fault_seconds
    computing = situation.case.phase(*GRADIENT_PHASES)
    return min(each * faults, 0.5 * computing) if faults is not None and each is not None else None


OPTIMIZATION = Optimization(
    name="allocator",
    title="memory that was freed stays with the process; or another allocator",
    guarantee="identical",
    answers=("page_faults",),
    propose=from_finding(
        "page_faults", value="glibc", otherwise="memory is not given back and faulted in again", prior=_prior
    ),
    environment=_environment,
    kind="word",
    words=("glibc", "jemalloc", "tcmalloc"),
    experiments=(Experiment(cause="page_faults", suspect=_suspect, toggled=False, usual=0.15),),
    problems=(
        Problem(
            kind="page_faults",
            title="Memory is freed and page-faulted in again every step",
            remedy=f"Set {' '.join(f'{name}={value}' for name, value in KEEP_MEMORY.items())} in the environment "
            "(or use jemalloc).",
        ),
    ),
)
