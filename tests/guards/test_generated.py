"""Generated files are what their generators make of the source, and a change by hand is seen."""

import subprocess
import sys

import pytest
from generate import all_files, between, generators, stale
from package_structure import ROOT

MARK = "Written by docs/"


@pytest.fixture(scope="module")
def files():
    return all_files()


def test_every_generated_file_is_up_to_date(files):
    assert stale(files) == [], "run `make generated`"


def test_every_generator_writes_something(files):
    names = {path.relative_to(ROOT).as_posix() for path in files}
    assert {"docs/json.md", "docs/fixes.md", "docs/gpu.md", "docs/development/architecture.md"} <= names
    assert {"docs/pictures/feed.svg", "README.md"} <= names
    assert len(generators()) == 8


def test_every_file_that_says_it_was_generated_has_a_generator(files):
    marked = [path for path in (ROOT / "docs").rglob("*.md") if MARK in path.read_text(encoding="utf-8")]
    assert [path for path in marked if path not in files] == []


def test_a_changed_and_a_missing_file_are_seen(files, tmp_path):
    copies = {}
    for number, (path, text) in enumerate(files.items()):
        copy = tmp_path / f"{number}-{path.name}"
        copy.write_text(text, encoding="utf-8")
        copies[copy] = text
    assert stale(copies) == []
    for copy in copies:
        good = copy.read_text(encoding="utf-8")
        copy.write_text(good.replace("e", "E", 1), encoding="utf-8")
        assert stale(copies) == [copy]
        copy.unlink()
        assert stale(copies) == [copy]
        copy.write_text(good, encoding="utf-8")


def test_a_page_without_its_marks_is_refused():
    assert between("a\n<b>\nold\n<e>\nz", "<b>\n", "<e>\n", "new") == "a\n<b>\n\nnew\n<e>\nz"
    with pytest.raises(AssertionError, match="a marker is missing"):
        between("a\n<b>\nold\nz", "<b>\n", "<e>\n", "new")


@pytest.mark.slow
def test_the_check_of_the_command_line_fails_where_a_file_differs(tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "generate.py").write_bytes((ROOT / "docs" / "generate.py").read_bytes())
    maker = "from generate import ROOT, main\n\n\ndef files():\n    return {ROOT / 'page.md': 'new'}\n"
    (folder / "make_page.py").write_text(maker, encoding="utf-8")
    (tmp_path / "page.md").write_text("old", encoding="utf-8")
    command = [sys.executable, str(folder / "generate.py")]
    checked = subprocess.run([*command, "--check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 1 and "page.md is out of date" in checked.stderr
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == "old"
    subprocess.run(command, check=True, capture_output=True)
    assert subprocess.run([*command, "--check"], capture_output=True, check=False).returncode == 0
