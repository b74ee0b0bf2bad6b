"""Every command line of the pages is run: on a small script, with a short budget, placeholders filled in."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command import HASTEN, environment, write
from guards.claims import commands_in

ROOT = Path(__file__).parents[1]
PAGES = [p for p in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")) if p.name not in ("log.md", "CHANGELOG.md")]

SCRIPT = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset

epochs = int(sys.argv[sys.argv.index("--epochs") + 1]) if "--epochs" in sys.argv else 2
torch.manual_seed(0)
rows = torch.randn(1024, 8)
loader = DataLoader(TensorDataset(rows, rows.sum(1, keepdim=True)), batch_size=8, shuffle=True)
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for epoch in range(epochs):
    for x, y in loader:
        optimizer.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())
"""

# What a reader puts in the place of a word.
VALUES = {
    "FOLDER": "data",
    "PATH": "data",
    "URL": "data",
    "N": "3",
    "HEAD~1": "HEAD",
    "OLD": "last~1",
    "NEW": "last",
    "SHELL": "bash",
    "NAME": "slow_decode",
    "RUN": "last",
    "FILE": "page.html",
    "FINDING|FIX": "cache",
    "COMMAND": "tune",
    "a,b,c": "last,last~1,last~2",
    "d,e,f": "last~2,last,last~1",
    "old1,old2,old3": "last~2,last~1,last",
    "OLD.py": "old.py",
    "NEW.py": "new.py",
}
SHORT = {"diagnose": ["--quick", "--seconds", "1"], "tune": ["--budget", "8s"], "prove": ["--budget", "8s"]}
TRAINING = {"diagnose", "tune", "prove", "run"}
# `hasten mcp` serves until its input ends, the bundled scripts take minutes, and a search must be interrupted before it
# goes on: these have tests of their own.
ELSEWHERE = {("mcp",), ("speedtest",), ("tune", "--resume")}


def written():
    """Each command line of the pages once, with its words; the parts of `a && b` apart, a script's arguments aside."""
    lines = {part for page in PAGES for line in commands_in(page.read_text("utf-8")) for part in line.split("&&")}
    commands = {tuple(VALUES.get(w, w) for w in shlex.split(line) if w != "hasten") for line in lines}
    return sorted({own_words(words) for words in commands if not {words[:1], words[:2]} & ELSEWHERE})


def own_words(words):
    if words[0] not in TRAINING or "--" in words:
        return words
    scripts = [place for place, word in enumerate(words) if word.endswith(".py")]
    return words[: scripts[0] + 1] if scripts else words


def can_be_run(words):
    """A verb alone is a mention of it, not a command: `hasten tune` without a script says what is missing."""
    needs_script = words[0] in TRAINING and not any(w.endswith(".py") or w == "package.train" for w in words)
    needs_runs = words[0] == "compare" and len([w for w in words if not w.startswith("-")]) < 3
    needs_runs = needs_runs or words[0] == "merge"  # of several hosts
    needs_hosts = "--nnodes" in words or "--runs-on" in words
    needs_hosts = needs_hosts or any(w.startswith(("--numa", "NCCL_")) for w in words)  # several GPUs
    needs_name = words in {("explain",), ("help",), ("completion",)}
    return not (needs_script or needs_runs or needs_hosts or needs_name)


COMMANDS = [words for words in written() if can_be_run(words)]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with the scripts that the pages name, under git, in which three runs were recorded and a plan was made."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "data" / "images").mkdir(parents=True)
    for number in range(50):
        (folder / "data" / "images" / f"{number}.bin").write_bytes(os.urandom(20_000))
    (folder / "package").mkdir()
    for name in ("train.py", "old.py", "new.py", "run_glue.py", "package/train.py"):
        write(folder / name, SCRIPT)
    write(folder / "package" / "__init__.py", "")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"], ["commit", "-qm", "two", "--allow-empty"]):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", *identity, *words], cwd=folder, check=True)
    write(folder / "train.py", SCRIPT.replace("epoch in", "number in"))
    (folder / "bin").mkdir()
    (folder / "bin" / "srun").write_text('#!/bin/sh\nexec "$@"\n')  # a Slurm of one task, for few machines have one
    (folder / "bin" / "srun").chmod(0o755)
    for _ in range(3):
        assert hasten("diagnose", *SHORT["diagnose"], "train.py", cwd=folder).returncode == 0
    assert hasten("tune", *SHORT["tune"], "train.py", cwd=folder).returncode == 0
    return folder


def hasten(*words, cwd):
    variables = environment()
    variables["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), str(cwd / "bin"), variables["PATH"]])
    return subprocess.run([*HASTEN, *words], cwd=cwd, env=variables, capture_output=True, text=True, timeout=240)


@pytest.mark.slow
@pytest.mark.xdist_group("docs_commands")
@pytest.mark.parametrize("words", [w for w in COMMANDS if w[0] in TRAINING], ids=" ".join)
def test_every_training_command_of_the_pages_runs(project, tmp_path, words):
    copy = shutil.copytree(project, tmp_path / "project")
    answer = hasten(words[0], *SHORT.get(words[0], []), *words[1:], cwd=copy)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip()


@pytest.mark.slow
@pytest.mark.xdist_group("docs_commands")
@pytest.mark.parametrize("words", [w for w in COMMANDS if w[0] not in TRAINING], ids=" ".join)
def test_every_other_command_of_the_pages_runs(project, tmp_path, words):
    copy = shutil.copytree(project, tmp_path / "project")
    answer = hasten(*words, cwd=copy)
    verdicts = {"check": {0, 1}, "compare": {0, 1, 3}}  # something to change, slower, cannot be told
    assert answer.returncode in verdicts.get(words[0], {0}), answer.stderr
    assert answer.stdout.strip() or "--html" in words
