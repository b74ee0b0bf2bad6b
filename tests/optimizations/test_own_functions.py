"""Which functions of a script a search may suggest to vouch for."""

from types import SimpleNamespace

from hasten.optimizations.cache import own_functions
from hasten.records import HotLine, Where

SCRIPT = """import volumes

def window(path):
    return path

class Scans:
    def __getitem__(self, index):
        return window(volumes.load(index))
"""


def run(folder, *lines, trains=()):
    hot = [
        HotLine(where=Where(file=str(folder / file), line=line), phase="data_wait", seconds=seconds, in_worker=True)
        for file, line, seconds in lines
    ]
    where = {phase: Where(file=str(folder / file), line=line) for phase, file, line in trains}
    facts = SimpleNamespace(where=where)
    return SimpleNamespace(command=("train.py",), directory=str(folder), hot_lines=tuple(hot), facts=facts)


def test_functions_at_the_top_level_of_the_script_and_its_modules_are_named(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "volumes").mkdir()
    (tmp_path / "volumes" / "io.py").write_text("def load(index):\n    return index\n\n\ndef quick(): pass\n")
    found = own_functions(run(tmp_path, ("train.py", 4, 3.0), ("volumes/io.py", 2, 6.0), ("volumes/io.py", 5, 0.5)))
    assert found == {"__main__:window": 3.0 / 9.5, "volumes.io:load": 6.0 / 9.5}


def test_methods_and_files_elsewhere_have_no_name(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    elsewhere = tmp_path.parent / "other.py"
    elsewhere.write_text("def load(index):\n    return index\n")
    assert own_functions(run(tmp_path, ("train.py", 8, 1.0), ("../other.py", 2, 1.0), ("gone.py", 1, 1.0))) == {}


def test_the_function_that_trains_makes_no_samples(tmp_path):
    (tmp_path / "train.py").write_text("def main(trainer):\n    trainer.fit()\n\n\ndef window(path): pass\n")
    lines = [("train.py", 2, 4.0), ("train.py", 5, 4.0)]
    assert own_functions(run(tmp_path, *lines, trains=[("forward", "train.py", 2)])) == {"__main__:window": 0.5}
