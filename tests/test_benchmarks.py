"""Benchmarks keep up with what they measure: each of them can be imported, and finds the names that it uses."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "benchmarks").rglob("*.py"))
WILD = ROOT / "benchmarks" / "wild"


def names_of_ours(path):
    """Module and name of all that a file takes from hasten."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "hasten":
            for alias in node.names:
                yield node.module, alias.name


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT / "benchmarks").as_posix())
def test_what_a_benchmark_takes_from_hasten_is_there(path):
    for module, name in names_of_ours(path):
        found = importlib.import_module(module)
        assert hasattr(found, name) or importlib.util.find_spec(f"{module}.{name}"), f"{module} has no {name}"


def test_what_a_gpu_machine_may_lack_is_downloaded_and_asked_for():
    """`make gpu-wheels` and `make gpu-day` know every package that hasten needs, but torch and its own."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = text.partition("\ndependencies = [")[2].partition("\n]")[0]
    needed = {re.split(r"[<>=;\[ ]", name)[0] for name in re.findall(r'"([^"]+)"', listed)} - {
        "torch",
        "numpy",
        "tomli",
    }
    wheels = (ROOT / "Makefile").read_text(encoding="utf-8").partition("--dest .wheels")[2].partition("\n")[0]
    asked = (ROOT / "benchmarks" / "gpu_day.py").read_text(encoding="utf-8")
    modules = {"pillow": "PIL", "vl-convert-python": "vl_convert", "nvidia-ml-py": "pynvml", "typing-extensions": ""}
    for name in needed:
        assert modules.get(name, name.replace("-", "_")).lower() in asked.lower(), f"gpu_day.NEEDED lacks {name}"
    compiled = {"msgspec", "vl-convert-python", "simplejpeg", "blake3", "cykooz-resizer"}
    assert compiled & needed <= {*wheels.split()}


# ------------------------------------------------------------------------------------- scripts nobody here wrote


def of_benchmarks(path, monkeypatch):
    """A module that lies beside what it imports, outside the package."""
    monkeypatch.syspath_prepend(str((ROOT / "benchmarks" / path).parent))
    return importlib.import_module(Path(path).stem)


@pytest.mark.parametrize(
    ("speedup", "is_luck"),
    [
        ((1.09, 0.89, 1.33), True),
        ((2.33, 0.07, 77.0), True),  # one of three launches, 11.8 times as fast
        ((1.57, 0.63, 3.90), False),
        ((1.10, 1.05, 1.15), False),
        ((1.01, None, None), False),  # one round alone: judged by its value
        ((0.90, 0.80, 1.01), False),  # no gain at all
    ],
)
def test_a_gain_whose_interval_holds_its_opposite_is_luck(speedup, is_luck, monkeypatch):
    assert of_benchmarks("wild/oracle.py", monkeypatch).is_luck(speedup) == is_luck


@pytest.fixture(scope="module")
def entries():
    """The scripts of the manifest."""
    tomllib = pytest.importorskip("tomllib")
    found = [tomllib.loads(path.read_text(encoding="utf-8"))["script"] for path in (WILD / "manifest").glob("*.toml")]
    return [entry for part in found for entry in part]


def test_there_are_at_least_60_public_scripts_of_at_least_40_repositories(entries):
    assert len(entries) >= 60 and len({entry["name"] for entry in entries}) == len(entries)
    assert len({entry["repository"] for entry in entries}) >= 40


def test_each_script_is_pinned_and_has_a_license(entries):
    for entry in entries:
        assert re.fullmatch(r"[0-9a-f]{40}", entry["commit"]) and entry["license"] and entry["tags"], entry["name"]


def test_each_edit_says_why(entries):
    assert [entry["name"] for entry in entries for edit in entry.get("edits", ()) if not edit.get("why")] == []


def test_all_data_have_a_maker(entries):
    """By name: some makers need packages that only their scripts need."""
    makers = {
        f"{path.stem}.{node.name}"
        for path in WILD.glob("data_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    assert {data["make"] for entry in entries for data in entry.get("data", ())} <= makers


def test_a_gain_that_is_tried_again_at_the_end_is_known_since_the_first_time(monkeypatch):
    pytest.importorskip("tomllib")

    def faster(at, speedup, **added):
        return {"at": at, "verdict": "faster", "speedup": [speedup, 1.0, 3.0], "added": added}

    trials = [faster(60.0, 1.9, bf16=True, channels_last=True), faster(90.0, 1.03, loader=True)]
    found = {"tune": {"trials": [*trials, faster(120.0, 1.5, bf16=True)]}}
    assert of_benchmarks("wild/wild.py", monkeypatch).known_at(found) == 60.0
