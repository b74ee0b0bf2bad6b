"""Benchmarks keep up with what they measure: each of them can be imported, and finds the names that it uses."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted(
    path for path in (ROOT / "benchmarks").rglob("*.py") if "wild" not in path.parts or "data" not in path.name
)


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
