"""hasten.toml: written so that a person understands it, read so that no mistake passes."""

import msgspec
import pytest
from pages import full_run, search

from hasten.errors import DirectoryError, PlanError
from hasten.records import RECORD_VERSION, CacheNeed, Interval, Machine, Proof, Skipped, Trial, Tuning
from hasten.tuning.plan import NAME, Plan, check_place, doubts, plan_text, read_plan, with_changes, write_plan

MACHINE = Machine(
    system="Linux-6.1-x86_64",
    python="3.11.2",
    torch="2.14.1",
    torch_cuda=None,
    cpu="AMD EPYC",
    num_cores=2.0,
    num_cores_present=2,
    cpu_features=("avx2",),
    memory_bytes=1 << 34,
    memory_available_bytes=1 << 33,
    swap_bytes=0,
    shm_bytes=None,
)
TUNING = Tuning(
    version=RECORD_VERSION,
    hasten="0.1.0",
    id="20261121-1",
    command=("train.py", "--name", 'a "quoted" one'),
    directory="/home",
    started=1_790_000_000.0,
    machine=MACHINE,
    state="done",
    settings={"num_workers": 2, "bf16": True, "cache": "8 GiB"},
    trials=(
        Trial(fix="num_workers", value=2, verdict="faster", speedup=Interval(1.4, 1.35, 1.46)),
        Trial(fix="bf16", value=True, verdict="faster", speedup=Interval(2.0, 1.9, 2.1)),
        Trial(fix="compile", value="default", verdict="slower", speedup=Interval(0.58, 0.55, 0.61)),
        Trial(fix="decode", value=True, verdict="failed", note="the script failed (exit code 1): KeyError: 3"),
    ),
    proof=Proof(
        verdict="proven",
        guarantee="precision",
        speedup=Interval(2.8, 2.6, 3.0),
        baseline_rate=144.0,
        plan_rate=403.2,
    ),
)


def written(tmp_path, text):
    path = tmp_path / NAME
    path.write_text(text)
    return path


def test_what_is_written_is_read_again(tmp_path):
    path = tmp_path / NAME
    write_plan(path, TUNING)
    plan = read_plan(path)
    assert plan.settings == {"num_workers": 2, "cache": "8 GiB", "bf16": True}
    assert "compile = false" in path.read_text(encoding="utf-8"), "what was tried is written; nothing is set by it"
    assert plan.is_proven
    assert plan.command == TUNING.command
    assert plan.proof == "proven" and "baseline_rate = 144" in path.read_text(encoding="utf-8")
    assert [p.name for p in tmp_path.iterdir()] == [NAME]


def test_colours_in_what_a_script_said_leave_the_plan_readable(tmp_path):
    noisy = Trial(fix="decode", value=True, verdict="failed", note="\x1b[31mKeyError\x1b[0m\r\n\x00")
    path = tmp_path / NAME
    write_plan(path, msgspec.structs.replace(TUNING, trials=(noisy,), command=("train.py", "two\nlines")))
    assert read_plan(path).command == ("train.py", "two\nlines")


def test_words_that_are_no_text_leave_the_plan_readable(tmp_path):
    path = tmp_path / NAME
    write_plan(path, msgspec.structs.replace(TUNING, command=("train.py", "caf\udce9", "\U000e0001")))
    assert read_plan(path).command == ("train.py", "caf\\udce9", "\U000e0001")


def test_a_place_where_no_plan_can_be_written_is_said_before_the_search(tmp_path):
    with pytest.raises(DirectoryError, match="name another place"):
        check_place(tmp_path / "nowhere" / NAME)
    check_place(tmp_path / NAME)
    assert list(tmp_path.iterdir()) == []


def test_every_line_says_what_it_gained_or_why_it_is_off():
    lines = plan_text(TUNING).splitlines()
    find = {line.split(" ")[0]: line for line in lines if "=" in line}
    assert "1.40x (1.35 to 1.46), identical" in find["num_workers"]
    assert "2.00x (1.90 to 2.10), precision" in find["bf16"]
    assert "= false" in find["compile"] and "slower, 0.58x (0.55 to 0.61)" in find["compile"]
    assert "KeyError: 3" in find["decode"]
    assert lines[1].startswith("# Proven: 2.80x (2.60 to 3.00)")


def test_an_empty_plan_says_so():
    text = plan_text(msgspec.structs.replace(TUNING, settings={}, proof=None))
    assert "# Empty: none of 4 trials was faster." in text
    late = (Skipped(fix="bf16", reason="it may save 20% of the step", state="no time"),)
    text = plan_text(msgspec.structs.replace(TUNING, settings={}, proof=None, trials=(), skipped=late))
    assert "# Empty: no time left to try bf16, raise --budget." in text


def test_a_plan_that_is_not_proven_says_so_at_its_head():
    assert "# NOT PROVEN" in plan_text(msgspec.structs.replace(TUNING, proof=None))


@pytest.mark.parametrize(
    "text, words",
    [
        ("[fixes\nbf16 = true", "not valid TOML"),
        ("\x00", "not valid TOML"),
        ("bf16 = true", "put it under [fixes]"),
        ("[fixs]\nbf16 = true", "unknown section or key fixs"),
        ("fixes = 3", "must be a section"),
        ("[fixes]\nbf61 = true", "did you mean bf16"),
        ('[fixes]\nnum_workers = "many"', "a whole number of 0 or more"),
        ("[fixes]\nbf16 = true\nfp16 = true", "contradict"),
        ("[made]\ncommand = 3", "of the wrong kind"),
        ("[made]\ncommand = [3]", "list of words"),
        ("[made]\nproof_ = 'x'", "unknown key proof_"),
        (f"[fixes]\nnum_workers = {'9' * 5000}", "is not valid TOML"),
        (f"[fixes]\nnum_workers = {'[' * 5000}", "is not valid TOML"),
    ],
)
def test_a_plan_broken_by_hand_is_one_clear_line(tmp_path, text, words):
    path = written(tmp_path, text)
    with pytest.raises(PlanError) as raised:
        read_plan(path)
    assert words in str(raised.value) and str(path) in str(raised.value) and "\n" not in str(raised.value)


def test_no_plan_says_how_to_make_one(tmp_path):
    with pytest.raises(PlanError, match="hasten tune"):
        read_plan(tmp_path / NAME)


def test_bytes_that_are_no_text_are_no_plan(tmp_path):
    path = tmp_path / NAME
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanError, match="cannot be read"):
        read_plan(path)


def test_settings_are_changed_on_the_command_line():
    plan = Plan(settings={"bf16": True, "num_workers": 2}, proof="proven")
    changed = with_changes(plan, ["bf16=false", "num_workers=8", "cache=8 GiB", "compile=default"])
    assert changed.settings == {"num_workers": 8, "cache": "8 GiB", "bf16": False, "compile": "default"}
    assert changed.proof == "not proven"
    assert with_changes(plan, []).proof == "proven"


@pytest.mark.parametrize(
    "change", ["bf16", "bf16=maybe", "nothing=1", f"num_workers={'9' * 5000}", f"bf16={'[' * 5000}"]
)
def test_a_change_that_makes_no_sense_is_refused(change):
    with pytest.raises(PlanError):
        with_changes(Plan(settings={}), [change])


def test_a_plan_of_another_script_is_refused():
    plan = Plan(settings={}, command=("train.py", "--lr", "1"), proof="proven")
    with pytest.raises(PlanError, match=r"hasten tune other\.py"):
        doubts(plan, MACHINE, ("other.py",))
    assert doubts(plan, MACHINE, ("src/train.py", "--lr", "2")) == []


def test_the_loss_that_the_proof_saw_is_in_the_plan_and_read_back(tmp_path):
    tuning = search(full_run())
    proven = msgspec.structs.replace(tuning, settings={"bf16": True})
    path = tmp_path / "hasten.toml"
    write_plan(path, proven)
    seen = read_plan(path).seen
    assert seen.loss_steps == 40 and seen.loss == pytest.approx(2.0 - 0.011 * 33, abs=0.02)
    assert seen.loss_spread > 0
    write_plan(path, msgspec.structs.replace(tuning, settings={"cache": "auto"}))
    assert read_plan(path).seen is None, "epochs of its proof may have been cut short"


def test_on_another_machine_it_says_which_lines_are_in_doubt():
    plan = Plan(settings={"bf16": True, "set_to_none": True}, machine={"cpu": "Intel", "cores": "2"}, proof="proven")
    (line,) = doubts(plan, MACHINE, ("train.py",))
    assert (
        "cpu Intel" in line
        and "not validated on this machine: bf16" in line
        and "set_to_none" not in line
        and "cores" not in line
    )


def test_a_plan_that_was_not_proven_is_said_to_be():
    plan = Plan(settings={"bf16": True}, command=("train.py",), proof="not proven")
    assert doubts(plan, MACHINE, ("train.py",)) == ["the plan is not proven"]
    empty = Plan(settings={"bf16": False}, command=("train.py",), proof="not proven", machine={"cpu": "another"})
    assert doubts(empty, MACHINE, ("train.py",)) == [], "there is nothing to doubt in an empty plan"


def test_functions_to_vouch_for_are_a_suggestion_and_not_a_setting(tmp_path):
    trial = Trial(fix="pure", value="volumes:load,__main__:window", verdict="faster", speedup=Interval(1.8, 1.6, 2.0))
    path = tmp_path / NAME
    write_plan(path, msgspec.structs.replace(TUNING, trials=(*TUNING.trials, trial)))
    assert '\n# [cache]\n# pure = ["volumes:load", "__main__:window"]\n' in path.read_text()
    assert "pure" not in read_plan(path).settings


def test_functions_that_the_user_vouches_for_survive_another_search(tmp_path):
    path = written(tmp_path, '[cache]\npure = ["volumes:load"]\n')
    assert read_plan(path).settings == {"pure": "volumes:load"}
    write_plan(path, TUNING)
    assert read_plan(path).settings == {**read_plan(path).settings, "pure": "volumes:load"}


def test_a_plan_says_what_the_cache_holds_where(tmp_path):
    need = CacheNeed(bytes_per_sample=1e6, num_samples=3000, total_bytes=3 << 30, k_factor=5.0, fits_share=0.33)
    settings = {"cache": "auto", "disk_cache": "auto"}
    assert "RAM holds 33% of 3.0 GiB, the disk the rest" in plan_text(
        msgspec.structs.replace(TUNING, settings=settings, cache=need)
    )
