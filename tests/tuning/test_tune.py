"""The command line of the search: what it refuses, and what it leaves behind."""

import pytest
from command import left_in, run, write


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.py"], "no such script"),
        (["--budget", "soon", "train.py"], "is no time"),
        (["--resume", "train.py"], "no search of this command to go on with"),
        (["--recipe", "train.py"], "say by --metric"),
        (["--metric", "F1: [0-9]+", "train.py"], "needs one group"),
        (["--metric", "F1: (", "train.py"], "no regular expression"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_exit_code_2(tmp_path, words, message):
    write(tmp_path / "train.py", "raise SystemExit('it was started')")
    answer = run("tune", *words, cwd=tmp_path)
    assert answer.returncode == 2
    assert message in answer.stderr
    assert "it was started" not in answer.stderr
    assert left_in(tmp_path) == ["train.py"]


def test_a_script_that_fails_by_itself_keeps_its_exit_code(tmp_path):
    script = write(tmp_path / "train.py", "import torch\nraise ValueError('the data is bad')")
    answer = run("tune", script, cwd=tmp_path)
    assert answer.returncode == 1
    assert left_in(tmp_path) == [".hasten", "train.py"]
    assert list((tmp_path / ".hasten" / "tunings").glob("*")) == []
