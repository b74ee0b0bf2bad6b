"""report and compare: what is kept is found, shown in every form, and set side by side."""

import json
import os
import subprocess

import msgspec
import pytest
from command import HASTEN, environment, said
from pages import full_run, search
from runs import steps

from hasten.cli.saved import nearest_run
from hasten.launch.ranks import save_ranks
from hasten.launch.results import make_root
from hasten.records import RankSteps, Tuning, to_json


def keep(folder, record):
    """Save a record where hasten would."""
    kind, name = ("tunings", "tuning.json") if isinstance(record, Tuning) else ("runs", "run.json")
    path = folder / ".hasten" / kind / record.id / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(to_json(record))
    return path


@pytest.fixture
def kept(tmp_path):
    """A folder with one run and the search that it began."""
    first = full_run()
    keep(tmp_path, first)
    keep(tmp_path, search(first))
    return tmp_path


def test_the_last_search_is_shown_with_its_run(ask, kept):
    answer = ask("report")
    assert answer.returncode == 0, answer.stderr
    assert "Kept" in answer.stdout and "cache = auto" in answer.stdout
    assert "Findings" not in answer.stdout, "the result comes first, and the rest with -v"
    longer = ask("report", "-v").stdout
    assert longer.index("Trials") < longer.index("Findings")


def test_a_search_and_a_run_are_found_by_id_folder_and_file(ask, kept):
    tuning = "20260305-150000-78-tune"
    for name in (tuning, f".hasten/tunings/{tuning}", f".hasten/tunings/{tuning}/tuning.json"):
        assert "Kept" in ask("report", name).stdout
    assert "Kept" not in ask("report", "20260305-141502-77").stdout


def test_a_report_is_written_in_every_form(ask, kept):
    answer = ask("report", "--html", "page.html", "--trace", "trace.json", "--csv", "steps.csv")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "wrote page.html\nwrote trace.json\nwrote steps.csv\n"
    assert (kept / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    events = json.loads((kept / "trace.json").read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    slices = [event for event in events if event["ph"] == "X" and event["tid"] == 1]
    assert len(slices) == 40 and slices[1]["ts"] > slices[0]["ts"] and "forward" in slices[1]["args"]
    head, *rows = (kept / "steps.csv").read_text().splitlines()
    assert head.startswith("step,start,seconds,marked") and len(rows) == 40
    assert rows[0].endswith(","), "what was not measured is an empty cell"


def test_a_page_that_cannot_be_written_is_said_in_one_line(ask, kept):
    answer = ask("report", "--html", "nowhere/page.html")
    assert answer.returncode == 2 and "use --html with another path" in said(answer)


def test_a_search_whose_run_is_gone_is_said_in_one_line(ask, kept):
    (kept / ".hasten" / "runs" / "20260305-141502-77" / "run.json").unlink()
    answer = ask("report")
    assert answer.returncode == 2 and "belongs to a run that was deleted" in said(answer)


@pytest.mark.parametrize("text", [b"{", b"{}", b'{"version": 99}', b"\xff\xfe", b""])
def test_a_torn_or_foreign_search_is_said_in_one_line(ask, tmp_path, text):
    path = tmp_path / "tuning.json"
    path.write_bytes(text)
    answer = ask("report", "tuning.json")
    assert answer.returncode == 2 and said(answer).count("\n") <= 1, answer.stderr


def test_a_record_without_what_was_added_since_is_read(ask, tmp_path):
    old = json.loads(to_json(full_run()))
    old.pop("timeline")
    for loader in old["facts"]["loaders"]:
        loader.pop("cache"), loader.pop("num_cache_misses")
    tuning = json.loads(to_json(search(full_run())))
    for name in ("screening_runs",):
        tuning.pop(name)
    for name in ("target_speedup", "measured", "baseline_losses", "plan_losses"):
        tuning["proof"].pop(name, None)
    keep(tmp_path, full_run()).write_text(json.dumps(old))
    keep(tmp_path, search(full_run())).write_text(json.dumps(tuning))
    answer = ask("report", "--html", "page.html")
    assert answer.returncode == 0, answer.stderr


def test_the_run_beside_a_search_is_of_its_plan():
    tuning = search(full_run())

    def nearest(*made):
        names = tuple(f"run-{n}" for n in range(len(made)))
        return nearest_run(msgspec.structs.replace(tuning, runs=names, run_settings=made))[0]

    assert tuning.settings == {"cache": "auto", "num_workers": 2}
    assert nearest({}, {"cache": "auto"}, {"cache": "auto", "num_workers": 2}) == "run-2"
    assert nearest({}, {"cache": "auto"}, {"cache": "auto", "bf16": True}) == "run-1", "bf16 is not in the plan"
    assert nearest({}, {"bf16": True}) is None and nearest({}) is None


def test_runs_under_the_plan_stand_beside_its_search(ask, kept):
    begun, script = search(full_run()).started, "./train.py"

    def ended(at, rate, **more):
        told = {"script": script, "settings": {"cache": "auto"}, "num_steps": 900, "baseline_rate": 320.0}
        return json.dumps({**told, "ended": at, "samples_per_second": rate, **more}) + "\n"

    lines = [ended(begun - 5, 111), ended(begun + 60, 480), ended(begun + 70, 640)]
    others = [ended(begun + 80, 999, script="other/train.py"), '{"torn', '\n{"ended": 1e300}\n' + "[" * 100_000]
    (kept / ".hasten" / "followed.jsonl").write_text("".join(lines + others))
    assert ask("report", "--html", "page.html").returncode == 0
    shown = " ".join(ask("report").stdout.split())
    assert "2 runs with a plan; the last one: 640 samples/s over 900 steps" in shown
    page = (kept / "page.html").read_text(encoding="utf-8")
    assert "Later runs with the plan" in page and "640 samples/s" in page and "480 samples/s" in page
    assert "num_workers = off" in page and "999 samples/s" not in page


def slower(seconds, name):
    return msgspec.structs.replace(full_run(steps=steps(seconds=seconds)), id=name)


def test_a_slow_down_ends_with_exit_code_1(ask, tmp_path):
    keep(tmp_path, slower(0.1, "old"))
    keep(tmp_path, slower(0.13, "new"))
    answer = ask("compare", "old", "new", "--max-slowdown", "5%")
    assert answer.returncode == 1 and "Slower than the limit" in answer.stdout, answer.stderr
    assert "only one run on each side" in " ".join(answer.stdout.split())
    assert ask("compare", "old", "new", "--max-slowdown", "50%").returncode == 0
    told = json.loads(ask("compare", "old,old", "new,new", "--json").stdout)
    assert told["comparison"]["verdict"] == "slower" and not told["comparison"].get("notes")


def test_a_run_that_is_not_there_and_a_senseless_share_are_refused(ask, tmp_path):
    assert ask("compare", "a", "b").returncode == 2
    assert 'use "5%"' in ask("compare", "a", "b", "--max-slowdown", "much").stderr


def test_runs_of_different_commands_are_compared_only_by_force(ask, tmp_path):
    keep(tmp_path, slower(0.1, "old"))
    keep(tmp_path, msgspec.structs.replace(slower(0.1, "new"), command=("train.py", "--lr", "9")))
    answer = ask("compare", "old", "new")
    assert answer.returncode == 2 and "different commands" in said(answer) and "hasten prove" in said(answer)
    forced = ask("compare", "old", "new", "--force")
    assert forced.returncode == 0 and "different command" in forced.stdout


def test_an_inconclusive_comparison_fails_only_if_asked_to_be_strict(ask, tmp_path):
    quick, slow = (tuple(steps(seconds=seconds)) for seconds in (0.07, 0.14))
    for name in ("old", "new"):
        keep(tmp_path, msgspec.structs.replace(full_run(steps=(*quick[:20], *slow[20:])), id=name))
    assert ask("compare", "old", "new").returncode == 0
    assert ask("compare", "old", "new", "--strict").returncode == 3


# ------------------------------------------------------------------------------------------ listed and deleted


def test_results_are_listed_with_the_newest_first_and_without_a_tunings_own_runs(ask, kept):
    other = keep(kept, msgspec.structs.replace(full_run(), id="20200101-000000-aa"))
    os.utime(other, (1e9, 1e9))
    shown = ask("report", "--list").stdout
    assert shown.index("20260305-150000-78-tune") < shown.index("20200101-000000-aa")
    assert "20260305-141502-77" not in shown, "the tuning run's own"
    assert "Tuned: 1.80x faster" in shown and "2001-09-09" in shown
    [first, last] = json.loads(ask("report", "--list", "--json").stdout)["saved"]
    assert first["id"].endswith("-tune") and last["command"]


def test_the_result_before_the_last_one_has_a_name(ask, kept):
    os.utime(keep(kept, msgspec.structs.replace(full_run(), id="20200101-000000-aa")), (1e9, 1e9))
    assert json.loads(ask("report", "--json", "last~1").stdout)["run"]["id"] == "20200101-000000-aa"
    assert "only 2 are saved here" in said(ask("report", "last~2")), "a tuning run's own runs are no results"


def test_an_empty_name_is_not_the_last_run(ask, kept):
    assert ask("report", "").returncode == 2
    for names in (("", "last"), ("last", "last,")):
        assert "a name is empty" in said(ask("compare", *names))


def test_a_page_needs_no_name_and_is_opened(ask, kept, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    assert ask("report", "--html").stdout == "wrote .hasten/tunings/20260305-150000-78-tune/report.html\n"
    assert ask("report", "--open", "20260305-141502-77").returncode == 0
    assert opened == [(kept / ".hasten/runs/20260305-141502-77/report.html").as_uri()]
    mistaken = ask("report", "--html", "20260305-141502-77")
    assert mistaken.returncode == 2 and "use `hasten report 20260305-141502-77 --html`" in said(mistaken)
    assert "use `hasten report last --html`" in said(ask("report", "--html", "last"))


def test_a_page_of_a_record_elsewhere_is_written_here(ask, kept, tmp_path):
    record = kept / ".hasten" / "runs" / "20260305-141502-77" / "run.json"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "run.json").write_bytes(record.read_bytes())
    assert ask("report", "elsewhere/run.json", "--html").stdout == "wrote hasten-20260305-141502-77.html\n"
    assert os.listdir(tmp_path / "elsewhere") == ["run.json"]
    assert "hasten report elsewhere/run.json -v" in ask("report", "elsewhere/run.json").stdout
    assert "hasten report 20260305-141502-77 -v" in ask("report", "20260305-141502-77").stdout
    assert "hasten report -v" in ask("report").stdout


def test_a_machine_without_a_browser_is_told_so_beside_the_json(ask, kept, monkeypatch):
    monkeypatch.setattr("webbrowser.open", lambda _: False)
    answer = ask("report", "--open", "--json")
    assert json.loads(answer.stdout) and "no browser can be opened here" in answer.stderr


def test_git_ignores_the_folder_of_results(tmp_path):
    make_root(tmp_path / ".hasten")
    assert "*" in (tmp_path / ".hasten" / ".gitignore").read_text().splitlines()
    (tmp_path / ".hasten" / ".gitignore").write_text("")
    make_root(tmp_path / ".hasten")
    assert (tmp_path / ".hasten" / ".gitignore").read_text() == "", "the user's choice"


def test_clean_keeps_the_newest_results_with_the_runs_that_belong_to_them(ask, kept):
    for number in range(3):
        path = keep(kept, msgspec.structs.replace(full_run(), id=f"2020010{number}-000000-aa"))
        os.utime(path, (1e9 + number, 1e9 + number))
    (kept / ".hasten" / "runs" / "20990101-000000-bb").mkdir()  # being measured
    (kept / ".hasten" / "runs" / "mine").mkdir()
    os.utime(kept / ".hasten" / "runs" / "mine", (1e9, 1e9))
    (kept / "hasten.toml").write_text("[fixes]")
    assert "would delete .hasten/runs/20200100-000000-aa" in ask("clean", "--keep", "2", "--dry-run").stdout
    assert len(os.listdir(kept / ".hasten" / "runs")) == 6
    answer = ask("clean", "--keep", "2")
    assert answer.returncode == 0 and answer.stdout.count("deleted ") == 2
    left = sorted(os.listdir(kept / ".hasten" / "runs"))
    assert left == ["20200102-000000-aa", "20260305-141502-77", "20990101-000000-bb", "mine"]
    assert ask("report").returncode == 0 and (kept / "hasten.toml").exists()
    assert "nothing to delete: 2 results" in ask("clean").stdout


def test_clean_leaves_a_search_that_goes_on(ask, kept):
    path = kept / ".hasten" / "tunings" / "20260305-150000-78-tune" / "tuning.json"
    running = msgspec.structs.replace(search(full_run()), state="running")
    path.write_bytes(to_json(running))
    assert "nothing to delete" in ask("clean", "--keep", "0").stdout and path.exists()
    os.utime(path, (1e9, 1e9))  # it was killed long ago
    assert ask("clean", "--keep", "0").returncode == 0 and not path.exists()


def test_clean_deletes_of_the_cache_folder_only_what_hasten_keeps_there(ask, kept, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    for name in ("memo", "xrays-v2-192", ".xrays-v2-192-scratch"):
        (cache / name).mkdir(parents=True)
    (cache / "memo" / "sample").write_bytes(b"x" * 2048)
    (cache / "thesis.txt").write_text("of somebody")
    monkeypatch.setenv("HASTEN_CACHE", str(cache))
    assert ask("clean", "--keep", "0").returncode == 0 and len(os.listdir(cache)) == 4
    assert f"deleted {cache / 'memo'} (2.0 KiB)" in ask("clean", "--cache").stdout
    assert os.listdir(cache) == ["thesis.txt"]


@pytest.mark.slow
def test_results_are_found_in_the_folder_that_the_environment_names(tmp_path, kept):
    elsewhere = (kept / ".hasten").rename(tmp_path / "elsewhere")
    answer = subprocess.run(
        [*HASTEN, "report", "--list"],
        cwd=tmp_path,
        env={**environment(), "HASTEN_RESULTS": str(elsewhere)},
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    assert search(full_run()).id in answer.stdout
    assert not (tmp_path / ".hasten").exists()


# ------------------------------------------------------------------------------------------------------ merge


def host(folder, number, *, job="a/1"):
    """The run of one host of two, each with one rank."""
    given = full_run()
    run = msgspec.structs.replace(given, id=f"{given.id}-{number}")
    path = keep(folder, run)
    steps = RankSteps(
        rank=number,
        world_size=2,
        host=f"host-{number}",
        node=number,
        job=job,
        backend="gloo",
        indices=tuple(range(40)),
        seconds=(0.1,) * 40,
        phases={"backward": (0.05 + 0.03 * number,) * 40, "communication": (0.05 - 0.03 * number,) * 40},
    )
    save_ranks([steps], path.parent)
    return run.id


def test_the_runs_of_two_hosts_are_joined(ask, tmp_path):
    names = [host(tmp_path, number) for number in range(2)]
    answer = ask("merge", *names)
    assert answer.returncode == 0, answer.stderr
    assert "Ranks     2 on 2 hosts (gloo), 40 steps" in answer.stdout
    assert "The other ranks wait for rank 1" in answer.stdout
    found = json.loads(ask("report", "--json").stdout)
    assert [row["rank"] for row in found["run"]["ranks"]["rows"]] == [0, 1]


def test_runs_of_different_jobs_and_runs_without_ranks_are_not_joined(ask, tmp_path):
    one, other = host(tmp_path, 0), host(tmp_path, 1, job="b/1")
    answer = ask("merge", one, other)
    assert (answer.returncode, said(answer)) == (
        2,
        "hasten: these runs are not of one job; join runs that were measured at the same time",
    )
    keep(tmp_path, full_run())
    answer = ask("merge", one, full_run().id)
    assert answer.returncode == 2 and "it trained alone" in said(answer)
