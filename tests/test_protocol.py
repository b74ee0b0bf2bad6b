"""Messages cross the process boundary as they are, and what is none of them is refused in one line."""

import ast
import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from hasten import protocol, raw_run
from hasten.errors import HastenError, RecordError
from hasten.protocol import (
    FixesReport,
    FixSpec,
    Following,
    Interventions,
    LaunchSpec,
    SeenInProof,
    Status,
    SwitchSpec,
    files_of,
    from_json,
    read,
    to_json,
    write,
)
from hasten.raw_run import (
    Copy,
    DeviceSpan,
    Fetched,
    Forward,
    LineSeconds,
    LoaderSettings,
    RawFacts,
    RawLoader,
    RawModel,
    RawOptimizer,
    RawQuality,
    RawRun,
    RawSegment,
    RemoteCounts,
    SampledEpoch,
    Span,
    StageLine,
    StageSeconds,
    Sync,
    TierCounts,
    ZeroGrad,
    busiest,
)
from hasten.sandbox import guard

FIX = FixSpec(name="cache", installer="hasten.optimizations.cache:enable", value="8 GiB")
SPEC = LaunchSpec(
    mode="interventions",
    seconds=math.inf,
    fixes=(FIX, dataclasses.replace(FIX, value=True), dataclasses.replace(FIX, value=2), FIX),
    repeated_batches=8,
    quality=0,
    interventions=Interventions(switches=(SwitchSpec(cause="tf32", fix=FIX),), device_replay="cuda"),
    following=Following(script="train.py", settings={"lr": 0.1}, proof=SeenInProof(loss=1.0)),
    sandbox="overlay",
)
PLACE = ("/home/ada/train.py", 9, "main")
RAW = RawRun(
    pid=7,
    ended_by="script",
    segments=[RawSegment(name="warm-up", ends=[1.0]), RawSegment(name="tf32", is_baseline=True, began=1.0, settle=2)],
    spans=[
        Span("next", 1.0, 2.0, Fetched(0, None, 3)),
        Span("forward", 2.0, 3.0, Forward(140, 3, 16)),
        Span("sync", 3.0, 3.5, Sync(0, ".item()")),
        Span("zero_grad", 3.5, 3.6, ZeroGrad(-1, True)),
        Span("copy", 3.6, 3.7, Copy(0, 1024, True, False, "torch.float32")),
        Span("optimizer", 4.0, 5.0, 140_000_000_000_000),
        Span("backward", 5.0, 6.0),
    ],
    device_spans=[DeviceSpan("forward", 2.0, 0.5, True)],
    places=[PLACE],
    lines=[LineSeconds(PLACE, "forward", 1.0), LineSeconds(None, "between", 0.5)],
    loaders=[
        RawLoader(
            settings=LoaderSettings(name="Films", num_workers=2, where=PLACE),
            pids=[8, 9],
            cache=(TierCounts("ram", 1, 2, 3, 0.5),),
            remote=RemoteCounts(5, 4, 3, 2, 1),
        )
    ],
    facts=RawFacts(
        models=(
            RawModel(
                name="Net",
                num_parameters=9,
                num_modules=3,
                dtypes=("float32",),
                devices=("cpu",),
                num_convolutions=1,
                channels_last=False,
                compiled=False,
                data_parallel=False,
            ),
        ),
        optimizers=(RawOptimizer(id=1, name="SGD", num_parameters=9, num_tensors=2, fused=None, foreach=True),),
    ),
    drained=[0.1],
    quality=RawQuality(losses=[1.5], rows=[["a", "b"]], moved=[True], epochs=[SampledEpoch(dataset=0, order=["c"])]),
)
LINE = StageLine(pid=8, start=1.0, end=2.0, stages=[StageSeconds("decode", "Pillow", 16, 0.5, 0.25, 3000)], lines=[])
MESSAGES = [SPEC, RAW, LINE, Status(state="done", ended_by="hasten"), FixesReport(not_applied={"bf16": "no units"})]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_read_as_it_was_written(message):
    text = to_json(message)
    again = from_json(type(message), text, source="it")
    assert again == message and "\n" not in text
    assert to_json(again) == text, "with lists, tuples and all"


def test_what_is_not_a_number_is_still_a_loss():
    (loss,) = from_json(RawQuality, to_json(RawQuality(losses=[math.nan])), source="it").losses
    assert math.isnan(loss)


@pytest.mark.parametrize(
    ("kind", "changes", "says"),
    [
        (LaunchSpec, {"mode": "measuring"}, "mode: expected one of 'measure'"),
        (LaunchSpec, {"seed": 1.5}, "seed: expected int, not 1.5"),
        (LaunchSpec, {"seed": True}, "seed: expected int, not True"),
        (LaunchSpec, {"seconds": None}, "seconds: expected float, not None"),
        (LaunchSpec, {"fixes": [{"name": "cache", "installer": "", "value": None}]}, "fixes: value: expected bool"),
        (LaunchSpec, {"fixes": "cache"}, "fixes: expected list, not 'cache'"),
        (LaunchSpec, {"fixes": [{"name": "cache"}]}, "fixes: .* missing 2 required"),
        (LaunchSpec, {"plugins": []}, "unknown field 'plugins'"),
        (LaunchSpec, {"following": {"script": "a", "settings": []}}, "following: settings: expected dict"),
        (RawRun, {"pid": "7"}, "pid: expected int, not '7'"),
        (RawRun, {"spans": [["next", 1.0, 2.0]]}, "spans: not enough values"),
        (RawRun, {"spans": [["next", 1.0, 2.0, [0, 16]]]}, "spans: expected 3 items, not 2"),
        (RawRun, {"spans": [[[], 1.0, 2.0, None]]}, "spans: unhashable"),
        (RawRun, {"spans": [["step", "1", 2.0, None]]}, "spans: expected float, not '1'"),
        (RawRun, {"places": [["train.py", 9]]}, "places: expected 3 items, not 2"),
        (Status, {"state": "asleep"}, "state: expected one of 'imported'"),
    ],
)
def test_what_is_no_message_is_refused_in_one_line_that_names_the_field(kind, changes, says):
    good = next(message for message in MESSAGES if type(message) is kind)
    text = json.dumps({**json.loads(to_json(good)), **changes})
    with pytest.raises(RecordError, match=f"^it is not a valid {kind.__name__}: .*{says}") as raised:
        from_json(kind, text, source="it")
    assert "\n" not in str(raised.value) and isinstance(raised.value, HastenError)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "7", "[" * 100_000, b"\xff"])
def test_what_is_no_object_is_refused_too(text):
    with pytest.raises(RecordError, match="it is not a valid RawRun"):
        from_json(RawRun, text, source="it")


def test_each_process_has_a_file_of_a_kind_and_the_last_one_counts(tmp_path):
    for state in ("imported", "done"):
        write(Status(state=state), tmp_path)
    write(FixesReport(not_applied={}), tmp_path)
    (path,) = files_of(Status, tmp_path)
    assert read(Status, path).state == "done" and len([*tmp_path.iterdir()]) == 2


def test_of_the_processes_that_train_the_one_with_most_steps_counts_and_then_the_lowest_rank():
    few, *many = (
        RawRun(pid=1, rank=rank, ended_by="hasten", spans=[], segments=[RawSegment(name="plain", ends=[1.0] * steps)])
        for rank, steps in ((0, 5), (2, 9), (1, 9))
    )
    assert busiest([few, *many]).rank == 1


def test_the_guard_knows_measured_processes_by_the_variable_that_they_have():
    assert guard.VARIABLE == protocol.FOLDER_VARIABLE, "it runs without hasten's modules, and has the name itself"


def test_messages_need_the_standard_library_and_the_errors_alone():
    for module in (protocol, raw_run):
        for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                names = [node.module] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name in ("hasten.errors", "hasten.protocol") or name.split(".")[0] in sys.stdlib_module_names


def test_messages_are_read_where_there_is_nothing_but_python():
    code = "import sys; import hasten.raw_run; print(sorted({'torch', 'numpy', 'msgspec'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
