"""hasten speedtest: which workloads there are, on which data, and what is printed of several."""

import json

import msgspec
import pytest
from command import left_in, run, running_in, said
from pages import full_run, search
from rich.console import Console

from hasten.records import Interval
from hasten.reports.text import print_before_and_after
from hasten.workloads.catalog import WORKLOADS
from hasten.workloads.images import THUMBNAILS, make_images


def test_every_workload_is_listed(ask):
    lines = ask("speedtest", "--list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(WORKLOADS)


@pytest.mark.parametrize(
    "words, message",
    [
        (["nothing"], "no such workload: nothing; choose from xray, feed, superres, efficient, classify or all"),
        (["all", "--data", "."], "--data needs a single workload"),
        (["feed", "--data", "nowhere"], "nowhere: no such folder"),
        (["superres", "--data", "."], "too few images"),
    ],
)
def test_what_cannot_be_tested_is_said_in_one_line(ask, tmp_path, words, message):
    answer = ask("speedtest", *words)
    assert answer.returncode == 2 and message in said(answer) and "Traceback" not in answer.stderr
    assert left_in(tmp_path) == []


def test_several_are_set_beside_each_other(capsys):
    tuning = search(full_run())
    sooner = msgspec.structs.replace(tuning.proof, target_speedup=Interval(3.1, 2.5, 3.9))
    rows = [
        ("xray", tuning),
        ("efficient", msgspec.structs.replace(tuning, proof=sooner)),
        ("feed", msgspec.structs.replace(tuning, settings={}, proof=None)),
    ]
    print_before_and_after(rows, console=Console(width=100, color_system=None))
    text = capsys.readouterr().out
    assert "320 samples/s" in text and "1.80x (95% CI 1.60 to 2.00)" in text and "passed" in text
    assert "3.1x (2.5 to 3.9) to the target" in text and "empty plan" in text


@pytest.mark.slow
def test_a_quick_test_on_images_of_ones_own_leaves_nothing_but_its_record(tmp_path):
    data = make_images(THUMBNAILS, num_images=160, folder=tmp_path / "data")
    answer = run("speedtest", "efficient", "--quick", "--seconds", "2", "--data", data, "--json", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    told = json.loads(answer.stdout)
    assert told["workload"] == "efficient" and told["num_images"] == 160 and told["num_labels"] == 10
    kinds = {finding["kind"] for finding in told["diagnosis"]["findings"]}
    assert told["run"]["facts"]["anomaly_detection"] and told["tuning"] is None, kinds
    assert left_in(tmp_path) == [".hasten", "data"] and running_in(tmp_path) == []
