"""What was trained: one model or optimizer of a raw record becomes its facts.

In: the JSON that the measured process wrote. Out: records. Refuses to judge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hasten.measurement.roles import Span
from hasten.records import ModelFacts, OptimizerFacts


def model_facts(raw: Mapping[str, Any]) -> ModelFacts:
    """The facts of a model."""
    return ModelFacts(
        name=raw["name"],
        num_parameters=raw["num_parameters"],
        num_modules=raw["num_modules"],
        dtypes=tuple(raw["dtypes"]),
        devices=tuple(raw["devices"]),
        num_convolutions=raw["num_convolutions"],
        channels_last=raw["channels_last"],
        compiled=raw["compiled"],
        data_parallel=raw["data_parallel"],
    )


def optimizer_facts(raw: Mapping[str, Any], spans: Sequence[Span], *, num_steps: int) -> OptimizerFacts:
    """The facts of an optimizer; `num_steps` training steps were seen."""
    number = sum(span.kind == "optimizer" and span.detail == raw["id"] for span in spans)
    return OptimizerFacts(
        name=raw["name"],
        num_parameters=raw["num_parameters"],
        num_tensors=raw["num_tensors"],
        fused=raw["fused"],
        foreach=raw["foreach"],
        steps_per_step=number / max(1, num_steps),
    )
