"""Wrong usages: each gets one line that says what to do, exit code 2, and starts nothing."""

import pytest
from command import left_in, said

FILES = ("ok.py", "nb.ipynb", "notes.txt", "broken.toml", "unknown.toml")

USAGES = [
    ([""], "no such command"),
    (["diag", "ok.py"], "did you mean `hasten diagnose`?"),
    (["profile", "ok.py"], "did you mean `hasten diagnose`?"),
    (["demo"], "did you mean `hasten speedtest`?"),
    (["xyzzy"], "choose from diagnose, tune"),
    (["ok.py", "--lr", "1"], "try `hasten diagnose ok.py --lr 1`"),
    (["diagnose"], "try for example `hasten diagnose train.py`"),
    (["tune"], "try for example `hasten tune train.py`"),
    (["run"], "try for example `hasten run train.py`"),
    (["diagnose", "nosuch.py"], "no such script: nosuch.py; check the path and the working directory"),
    (["diagnose", "--steps", "abc", "ok.py"], "'abc' is not an integer of 1 or more"),
    (["diagnose", "--steps=-5", "ok.py"], "'-5' is not an integer of 1 or more"),
    (["diagnose", "--step", "5", "ok.py"], "diagnose has no option --step; did you mean --steps?"),
    (["diagnose", "--fast", "ok.py"], "diagnose has no option --fast; see `hasten diagnose --help`"),
    (["tune", "--quick", "ok.py"], "tune has no option --quick; `hasten diagnose` has it"),
    (["tune", "--steps", "5", "ok.py"], "tune has no option --steps; `hasten diagnose` has it"),
    (["diagnose", "ok.py", "--steps", "5"], "--steps comes after ok.py, which does not use it"),
    (["diagnose", "-m"], "no module given; try for example `hasten diagnose -m package.train`"),
    (["diagnose", "--", "nosuch.py"], "no such script: nosuch.py"),
    (["diagnose", "notacommand"], "no such script or command: notacommand"),
    (["diagnose", "nb.ipynb"], "nb.ipynb is a notebook; use hasten.measure() in it"),
    (["diagnose", "notes.txt"], "neither a Python script (.py) nor executable"),
    (["diagnose", "folder"], "folder is a folder; name the script in it"),
    (["tune", "--budget", "tenminutes", "ok.py"], 'use "90s", "10m" or "1h"'),
    (["tune", "--budget", "10", "ok.py"], "has no unit; use 10s for seconds or 10m for minutes"),
    (["tune", "--budget", "0s", "ok.py"], "is not a number above 0"),
    (["tune", "--metric", "(", "ok.py"], "is not a valid regular expression"),
    (["tune", "--metric", "F1: [0-9.]+", "ok.py"], "needs one group around the number"),
    (["tune", "--recipe", "ok.py"], "add --metric 'REGEX' for what must not get worse"),
    (["tune", "--target", "0.9", "ok.py"], "add --recipe and --metric 'REGEX'"),
    (["tune", "--metric-lower", "ok.py"], "--metric-lower needs --metric"),
    (["tune", "--epochs", "0", "ok.py"], "'0' is not a number above 0"),
    (["tune", "--plan", "nowhere/x.toml", "ok.py"], "--plan"),
    (["tune", "--plan", "folder", "ok.py"], "cannot write folder (it is a folder); name a file with --plan"),
    (["tune", "--plan", ".", "ok.py"], "cannot write . (it is a folder); name a file with --plan"),
    (["tune", "--resume", "ok.py"], "leave --resume out"),
    (["run", "ok.py"], "there is no plan at hasten.toml; `hasten tune` makes one"),
    (["run", "--plan", "broken.toml", "ok.py"], "broken.toml is not valid TOML"),
    (["run", "--plan", "unknown.toml", "ok.py"], "did you mean"),
    (["run", "--set", "bf16", "ok.py"], "--set bf16 has no value; write --set bf16=true or --set bf16=false"),
    (["run", "--set", "num_workers", "ok.py"], "--set num_workers has no value; write --set num_workers=VALUE"),
    (["run", "--set", "bf16=maybe", "ok.py"], 'invalid value for bf16: "maybe"; use true or false'),
    (["run", "--set", "bf61=true", "ok.py"], "did you mean bf16?"),
    (["run", "--set", "cache=lots", "ok.py"], 'a size such as "8 GiB", "500 MB" or "50%"'),
    (["run", "--set", "cache=8", "ok.py"], "invalid value for cache: 8"),
    (
        ["run", "--set", "num_workers=-1", "ok.py"],
        "use a whole number of 0 or more, or false to leave it to the script",
    ),
    (["run", "--json", "--set", "bf16=true", "ok.py"], "use `hasten report --json` for the record"),
    (["report"], "no saved run here; `hasten diagnose SCRIPT` makes one"),
    (["report", "--list"], "no saved run here; `hasten diagnose SCRIPT` makes one"),
    (["report", "nosuch"], "no such run: nosuch; `hasten report --list` lists the saved runs"),
    (["report", "last~3"], "no saved run here"),
    (["report", "--html"], "no saved run here"),
    (["report", "ok.py"], "ok.py is a script, not a saved run; `hasten diagnose ok.py` measures it"),
    (["compare", "a", "b"], "no such run: a"),
    (["compare", "a"], "the following arguments are required: NEW; see `hasten compare --help`"),
    (["compare", "--max-slowdown", "five", "a", "b"], 'use "5%" or "0.05"'),
    (["compare", "--max-slowdown", "50", "a", "b"], "'50' has no unit; use 50% for percent"),
    (["prove", "ok.py", "--", "missing.py", "--verbose"], "no such script: missing.py"),
    (["prove", "ok.py"], "hasten prove OLD.py ... -- NEW.py ..."),
    (["explain", "bf61"], "did you mean bf16?"),
    (["explain", "xyzzy"], "`hasten explain` lists them"),
    (["check", "nowhere"], "nowhere"),
    (["speedtest", "nosuch"], "no such workload: nosuch; choose from xray"),
    (["speedtest", "xray", "feed"], "speedtest does not take another argument: feed"),
    (["speedtest", "all", "--data", "folder"], "--data needs a single workload"),
    (["speedtest", "--data", "nowhere"], "nowhere"),
    (["completion", "fish"], "invalid choice: 'fish'"),
    (["clean", "--keep", "-1"], "'-1' is not an integer of 0 or more"),
]


@pytest.fixture
def place(tmp_path):
    for name in FILES:
        (tmp_path / name).write_text(
            {"broken.toml": "[fixes\n", "unknown.toml": "[fixes]\nbf32 = true\n"}.get(name, "x = 1\n")
        )
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(("words", "says"), USAGES, ids=[" ".join(words) for words, _ in USAGES])
def test_a_wrong_usage_gets_one_line_and_exit_code_2(ask, place, words, says):
    answer = ask(*words)
    assert answer.returncode == 2
    assert says in said(answer)
    assert answer.stdout == "" and left_in(place) == sorted([*FILES, "folder"]), "nothing was started"


def test_hasten_alone_shows_the_commands_and_how_to_start(ask):
    answer = ask()
    assert answer.returncode == 2 and answer.stdout == ""
    assert "start with:" in answer.stderr and "hasten diagnose train.py" in answer.stderr


@pytest.mark.parametrize("words", [["help"], ["--help"], ["-h"]])
def test_help_shows_examples_and_exit_codes(ask, words):
    answer = ask(*words)
    assert answer.returncode == 0 and "exit codes:" in answer.stdout and "hasten tune train.py" in answer.stdout


@pytest.mark.parametrize(
    "command",
    [
        "diagnose",
        "tune",
        "run",
        "prove",
        "report",
        "compare",
        "explain",
        "check",
        "speedtest",
        "clean",
        "completion",
        "mcp",
    ],
)
def test_the_help_of_a_command_has_examples_and_fits_80_columns(ask, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    answer = ask("help", command)
    assert (
        answer.returncode == 0 and f"  hasten {command}" in answer.stdout.partition("examples:")[2]
    ) or "eval" in answer.stdout
    assert ask(command, "--help").stdout == answer.stdout
    assert max(map(len, answer.stdout.partition("examples:")[0].splitlines()[2:])) <= 80


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_the_version_says_what_a_bug_report_needs(ask, option):
    answer = ask(option)
    assert answer.returncode == 0
    assert answer.stdout.startswith("hasten ") and "Python 3." in answer.stdout and "torch 2." in answer.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_a_completion_script_knows_the_commands_and_their_options(ask, shell):
    pytest.importorskip("shtab")
    answer = ask("completion", shell)
    assert answer.returncode == 0 and "diagnose" in answer.stdout and "quick" in answer.stdout
