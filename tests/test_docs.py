"""The docs match the code: every command, option, finding, phase, file and dependency is documented."""

import argparse
import importlib.util
import json
import re
from pathlib import Path

import pytest

import hasten
from hasten import cli
from hasten.diagnosis.case import WORTH, WORTH_INFERRED
from hasten.diagnosis.diagnose import KINDS
from hasten.diagnosis.tried_rules import TRIED
from hasten.fixes.catalog import CATALOG
from hasten.records import PHASES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.glob("*.md"))]
SETUP = "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/hasten speedtest"
TESTS = "python3 -m venv .venv && .venv/bin/pip install '.[test]' && .venv/bin/pytest"
SYSTEM_FOLDERS = {"dev", "proc", "sys"}  # the same on every machine


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def headings(page, level):
    return re.findall(rf"^{'#' * level} (.+)$", without_code(page.read_text(encoding="utf-8")), re.MULTILINE)


def without_code(page):
    return re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)


def anchor(heading):
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower())).strip("-")


def anchors(page):
    return {anchor(heading) for level in (1, 2, 3) for heading in headings(page, level)}


def verbs():
    parser = cli._parser()
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return groups[0].choices


def test_the_readme_gets_the_source_before_it_installs_it():
    install = text("README.md").partition("## Install")[2].split("```")[1].strip().splitlines()
    assert install[0].startswith("git clone ") and install[1] == SETUP


def test_the_readme_says_what_it_is_before_how_to_call_it():
    readme = text("README.md")
    assert readme.index("**Makes PyTorch training faster") < readme.index("```")
    limits = readme.partition("## Install")[0]
    assert "Linux only" in limits and "Nothing has been measured on a GPU" in limits
    assert '"Operating System :: POSIX :: Linux"' in text("pyproject.toml")


def test_ci_runs_the_readmes_test_line_in_a_fresh_environment():
    script = text(".ci/run")
    assert TESTS in script.splitlines() and f"`{TESTS}`" in text("README.md")
    assert script.index("rm -rf .venv") < script.index(TESTS)
    assert "set -euo pipefail" in script
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_every_verb_and_option_is_documented():
    index, readme = text("docs/index.md"), text("README.md")
    options = {option for verb in verbs().values() for a in verb._actions for option in a.option_strings}
    assert [verb for verb in verbs() if f"## hasten {verb}" not in index or f"hasten {verb}" not in readme] == []
    assert [o for o in sorted(options - {"-h", "--help"}) if f"`{o}" not in index] == []


def test_every_finding_has_a_section_and_every_section_a_finding():
    sections = headings(DOCS / "bottlenecks.md", 2)
    assert sections == list(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_section_says_how_it_is_known_what_is_recoverable_and_what_to_do(kind):
    section = re.split(r"^## ", text("docs/bottlenecks.md"), flags=re.MULTILINE)[1 + KINDS.index(kind)]
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
    assert [name for name in (*PHASES, *(fault.trial for fault in TRIED)) if f"| `{name}` |" not in page] == []


def test_every_runtime_dependency_has_its_reason():
    block = re.search(r"^dependencies = \[(.*?)^\]", text("pyproject.toml"), re.DOTALL | re.MULTILINE)
    wanted = re.findall(r'"([\w.-]+)', block[1])
    table = text("docs/architecture.md").partition("## Runtime dependencies")[2]
    assert re.findall(r"^\| `([\w.-]+)` \|", table, re.MULTILINE) == wanted


def test_every_file_has_its_line_in_the_architecture():
    page = text("docs/architecture.md")
    package = Path(hasten.__file__).parent
    files = [path.relative_to(package) for path in package.rglob("*.py") if path.name != "__init__.py"]
    missing = []
    for file in files:
        room = file.parent.as_posix()
        section = page.partition(f"### {room}/:")[2].partition("\n##")[0]
        # Rooms without a section of their own stand in the first table.
        place, name = (section, file.name) if section else (page, file.as_posix())
        if f"| `{name}` |" not in place:
            missing.append(file.as_posix())
    assert missing == []


def test_the_architecture_names_no_file_that_is_gone():
    package = Path(hasten.__file__).parent
    known = {path.relative_to(package).as_posix() for path in package.rglob("*.py")}
    known |= {path.name for path in package.rglob("*.py")}
    named = re.findall(r"^\| `([\w/]+\.py)` \|", text("docs/architecture.md"), re.MULTILINE)
    assert [name for name in named if name not in known] == []


def test_the_public_names_are_those_of_the_docs():
    table = text("docs/index.md").partition("## In Python")[2]
    named = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert set(named) == set(getattr(hasten, "__all__", ["__version__"]))
    assert [name for name in named if not hasattr(hasten, name)] == []


def test_the_json_reference_is_up_to_date():
    spec = importlib.util.spec_from_file_location("make_json_reference", DOCS / "make_json_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.page() == text("docs/json.md"), "run python docs/make_json_reference.py"


def test_the_page_of_fixes_is_up_to_date():
    spec = importlib.util.spec_from_file_location("make_fixes_page", DOCS / "make_fixes_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.page() == text("docs/fixes.md"), "run python docs/make_fixes_page.py"
    assert [name for name in CATALOG if f"| `{name}` |" not in text("docs/fixes.md")] == []


def test_the_page_on_gpus_tells_what_was_measured(tmp_path):
    spec = importlib.util.spec_from_file_location("make_gpu_page", DOCS / "make_gpu_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.page() == text("docs/gpu.md"), "run python docs/make_gpu_page.py"
    assert ("**Nothing has been measured on a GPU yet.**" in module.page()) == (
        not [*module.RESULTS.glob("*/*/*.json")]
    )
    device = tmp_path / "nvidia_l4"
    (device / "loader").mkdir(parents=True)
    told = {"device": "NVIDIA L4", "memory_bytes": 24 << 30, "torch": "2.11.0", "python": "3.12.3"}
    (device / "device.json").write_text(json.dumps(told))
    (device / "loader" / "copies.json").write_text(json.dumps({"brief": "pinned 12 GB/s"}))
    (device / "loader" / "overlap.failed.json").write_text(json.dumps({"failed": "over 480 s"}))
    page = module.page(tmp_path)
    assert "### NVIDIA L4" in page and "| loader/copies | pinned 12 GB/s |" in page
    assert "| loader/overlap | failed: over 480 s |" in page and "Nothing has been measured" not in page


def test_every_key_that_a_verb_prints_is_documented():
    every_verb = "".join(text(f"src/hasten/cli/{name}.py") for name in ("measuring", "speedtest", "tuning"))
    keys = re.findall(r'"(\w+)":', "".join(re.findall(r"print_json\(\{(.*?)\}\)", every_verb, re.DOTALL)))
    assert keys
    assert [key for key in keys if f"`{key}`" not in text("docs/json.md").partition("\n## ")[0]] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, section = target.partition("#")
        other = (page.parent / name).resolve() if name else page
        if not other.is_file() or (section and section not in anchors(other)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_names_a_place_on_somebodys_machine(page):
    words = re.sub(r"\w+://\S+", "", page.read_text(encoding="utf-8"))
    found = re.findall(r"(?<![\w.~*}/)\]>-])/([a-z][\w.-]*)/[\w.-]", words) + re.findall(r"\b([A-Z]:\\)", words)
    assert [place for place in found if place not in SYSTEM_FOLDERS | {"path"}] == []


def test_every_page_is_in_the_navigation():
    named = re.findall(r"^  - .+: (\S+\.md)$", text("mkdocs.yml"), re.MULTILINE)
    assert sorted(named) == sorted(path.name for path in DOCS.glob("*.md"))


def test_every_target_of_the_makefile_explains_itself():
    lines = re.findall(r"^([a-z-]+):(.*)$", text("Makefile"), re.MULTILINE)
    assert [target for target, rest in lines if "## " not in rest] == []
    assert {"venv", "test", "lint", "docs", "bench-overhead", "bench-diagnosis", "bench-by-hand", "clean"} <= {
        target for target, _ in lines
    }


def test_the_changelog_knows_this_version():
    assert f"## [{hasten.__version__}]" in text("CHANGELOG.md")


def intervals(told):
    """Every figure with an interval in a result, as a page writes it, to one digit and to two."""
    if isinstance(told, dict):
        ends = [told.get(name) for name in ("value", "low", "high")]
        yield from written(ends)
        for one in told.values():
            yield from intervals(one)
    elif isinstance(told, list):
        yield from written(told)
        for one in told:
            yield from intervals(one)


def written(ends):
    if len(ends) == 3 and all(isinstance(end, float) for end in ends):
        for digits in (1, 2):
            yield "{:.{d}f} ({:.{d}f} to {:.{d}f})".format(*ends, d=digits)


@pytest.mark.parametrize("page", ["README.md", "docs/stories.md"])
def test_every_speed_with_an_interval_is_one_of_a_committed_result(page):
    results = (ROOT / "benchmarks" / "results").rglob("*.json")
    measured = {figure for path in results for figure in intervals(json.loads(path.read_text(encoding="utf-8")))}
    told = re.findall(r"\b(\d+\.\d+)(?:x| times)?(?: faster)? \((?:95% CI )?(\d+\.\d+) to (\d+\.\d+)\)", text(page))
    assert told, "the pattern finds those that there are"
    figures = [f"{value} ({low} to {high})" for value, low, high in told]
    assert [figure for figure in figures if figure not in measured] == []
