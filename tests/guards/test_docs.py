"""The pages say what the code does: every command, option, finding, phase, key and dependency stands in them."""

import argparse
import json
import re

import pytest
from guards.claims import (
    broken_links,
    headings,
    outside_navigation,
    personal_places,
    printed_keys,
    undocumented_keys,
    undocumented_options,
    wrong_commands,
)
from package_structure import PACKAGE, ROOT, read, summary

import hasten
from hasten import cli
from hasten.diagnosis.case import WORTH, WORTH_INFERRED
from hasten.measurement.diagnose import CAUTIONS, KINDS
from hasten.optimizations.catalog import CATALOG, EXPERIMENTS
from hasten.records import PHASES

DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")), *sorted((ROOT / ".github").rglob("*.md"))]


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


# --------------------------------------------------------------------------------------------------------- commands


def test_every_command_and_option_is_documented():
    assert undocumented_options(cli.parsers()[0], text("docs/index.md"), text("README.md")) == []


def test_a_command_and_an_option_without_documentation_are_seen():
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers()
    verbs.add_parser("tune").add_argument("--budget")
    verbs.add_parser("check")
    index, readme = "## hasten tune\n\n`--budget TIME`\n\n## hasten check\n", "`hasten tune`, `hasten check`"
    assert undocumented_options(parser, index, readme) == []
    assert undocumented_options(parser, index.replace("check", "look"), readme) == ["check"]
    assert undocumented_options(parser, index, "`hasten check`") == ["tune"]
    assert undocumented_options(parser, index.replace("--budget", "--time"), readme) == ["--budget"]


# The log and the changelog tell of commands that are gone.
@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in ("log.md", "CHANGELOG.md")], ids=name_of)
def test_every_command_line_of_a_page_is_taken(page):
    assert wrong_commands(page.read_text(encoding="utf-8"), cli.parsers()[0]) == []


@pytest.mark.parametrize(
    "line",
    [
        "hasten optimize train.py",
        "hasten tune --bugdet 6m train.py",
        "hasten tune --budget 6 train.py",
        "hasten compare OLD NEW --max-slowdown much",
        "hasten --explain",
    ],
)
def test_a_command_line_that_is_refused_is_seen(line):
    for page in (f"Say `{line}`.", f"```\n{line}   # 2 min\n```\n"):
        assert len(wrong_commands(page, cli.parsers()[0])) == 1
    good = "hasten tune --budget 6m --metric REGEX train.py --bugdet 3"
    assert wrong_commands(f"Say `{good}`.", cli.parsers()[0]) == []


def test_every_key_that_a_command_prints_is_documented():
    sources = read(PACKAGE / "cli")
    printing = {name for source in sources.values() for name in printed_keys(source)}
    assert printing == {
        *("_check", "_diagnose", "_tune", "_report", "_list", "_compare", "_explain", "_prove", "_print_json"),
        *("_clean", "_merge"),
    }
    assert undocumented_keys(sources, text("docs/json.md").partition("\n## ")[0]) == []


@pytest.mark.parametrize(
    ("body", "seen"),
    [
        ('print_json({"run": 1, "secret": 2})', ["cli.py: secret"]),
        ('more = {"secret": 2} if run else {}\n    print_json({"run": 1, **more})', ["cli.py: secret"]),
        ('found = [{"secret": t} for t in run]\n    print_json(found[0] if run else found)', ["cli.py: secret"]),
        ("print_json(encode(run))", ["cli.py: report prints what cannot be read"]),
        ('files = {"secret": 1}\n    print_json({"run": files})', []),
    ],
)
def test_a_key_that_no_page_documents_is_seen(body, seen):
    source = f"def report(run):\n    {body}\n"
    assert undocumented_keys({"cli.py": source}, "| `run` | the run |") == seen


# --------------------------------------------------------------------------------------------------------- contents


def test_every_finding_has_a_section_and_every_section_a_finding():
    assert headings(text("docs/bottlenecks.md"), 2) == [*KINDS, *CAUTIONS]


@pytest.mark.parametrize("kind", [*KINDS, *CAUTIONS])
def test_a_section_says_how_it_is_known_what_is_recoverable_and_what_to_do(kind):
    section = re.split(r"^## ", text("docs/bottlenecks.md"), flags=re.MULTILINE)[1 + [*KINDS, *CAUTIONS].index(kind)]
    missing = [
        part for part in ("How it is detected", "Recoverable", "What to do", "Trap") if f"**{part}.**" not in section
    ]
    assert missing == []


def test_the_thresholds_of_a_finding_are_those_of_the_rules():
    page = text("docs/bottlenecks.md")
    assert f"at least {WORTH:.0%} of the step" in page
    assert f"at least {WORTH_INFERRED:.0%} and was inferred" in page


def test_every_phase_and_every_trial_is_explained():
    page = text("docs/measuring.md")
    assert [name for name in (*PHASES, *EXPERIMENTS) if f"| `{name}` |" not in page] == []


def test_every_fix_has_its_row():
    assert [name for name in CATALOG if f"| `{name}` |" not in text("docs/fixes.md")] == []


def test_every_runtime_dependency_has_its_reason():
    block = re.search(r"^dependencies = \[(.*?)^\]", text("pyproject.toml"), re.DOTALL | re.MULTILINE)
    wanted = re.findall(r'"([\w.-]+)', block[1])
    table = text("docs/development/architecture.md").partition("## Runtime dependencies")[2]
    assert re.findall(r"^\| `([\w.-]+)` \|", table, re.MULTILINE) == wanted


def test_every_module_says_what_it_does_in_a_line_or_two():
    sources = {path: source for path, source in read().items() if source.strip()}
    assert [path for path, source in sources.items() if not 0 < len(summary(source)) <= 240] == []
    assert summary("import os\n") == "" and summary('"""What\nit does.\n\nMore."""\n') == "What it does."


def test_the_public_names_are_those_of_the_docs():
    table = text("docs/index.md").partition("## In Python")[2]
    cells = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", table, re.MULTILINE)
    named = [name for cell in cells for name in re.findall(r"\w+", cell)]
    assert set(named) == set(getattr(hasten, "__all__", ["__version__"]))
    assert [name for name in named if not hasattr(hasten, name)] == []


def test_the_page_on_gpus_tells_what_was_measured(tmp_path):
    import make_gpu_page

    nothing = "**Nothing has been measured on a GPU yet.**"
    assert (nothing in make_gpu_page.page()) == (not [*make_gpu_page.RESULTS.glob("*/*/*.json")])
    device = tmp_path / "nvidia_l4"
    (device / "loader").mkdir(parents=True)
    told = {"device": "NVIDIA L4", "memory_bytes": 24 << 30, "torch": "2.11.0", "python": "3.12.3"}
    (device / "device.json").write_text(json.dumps(told))
    (device / "loader" / "copies.json").write_text(json.dumps({"brief": "pinned 12 GB/s"}))
    (device / "loader" / "overlap.failed.json").write_text(json.dumps({"failed": "over 480 s"}))
    page = make_gpu_page.page(tmp_path)
    assert "### NVIDIA L4" in page and "| loader/copies | pinned 12 GB/s |" in page
    assert "| loader/overlap | failed: over 480 s |" in page and "Nothing has been measured" not in page


# ------------------------------------------------------------------------------------------------------------ links


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page):
    assert broken_links(page) == []


def test_a_link_to_nothing_is_seen(tmp_path):
    (tmp_path / "there.md").write_text("# There\n\n## A part\n", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text("[a](gone.md) [b](there.md#a-part) [c](there.md#another) [d](#here)\n# Here\n", encoding="utf-8")
    assert broken_links(page) == ["gone.md", "there.md#another"]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_page_names_a_place_on_somebodys_machine(page):
    assert personal_places(page.read_text(encoding="utf-8")) == []


def test_a_place_on_somebodys_machine_is_seen():
    assert personal_places("see /home/ada/train.py, /proc/stat, https://a.b/c/d and C:\\data") == ["home", "C:\\"]


def test_every_page_is_in_the_navigation():
    assert outside_navigation(DOCS, text("mkdocs.yml")) == []


def test_a_page_outside_the_navigation_is_seen_though_another_has_its_name(tmp_path):
    (tmp_path / "inner").mkdir()
    for name in ("index.md", "inner/index.md"):
        (tmp_path / name).write_text("# Page\n", encoding="utf-8")
    nav = "nav:\n  - Start: index.md\n  - More:\n      - Gone: inner/gone.md\n"
    assert outside_navigation(tmp_path, nav) == ["inner/gone.md", "inner/index.md"]
