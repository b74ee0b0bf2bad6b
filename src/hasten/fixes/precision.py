"""Fixes that compute in fewer bits."""

from __future__ import annotations

from hasten.diagnosis.check_device import FORMATS, capabilities
from hasten.fixes.fix import Fix, NotProposed, Proposal, Situation, from_finding

INSIDE = "hasten.fixes.inside.precision"


def _why_not(situation: Situation) -> str | None:
    facts = situation.case.facts
    if facts.autocast:
        return "the script uses autocast itself"
    if not any("float32" in model.dtypes for model in facts.models):
        return "no model in float32 was seen"
    if any("float64" in model.dtypes for model in facts.models):
        return "the script computes in float64, perhaps because it must"
    return None


COMPUTING = ("forward", "loss", "backward")


def _saved_by_bf16(situation: Situation) -> float:
    """A third of what is computed, where there are units for it: between 1.3x and 2.5x on the networks of docs/case-studies.md."""
    return 0.35 * situation.case.phase(*COMPUTING)


def _bf16(situation: Situation) -> list[Proposal] | NotProposed | str:
    reason = _why_not(situation)
    if reason is not None:
        return reason
    machine = situation.case.run.machine
    if situation.case.on_cpu and not {"amx_bf16", "avx512_bf16"} & set(machine.cpu_features):
        return "this CPU has no bfloat16 units"
    otherwise = "computing is not what takes the time"
    return from_finding("full_precision", otherwise=otherwise, prior=_saved_by_bf16)(situation)


def _fp16(situation: Situation) -> list[Proposal] | str:
    reason = _why_not(situation)
    if reason is not None:
        return reason
    if situation.case.on_cpu:
        return "float16 training needs a CUDA device"
    weakest = min(capabilities(situation.case.run.machine), default=FORMATS["bf16"])
    if weakest >= FORMATS["bf16"]:
        return "bfloat16 needs no loss scaling"
    if weakest < FORMATS["fp16"]:
        return "this GPU has no float16 units"
    saves = 0.3 * situation.case.phase("forward", "backward")
    return [Proposal(value=True, saves=saves, because="this GPU's tensor cores take float16 only")]


def _tf32(situation: Situation) -> list[Proposal] | NotProposed | str:
    if situation.case.on_cpu:
        return "it is of NVIDIA GPUs"
    if situation.case.facts.tf32:
        return "it is on already"
    measured = situation.case.measured("tf32")
    if measured is not None:
        return [Proposal(value=True, saves=measured[0], because="products of float32 in full precision")]
    likely = 0.15 * situation.case.phase(*COMPUTING)
    return from_finding("tf32", otherwise="computing is not what takes the time", prior=lambda _: likely)(situation)


def _matmul_precision(situation: Situation) -> list[Proposal] | str:
    reason = _why_not(situation)
    if reason is not None:
        return reason
    if situation.settings.get("bf16"):
        return "bf16 does the same and more"
    facts, machine = situation.case.facts, situation.case.run.machine
    if not situation.case.on_cpu:
        return "tf32 is its name on a GPU"
    if not {"amx_bf16", "avx512_bf16"} & set(machine.cpu_features):
        return "this CPU has no bfloat16 units"
    if any(model.num_convolutions for model in facts.models):
        return "convolutions gain nothing by it"
    saves = 0.2 * situation.case.phase("forward", "backward")
    return [Proposal(value="medium", saves=saves, because="matrix products in full float32")]


FIXES = (
    Fix(
        name="bf16",
        title="the model's forward under bfloat16 autocast",
        guarantee="precision",
        answers=("full_precision",),
        propose=_bf16,
        installer=f"{INSIDE}:bf16",
        excludes=("fp16",),
    ),
    Fix(
        name="fp16",
        title="the model's forward under float16 autocast, with loss scaling",
        guarantee="precision",
        answers=("full_precision",),
        propose=_fp16,
        installer=f"{INSIDE}:fp16",
        excludes=("bf16",),
    ),
    Fix(
        name="tf32",
        title="products of float32 in TF32, on NVIDIA GPUs",
        guarantee="precision",
        answers=("full_precision",),
        propose=_tf32,
        installer=f"{INSIDE}:tf32",
    ),
    Fix(
        name="matmul_precision",
        title="products inside float32 matrix multiplications in fewer bits",
        guarantee="precision",
        answers=("full_precision",),
        propose=_matmul_precision,
        kind="word",
        words=("high", "medium"),
        installer=f"{INSIDE}:matmul_precision",
    ),
)
