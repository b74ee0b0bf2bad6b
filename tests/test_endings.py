"""However a script ends or is started: its exit code, its output and its files stay its own."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from command import HASTEN, QUICK, environment, launch_folders, left_in, only_run, run, running_in, said, train, write

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
@pytest.mark.parametrize("trained", [False, True])
def test_a_script_that_runs_out_of_memory_is_told_at_what_batch_and_what_survives_it(tmp_path, trained):
    ends = "torch.empty(1 << 50)"
    source = train(epoch=ends) if trained else train().replace("def main():", f"def main():\n    {ends}")
    assert ends in source
    script = write(tmp_path / "train.py", source)
    answer = run("diagnose", *QUICK, script, cwd=tmp_path)
    assert answer.returncode == 1
    assert "can't allocate memory" in answer.stderr, "its own exception"
    assert "memory ran out" in said(answer) and "smaller batch" in said(answer)
    assert ("at a batch of" in said(answer)) == trained


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


@pytest.mark.contract
@pytest.mark.slow
def test_a_module_is_run_as_python_does(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    write(tmp_path / "pkg" / "train.py", "import sys\nassert sys.argv[1:] == ['--lr', '0.1', '--json']\n" + train())
    answer = run("diagnose", *QUICK, "-m", "pkg.train", "--lr", "0.1", "--json", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(only_run(tmp_path).read_bytes())["command"] == ["-m", "pkg.train", "--lr", "0.1", "--json"]


@pytest.mark.contract
@pytest.mark.slow
def test_a_whole_command_is_run_as_typed(tmp_path):
    write(tmp_path / "train.py", train())
    answer = run("diagnose", *QUICK, sys.executable, "train.py", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.contract
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
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    process = subprocess.Popen(
        [*HASTEN, "diagnose", "--quick", script],
        cwd=tmp_path,
        env=environment() | {"TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not [*scratch.glob("hasten-*/launch-*/status-*")] and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1.0)  # until the script itself is at work: an interrupt while torch is imported shows where that was
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "hasten: interrupted" in errors
    assert "src/hasten" not in errors
    assert running_in(tmp_path) == []
    assert launch_folders(tmp_path) == []
    assert left_in(tmp_path) == [".hasten", "scratch", "train.py"] and left_in(scratch) == []


@pytest.mark.contract
@pytest.mark.slow
def test_a_launcher_is_followed_to_the_process_that_trains(tmp_path):
    write(tmp_path / "train.py", train())
    answer = run("diagnose", *QUICK, "torchrun", "--nproc-per-node", "1", "train.py", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert len(json.loads(only_run(tmp_path).read_bytes())["steps"]) > 5
    assert running_in(tmp_path) == []


@pytest.mark.contract
@pytest.mark.slow
def test_workers_that_are_new_pythons_are_measured_too(tmp_path):
    script = write(tmp_path / "train.py", train(loader=", num_workers=1, multiprocessing_context='spawn'", epochs=2))
    answer = run("diagnose", *QUICK, script, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    (loader,) = json.loads(only_run(tmp_path).read_bytes())["facts"]["loaders"]
    assert loader["num_workers"] == 1 and loader["num_measured_batches"] > 0


@pytest.mark.slow
def test_a_time_limit_after_the_first_launch_shows_and_saves_what_is_known(tmp_path):
    script = write(tmp_path / "train.py", train(loader=", num_workers=2", step="__import__('time').sleep(0.02)"))
    process = subprocess.Popen(
        [*HASTEN, "diagnose", "--seconds", "3", script],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    said = ""
    while "trying without" not in said and process.poll() is None:
        said += process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    shown, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert "hasten: interrupted before all causes were tried; what is known is above" in errors
    assert "Step " in shown and "Next " in shown
    assert "interrupted before all causes were tried" in json.loads(only_run(tmp_path).read_bytes())["notes"]
    assert running_in(tmp_path) == []
