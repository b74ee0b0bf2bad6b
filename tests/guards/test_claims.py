"""README, metadata and version say the same, and what they say is so."""

import argparse
import importlib
import json
from pathlib import Path

import pytest
from guards.claims import contradictions, intervals, missing_files, places_of_version, unmeasured, verbs_of
from package_structure import ROOT

import hasten
from hasten import cli
from hasten.errors import CommandError

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

SETUP = "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/hasten speedtest"
HERE = (".github", "docs", "src", ".ci")  # folders whose files may name the version only where it is kept
RELEASED = {"CHANGELOG.md", "src/hasten/__init__.py"}


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def project():
    return tomllib.loads(text("pyproject.toml"))["project"]


# ----------------------------------------------------------------------------------------------------------- readme


def test_the_readme_gets_the_source_before_it_installs_it():
    install = text("README.md").partition("## Install")[2].split("```")[1].strip().splitlines()
    assert install[0].startswith("git clone ") and install[1] == SETUP


def test_the_readme_says_what_it_is_before_how_to_call_it():
    readme = text("README.md")
    assert readme.index("**Makes PyTorch training faster") < readme.index("```")
    limits = readme.partition("## Install")[0]
    assert "Linux only" in limits and "three quarters of an hour on a GPU" in limits


def test_what_the_readme_says_of_a_gpu_is_in_the_raw_results():
    raw = ROOT / "benchmarks" / "results" / "gpu" / "nvidia_h100_80gb_hbm3"
    diagnoses = [json.loads(path.read_text(encoding="utf-8")) for path in raw.glob("diagnose/*.json")]
    right = sum(
        one["expected"] == ([f["kind"] for f in one["diagnosis"]["findings"]] or ["none"])[0] for one in diagnoses
    )
    proof = json.loads((raw / "tuned" / "full_precision.json").read_text(encoding="utf-8"))["tuning"]["proof"]
    assert f"right on {right} of {len(diagnoses)} scripts" in text("README.md")
    first = json.loads((raw / "speedtest" / "superres.json").read_text(encoding="utf-8"))["tuning"]
    assert f"in {first['seconds']:.0f} seconds" in text("README.md")
    assert proof["verdict"] == "proven" and f"`tune` proved {proof['speedup']['value']:.2f}x" in text("README.md")


def test_what_the_log_says_of_the_planted_edits_is_in_the_raw_results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    edits = importlib.import_module("edits")
    raw = json.loads(edits.RESULTS.read_text(encoding="utf-8"))["edits"].values()
    right = sum(edits.is_right(one["kind"], one) for one in raw)
    entry = text("docs/development/log.md").partition("## 2026-11-27, what a call costs")[2].partition("\n## ")[0]
    assert f"`benchmarks/edits.py`, five minutes each at the most): {right} of {len(raw)}." in entry


@pytest.mark.parametrize(
    ("name", "folder", "title", "told"),
    [
        ("diagnosis", "faulty", "2026-11-29, an answer left open for lack of time", "{} of {}."),
        ("diagnosis_unseen", "faulty/unseen", "2026-11-26, fifteen scripts that no rule had seen", "{} of {}."),
    ],
)
def test_what_the_log_says_of_the_faulty_scripts_is_in_the_raw_results(name, folder, title, told):
    raw = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))["scripts"]
    found = {one: (result["findings"] or [{"kind": "none."}])[0]["kind"] for one, result in raw.items()}
    right = sum(
        f"Expected finding: {kind.rstrip('.')}" in text(f"tests/{folder}/{one}.py") for one, kind in found.items()
    )
    entry = text("docs/development/log.md").partition(f"## {title}")[2]
    assert told.format(right, len(raw)) in entry.partition("\n## ")[0]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/development/architecture.md"])
def test_a_page_names_files_and_constants_that_there_are(page):
    assert missing_files(text(page), ROOT) == []


def test_a_file_and_a_constant_that_are_gone_are_seen(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "layers.py").write_text("LAYERS = ()\nNOLAYERS_AT_ALL = ()\n", encoding="utf-8")
    page = "`docs/layers.py`, `layers.py`, `docs/*.py`, `LAYERS` in `docs/layers.py`"
    assert missing_files(page, tmp_path) == []
    page = "`docs/gone.py`, `gone.py`, `src/hasten/*_rules.py`, `NOLAYERS` of `docs/layers.py`"
    assert missing_files(page, tmp_path) == [
        "docs/gone.py",
        "src/hasten/*_rules.py",
        "gone.py",
        "NOLAYERS of docs/layers.py",
    ]


def test_the_readme_says_which_commands_print_json():
    taking = {name for name, verb in verbs_of(cli.parsers()[0]).items() if "--json" in verb._option_string_actions}
    assert "All commands except `run`, `mcp` and `completion` accept `--json`." in text("README.md")
    others = {*verbs_of(cli.parsers()[0])} - {"mcp", "completion"}
    assert taking == others, "`run` takes it as well, to say where the record is"
    with pytest.raises(CommandError, match="run prints only the script's output"):
        cli.tuning._run(cli.parsers()[0].parse_args(["run", "--json", "train.py"]))


def test_the_readme_says_how_long_a_search_takes():
    budget = next(a for a in verbs_of(cli.parsers()[0])["tune"]._actions if "--budget" in a.option_strings)
    minutes = f"{budget.default / 60:.0f}"
    assert f"# {minutes} min:" in text("README.md") and f"| {minutes} minutes, or `--budget" in text("README.md")


def test_every_speed_with_an_interval_is_one_of_a_committed_result():
    results = (ROOT / "benchmarks" / "results").rglob("*.json")
    measured = {figure for path in results for figure in intervals(json.loads(path.read_text(encoding="utf-8")))}
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]  # of figures in the log not all raw data are kept
    assert len(unmeasured(text("README.md") + text("docs/case-studies.md"), set())) > 20, (
        "the pattern finds those that there are"
    )
    wrong = {page.name: unmeasured(page.read_text(encoding="utf-8"), measured) for page in pages}
    assert {page: figures for page, figures in wrong.items() if figures} == {}


def test_a_speed_that_nobody_measured_is_seen():
    measured = {*intervals({"trials": [{"value": 2.0512, "low": 1.84, "high": 2.29}, [1.5, 1.25, 1.75]]})}
    page = "2.05x (1.84 to 2.29), 1.5 (1.2 to 1.8), 3.05x (1.84 to 2.29)"
    assert unmeasured(page, measured) == ["3.05 (1.84 to 2.29)"]


# --------------------------------------------------------------------------------------------------------- metadata


def test_the_metadata_says_what_the_readme_says():
    assert contradictions(project(), text("README.md")) == []


README = "Status: alpha, Linux only. Nothing has been measured on a GPU. Python 3.10 or newer, PyTorch 2.6 or newer."
README += "\n## License\n\nApache-2.0"
PROJECT = {
    "license": "Apache-2.0",
    "requires-python": ">=3.10",
    "classifiers": ["Development Status :: 3 - Alpha", "Operating System :: POSIX :: Linux"],
    "dependencies": ["torch>=2.6", "numpy>=1.26"],
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("classifiers", ["Development Status :: 3 - Alpha", "Operating System :: OS Independent"]),
        ("classifiers", ["Development Status :: 3 - Alpha"]),
        ("classifiers", ["Development Status :: 5 - Production/Stable", "Operating System :: POSIX :: Linux"]),
        ("classifiers", [*PROJECT["classifiers"], "Operating System :: MacOS"]),
        ("classifiers", [*PROJECT["classifiers"], "Environment :: GPU :: NVIDIA CUDA"]),
        ("classifiers", [*PROJECT["classifiers"], "Programming Language :: Python :: 3.9"]),
        ("classifiers", [*PROJECT["classifiers"], "License :: OSI Approved :: MIT License"]),
        ("requires-python", ">=3.9"),
        ("dependencies", ["torch>=2.4"]),
        ("license", "MIT"),
    ],
)
def test_metadata_that_contradicts_the_readme_is_seen(field, value):
    assert contradictions(PROJECT, README) == []
    assert len(contradictions({**PROJECT, field: value}, README)) == 1


# ---------------------------------------------------------------------------------------------------------- version


def places(root, version):
    files = [path for path in root.iterdir() if path.suffix in (".md", ".toml", ".yml", ".yaml", ".cff", "")]
    files += [path for name in HERE for path in (root / name).rglob("*")]
    texts = {}
    for path in files:
        name = path.relative_to(root).as_posix()
        if (
            path.is_file()
            and "__pycache__" not in name
            and path.suffix not in (".svg", ".pyc")
            and "log.md" not in name
        ):
            texts[name] = path.read_text(encoding="utf-8", errors="replace")
    return {*places_of_version(version, texts)}


def test_the_version_is_written_once_and_the_changelog_knows_it():
    assert "version" in project()["dynamic"] and "version" not in project()
    assert places(ROOT, hasten.__version__) == RELEASED
    assert f"## [{hasten.__version__}]" in text("CHANGELOG.md")


@pytest.mark.parametrize("name", ["pyproject.toml", "CITATION.cff", "docs/index.md", "src/hasten/cli.py", "Makefile"])
def test_a_version_in_another_place_is_seen(tmp_path, name):
    path: Path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('torch==10.1.0, 0.1.01, version = "0.1.0"\n', encoding="utf-8")
    (tmp_path / "README.md").write_text("dill 10.1.0 and torch 0.1.0.1\n", encoding="utf-8")
    assert places(tmp_path, "0.1.0") == {name}


def test_the_readmes_address_is_that_of_the_metadata():
    import make_address

    assert f"git clone {project()['urls']['Repository']} hasten" in text("README.md")
    assert (
        make_address.with_address("git clone OLD hasten && cd hasten", "NEW") == "git clone NEW hasten && cd hasten"
    )


def test_help_names_every_command():
    parser = cli.parsers()[0]
    assert isinstance(parser, argparse.ArgumentParser)
    assert [verb for verb in verbs_of(parser) if verb not in parser.format_help()] == []
