"""hasten run: the script as it is, under a plan; nothing of hasten stands between it and the user."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest
from command import HASTEN, environment, left_in, run, running_in, said, write

TRAIN = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8, shuffle=True)
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            {step}
        print("loss", loss.item())
    torch.save(model, "model.pt")
    torch.save(model.state_dict(), "weights.pt")
    {after}

if __name__ == "__main__":
    main()
"""


def script_in(tmp_path, *, step="pass", after="pass"):
    return write(tmp_path / "train.py", TRAIN.format(step=step, after=after))


def by_itself(script, tmp_path):
    return subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120
    )


@pytest.mark.contract
@pytest.mark.slow
def test_the_script_runs_as_it_would_by_itself(tmp_path):
    script = script_in(tmp_path)
    expected = by_itself(script, tmp_path)
    (tmp_path / "model.pt").unlink()
    answer = run("run", "--set", "gather=true", script, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == expected.stdout
    assert left_in(tmp_path) == [".hasten", "model.pt", "train.py", "weights.pt"]
    begun, ended = answer.stderr.splitlines()
    assert begun == "hasten: running with gather" and re.fullmatch(r"hasten: 24 steps, \d+ samples/s", ended)
    (line,) = (tmp_path / ".hasten" / "followed.jsonl").read_text().strip().splitlines()
    told = json.loads(line)
    assert told["num_steps"] == 24 and told["samples_per_second"] > 0
    assert told["settings"] == {"gather": True} and told["script"] == str(script)


@pytest.mark.slow
def test_what_is_saved_is_read_without_hasten(tmp_path):
    script = script_in(tmp_path)
    settings = ("bf16=true", "fused_optimizer=true", "set_to_none=true", "loader=true")
    answer = run("run", *(word for s in settings for word in ("--set", s)), script, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    code = (
        "import sys, torch; sys.modules['hasten'] = None\n"
        "print(sorted(torch.load('weights.pt')), type(torch.load('model.pt', weights_only=False)).__name__)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert loaded.stdout == "['0.bias', '0.weight', '2.bias', '2.weight'] Sequential\n", loaded.stderr
    assert b"hasten" not in (tmp_path / "model.pt").read_bytes()


@pytest.mark.slow
def test_an_exception_and_an_exit_code_are_the_scripts_own(tmp_path):
    script = script_in(tmp_path, step="raise ValueError('the data is bad')")
    answer = run("run", "--set", "bf16=true", script, cwd=tmp_path)
    assert answer.returncode == 1 and "ValueError: the data is bad" in answer.stderr
    script = script_in(tmp_path, after="sys.exit(7)")
    assert run("run", "--set", "bf16=true", script, cwd=tmp_path).returncode == 7


@pytest.mark.contract
@pytest.mark.slow
def test_a_signal_reaches_the_script(tmp_path):
    script = script_in(tmp_path, step="print('step', flush=True); import time; time.sleep(0.1)")
    plain, under = (
        interrupted([*command, script], cwd=tmp_path)
        for command in ([sys.executable], [*HASTEN, "run", "--set", "loader=true"])
    )
    assert "KeyboardInterrupt" in under.stderr
    assert under.returncode == plain.returncode, "it ends as it does without hasten"
    time.sleep(0.2)
    assert running_in(tmp_path) == []


def interrupted(command, *, cwd):
    """The command's end after Ctrl-C in its first step."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=cwd, env=environment(), stdout=pipe, stderr=pipe, text=True)
    assert process.stdout.readline() == "step\n"
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=30)
    return subprocess.CompletedProcess(command, process.returncode, printed, errors)


@pytest.mark.slow
def test_a_fix_that_cannot_be_put_on_is_said(tmp_path):
    script = script_in(tmp_path)
    answer = run("run", "--set", "channels_last=true", script, cwd=tmp_path)
    assert answer.returncode == 0
    assert "hasten: channels_last is not applied: the model has no convolution over images" in answer.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train.py"], "there is no plan at hasten.toml; `hasten tune` makes one"),
        (["--set", "bf61=true", "train.py"], "did you mean bf16"),
        (["--set", "bf16", "train.py"], "has no value"),
        (["--plan", "mine.toml", "train.py"], "there is no plan at mine.toml"),
        (["--set", "bf16=true", "other.py"], "no such script: other.py"),
        (["--set", "bf16=true"], "no script given"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_exit_code_2(ask, tmp_path, words, message):
    script_in(tmp_path)
    answer = ask("run", *words)
    assert answer.returncode == 2
    assert message in said(answer)
    assert left_in(tmp_path) == ["train.py"]


@pytest.mark.slow
def test_a_setting_counts_beside_the_plan_of_another_script(tmp_path):
    script = script_in(tmp_path)
    (tmp_path / "hasten.toml").write_text('[made]\ncommand = ["other.py"]\n[fixes]\nbf16 = true\n')
    refused = run("run", script, cwd=tmp_path)
    assert refused.returncode == 2 and "is of other.py, not of " in refused.stderr
    answer = run("run", "--set", "gather=true", script, cwd=tmp_path)
    assert answer.returncode == 0 and "it is ignored, and only --set counts" in answer.stderr
    assert "hasten: running with gather\n" in answer.stderr


@pytest.mark.slow
def test_a_plan_is_followed_and_what_speaks_against_it_is_said(tmp_path):
    script = script_in(tmp_path, after="print(optimizer.param_groups[0]['fused'])")
    (tmp_path / "hasten.toml").write_text(
        '[made]\ncommand = ["train.py"]\nproof = "proven"\nbaseline_rate = 10.0\n'
        '[machine]\ncpu = "another"\n[fixes]\nfused_optimizer = true\n'
    )
    answer = run("run", script, cwd=tmp_path)
    assert answer.returncode == 0 and answer.stdout.endswith("True\n")
    assert "another machine (cpu another); not validated on this machine: fused_optimizer" in answer.stderr
    assert "hasten: running with fused_optimizer" in answer.stderr
    assert "hasten: 24 steps, " in answer.stderr


@pytest.mark.slow
def test_auto_tunes_first_and_then_runs_the_script_itself(tmp_path):
    script = script_in(tmp_path)
    source = (tmp_path / script).read_text().replace("range(3)", "range(300)")
    (tmp_path / script).write_text(source)
    answer = run("run", "--auto", "--budget", "6s", script, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert re.search(r"^Plan +hasten\.toml$", answer.stdout, re.MULTILINE), answer.stdout[:2000]
    assert answer.stdout.count("loss") >= 300
    assert {"hasten.toml", "weights.pt"} <= {*left_in(tmp_path)}


PURE = """
from hasten import pure
import torch
from torch.utils.data import DataLoader

calls = 0

@pure
def number(at):
    global calls
    calls += 1
    return torch.full((2,), float(at))

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, at):
        return number(at)

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(20):
    for batch in DataLoader(Numbers(), batch_size=2):
        optimizer.zero_grad(); model(batch).sum().backward(); optimizer.step()
print("calls", calls)
"""


@pytest.mark.slow
def test_functions_marked_before_torch_is_imported_are_cached_under_a_plan(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(PURE)
    done = subprocess.run(
        [*HASTEN, "run", "--set", "cache=8 MiB", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert done.returncode == 0 and "is not applied" not in done.stderr, done.stderr
    assert "calls 12" in done.stdout  # four numbers, and eight that are compared
