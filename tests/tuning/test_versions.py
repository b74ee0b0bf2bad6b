"""Two versions of a script: what is faster and trains as well passes, whatever was edited; what learns something else does not."""

import base64
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import runs
from command import run, said, train, write

from hasten.errors import CommandError
from hasten.launch.side import Bench, SideError
from hasten.raw_run import RawQuality, SampledEpoch
from hasten.records import Facts
from hasten.sandbox.workspace import Workspace
from hasten.tuning.evaluator import FAR, Evaluator, verdict_of
from hasten.tuning.versions import Version, _checked, _same_batches_by_index, differences, of_revision

NUM = 60  # losses


class Fake(Evaluator):
    """Launches of a version, by what it would record."""

    def __init__(self, **changes):
        super().__init__(bench=self, step_seconds=0.01, steps_per_epoch=8.0)
        self.changes = changes

    folder = None

    def run(self, **_):  # of its bench
        return recorded(**self.changes)

    def evaluate(self, settings, *, shift=0, perturb=0, number=0):
        if "fails" in self.changes:
            return super().evaluate(settings, shift=shift, perturb=perturb, number=number)
        return recorded(seed=shift, perturbed=bool(perturb), by_index="loader" in settings, **self.changes)


def recorded(
    *,
    seed=0,
    perturbed=False,
    by_index=False,
    first=2.3,
    end=0.5,
    apart=0.0,
    gradient=0.0,
    order=0,
    draws=None,
    moved=8,
    fails=None,
    unlucky=0,
):
    """What a launch records: losses that fall from `first` to `end`, on batches in an order.

    `apart`: relative distance of its losses from those of the other version; `gradient`: the same of its first gradients;
    `unlucky`: at how many seeds its loss ends higher by chance; `draws`: what its samples draw, unless that follows from
    their index.
    """
    end += 0.04 + 0.001 * (seed // FAR) if seed < unlucky * FAR else 0.0
    if fails is not None:
        raise SideError(fails)
    drawn = "" if by_index or draws is None else draws
    draw, own = random.Random(f"{seed}{drawn}"), random.Random(seed + 7)
    losses = []
    for n in range(NUM):
        loss = end + (first - end) * 0.9**n + draw.gauss(0, 0.01) * (n > 0)
        losses.append(loss * (1 + (apart * own.choice([-1, 1]) * n / NUM) + (1e-7 if perturbed else 0.0)))
    rows = [[f"{n}-{i}{drawn}" for i in range(4)] for n in range(NUM)]
    random.Random(order).shuffle(rows) if order else None
    gradients = np.ones(100, np.float32) * (1 + gradient * np.linspace(-1, 1, 100).astype(np.float32))
    return RawQuality(
        losses=losses,
        batches=["".join(row) + str(seed) for row in rows],
        rows=rows,
        gradients=base64.b64encode(gradients.tobytes()).decode(),
        moved=[n < moved for n in range(8)],
        epochs=[SampledEpoch(dataset=0, order=[str(order)])] if draws is not None else [],
        num_equal=64 * by_index,
    )


def run_of(num_batches=100, **changes):
    return runs.run(
        loaders=(runs.loader(num_batches=num_batches, batch_size=16, num_samples=16 * num_batches),), **changes
    )


def judged(new=None, *, old=None, data=100):
    one, other = Fake(**(old or {})), Fake(**(new or {}))
    one.is_reference, other.is_reference = True, False
    return _checked(one, other, [run_of(), run_of(data)])


def failed(checks):
    return [check.what for check in checks if check.state == "failed"]


def test_what_computes_the_same_to_the_bit_is_identical():
    checks, guarantee = judged()
    assert verdict_of(checks) == "proven" and guarantee == "identical"


def test_another_order_of_additions_is_rounding():
    checks, guarantee = judged({"apart": 3e-6})
    assert verdict_of(checks) == "proven" and guarantee == "rounding"


def test_fewer_bits_are_judged_by_the_course_of_the_losses():
    checks, guarantee = judged({"apart": 2e-3, "gradient": 0.01})
    assert verdict_of(checks) == "proven" and guarantee == "precision"
    worse, _ = judged({"apart": 2e-3, "gradient": 0.01, "end": 0.56})
    assert failed(worse) == ["band"]


def test_three_unlucky_seeds_are_no_harm_and_eight_are():
    assert failed(judged({"order": 3, "unlucky": 3})[0]) == []
    assert failed(judged({"order": 3, "unlucky": 8})[0]) == ["band"]


def test_the_same_samples_in_another_order_are_judged_over_seeds_and_told():
    checks, guarantee = judged({"order": 3})
    assert verdict_of(checks) == "proven" and guarantee == "precision"
    assert "the same samples come in another order" in [check.text for check in checks]


def test_samples_that_draw_other_random_numbers_are_compared_with_the_same_ones():
    checks, guarantee = judged({"draws": "b"}, old={"draws": "a"})
    assert verdict_of(checks) == "proven" and guarantee == "identical"
    assert any("draw other random numbers; with the same ones, 60 batches are the same" in c.text for c in checks)
    worse, _ = judged({"draws": "b", "end": 0.56, "apart": 2e-3}, old={"draws": "a"})
    assert failed(worse) == ["random draws", "band"]


def test_samples_that_are_asked_for_in_another_order_are_judged_over_seeds():
    checks, guarantee = judged({"draws": "b", "order": 3}, old={"draws": "a"})
    assert guarantee == "precision"
    assert not any("with the same ones" in check.text for check in checks)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"first": 2.0, "end": 0.4}, "start"),  # a term of the loss is gone: it is lower, and means something else
        ({"gradient": 0.5, "apart": 1e-4}, "start"),
        ({"moved": 6}, "parameters"),  # a layer is frozen
        ({"first": 2.0, "end": 0.4, "order": 2}, "start"),
        ({"fails": "the script failed (exit code 1): NameError"}, "training"),
    ],
)
def test_what_learns_something_else_fails(change, what):
    checks, guarantee = judged(change)
    assert (failed(checks) == [what] and guarantee is None) or verdict_of(checks) == "broken"
    assert what in failed(checks)


def test_an_old_version_that_does_not_train_says_nothing_about_the_new_one():
    (check,), _ = judged(old={"fails": "no optimizer step was seen"})
    assert check.state == "unknown" and check.text.startswith("the old version did not train")
    (check,), _ = judged({"fails": "no optimizer step was seen"})
    assert check.state == "failed"


def test_half_of_the_data_is_not_faster():
    checks, _ = judged(data=50)
    assert failed(checks) == ["data"] and "800 samples, and had 1,600" in next(
        c.text for c in checks if c.what == "data"
    )


def test_a_larger_batch_that_drops_the_last_is_no_loss_of_data():
    before = runs.run(loaders=(runs.loader(num_batches=63, batch_size=16, num_samples=1000),))
    after = runs.run(loaders=(runs.loader(num_batches=15, batch_size=64, num_samples=1000),))
    checks, _ = _checked(Fake(), Fake(), [before, after])
    assert "data" not in failed(checks)
    assert "batch size: 16 before, now 64" in differences(before.facts, after.facts)


def test_versions_without_a_difference_say_so():
    assert differences(run_of().facts, run_of().facts) == []
    assert isinstance(run_of().facts, Facts)


# --------------------------------------------------------------------------------------------------- the command


def git(folder, *words):
    name = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
    subprocess.run(["git", *name, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    """A script and a module beside it, as they were and as they are."""
    git(tmp_path, "init")
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").write_text("import helper\n")
    (tmp_path / "src/helper.py").write_text("print('old')\n")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-m", "old")
    (tmp_path / "src/helper.py").write_text("print('new')\n")
    return tmp_path


def test_a_script_as_it_was_runs_with_the_modules_it_had(repository, monkeypatch):
    monkeypatch.chdir(repository)
    with of_revision("HEAD", Version(argv=["src/train.py", "--token", "abc"])) as old:
        assert "old" in Path(old.argv[0]).with_name("helper.py").read_text() and old.argv[1:] == ["--token", "abc"]
        assert old.name[0] == "HEAD:src/train.py" and "abc" not in old.name
        place = old.argv[0]
    assert not os.path.exists(place), "nothing is left behind"
    assert subprocess.run(["git", "worktree", "list"], capture_output=True, text=True).stdout.count("\n") == 1


def test_links_that_lead_out_of_the_repository_are_there_as_they_were(repository, tmp_path_factory, monkeypatch):
    data = tmp_path_factory.mktemp("data")
    (repository / "src/data").symlink_to(data)
    git(repository, "add", "-A")
    git(repository, "commit", "-m", "a link to the data")
    monkeypatch.chdir(repository)
    with of_revision("HEAD", Version(argv=["src/train.py"])) as old:
        assert Path(old.argv[0]).with_name("data").resolve() == data.resolve()


@pytest.mark.slow
def test_a_module_as_it_was_runs_with_the_modules_it_had(repository, monkeypatch):
    monkeypatch.chdir(repository)
    with of_revision("HEAD", Version(argv=["src.train", "1"], module=True)) as old:
        (repository / "src/train.py").write_text("import src.helper, sys\nprint('and later', sys.argv[1:])\n")
        Path(old.argv[0]).with_name("src").joinpath("train.py").write_text(
            "import src.helper, sys\nprint(sys.argv[1:])\n"
        )
        words = subprocess.run([sys.executable, *old.argv], capture_output=True, text=True).stdout.split()
        assert words == ["old", "['1']"] and old.name == ("HEAD:src.train", "1")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train.py"], "give both versions"),
        (["--git", "HEAD~7", "src/train.py"], "git has no HEAD~7"),
        (["--git", "HEAD", "nothing.py"], "no such script: nothing.py"),
        (["--git", "HEAD", "later.py"], "later.py is not in HEAD"),
        (["--git", "HEAD", "-m", "package.train"], "no package/train.py in the working directory"),
        (["--git", "HEAD", "-m", "later"], "later is not in HEAD"),
        (["--git", "HEAD", "-m", "linked.train"], "linked.train is not in HEAD"),
        (["--git", "HEAD", "torchrun", "train.py"], "--git needs a script or a module"),
        (["src/train.py", "--", "nothing.py"], "no such script: nothing.py"),
    ],
)
def test_what_cannot_be_compared_is_one_line_and_exit_code_2(
    ask, repository, tmp_path_factory, monkeypatch, words, message
):
    monkeypatch.chdir(repository)
    (repository / "later.py").touch()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "train.py").touch()
    (repository / "linked").symlink_to(elsewhere)
    answer = ask("prove", *words)
    assert answer.returncode == 2 and message in said(answer)


def test_a_folder_without_git_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    with pytest.raises(CommandError, match="git has no HEAD"), of_revision("HEAD", Version(argv=["train.py"])):
        pass


NOISY = """import torch
from torch.utils.data import DataLoader, Dataset

class Noisy(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.rand(4) + index

torch.manual_seed(0)
loader = DataLoader(Noisy(), batch_size=8, shuffle=True{workers})
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for _ in range(1000):
    for batch in loader:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_versions_that_differ_in_their_workers_train_on_the_same_batches_in_every_epoch(tmp_path):
    with Workspace() as workspace:
        sides = []
        for name, workers in (("old.py", ""), ("new.py", ", num_workers=2, persistent_workers=True")):
            (tmp_path / name).write_text(NOISY.replace("{workers}", workers))
            bench = Bench([sys.executable, str(tmp_path / name)], workspace, patience=60.0)
            sides.append(Evaluator(bench=bench, step_seconds=0.1, steps_per_epoch=8.0))
        equal = _same_batches_by_index(*sides)
    epochs = sides[0].num_steps / 8
    assert epochs > 4 and equal.state == "passed" and f"{sides[0].num_steps} batches are the same" in equal.text


@pytest.mark.slow
def test_json_is_all_that_is_printed(tmp_path):
    """What the scripts print is on stderr then."""
    for name in ("old.py", "new.py"):
        write(tmp_path / name, train(step="print('step')"))
    answer = run("prove", "--json", "--budget", "8s", "old.py", "--", "new.py", cwd=tmp_path)
    assert json.loads(answer.stdout)["proof"]["speedup"] and "step" in answer.stderr
