"""Nothing of the user's is lost, executed or trusted, whoever wrote the files that hasten finds."""

import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from command import SOURCE, environment, left_in, run, said, train, write
from pages import full_run, input_of, search

from hasten.cli.parts import print_error
from hasten.data.memo.codec import NotStorableError, decode, encode
from hasten.data.memo.ledger import MARK, Ledger, lock_temporary
from hasten.errors import RecordError
from hasten.launch import results
from hasten.records import Run, Tuning, from_json, to_json
from hasten.reports.page.chart import draw
from hasten.reports.page.page import page
from hasten.safe_text import legible, redacted
from hasten.tuning.tune import last_tuning

PWNED = "import pathlib; pathlib.Path({!r}).touch()\n"


# ------------------------------------------------------------------------------------------------ data that is lost


def test_a_folder_beside_the_stores_of_the_disk_cache_is_never_removed(tmp_path):
    """HASTEN_CACHE may name a folder in which the user keeps other things."""
    for name in ("patients", "0" * 32):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".scan.dcm").write_bytes(b"x" * 5000)
        os.utime(tmp_path / name / ".scan.dcm", (1, 1))
    ledger = Ledger(tmp_path / ("a" * 32), 20_000)
    for number in range(8):
        ledger.reserve(tmp_path / ("a" * 32) / f"{number:032x}", 4000)
    ledger.close()
    assert (tmp_path / "patients/.scan.dcm").exists() and (tmp_path / ("0" * 32) / ".scan.dcm").exists()
    assert (tmp_path / ("a" * 32) / MARK).exists()


def test_what_others_are_writing_stays_when_the_clock_jumps(tmp_path):
    ledger = Ledger(tmp_path / ("a" * 32), 1 << 20)
    written, left = (tmp_path / ("a" * 32) / name for name in (".written.1.1", ".left.2.2"))
    for path in (written, left):
        path.write_bytes(b"x")
        os.utime(path, (1, 1))
    with written.open("rb") as file:
        lock_temporary(file.fileno())
        ledger._count()
    ledger.close()
    assert written.exists() and not left.exists()


def tuning_of(folder, **changes):
    """A search that was interrupted, in a folder of results."""
    tuning = msgspec.structs.replace(search(full_run()), state="interrupted", command=("train.py",), **changes)
    path = folder / ".hasten/tunings/found/tuning.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(to_json(tuning))
    return path


@pytest.mark.parametrize("name", ["/home/u/precious", "../../precious", "", ".", "..", "a/b", "x\n"])
def test_a_search_whose_name_leads_elsewhere_is_refused(tmp_path, name):
    path = tuning_of(tmp_path, id="found")
    path.write_bytes(path.read_bytes().replace(b'"id":"found"', b'"id":' + json.dumps(name).encode()))
    with pytest.raises(RecordError, match="not a hasten Tuning"):
        from_json(Tuning, path.read_bytes(), source="it")
    with pytest.raises(Exception, match="leave --resume out"):
        last_tuning(tmp_path / ".hasten", ("train.py",))


def test_a_search_in_a_folder_of_another_name_is_not_gone_on_with(tmp_path):
    tuning_of(tmp_path, id="another")
    with pytest.raises(Exception, match="there is no search"):
        last_tuning(tmp_path / ".hasten", ("train.py",))


def test_a_run_that_a_search_names_lies_beside_it(tmp_path):
    path = tuning_of(tmp_path, id="found")
    data = json.loads(path.read_bytes()) | {"runs": ["../../../elsewhere"]}
    with pytest.raises(RecordError):
        from_json(Tuning, json.dumps(data).encode(), source="it")


def test_a_folder_for_a_result_is_never_anothers(tmp_path, monkeypatch):
    """Containers that start together on one volume have the same second and the same process ids."""
    names = iter(["aaaaaa", "aaaaaa", "bbbbbb"])
    monkeypatch.setattr(results.secrets, "token_hex", lambda _n: next(names))
    monkeypatch.setattr(results.time, "strftime", lambda _f: "20261124-000000")
    assert results.new_folder(tmp_path) != results.new_folder(tmp_path)


# ------------------------------------------------------------------------------------------------- code that is run


@pytest.mark.contract
@pytest.mark.slow
@pytest.mark.parametrize("verb", [["run", "--set", "set_to_none=true"], ["diagnose", "--quick", "--seconds", "1"]])
def test_a_file_that_lies_in_the_working_directory_is_not_executed(tmp_path, verb):
    for folder in (".hasten/autoload", ".hasten/runs/x/launch-1/autoload", "autoload"):
        (tmp_path / folder).mkdir(parents=True)
        for name in ("sitecustomize.py", "numpy.py", "hasten_autoload.py"):
            (tmp_path / folder / name).write_text(PWNED.format(str(tmp_path / "pwned")))
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / write(tmp_path / "scripts/train.py", train(epochs=300))
    answer = run(*verb, str(script), cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert not (tmp_path / "pwned").exists()


class Bomb:
    def __reduce__(self):
        return os.system, ("touch pwned",)


def test_a_file_of_the_disk_cache_runs_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotStorableError, match="Bomb"):
        encode((1, Bomb()))
    with pytest.raises(ValueError, match="not a stored value"):
        decode(np.frombuffer(pickle.dumps((1, Bomb())), np.uint8))
    assert not os.listdir()


# ----------------------------------------------------------------------------------- what reaches terminals and pages


def test_nothing_controls_the_terminal(capsys, tmp_path):
    print_error("the plan was made on another machine (cpu \x1b]0;OWNED\x07)")
    said_ = capsys.readouterr().err
    assert "\x1b" not in said_ and "\x07" not in said_ and "OWNED" in said_


@pytest.mark.slow
def test_a_plan_with_control_characters_is_told_legibly(tmp_path):
    write(tmp_path / "train.py", "print('trained')")
    (tmp_path / "hasten.toml").write_text(
        '[made]\nproof = "proven"\ncommand = ["train.py"]\n[machine]\ncpu = "\\u001b]0;OWNED\\u0007"\n'
        "[fixes]\nbf16 = true\n"
    )
    answer = run("run", "train.py", cwd=tmp_path)
    assert "OWNED" in answer.stderr and "\x1b" not in answer.stderr and "\x07" not in answer.stderr


def test_a_key_with_control_characters_is_told_legibly(ask, tmp_path):
    write(tmp_path / "train.py", "print('trained')")
    (tmp_path / "hasten.toml").write_text('[fixes]\n"\\u001b[31mred" = true\n')
    answer = ask("run", "train.py")
    assert answer.returncode == 2 and "\x1b" not in answer.stderr and "red" in said(answer)


def test_a_control_character_does_not_end_the_process_that_draws():
    spec = {"data": {"values": [{"a": "\x1b[31m\x9bname", "b": 1}]}, "mark": "bar", "width": 100}
    spec["encoding"] = {"y": {"field": "a", "type": "nominal"}, "x": {"field": "b", "type": "quantitative"}}
    assert "name" in draw("steps", "", "", lambda _width: spec).wide


def test_a_direction_mark_does_not_pass_into_the_page():
    told = input_of(full_run())
    finding = msgspec.structs.replace(told.diagnosis.findings[0], title="safe\u202egnp.exe")
    diagnosis = msgspec.structs.replace(told.diagnosis, findings=(finding,))
    assert "\u202e" not in page(replace(told, diagnosis=diagnosis))


@pytest.mark.parametrize("name", ["=HYPERLINK(1)", "+1", "-1", "@SUM(A1)", "\x1b=1"])
def test_no_phase_is_a_formula_of_a_spreadsheet(name):
    whole = full_run()
    steps = tuple(msgspec.structs.replace(step, phases={name: 0.1}) for step in whole.steps)
    with pytest.raises(RecordError):
        from_json(Run, to_json(msgspec.structs.replace(whole, steps=steps)), source="it")


def test_a_record_that_is_nested_without_end_is_one_line(tmp_path):
    with pytest.raises(RecordError):
        from_json(Run, b'{"version": 2, "facts": ' + b"[" * 100_000, source="it")


SECRETS = ["--api-key=abc", "--api_key=abc", "hf_token=abc", "wandb.key=abc", "--password=abc", "--clientSecret=abc"]


@pytest.mark.parametrize("word", SECRETS)
def test_a_secret_in_an_argument_is_not_kept(word):
    assert "abc" not in "".join(redacted(["train.py", word]))
    name, _, value = word.partition("=")
    if name.startswith("-"):
        assert redacted(["train.py", name, value, "--lr", "0.1"]) == ("train.py", name, "***", "--lr", "0.1")


@pytest.mark.parametrize("words", [["--num-tokens", "8"], ["--tokenizer=gpt2"], ["--keypoints", "17"], ["--token"]])
def test_what_is_no_secret_is_kept(words):
    assert redacted(words) == tuple(words)


@pytest.mark.slow
def test_a_secret_is_in_no_file_that_a_measurement_leaves(tmp_path):
    script = write(tmp_path / "train.py", train())
    run("diagnose", "--quick", "--seconds", "1", script, "--api-key", "s3cr3t", "--db-password=s3cr3t", cwd=tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "run.json" for path in files)
    assert not [path for path in files if b"s3cr3t" in path.read_bytes()]


def test_legible_keeps_what_is_asked_for():
    assert legible("a\x1bb\nc", keep="\n") == "a b\nc" and legible("\udcff") == "\\udcff"


# --------------------------------------------------------------------------------------------- limits of the system

LOADING = """
import resource, sys, torch
from torch.utils.data import Dataset
import hasten

class Squares(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((8,), float(index)) ** 2, index

LIMIT
loader = hasten.Loader(Squares(), batch_size=8, num_workers=NUMBER, cache=CACHE)
print(sum(len(batch[0]) for _ in range(2) for batch in loader))
"""


def loaded(limit, *, workers=2, cache="'auto'", **variables):
    source = LOADING.replace("LIMIT", limit).replace("NUMBER", str(workers)).replace("CACHE", cache)
    given = environment() | {"PYTHONPATH": SOURCE} | variables
    return subprocess.run([sys.executable, "-c", source], env=given, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize(
    "limit",
    [
        "resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, 64 << 20))",
        "used = int(open('/proc/self/statm').read().split()[0]) * 4096\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), used + (1 << 30)))",
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))",
    ],
    ids=["-f", "-v", "-n"],
)
def test_a_loader_works_under_the_limits_of_a_shell(limit):
    answer = loaded(limit)
    assert answer.stdout == "128\n", answer.stderr


@pytest.mark.slow
def test_a_loader_without_a_home_folder_keeps_nothing_on_disk_and_trains(tmp_path):
    source = "from pathlib import Path\nPath.home = classmethod(lambda cls: (_ for _ in ()).throw(RuntimeError('no home')))"
    answer = loaded(source, workers=0, cache="None, disk_cache='auto'", XDG_CACHE_HOME="")
    assert answer.stdout == "128\n" and "the disk cache is off" in answer.stderr, answer.stderr


@pytest.mark.slow
def test_a_loader_whose_cache_folder_cannot_be_read_trains(tmp_path):
    (tmp_path / "file").touch()
    answer = loaded("pass", workers=0, cache="None, disk_cache='auto'", HASTEN_CACHE=str(tmp_path / "file"))
    assert answer.stdout == "128\n", answer.stderr


@pytest.mark.slow
def test_two_measurements_in_one_folder_do_not_meet(tmp_path):
    script = write(tmp_path / "train.py", train())
    words = [sys.executable, "-m", "hasten", "diagnose", "--quick", "--seconds", "1", script]
    both = [subprocess.Popen(words, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
    assert len([*tmp_path.glob(".hasten/runs/*/run.json")]) == 2 and left_in(tmp_path) == [".hasten", "train.py"]
