"""The command line as a user meets it: what it refuses, what it says, what it leaves behind."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import get_args

import pytest
from command import HASTEN, QUICK, environment, left_in, only_run, run, running_in, said, train, write

from hasten.optimizations.catalog import CATALOG
from hasten.records import FindingKind

FINDINGS = get_args(FindingKind)

# ---------------------------------------------------------------------------- commands that cannot be started


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.py"], "no such script: nothing.py"),
        (["no-such-command"], "no such script or command"),
        (["folder"], "folder is a folder; name the script in it"),
        (["notes.txt"], "neither a Python script"),
        ([], "no script given"),
    ],
)
def test_what_cannot_be_started_is_said_in_one_line_with_exit_code_2(ask, tmp_path, words, message):
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    answer = ask("diagnose", *words)
    assert answer.returncode == 2
    assert message in said(answer)
    assert left_in(tmp_path) == ["folder", "notes.txt"], "nothing was started, so nothing is left"


@pytest.mark.parametrize("option", [["--steps", "0"], ["--steps", "x"], ["--seconds", "-1"], ["--wait", "nan"]])
def test_a_senseless_number_is_refused_before_anything_runs(ask, tmp_path, option):
    answer = ask("diagnose", *option, "train.py")
    assert answer.returncode == 2
    assert "is not a" in answer.stderr
    assert left_in(tmp_path) == []


def test_a_place_that_cannot_be_written_is_said_in_one_line(ask, tmp_path):
    (tmp_path / ".hasten").write_text("a file stands in the way")
    script = write(tmp_path / "train.py", "raise SystemExit('it was started')")
    answer = ask("diagnose", script)
    assert answer.returncode == 2
    assert "cannot write to .hasten" in said(answer)
    assert "it was started" not in answer.stderr


# ---------------------------------------------------------------------------- reports, without torch


def test_a_report_without_a_run_says_how_to_get_one(ask, tmp_path):
    answer = ask("report")
    assert answer.returncode == 2
    assert said(answer) == "hasten: no saved run here; `hasten diagnose SCRIPT` makes one"


def test_a_report_of_a_run_that_is_not_there_says_where_to_look(ask, tmp_path):
    answer = ask("report", "20200101-000000-1")
    assert answer.returncode == 2
    assert "no such run: 20200101-000000-1" in said(answer)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"version": 99}', b"[]", b'{"version": 2}'])
def test_a_run_that_cannot_be_read_is_said_in_one_line(ask, tmp_path, content):
    (tmp_path / "run.json").write_bytes(content)
    answer = ask("report", "run.json")
    assert answer.returncode == 2
    assert said(answer).startswith("hasten: run.json ")


def modules_after(code, cwd):
    script = f"import sys\n{code}\nprint(sorted(m for m in sys.modules if m.partition('.')[0] == 'torch'), file=sys.stderr)"
    answer = subprocess.run(
        [sys.executable, "-c", script], cwd=cwd, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stderr.splitlines()[-1]


@pytest.mark.contract
def test_the_command_line_imports_no_torch(tmp_path):
    assert modules_after("import hasten, hasten.cli, hasten.__main__", tmp_path) == "[]"


@pytest.mark.contract
def test_measuring_and_reporting_import_no_torch_in_the_parent(tmp_path):
    code = "import hasten.measurement.measure, hasten.measurement.diagnose, hasten.reports.text"
    assert modules_after(code, tmp_path) == "[]"


@pytest.mark.contract
@pytest.mark.slow
def test_check_imports_no_torch_in_this_process(tmp_path):
    code = "from hasten.cli import main; assert main(['check', '--json']) == 0"
    assert modules_after(code, tmp_path) == "[]"


@pytest.mark.slow
def test_check_prints_one_json_value(tmp_path):
    answer = run("check", "--json", cwd=tmp_path)
    assert answer.returncode == 0
    assert {"machine", "disk", "lines"} <= set(json.loads(answer.stdout))
    assert left_in(tmp_path) == [], "the disk was tried on a file that is gone"


# ---------------------------------------------------------------------------- whole scripts


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """One run with checkpoints and two workers, and everything that is asked about it."""
    folder = tmp_path_factory.mktemp("measured")
    epoch = "torch.save(model.state_dict(), 'last.pt')"
    after = "open('after.txt', 'w').close()"
    script = write(folder / "train.py", train(loader=", num_workers=2", epoch=epoch, after=after))
    answer = run("diagnose", "--json", *QUICK, script, cwd=folder)
    return folder, answer


@pytest.mark.slow
def test_a_measured_script_ends_with_exit_code_0_and_one_json_value(measured):
    _, answer = measured
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("\n") == 1
    assert set(json.loads(answer.stdout)) == {"run", "diagnosis"}


@pytest.mark.slow
def test_a_run_leaves_nothing_but_its_record(measured):
    folder, _ = measured
    assert left_in(folder) == [".hasten", "train.py"], "no checkpoint, and nothing that comes after the loop"
    assert [p.name for p in only_run(folder).parent.iterdir()] == ["run.json"]


@pytest.mark.slow
def test_a_run_leaves_no_worker_behind(measured):
    folder, _ = measured
    assert running_in(folder) == []


@pytest.mark.slow
def test_workers_that_are_ended_leave_no_temporary_folder(tmp_path):
    script = write(tmp_path / "train.py", train(loader=", num_workers=2"))
    # Short, for sockets lie in it, and the length of their paths is limited.
    with tempfile.TemporaryDirectory(prefix="t") as temporary:
        answer = run("diagnose", "--json", *QUICK, script, cwd=tmp_path, temporary=temporary)
        assert answer.returncode == 0, answer.stderr
        # torch keeps a folder of its own there, with and without hasten.
        assert [name for name in left_in(Path(temporary)) if not name.startswith("torch")] == []


@pytest.mark.slow
def test_a_checkpoint_is_a_phase_though_it_is_not_written(measured):
    _, answer = measured
    assert json.loads(answer.stdout)["diagnosis"]["breakdown"]["phases"]["checkpoint"] > 0


@pytest.mark.contract
@pytest.mark.slow
def test_a_saved_run_is_told_again_without_torch(measured):
    folder, _ = measured
    code = "from hasten.cli import main; assert main(['report']) == 0"
    assert modules_after(code, folder) == "[]"


@pytest.mark.slow
def test_a_saved_run_as_json_is_what_was_printed_at_first(measured):
    folder, answer = measured
    again = run("report", "--json", only_run(folder).parent.name, cwd=folder)
    assert json.loads(again.stdout) == json.loads(answer.stdout)


@pytest.mark.slow
def test_a_reader_that_leaves_early_gets_no_traceback(measured):
    folder, _ = measured
    command = " ".join(HASTEN) + " report --json | head -c 10"
    answer = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert answer.stderr == ""


@pytest.mark.slow
def test_a_script_that_is_too_short_for_an_interval_can_still_be_reported(tmp_path):
    # Its ratios have no upper end; the record must come back all the same.
    script = write(tmp_path / "train.py", train(step="__import__('time').sleep(0.02)"))
    first = run("diagnose", "--seconds", "1", "--quick", script, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert run("report", cwd=tmp_path).returncode == 0


# --------------------------------------------------------------------------------------------------- explain


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("slow_decode", ["How it is detected", "Image.open", "Fixes", "cache"]),
        ("bf16", ["bfloat16", "fewer bits", "hasten.toml", "full_precision", "fp16"]),
        (None, ["Findings", "slow_decode", "Fixes", "bf16"]),
    ],
)
def test_a_finding_and_a_fix_are_explained(ask, name, says):
    answer = ask("explain", *([name] if name else []))
    assert answer.returncode == 0 and not [word for word in says if word not in answer.stdout]


def test_every_finding_and_every_fix_is_explained(ask):
    (listed,) = json.loads(ask("explain", "--json").stdout).values()
    for name in (*FINDINGS, *CATALOG):
        assert name in listed
        assert name in json.loads(ask("explain", name, "--json").stdout)["explanation"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("data", "wait"), "blocked in"),
        (("worker", "startup"), "Workers are restarted at each epoch"),
        (("passive", "waiting"), "omp_wait"),
        (("95%", "CI"), "interval"),
    ],
)
def test_names_are_explained_as_a_report_prints_them(ask, words, told):
    assert told in ask("explain", *words).stdout


def test_a_script_of_nearly_that_name_is_named(ask, tmp_path):
    (tmp_path / "train.py").write_text("", encoding="utf-8")
    for missing in ("trian.py", "train"):
        assert f"did you mean {tmp_path / 'train.py'}?" in said(ask("diagnose", str(tmp_path / missing)))


def test_a_name_that_means_nothing_is_one_line_and_exit_code_2(ask):
    answer = ask("explain", "slowness")
    assert answer.returncode == 2 and "no finding, fix or word is named 'slowness'" in said(answer)


@pytest.mark.slow
def test_help_is_there_at_once():
    """What a command needs is imported by that command."""
    code = "import sys, hasten.cli; print(sorted({'msgspec', 'rich', 'numpy', 'torch', 'PIL'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
