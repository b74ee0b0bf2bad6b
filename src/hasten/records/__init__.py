"""The nouns: frozen records that every room reads and none changes.

In: nothing. Out: plain data, to and from JSON. Refuses to know torch, clocks and terminals.

Seconds, bytes and ratios are floats or ints throughout; only `reports.format` turns them into words.
`None` means *not measured*; `0.0` is a measured zero.
"""

from hasten.records.codec import RECORD_VERSION, Record, encode, from_json, to_json
from hasten.records.diagnosis import Breakdown, CacheNeed, Ceiling, CheckLine, Comparison, Diagnosis, Finding, WhatIf
from hasten.records.machine import Device, DeviceSample, DiskSpeed, Machine, ResourceSample
from hasten.records.run import (
    PHASES,
    RARE,
    CacheTier,
    CopyFacts,
    Facts,
    FileRead,
    HotLine,
    Interval,
    Intervention,
    LoaderFacts,
    ModelFacts,
    OptimizerFacts,
    Overhead,
    Run,
    Stage,
    Step,
    SyncPoint,
    Where,
)
from hasten.records.timeline import Bar, Timeline
from hasten.records.tuning import (
    BothSides,
    Check,
    Edit,
    Followed,
    Heat,
    Proof,
    Settings,
    Skipped,
    SkippedState,
    Trial,
    Tuning,
    Value,
)

__all__ = [
    "PHASES",
    "RARE",
    "RECORD_VERSION",
    "Bar",
    "BothSides",
    "Breakdown",
    "CacheNeed",
    "CacheTier",
    "Ceiling",
    "Check",
    "CheckLine",
    "Comparison",
    "CopyFacts",
    "Device",
    "DeviceSample",
    "Diagnosis",
    "DiskSpeed",
    "Edit",
    "Facts",
    "FileRead",
    "Finding",
    "Followed",
    "Heat",
    "HotLine",
    "Interval",
    "Intervention",
    "LoaderFacts",
    "Machine",
    "ModelFacts",
    "OptimizerFacts",
    "Overhead",
    "Proof",
    "Record",
    "ResourceSample",
    "Run",
    "Settings",
    "Skipped",
    "SkippedState",
    "Stage",
    "Step",
    "SyncPoint",
    "Timeline",
    "Trial",
    "Tuning",
    "Value",
    "WhatIf",
    "Where",
    "encode",
    "from_json",
    "to_json",
]
