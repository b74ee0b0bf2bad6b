"""The house keeps its shape: imports go down, nothing is circular, no file is long."""

import ast
import graphlib
import re
from pathlib import Path

import hasten

ROOT = Path(hasten.__file__).parent
FLOORS = {
    "errors": 0,
    "folders": 0,
    "safe_text": 0,
    "stats": 0,
    "cgroup": 0,
    "protocol": 1,
    "raw_run": 2,
    "records": 2,
    "format": 3,
    "agent": 2,
    "devices": 2,
    "machine": 3,
    "measurement": 4,
    "diagnosis": 4,
    "data": 4,
    "reports": 4,
    "workloads": 4,
    "fixes": 5,
    "tuning": 6,
    "cli": 7,
    "notebook": 6,
    "__init__": 7,
    "__main__": 8,
}


LAYERS_OF_DATA = {"generators": 0, "layout": 1, "images": 2, "memo": 3, "workers": 4, "epoch": 5, "loader": 6}


def modules() -> dict[str, ast.Module]:
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): ast.parse(path.read_text(encoding="utf-8"))
        for path in ROOT.rglob("*.py")
    }


def imports_of(tree: ast.Module, known: set[str]) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            inner = re.sub(r"^hasten\.", "", name) if name.startswith("hasten.") else None
            if inner in known:
                found.add(inner)
    return found


def room(module: str) -> str:
    return module.split(".")[0]


def test_every_room_has_a_floor():
    assert {room(name) for name in modules()} <= set(FLOORS)


def test_imports_go_down_or_stay_in_their_room():
    trees = modules()
    wrong = [
        f"{name} imports {used}"
        for name, tree in trees.items()
        for used in imports_of(tree, set(trees))
        if room(used) != room(name) and FLOORS[room(used)] >= FLOORS[room(name)]
    ]
    assert wrong == []


def test_the_layers_of_the_loader_import_downward():
    trees = {name: tree for name, tree in modules().items() if name.startswith("data.")}
    layers = {name: LAYERS_OF_DATA[name.split(".")[1]] for name in trees if name != "data.__init__"}
    wrong = [
        f"{name} imports {used}"
        for name, tree in trees.items()
        for used in imports_of(tree, set(trees))
        if layers[used] > layers[name] or (layers[used] == layers[name] and used.split(".")[1] != name.split(".")[1])
    ]
    assert wrong == []


def test_no_import_is_circular():
    trees = modules()
    graph = {name: imports_of(tree, set(trees)) for name, tree in trees.items()}
    list(graphlib.TopologicalSorter(graph).static_order())


def test_no_import_is_relative():
    wrong = [
        name
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert wrong == []


def test_no_file_is_over_400_lines():
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in ROOT.rglob("*.py")}
    assert {name: length for name, length in lengths.items() if length > 400} == {}


def test_workloads_never_import_hasten_rooms():
    trees = modules()
    scripts = [name for name in trees if name.startswith("workloads.") and name != "workloads.__init__"]
    plain = [name for name in scripts if not imports_of(trees[name], set(trees))]
    assert "workloads.xray" in plain
