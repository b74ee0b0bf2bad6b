"""What CI runs, what a commit runs and what the Makefile offers are the same checks."""

import re

import pytest
from guards.claims import CHECKS, missing_checks
from package_structure import ROOT

TESTS = "python3 -m venv .venv && .venv/bin/pip install '.[test]' && .venv/bin/pytest -n 2 --dist loadgroup"


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_ci_runs_every_check():
    assert missing_checks(text(".ci/run")) == []


SCRIPT = """\
#!/usr/bin/env bash
set -euo pipefail
python3 -m venv .venv && .venv/bin/pip install '.[test]' && .venv/bin/pytest
.venv/bin/pip install '.[docs]' && .venv/bin/mkdocs build --strict --quiet
.venv/bin/python docs/generate.py --check
.venv/bin/ruff check
.venv/bin/ruff format --check
.venv/bin/pyright --pythonpath .venv/bin/python
.venv/bin/python .ci/release_check.py
"""


@pytest.mark.parametrize("check", [*CHECKS, "set -euo pipefail"])
@pytest.mark.parametrize("planted", ["", "# {}", "{} || true", "echo '{}'"])
def test_a_check_that_is_left_out_or_whose_failure_is_ignored_is_seen(check, planted):
    assert missing_checks(SCRIPT) == []
    lines = [planted.format(line) if check in line else line for line in SCRIPT.splitlines()]
    assert check in missing_checks("\n".join(lines))


def test_ci_runs_the_readmes_test_line_in_a_fresh_environment():
    script = text(".ci/run")
    assert TESTS in script.splitlines() and f"`{TESTS}`" in text("README.md")
    assert script.index("rm -rf .venv") < script.index(TESTS)
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_the_workflow_runs_that_script_and_nothing_of_its_own():
    commands = re.findall(r"^ +(?:- )?run: (.+)$", text(".github/workflows/checks.yml"), re.MULTILINE)
    assert commands == [".ci/run"]


def test_a_commit_is_checked_by_the_tools_of_the_environment():
    hooks = re.findall(r"^ +entry: (.+)$", text(".pre-commit-config.yaml"), re.MULTILINE)
    expected = ["ruff check", "ruff format", "python docs/generate.py --check"]
    assert [one for one in expected if not any(one in hook for hook in hooks)] == []
    assert [hook for hook in hooks if not hook.startswith(".venv/bin/")] == ["end-of-file-fixer"]


def test_every_target_of_the_makefile_explains_itself():
    lines = re.findall(r"^([a-z-]+):(.*)$", text("Makefile"), re.MULTILINE)
    assert [target for target, rest in lines if "## " not in rest] == []
    phony = re.search(r"^\.PHONY: (.*)$", text("Makefile"), re.MULTILINE)
    assert sorted(phony[1].split()) == sorted(target for target, _ in lines)
    assert {"venv", "test", "lint", "docs", "generated", "release-check", "clean"} <= {target for target, _ in lines}


def test_every_target_that_a_page_names_is_in_the_makefile():
    targets = {*re.findall(r"^([a-z-]+):", text("Makefile"), re.MULTILINE)}
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"`make ([a-z-]+)", page.read_text(encoding="utf-8"))}
    assert named and named - targets == set()
