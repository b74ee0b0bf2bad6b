"""Whatever is replaced is put back."""

import importlib
import sys
import types

import pytest

from hasten import patches as patching
from hasten.patches import Patches


class Parent:
    def speak(self):
        return "parent"


class Child(Parent):
    pass


@pytest.fixture
def patches():
    patches = Patches()
    yield patches
    patches.undo()


def loud(original):
    return lambda *arguments: original(*arguments).upper()


def test_a_replaced_method_is_itself_again_after_undo(patches):
    before = vars(Parent)["speak"]
    assert patches.wrap(Parent, "speak", loud)
    assert Parent().speak() == "PARENT"
    patches.undo()
    assert vars(Parent)["speak"] is before


def test_an_inherited_method_is_inherited_again_after_undo(patches):
    patches.wrap(Child, "speak", loud)
    assert (Child().speak(), Parent().speak()) == ("PARENT", "parent")
    patches.undo()
    assert "speak" not in vars(Child)


def test_two_patches_on_one_function_come_off_last_first(patches):
    before = vars(Parent)["speak"]
    patches.wrap(Parent, "speak", loud)
    patches.wrap(Parent, "speak", lambda original: lambda self: original(self) + "!")
    assert Parent().speak() == "PARENT!"
    patches.undo()
    assert vars(Parent)["speak"] is before


def test_a_patch_that_somebody_laid_on_top_of_ours_stays(patches, monkeypatch):
    target = types.SimpleNamespace(speak=lambda: "mine")
    patches.wrap(target, "speak", loud)
    theirs = target.speak = lambda: "theirs"
    patches.undo()
    assert target.speak is theirs


def test_what_is_not_there_or_not_callable_is_not_wrapped(patches):
    target = types.SimpleNamespace(number=3)
    assert not patches.wrap(target, "absent", loud)
    assert not patches.wrap(target, "number", loud)
    assert vars(target) == {"number": 3}


def test_undoing_twice_does_nothing_more(patches):
    calls = []
    patches.on_undo(lambda: calls.append(1))
    patches.undo()
    patches.undo()
    assert calls == [1]


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module that was never imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "imported_in_a_test"
    (tmp_path / f"{name}.py").write_text("def speak():\n    return 'quiet'\n")
    sys.modules.pop(name, None)
    yield name
    sys.modules.pop(name, None)


def test_a_module_that_is_imported_later_is_patched_then(patches, module):
    patches.after_import(module, lambda m: patches.wrap(m, "speak", loud))
    assert module not in sys.modules
    imported = importlib.import_module(module)
    assert imported.speak() == "QUIET"
    patches.undo()
    assert imported.speak() == "quiet"


def test_a_module_that_is_imported_already_is_patched_now(patches, module):
    imported = importlib.import_module(module)
    patches.after_import(module, lambda m: patches.wrap(m, "speak", loud))
    assert imported.speak() == "QUIET"


def test_every_action_on_a_module_runs(patches, module):
    seen = []
    patches.after_import(module, lambda m: seen.append(1))
    patches.after_import(module, lambda m: seen.append(2))
    importlib.import_module(module)
    assert seen == [1, 2]


def test_the_import_finder_is_gone_after_undo(patches, module):
    before = list(sys.meta_path)
    patches.after_import(module, lambda m: None)
    assert sys.meta_path != before
    patches.undo()
    assert sys.meta_path == before
    assert importlib.import_module(module).speak() == "quiet"


def test_a_module_imported_through_ours_keeps_its_loader_and_file(patches, module, tmp_path):
    patches.after_import(module, lambda m: None)
    imported = importlib.import_module(module)
    assert imported.__file__ == str(tmp_path / f"{module}.py")
    assert "exec_module" not in vars(imported.__spec__.loader)


def test_a_module_that_does_not_exist_is_not_found_as_before(patches):
    patches.after_import("no_such_module_anywhere", lambda m: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module_anywhere")


def test_an_action_that_fails_does_not_break_the_import(patches, module, monkeypatch, capsys):
    monkeypatch.setattr(patching, "_warned", set())
    patches.after_import(module, lambda m: m.no_such_function)
    assert importlib.import_module(module).speak() == "quiet"
    assert capsys.readouterr().err.count("hasten: cannot instrument") == 1


def test_a_warning_is_said_once(monkeypatch, capsys):
    monkeypatch.setattr(patching, "_warned", set())
    for _ in range(3):
        patching.warn("a hook stands aside")
    assert capsys.readouterr().err == "hasten: a hook stands aside\n"
