"""What is certain to do the same every time, and what is doubted."""

import argparse
import collections
import copy
import functools
import itertools
import multiprocessing
import os
import random
import runpy
import subprocess
import sys
import time
from pathlib import Path, PureWindowsPath
from random import random as chance

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from hasten.loading.datasets.survey import MOST_VISITS, digest_of, survey

STATE = {"epoch": 0}
LOG = []
GENERATOR = np.random.default_rng(0)


def double(x):
    return x * 2


def flip_now_and_then(x):
    return -x if random.random() < 0.02 else x


def by_another_name(x):
    return -x if chance() < 0.02 else x


def imports_inside(x):
    from numpy.random import rand as spread

    return x + spread()


def only_for_a_few(x):
    return x + np.random.rand() if x == 77 else x


def by_global_generator(x):
    return x + GENERATOR.standard_t(3)


def by_the_clock(x):
    return x + time.time()


def by_the_system(x):
    return x + os.urandom(1)[0]


def by_epoch(x):
    return x + STATE["epoch"]


def counts(x):
    global STATE
    STATE = {"epoch": 1}
    return x


def logs(x):
    LOG.append(x)
    return len(LOG)


def gathers(x):
    gathered = []
    for one in x:
        gathered.append(one)
    gathered.sort()
    return [gathered.append(one) for one in x]


def in_a_comprehension(x):
    return [one + torch.randn(1) for one in x]


def calls_another(x):
    return flip_now_and_then(x)


def reads_a_file(path):
    with Image.open(path) as image:
        return ImageOps.exif_transpose(image.convert("RGB"))


def make_closure(generator):
    return lambda x: x + generator.integers(2)


class Shift:
    def __init__(self, by):
        self.by = by

    def __call__(self, x):
        return self._shifted(x)

    def _shifted(self, x):
        return x + self.by


class Drifting(Shift):
    def _shifted(self, x):
        return x + self.by * np.random.rand()


class Unused(Shift):
    def __init__(self):
        self.by = random.random()

    def show_a_random_one(self):
        return random.choice([1, 2])


class Writing(Shift):
    def __call__(self, x):
        self.by += 1
        return x + self.by


class Property:
    @property
    def scale(self):
        return random.random()

    def __call__(self, x):
        return x * self.scale


class Module(torch.nn.Module):
    def forward(self, x):
        return x + torch.rand(1)


@pytest.mark.parametrize(
    "settled",
    [
        double,
        lambda x: x + 1,
        functools.partial(double, 3),
        functools.lru_cache(double),
        Shift(3),
        Shift(3)._shifted,
        Unused(),
        by_epoch,
        gathers,
        reads_a_file,
        make_closure(np.arange(3)),
        np.float32,
        np.sin,
        torch.relu,
        len,
        collections.OrderedDict(a=1),
        argparse.Namespace(size=3),
        Path("a"),
        Image.new("P", (2, 2)),
    ],
    ids=repr,
)
def test_code_that_only_computes_is_not_doubted(settled):
    assert survey(settled).doubts == ()


@pytest.mark.parametrize(
    "doubtful",
    [
        flip_now_and_then,
        by_another_name,
        imports_inside,
        only_for_a_few,
        by_global_generator,
        by_the_clock,
        by_the_system,
        counts,
        logs,
        in_a_comprehension,
        calls_another,
        make_closure(np.random.default_rng(0)),
        make_closure(np.random.RandomState(0)),
        make_closure(random.Random(0)),
        make_closure(torch.Generator()),
        functools.partial(flip_now_and_then),
        functools.wraps(torch.relu)(lambda x: x + random.random()),
        Shift(flip_now_and_then),
        Shift({"deep": [Shift(np.random.default_rng())]}),
        Drifting(1),
        Drifting(1)._shifted,
        Writing(1),
        Property(),
        Module(),
        torch.nn.Dropout(0.5),
        itertools.count(),
        iter([1]),
        multiprocessing.Value("i", 0),
        random.random,
        random.Random(0).gauss,
        np.random.rand,
        time.time,
        eval,
    ],
    ids=repr,
)
def test_whatever_may_do_another_thing_is_doubted(doubtful):
    assert survey(doubtful).doubts


def test_a_doubt_says_where_it_comes_from():
    assert survey(calls_another).doubts[0] == "flip_now_and_then: it uses random"


def test_the_digest_changes_with_every_value_that_is_read():
    before = survey(by_epoch).digest
    STATE["epoch"] += 1
    try:
        assert survey(by_epoch).digest != before
    finally:
        STATE["epoch"] -= 1
    assert survey(by_epoch).digest == before


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Shift(1), Shift(1.0)),
        (Shift(1), Shift(True)),
        (Shift([1, 2]), Shift((1, 2))),
        (Shift("1"), Shift(b"1")),
        (Shift(np.zeros(2, np.float32)), Shift(np.zeros(2, np.int32))),
        (Shift(np.zeros((2, 3))), Shift(np.zeros((3, 2)))),
        (Shift(np.zeros(1)), Shift(torch.zeros(1, dtype=torch.float64))),
        (Shift(torch.zeros(1)), Shift(-torch.zeros(1))),
        (Shift(["ab", "c"]), Shift(["a", "bc"])),
        (Shift([[1], 2]), Shift([[1, 2]])),
        (Shift({"a": 1, "b": 2}), Shift({"b": 2, "a": 1})),
        (Shift(["1"] * 200), Shift(["1"] * 199 + [1])),
        (Shift([Path("a")] * 200), Shift([Path("a")] * 199 + [Path("b")])),
        (Shift([Path("a")] * 200), Shift(["a"] * 200)),
        (Shift([Path("a")] * 200), Shift([PureWindowsPath("a")] * 200)),
        (Shift(Image.new("L", (2, 3))), Shift(Image.new("L", (3, 2)))),
        (lambda x: x + 1, lambda x: x + 2),
        (lambda x: x + 1, lambda x: x - 1),
        (lambda x, by=1: x + by, lambda x, by=2: x + by),
        (lambda x: x.min(), lambda x: x.max()),
        (make_closure([1]), make_closure([2])),
        (functools.partial(max, 1), functools.partial(min, 1)),
    ],
)
def test_two_things_that_differ_have_two_digests(one, other):
    assert survey(one).digest != survey(other).digest


def test_a_copy_has_the_same_digest():
    value = Shift([np.arange(5), {"a": torch.ones(3)}, ["x"] * 500, {1, 2}])
    assert survey(copy.deepcopy(value)).digest == survey(value).digest


def test_a_long_list_read_back_from_text_has_the_same_digest():
    # The strings are others in memory, and none is interned.
    names = [f"image{number}" for number in range(500)]
    assert survey(" ".join(names).split()).digest == survey(names).digest


def test_another_process_finds_the_same_digest(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text(
        "import functools, numpy\n"
        "from hasten.loading.datasets.survey import survey\n"
        "class Shift:\n"
        "    def __init__(self, by): self.by = by\n"
        "    def __call__(self, x): return [one + self.by for one in x if one in {'a', 'b', 'c'}]\n"
        "thing = Shift([functools.partial(lambda x: x, 1), numpy.arange(3), {'a', 'b', 'c'}])\n"
        "print(survey(thing).digest.hex())\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    process = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=True)
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out == process.stdout


def test_what_is_too_large_is_doubted():
    assert survey([object] * 3).doubts == ()
    assert survey([Shift(number) for number in range(MOST_VISITS)]).doubts


def test_no_number_of_paths_is_too_large():
    paths = [(Path(f"folder/{number}.jpg"), number) for number in range(MOST_VISITS)]
    found = survey(Shift(paths))
    assert found.is_complete and not found.doubts
    assert found.digest == survey(Shift(copy.deepcopy(paths))).digest


def test_a_list_that_holds_itself_ends():
    endless = []
    endless.append(endless)
    survey(endless)
    survey([endless] * 200)


def test_a_sample_with_a_lock_or_a_file_has_no_digest(tmp_path):
    with open(tmp_path / "file", "w") as file:
        assert digest_of([file]) is None
    assert digest_of([1, "a"]) is not None


def test_tables_are_read_to_the_last_cell():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"file": ["a", "b"], "label": [1, 2]})
    other = table.copy()
    assert survey(table) == survey(other)
    assert survey(table).doubts == ()
    other.loc[1, "label"] = 3
    assert survey(table).digest != survey(other).digest


def test_transforms_of_torchvision_are_told_apart():
    pytest.importorskip("torchvision", exc_type=(ImportError, RuntimeError))
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    for module in (v1, v2):
        assert survey(module.Compose([module.Resize(3), module.CenterCrop(2), module.ToTensor()])).doubts == ()
        assert survey(module.Compose([module.Resize(3), module.RandomCrop(2)])).doubts
        assert survey(module.GaussianBlur(3)).doubts
        assert survey(module.Lambda(flip_now_and_then)).doubts
        assert survey(type("Mine", (module.RandomCrop,), {})(3)).doubts
        assert survey(type("Mine", (module.Resize,), {"forward": lambda self, x: x * random.random()})(3)).doubts
        assert survey(module.Resize(3)).digest != survey(module.Resize(4)).digest


def test_an_object_that_answers_to_every_name_with_an_error_is_looked_through_all_the_same():
    class Grumpy:
        __slots__ = ("held",)

        def __getattr__(self, name):
            raise TypeError(f"do not ask for {name}")

    grumpy = Grumpy()
    grumpy.held = 3
    found = survey([grumpy])
    grumpy.held = 4
    assert found.is_complete and survey([grumpy]).digest != found.digest


def test_what_hasten_wraps_while_it_measures_is_what_it_was(tmp_path):
    from hasten.measurement.inside import workers
    from hasten.measurement.inside.patches import Patches

    def opens(path):
        with open(path, "rb") as file:
            return Image.open(file).convert("RGB")

    plain = survey(opens)
    patches = Patches()
    workers.install(tmp_path, patches)
    try:
        measured = survey(opens)
    finally:
        patches.undo()
    assert measured.digest == plain.digest and measured.doubts == plain.doubts
