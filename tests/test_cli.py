"""The command line as a user meets it: what it says, what it returns, what it leaves behind."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import psutil
import pytest

import hasten

HASTEN = [sys.executable, "-m", "hasten"]
SOURCE = os.fspath(Path(hasten.__file__).parents[1])
QUICK = ["--seconds", "2", "--quick"]

TRAIN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def main():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8{loader})
    for epoch in range({epochs}):
        for x, y in loader:
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            {step}
        {epoch}
    {after}

if __name__ == "__main__":
    main()
"""


def write(path, source):
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    return path.name


def train(*, loader="", epochs=10**6, step="pass", epoch="pass", after="pass"):
    return TRAIN.format(loader=loader, epochs=epochs, step=step, epoch=epoch, after=after)


def environment():
    path = os.pathsep.join(filter(None, [SOURCE, os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}


def run(*words, cwd, temporary=None, **others):
    variables = environment() | ({"TMPDIR": temporary} if temporary else {})
    return subprocess.run(
        [*HASTEN, *words], cwd=cwd, env=variables, capture_output=True, text=True, timeout=120, **others
    )


def said(answer):
    """What hasten itself said on standard error; one line, and never a traceback of its own."""
    lines = [line for line in answer.stderr.splitlines() if line.startswith("hasten: ")]
    assert len(lines) <= 1, answer.stderr
    assert "src/hasten" not in answer.stderr
    return lines[0] if lines else ""


def left_in(folder):
    return sorted(p.name for p in folder.iterdir() if p.name != "__pycache__")


def running_in(folder):
    """Processes that stand in this folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == os.fspath(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.cmdline())
        except psutil.Error:
            pass
    return found


def only_run(folder):
    (record,) = (folder / ".hasten" / "runs").glob("*/run.json")
    return record


def launch_folders(folder):
    return list((folder / ".hasten").rglob("launch-*"))


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
def test_what_cannot_be_started_is_said_in_one_line_with_exit_code_2(tmp_path, words, message):
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    answer = run("diagnose", *words, cwd=tmp_path)
    assert answer.returncode == 2
    assert message in said(answer)
    assert left_in(tmp_path) == ["folder", "notes.txt"], "nothing was started, so nothing is left"


@pytest.mark.parametrize("option", [["--steps", "0"], ["--steps", "x"], ["--seconds", "-1"], ["--wait", "nan"]])
def test_a_senseless_number_is_refused_before_anything_runs(tmp_path, option):
    answer = run("diagnose", *option, "train.py", cwd=tmp_path)
    assert answer.returncode == 2
    assert "is not a number of" in answer.stderr
    assert left_in(tmp_path) == []


def test_a_place_that_cannot_be_written_is_said_in_one_line(tmp_path):
    (tmp_path / ".hasten").write_text("a file stands in the way")
    script = write(tmp_path / "train.py", "raise SystemExit('it was started')")
    answer = run("diagnose", script, cwd=tmp_path)
    assert answer.returncode == 2
    assert "cannot write to .hasten" in said(answer)
    assert "it was started" not in answer.stderr


# ---------------------------------------------------------------------------- reports, without torch


def test_a_report_without_a_run_says_how_to_get_one(tmp_path):
    answer = run("report", cwd=tmp_path)
    assert answer.returncode == 2
    assert said(answer) == "hasten: no run is kept here; `hasten diagnose SCRIPT` makes one"


def test_a_report_of_a_run_that_is_not_there_says_where_to_look(tmp_path):
    answer = run("report", "20200101-000000-1", cwd=tmp_path)
    assert answer.returncode == 2
    assert "no such run: 20200101-000000-1" in said(answer)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"version": 99}', b"[]", b'{"version": 1}'])
def test_a_run_that_cannot_be_read_is_said_in_one_line(tmp_path, content):
    (tmp_path / "run.json").write_bytes(content)
    answer = run("report", "run.json", cwd=tmp_path)
    assert answer.returncode == 2
    assert said(answer).startswith("hasten: run.json ")


def modules_after(code, cwd):
    script = f"import sys\n{code}\nprint(sorted(m for m in sys.modules if m.partition('.')[0] == 'torch'), file=sys.stderr)"
    answer = subprocess.run(
        [sys.executable, "-c", script], cwd=cwd, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stderr.splitlines()[-1]


def test_the_command_line_imports_no_torch(tmp_path):
    assert modules_after("import hasten, hasten.cli, hasten.__main__", tmp_path) == "[]"


def test_measuring_and_reporting_import_no_torch_in_the_parent(tmp_path):
    code = "import hasten.measurement.measure, hasten.diagnosis.diagnose, hasten.reports.text"
    assert modules_after(code, tmp_path) == "[]"


def test_check_imports_no_torch_in_this_process(tmp_path):
    code = "from hasten.cli import main; assert main(['check', '--json']) == 0"
    assert modules_after(code, tmp_path) == "[]"


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


RAISES = "if epoch == 2: raise ValueError('the data is bad')"


@pytest.mark.slow
@pytest.mark.parametrize("linger", [0.0, 0.4])
def test_a_script_that_raises_keeps_its_traceback_and_its_exit_code(tmp_path, linger):
    # Some scripts take a while to leave after their exception; the code is theirs nevertheless.
    source = f"import atexit, time\natexit.register(time.sleep, {linger})\n" + train(epoch=RAISES)
    script = write(tmp_path / "train.py", source)
    answer = run("diagnose", *QUICK, script, cwd=tmp_path)
    assert answer.returncode == 1
    assert "ValueError: the data is bad" in answer.stderr
    assert 'train.py", line' in answer.stderr
    assert "failed with exit code 1" in said(answer)


@pytest.mark.slow
def test_an_exception_in_a_worker_shows_no_line_of_hastens(tmp_path):
    bad = "lambda b: 1 / 0"
    source = train(loader=", num_workers=1, collate_fn=bad").replace("def main", "bad = lambda b: 1 / 0\ndef main")
    assert bad in source
    script = write(tmp_path / "train.py", source)
    answer = run("diagnose", *QUICK, script, cwd=tmp_path)
    assert answer.returncode == 1
    assert "ZeroDivisionError" in answer.stderr
    assert "src/hasten" not in answer.stderr


ENDINGS = {
    "import sys, torch; sys.exit(3)": (3, "exit code 3"),
    "import os, torch; os._exit(4)": (4, "exit code 4"),
    "import os, signal, torch; os.kill(os.getpid(), signal.SIGKILL)": (137, "SIGKILL"),
    "import this_module_is_not_there": (1, "exit code 1"),
    "print('no torch here')": (2, "never imported torch"),
    "import torch; print('no training here')": (2, "without an optimizer step"),
}


@pytest.mark.slow
@pytest.mark.parametrize("source", ENDINGS, ids=lambda s: s.split(";")[-1].strip()[:24])
def test_a_script_that_ends_by_itself_says_how_and_hands_its_code_on(tmp_path, source):
    code, message = ENDINGS[source]
    script = write(tmp_path / "train.py", source)
    answer = run("diagnose", *QUICK, script, cwd=tmp_path)
    assert answer.returncode == code
    assert message in said(answer)
    assert launch_folders(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(("ending", "code"), [("import sys; sys.exit(3)", 3), ("import os; os._exit(4)", 4)])
def test_a_script_that_trains_and_then_fails_hands_its_code_on(tmp_path, ending, code):
    script = write(tmp_path / "train.py", train(epochs=3, after=ending))
    answer = run("diagnose", *QUICK, script, cwd=tmp_path)
    assert answer.returncode == code


@pytest.mark.slow
def test_a_loader_that_yields_nothing_is_named(tmp_path):
    source = train(epochs=2).replace("randn(64", "randn(0")
    script = write(tmp_path / "train.py", source)
    answer = run("diagnose", *QUICK, script, cwd=tmp_path)
    assert answer.returncode == 2
    assert "does the loader yield batches?" in said(answer)


@pytest.mark.slow
def test_a_script_that_makes_no_step_is_given_up_after_the_wait(tmp_path):
    script = write(tmp_path / "train.py", "import time, torch\ntime.sleep(60)")
    started = time.monotonic()
    answer = run("diagnose", *QUICK, "--wait", "3", script, cwd=tmp_path)
    assert time.monotonic() - started < 45
    assert answer.returncode == 2
    assert "no optimizer step in 3 s" in said(answer)
    assert running_in(tmp_path) == []


@pytest.mark.slow
def test_a_checkpoint_that_the_script_copies_at_once_is_there_to_be_copied(tmp_path):
    # As torchvision's and PyTorch's own examples do: save, then copy the best one.
    epoch = "torch.save(model.state_dict(), 'last.pt'); __import__('shutil').copyfile('last.pt', 'best.pt')"
    script = write(tmp_path / "train.py", train(epoch=epoch))
    answer = run("diagnose", *QUICK, script, cwd=tmp_path)
    assert "FileNotFoundError" not in answer.stderr
    assert answer.returncode == 0


@pytest.mark.slow
def test_a_module_is_run_as_python_does(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    write(tmp_path / "pkg" / "train.py", "import sys\nassert sys.argv[1:] == ['--lr', '0.1', '--json']\n" + train())
    answer = run("diagnose", *QUICK, "-m", "pkg.train", "--lr", "0.1", "--json", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(only_run(tmp_path).read_bytes())["command"] == ["-m", "pkg.train", "--lr", "0.1", "--json"]


@pytest.mark.slow
def test_a_whole_command_is_run_as_typed(tmp_path):
    write(tmp_path / "train.py", train())
    answer = run("diagnose", *QUICK, "python", "train.py", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.slow
def test_a_shell_script_ends_where_its_training_is_cut_off(tmp_path):
    write(tmp_path / "train.py", train())
    write(tmp_path / "run.sh", f"{sys.executable} train.py && touch uploaded\ntouch after")
    answer = run("diagnose", *QUICK, "bash", "run.sh", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert left_in(tmp_path) == [".hasten", "run.sh", "train.py"], "what comes after the training must not run"


@pytest.mark.slow
def test_interrupting_leaves_no_process_and_no_file(tmp_path):
    source = train(loader=", num_workers=2", step="open('steps', 'a').write('x')")
    script = write(tmp_path / "train.py", source)
    process = subprocess.Popen(
        [*HASTEN, "diagnose", "--quick", script],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "steps").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "hasten: interrupted" in errors
    assert "src/hasten" not in errors
    assert running_in(tmp_path) == []
    assert launch_folders(tmp_path) == []
    assert left_in(tmp_path) == [".hasten", "steps", "train.py"]


SLEEPS = {"data_wait": 0.03, "forward": 0.02, "backward": 0.04, "optimizer": 0.025, "validation": 0.06}
TRUTH = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep({backward})
        return grad

class Samples(Dataset):
    def __init__(self, seconds, count):
        self.seconds, self.count = seconds, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(self.seconds / 2)
        return torch.ones(3), torch.ones(1)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 1)

    def forward(self, x):
        if self.training:
            time.sleep({forward})
        return Slow.apply(self.inner(x))

class SlowSGD(torch.optim.SGD):
    def step(self, closure=None):
        time.sleep({optimizer})
        return super().step(closure)

model = Model()
optimizer = SlowSGD(model.parameters(), lr=0.01)
train = DataLoader(Samples({data_wait}, 8), batch_size=2)
held_out = DataLoader(Samples({validation}, 8), batch_size=2)
while True:
    model.train()
    for x, y in train:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for x, y in held_out:
            model(x)
"""


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    folder = tmp_path_factory.mktemp("truth")
    script = write(folder / "train.py", TRUTH.format(**SLEEPS))
    answer = run("diagnose", "--json", "--seconds", "8", "--quick", script, cwd=folder)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)["diagnosis"]["breakdown"]


@pytest.mark.slow
@pytest.mark.parametrize("phase", SLEEPS)
def test_a_phase_that_sleeps_takes_as_long_as_its_sleep(truth, phase):
    # Four training batches and four validation batches an epoch: one of each a step.
    slept = SLEEPS[phase]
    assert abs(truth["phases"][phase] - slept) <= 0.15 * slept + 0.002


@pytest.mark.slow
def test_phases_and_what_is_left_over_sum_to_the_step(truth):
    known = sum(seconds for seconds in truth["phases"].values() if seconds is not None)
    assert abs(known + truth["unaccounted"] - truth["step_seconds"]) <= 0.02 * truth["step_seconds"]
    assert truth["unaccounted"] <= 0.05 * truth["step_seconds"]
