"""A measured script does to files what it does, sees that it is done, and the disk is as it was."""

import json
import os
import sys
from pathlib import Path

import pytest
from command import run

from hasten.sandbox.workspace import FORCE

sys.path.append(str(Path(__file__).parent))

from harms import HARMS, OTHERS_PROGRAMS, plant
from trees import tree_of

SCRIPT = Path(__file__).with_name("harms.py")
FORMS = ["overlay", "landlock", "redirect"]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")]


@pytest.fixture(scope="module", params=FORMS)
def done(request, tmp_path_factory):
    """The form of the sandbox, what the script said of each harm, and each folder before and after."""
    top = tmp_path_factory.mktemp(request.param) / "harmed"
    for name in HARMS:
        (top / name).mkdir(parents=True)
        plant(top / name)
    before = {name: tree_of(top / name) for name in HARMS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FORCE, request.param)
        answer = run("diagnose", "--quick", "--seconds", "1", str(SCRIPT), str(top), cwd=top.parent)
    assert answer.returncode == 0, answer.stderr
    record = json.loads(next(top.parent.glob(".hasten/runs/*/run.json")).read_text())
    assert record["sandbox"] == request.param
    said = dict(json.loads(line) for line in answer.stdout.splitlines() if line.startswith("["))
    after = {name: tree_of(top / name) for name in HARMS}
    assert sorted(os.listdir(top)) == sorted(HARMS), "nothing is beside what was there"
    return request.param, said, before, after


def test_there_are_thirty_of_them():
    assert len(HARMS) >= 30


@pytest.mark.parametrize("name", HARMS)
def test_the_script_sees_what_it_has_done(done, name):
    form, said, _, _ = done
    if said[name].startswith("skipped"):
        pytest.skip(said[name])
    if form != "overlay" and name in OTHERS_PROGRAMS:
        pytest.skip("other programs' writes are refused there, or not seen by Python")
    assert said[name] == "done"


@pytest.mark.parametrize("name", HARMS)
def test_the_disk_is_as_it_was(done, name):
    form, _, before, after = done
    if form == "redirect" and name in OTHERS_PROGRAMS:
        pytest.skip("it holds nothing back but Python's functions, and says so")
    assert after[name] == before[name]
