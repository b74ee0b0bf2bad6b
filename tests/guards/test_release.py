"""The check of a release sees a wheel with missing or foreign files, wrong metadata, and what must not be published."""

import importlib.util
import zipfile
from email.message import Message

import pytest
from package_structure import ROOT

import hasten

spec = importlib.util.spec_from_file_location("release_check", ROOT / ".ci" / "release_check.py")
release_check = importlib.util.module_from_spec(spec)
spec.loader.exec_module(release_check)


def metadata(**changes):
    given = {
        "Version": "1.2.3",
        "Summary": "Faster",
        "Requires-Python": ">=3.10",
        "License-Expression": "Apache-2.0",
        "License-File": "LICENSE",
        "Description-Content-Type": "text/markdown",
        "Classifier": "Operating System :: POSIX :: Linux",
    }
    message = Message()
    for name, value in {**given, **changes}.items():
        if value is not None:
            message[name] = value
    return message


def test_it_knows_the_version_and_the_files_that_need_to_be_in_a_wheel():
    assert release_check.version() == hasten.__version__
    assert release_check.requirement().startswith("hatchling")
    assert {
        "hasten/py.typed",
        "hasten/docs/bottlenecks.md",
        "hasten/docs/how-to/reading-the-report.md",
        "hasten/launch/autoload/hasten_autoload-1.dist-info/entry_points.txt",
    } <= release_check.expected_files()


def test_what_is_put_into_the_wheel_from_elsewhere_is_expected_as_well(tmp_path):
    (tmp_path / "src" / "hasten").mkdir(parents=True)
    (tmp_path / "scripts" / "__pycache__").mkdir(parents=True)
    for name in ("src/hasten/__init__.py", "page.md", "scripts/feed.py", "scripts/__pycache__/feed.pyc"):
        (tmp_path / name).touch()
    text = '[tool.hatch.build.targets.wheel.force-include]\n"scripts" = "hasten/examples"\n"page.md" = "hasten/docs/page.md"\n'
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    assert release_check.expected_files(tmp_path) == {
        "hasten/__init__.py",
        "hasten/docs/page.md",
        "hasten/examples/feed.py",
    }


def test_the_metadata_are_the_wheels_own_though_the_package_holds_others(tmp_path):
    wheel = tmp_path / "hasten-1.2.3-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("hasten-1.2.3.dist-info/METADATA", "Version: 1.2.3\n")
        archive.writestr("hasten/autoload/hasten_autoload-1.dist-info/METADATA", "Version: 1\n")
    assert release_check.about(wheel) == {"METADATA": "Version: 1.2.3\n"}


def test_a_missing_and_a_foreign_file_are_seen():
    expected = {"hasten/__init__.py", "hasten/py.typed", "hasten/a/page.css"}
    names = [*expected, "hasten-1.2.3.dist-info/METADATA"]
    assert release_check.wrong_files(names, expected) == []
    assert release_check.wrong_files([*names, "tests/runs.py"], expected) == ["the wheel has tests/runs.py"]
    names.remove("hasten/a/page.css")
    assert release_check.wrong_files(names, expected) == ["the wheel lacks hasten/a/page.css"]


def test_good_metadata_are_not_reported():
    assert release_check.wrong_metadata(metadata(), "1.2.3") == []


@pytest.mark.parametrize(
    "changes",
    [
        {"Version": "1.2.2"},
        {"Requires-Python": None},
        {"License-File": None},
        {"Classifier": "Operating System :: OS Independent"},
        {"Classifier": None},
    ],
)
def test_wrong_metadata_are_seen(changes):
    assert len(release_check.wrong_metadata(metadata(**changes), "1.2.3")) == 1


def test_what_must_be_done_before_publishing_is_seen():
    good = "## [1.2.3] - 2030-01-31\n\n## [1.2.2] - 2029-12-01\n"
    url = "Project-URL: Repository, https://example.org/hasten"
    assert release_check.unready(url, good, "1.2.3", changed=False) == []
    assert (
        len(
            release_check.unready(
                f"Project-URL: Repository, {release_check.PLACEHOLDER}", good, "1.2.3", changed=False
            )
        )
        == 1
    )
    assert len(release_check.unready(url, good.replace("2030-01-31", "unreleased"), "1.2.3", changed=False)) == 1
    assert len(release_check.unready(url, good, "1.2.4", changed=False)) == 1
    assert len(release_check.unready(url, good, "1.2.3", changed=True)) == 1


def test_the_placeholder_is_the_one_that_the_metadata_has():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    urls = text.partition("[project.urls]")[2].partition("\n[")[0]
    assert f'"{release_check.PLACEHOLDER}"' in urls or '"https://' in urls
