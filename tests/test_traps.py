"""What looks as if it were accepted, and would do something else than meant, is refused before anything runs."""

import argparse
import sys
from pathlib import Path

import pytest

from hasten.cli import main
from hasten.cli.parts import command_of
from hasten.errors import CommandError
from hasten.launch.launch import command_argv

IGNORES = "import torch\nraise SystemExit('it was started')\n"
PARSES = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--steps')\nraise SystemExit('it was started')\n"


@pytest.fixture(autouse=True)
def scripts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(IGNORES)
    (tmp_path / "parses.py").write_text(PARSES)
    (tmp_path / "loop.ipynb").write_text("{}")


def answer(capfd, *words):
    """The exit code, and what stands on standard error."""
    try:
        code = main(words)
    except SystemExit as end:  # argparse
        code = end.code
    said = capfd.readouterr().err
    assert "it was started" not in said and "Traceback" not in said
    return code, said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tune", "--budget", "10", "train.py"], "'10' has no unit; use 10s for seconds or 10m for minutes"),
        (["tune", "--budget", "5x", "train.py"], "is not a valid duration"),
        (["tune", "--metric-lower", "train.py"], "--metric-lower needs --metric"),
        (["tune"], "no script given; try for example `hasten tune train.py`"),
        (["run", "--json", "--set", "bf16=true", "train.py"], "use `hasten report --json` for the record"),
        (["run", "--set", "cache=8", "train.py"], 'use a size such as "8 GiB"'),
        (["run", "--set", "cache='8'", "train.py"], 'use a size such as "8 GiB"'),
        (["diagnose", "loop.ipynb"], "is a notebook; use hasten.measure() in it"),
    ],
)
def test_a_trap_is_refused_with_a_line_that_says_what_to_write(capfd, words, message):
    code, said = answer(capfd, *words)
    assert code == 2 and message in said


@pytest.mark.parametrize(
    "words", [["train.py", "--steps", "5"], ["train.py", "--steps=5"], ["train.py", "x", "--quick"]]
)
def test_options_of_hasten_behind_a_script_that_does_not_know_them_are_refused(capfd, words):
    code, said = answer(capfd, "diagnose", *words)
    option = next(word for word in words if word.startswith("--")).partition("=")[0]
    assert code == 2 and f"{option} comes after train.py, which does not use it" in said


@pytest.mark.slow
@pytest.mark.parametrize("words", [["parses.py", "--steps", "5"], ["--", "train.py", "--steps", "5"]])
def test_a_script_gets_options_that_its_source_names_and_all_behind_two_dashes(capfd, words):
    code = main(["diagnose", *words])
    said = capfd.readouterr().err
    assert code == 1 and "it was started" in said and "comes after" not in said


@pytest.mark.parametrize(
    ("words", "passed"),
    [
        (["-hs", "128", "-v", "words.txt"], True),
        (["--learning-rate=0.1", "--seed", "3"], True),
        (["--seed", "3"], False),
        (["-v"], False),
    ],
)
def test_a_script_that_reads_its_options_in_another_file_gets_all_of_them(words, passed):
    Path("elsewhere.py").write_text("from network import train\n\ntrain()\n")
    args = argparse.Namespace(
        words=["elsewhere.py", *words], module=False, options=["-v", "--seed"], subcommand="tune"
    )
    if passed:
        assert command_of(args) == args.words
    else:
        with pytest.raises(CommandError, match=f"{words[0]} comes after elsewhere.py"):
            command_of(args)


def test_a_program_beside_this_python_is_found_where_its_environment_is_not_activated(monkeypatch, tmp_path):
    beside = tmp_path / "bin"
    beside.mkdir()
    (beside / "torchrun").write_text("#!/bin/sh\n")
    (beside / "torchrun").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(beside / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    found = command_argv(["torchrun", "--nproc-per-node", "2", "train.py"], module=False)
    assert found == [str(beside / "torchrun"), "--nproc-per-node", "2", "train.py"]
