"""The package keeps its shape: imports go down, nothing is circular, no file is long; and each guard sees a violation.

Every guard is a function over source texts keyed by relative path, so a test can plant what it must catch.
"""

import graphlib

import pytest
from package_structure import (
    LAYERS,
    PACKAGE,
    ROOT,
    importers_of_package,
    imports,
    long_files,
    named_modules,
    packages_needed,
    read,
    relative_imports,
    self_imports,
    single_importers,
    unresolved_names,
    uses_of,
    without_place,
    wrong_imports,
    wrong_names,
)

# Names in strings that go up or sideways, by file and by the folder that they lead to, each with its reason.
KNOWN_NAMES = {
    ("agent/loaders.py", "data/memo/memo.py"): "looked up among the loaded modules, never imported",
    ("agent/workers.py", "data/workers/builder.py"): "timed once it was imported, never imported",
}
SMALL = 40  # lines
SMALL_SINGLES = {
    "tuning/suggestions.py": "texts for a reader, apart from the search",
}
MOST_SINGLES = 51


@pytest.fixture(scope="module")
def sources():
    return read()


def used_by(sources):
    """What each file imports or names in a string."""
    named = named_modules(sources)
    return {path: used | set(named[path]) for path, used in imports(sources).items()}


def planted(tmp_path, files):
    """The sources of a package that is made of these files."""
    for name, text in files.items():
        path = tmp_path / "hasten" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return read(tmp_path / "hasten")


# ----------------------------------------------------------------------------------------------------------- layers


def test_every_file_has_a_layer_and_every_entry_a_file(sources):
    assert without_place(sources) == []


def test_imports_go_down_or_stay_in_their_entry(sources):
    assert wrong_imports(sources) == []


def test_names_in_strings_go_down_as_well(sources):
    wrong = wrong_names(sources)
    known = [f"{file} names {folder}" for file, folder in KNOWN_NAMES]
    assert [one for one in wrong if not one.startswith(tuple(known))] == []
    assert [one for one in known if not any(name.startswith(one) for name in wrong)] == [], "no longer an exception"


def test_every_function_that_a_string_names_exists(sources):
    assert unresolved_names(sources) == []


def test_no_import_is_circular(sources):
    list(graphlib.TopologicalSorter(imports(sources)).static_order())


def test_no_import_is_relative(sources):
    assert relative_imports(sources) == []
    assert self_imports(sources) == []


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("records/run.py", "from hasten.cli.parts import tell\n"),
        ("records/run.py", "import hasten.cli.parts\n"),
        ("records/run.py", "from hasten.cli import parts\n"),
        ("records/run.py", "from hasten import cli\n"),
        ("records/run.py", "from hasten import Loader\n"),
        ("records/run.py", "from ..cli import parts\n"),
        ("records/run.py", "def late():\n    from hasten.cli.parts import tell\n"),
        ("reports/text.py", "from hasten.diagnosis.case import Case\n"),  # of the same layer
        ("data/images/decode.py", "from hasten.data.memo.memo import Memo\n"),  # within one room
        ("data/layout/tree.py", "from hasten.data.loader import Loader\n"),
        ("agent/session.py", "from hasten.launch.launch import launch\n"),
    ],
)
def test_an_import_that_goes_up_is_seen(tmp_path, file, text):
    base = {name: "" for name in ("cli/__init__.py", "cli/parts.py", "__init__.py", "diagnosis/case.py")}
    base |= {name: "" for name in ("data/memo/memo.py", "data/loader.py", "launch/launch.py")}
    assert wrong_imports(planted(tmp_path, base)) == []
    assert len(wrong_imports(planted(tmp_path, {file: text}))) == 1


def test_imports_that_go_down_are_not_reported(tmp_path):
    allowed = {
        "cli/parts.py": "from hasten.records.run import Run\nfrom hasten import __version__\n",
        "data/loader.py": "from hasten.data.layout.tree import Tree\nfrom hasten.data.generators import seed\n",
        "records/run.py": "from hasten.records.codec import Record\nimport os.path\n",
    }
    others = dict.fromkeys(("__init__.py", "data/layout/tree.py", "data/generators.py", "records/codec.py"), "")
    assert wrong_imports(planted(tmp_path, allowed | others)) == []


@pytest.mark.parametrize(
    "text",
    [
        'START = "hasten.optimizations.bf16:enable"\n',
        'ROOM = "hasten.optimizations"\nSTART = f"{ROOM}.bf16:enable"\n',
        'command = ["python", "-c", "import hasten.optimizations.bf16 as b; b.enable()"]\n',
    ],
)
def test_a_module_of_a_higher_layer_in_a_string_is_seen(tmp_path, text):
    files = {"records/run.py": text, "optimizations/__init__.py": "", "optimizations/bf16.py": ""}
    assert "records/run.py names optimizations/bf16.py" in wrong_names(planted(tmp_path, files))


def test_a_docstring_may_name_any_module(tmp_path):
    files = {"records/run.py": '"""Read by hasten.cli.parts."""\n', "cli/parts.py": ""}
    assert wrong_names(planted(tmp_path, files)) == []


def test_a_string_that_names_no_function_is_seen(tmp_path):
    files = {
        "tuning/plan.py": 'ROOM = "hasten.optimizations.bf16"\nTHERE = f"{ROOM}:enable"\nGONE = f"{ROOM}:begin"\n',
        "optimizations/bf16.py": "def enable(): ...\n",
    }
    assert unresolved_names(planted(tmp_path, files)) == ["tuning/plan.py names hasten.optimizations.bf16:begin"]


def test_a_file_without_a_layer_and_an_entry_without_a_file_are_seen(tmp_path):
    files = planted(tmp_path, {"helpers/text.py": "", "data/helpers.py": "", "data/odd/text.py": ""})
    layers = {"": (("data",), ("gone",)), "data": (("*",),)}
    assert without_place(files, layers) == [
        "data/odd/text.py has no layer in data",
        "helpers/text.py has no layer in the package",
        "the package has no gone",
    ]


def test_a_circular_import_is_seen(tmp_path):
    files = {"cli/a.py": "import hasten.cli.b\n", "cli/b.py": "def late():\n    from hasten.cli import a\n"}
    with pytest.raises(graphlib.CycleError):
        list(graphlib.TopologicalSorter(imports(planted(tmp_path, files))).static_order())


def test_a_relative_import_is_seen(tmp_path):
    assert relative_imports(planted(tmp_path, {"cli/a.py": "from . import b\n"})) == ["cli/a.py"]


def test_a_file_that_imports_itself_is_seen(tmp_path):
    assert self_imports(planted(tmp_path, {"cli/b.py": "from hasten.cli import b\n"})) == ["cli/b.py"]


# ------------------------------------------------------------------------------------------------------------ files


def test_no_file_is_over_400_lines(sources):
    assert long_files(sources) == {}


def test_a_long_file_is_seen_though_another_has_its_name(tmp_path):
    long, short = "\n" * 401, "\n"
    files = {
        "diagnosis/recipe.py": long,
        "tuning/recipe.py": short,
        "cli/tuning.py": short,
        "reports/tuning.py": long,
    }
    assert long_files(planted(tmp_path, files)) == {"diagnosis/recipe.py": 401, "reports/tuning.py": 401}


def test_a_small_module_with_a_single_importer_has_a_reason(sources):
    singles = {path for path, by in single_importers(used_by(sources)).items() if by != "optimizations/catalog.py"}
    small = [path for path in singles if len(sources[path].splitlines()) < SMALL]
    assert sorted(small) == sorted(SMALL_SINGLES), "merge it into its importer, or give the reason"


def test_modules_with_a_single_importer_do_not_become_more(sources):
    singles = {path for path, by in single_importers(used_by(sources)).items() if by != "optimizations/catalog.py"}
    assert len(singles) <= MOST_SINGLES


def test_a_single_importer_is_seen_though_others_import_a_file_of_the_same_name(tmp_path):
    files = {
        "tuning/turns.py": "",
        "agent/turns.py": "",
        "tuning/a.py": "import hasten.tuning.turns\nimport hasten.agent.schedule\n",
        "tuning/b.py": "from hasten.agent import schedule as turns\n",
        "tuning/c.py": 'LATE = "hasten.agent.schedule"\n',
    }
    assert single_importers(used_by(planted(tmp_path, files))) == {"tuning/turns.py": "tuning/a.py"}


# ---------------------------------------------------------------------------------------------------------- scripts


def test_no_workload_imports_hasten():
    from hasten.workloads.catalog import WORKLOADS

    scripts = sorted(workload.script for workload in WORKLOADS.values())
    (folder,) = {script.parent for script in scripts}
    runnable = sorted(path for path in folder.glob("*.py") if '__name__ == "__main__"' in path.read_text("utf-8"))
    assert scripts == runnable, "a script that is no workload is not checked"
    assert importers_of_package(folder, [script.name for script in scripts]) == []


@pytest.mark.parametrize("folder", ["tests/faulty", "tests/faulty/gpu"])
def test_no_faulty_script_imports_hasten(folder):
    scripts = sorted(path.name for path in (ROOT / folder).glob("*.py"))
    assert scripts and importers_of_package(ROOT / folder, scripts) == []


@pytest.mark.parametrize(
    "text",
    [
        "import hasten\n",
        "from hasten import Loader\n",
        "def late():\n    from hasten.data.loader import Loader\n",
        "import importlib\nimportlib.import_module('hasten.data.loader')\n",
        "__import__('hasten')\n",
        "import options\n",
        "from . import options\n",
    ],
)
def test_a_workload_that_imports_hasten_is_seen(tmp_path, text):
    (tmp_path / "feed.py").write_text(text, encoding="utf-8")
    (tmp_path / "xray.py").write_text('"""Measured by hasten.cli."""\nimport torch\n', encoding="utf-8")
    (tmp_path / "options.py").write_text("import hasten.errors\n", encoding="utf-8")
    found = importers_of_package(tmp_path, ["feed.py", "xray.py"])
    assert found in (["feed.py"], ["options.py"])


# -------------------------------------------------------------------------------------------- in the user's process

IN_USERS_PROCESS = ("agent", "launch/autoload", "optimizations")
SANDBOX = ("early/sitecustomize.py", "enter.py", "guard.py", "redirect.py", "view.py")  # programs, and what they load


def test_what_runs_in_the_users_process_needs_torch_and_the_standard_library_only(sources):
    starts = [path for path in sources if path.startswith(tuple(f"{folder}/" for folder in IN_USERS_PROCESS))]
    starts.remove("optimizations/catalog.py")  # of hasten's own process
    assert set(packages_needed(sources, starts)) == {"torch"}
    programs = [f"sandbox/{name}" for name in SANDBOX]
    assert set(programs) <= set(sources) and packages_needed(sources, programs) == {}


def test_a_package_that_the_users_environment_may_lack_is_seen_through_other_modules(tmp_path):
    files = {
        "agent/__init__.py": "",
        "agent/install.py": "import torch\nfrom hasten.records import run\nfrom hasten.stats import mean\n",
        "records/__init__.py": "import msgspec\n",
        "records/run.py": "if TYPE_CHECKING:\n    import jinja2\n\ndef late():\n    import rich\n",
        "stats.py": "import math\ntry:\n    import numpy\nexcept ImportError:\n    import psutil\n",
        "cli/parts.py": "import rich\n",
    }
    found = packages_needed(planted(tmp_path, files), ["agent/install.py"])
    assert found == {
        "torch": {"agent/install.py"},
        "msgspec": {"records/__init__.py"},
        "numpy": {"stats.py"},
        "psutil": {"stats.py"},
    }


def test_only_devices_names_torch_cuda(sources):
    places = {path.split("/")[0] for path in uses_of(sources, "torch.cuda")}
    assert places <= {"devices", "workloads"}, "the bundled scripts are users' scripts"


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch.cuda.synchronize()\n",
        "from torch import cuda\n",
        "from torch.cuda import amp\n",
        "import torch.cuda as c\n",
    ],
)
def test_a_use_of_torch_cuda_is_seen(tmp_path, text):
    files = {"agent/a.py": text, "agent/b.py": 'import torch\nSAY = "torch.cuda.empty_cache()"\ntorch.compile\n'}
    assert uses_of(planted(tmp_path, files), "torch.cuda") == ["agent/a.py"]


def test_every_table_of_layers_is_of_a_folder_that_there_is():
    assert [folder for folder in LAYERS if not (PACKAGE / folder).is_dir()] == []
