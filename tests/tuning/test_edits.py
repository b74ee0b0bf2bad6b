"""Edits: diffs that do something more rarely, and nothing where the source is not understood."""

import pytest

from hasten.records import Finding, Where
from hasten.tuning.edits import apply_diff, edits_for, write_edits

GUARDED = """\
for step, batch in enumerate(loader):
    loss = train(batch)
    if step % LOG_EVERY == 0:
        print(step, loss.item())
"""
COUNTED = """\
def main():
    for step in range(1000):
        loss = train(step)
        print(
            step,
            loss.item(),
        )
    save()
"""


def finding(path, line, kind="logging_each_step", recoverable=0.2):
    return Finding(
        kind=kind, title="Logging in each step", recoverable=recoverable, where=Where(file=str(path), line=line)
    )


def edits_of(tmp_path, text, line, **settings):
    path = tmp_path / "train.py"
    path.write_text(text)
    return path, edits_for([finding(path, line, **settings)], step_seconds=1.0)


def test_a_condition_that_counts_counts_further(tmp_path):
    path, (edit,) = edits_of(tmp_path, GUARDED, 4)
    assert "+    if step % (20 * LOG_EVERY) == 0:" in edit.diff
    assert write_edits([edit]) == [f"{path}:4"]
    assert path.read_text() == GUARDED.replace("LOG_EVERY", "(20 * LOG_EVERY)")


def test_a_number_is_multiplied(tmp_path):
    _, (edit,) = edits_of(tmp_path, GUARDED.replace("LOG_EVERY", "5"), 4)
    assert "+    if step % 100 == 0:" in edit.diff


def test_what_is_done_in_every_round_gets_a_condition(tmp_path):
    path, (edit,) = edits_of(tmp_path, COUNTED, 5, recoverable=0.4)
    write_edits([edit])
    assert "        if step % 50 == 0:\n            print(\n                step,\n" in path.read_text()
    compile(path.read_text(), "train.py", "exec")


COUNTED_ONE_BY_ONE = """\
for x, y in loader:
    predicted = model(x).argmax(1)
    for i in range(len(y)):
        if predicted[i].item() == y[i].item():
            correct += 1
    seen += len(y)
"""


def test_hits_that_are_counted_one_by_one_are_counted_in_one_operator(tmp_path):
    path, (edit,) = edits_of(tmp_path, COUNTED_ONE_BY_ONE, 4, kind="sync_points")
    write_edits([edit])
    assert "1)\n    correct += (predicted.view_as(y) == y).sum()\n    seen" in path.read_text()
    assert edit.because == "Logging in each step: summed up as a tensor, without reading it"


@pytest.mark.parametrize(
    "told, changed",
    [
        ("total += loss.item()", "total += loss.detach()"),
        ("total += loss_of(x).item() * len(x)", "total += loss_of(x).detach() * len(x)"),
        ("total += loss.item()  # of the epoch", "total += loss.detach()  # of the epoch"),
    ],
)
def test_what_is_only_summed_up_stays_a_tensor(tmp_path, told, changed):
    path, (edit,) = edits_of(tmp_path, f"for x in loader:\n    {told}\n", 2, kind="sync_points")
    write_edits([edit])
    assert path.read_text() == f"for x in loader:\n    {changed}\n"


@pytest.mark.parametrize(
    "text, line",
    [
        (COUNTED_ONE_BY_ONE.replace("len(y))", "len(x))"), 4),  # another length
        (COUNTED_ONE_BY_ONE.replace("== y[i]", "> y[i]"), 4),
        (COUNTED_ONE_BY_ONE.replace("+= 1", "+= weight"), 4),
        (COUNTED_ONE_BY_ONE.replace("y[i]", "y[i + 1]"), 4),
        ("for x in loader:\n    losses.append(loss.item())\n", 2),  # who knows what reads the list
        ("for x in loader:\n    total += a.item() * b.item()\n", 2),
        ("for x in loader:\n    best = loss.item()\n", 2),
        ("for x in loader:\n    said += f'{loss.item()} '\n", 2),  # a text would be another
        ("for x in loader:\n    losses += [loss.item()]\n", 2),
        ("for x in loader:\n    total += math.exp(loss.item())\n", 2),
    ],
)
def test_what_is_read_for_something_else_is_read_as_before(tmp_path, text, line):
    assert edits_of(tmp_path, text, line, kind="sync_points")[1] == ()


@pytest.mark.parametrize(
    "text, line",
    [
        ("while True:\n    print(train())\n", 2),  # nothing counts
        ("for batch in loader:\n    print(train(batch))\n", 2),
        ("for i in range(9):\n    total += train(i).item()\n", 2),  # the sum would be another
        ("for i in range(9):\n    x = train(i); print(x)\n", 2),
        ("for i in range(9):\n    meter.add(train(i).item())\n", 2),  # who knows what add does
        ("for i in range(9):\n    print(train(i))\n", 2),  # training itself would become rarer
        ("for i in range(9):\n    if i % 4 == 0:\n        optimizer.step()\n        print(i)\n", 4),
        ("for i in range(9):\n    if i % 4 == 0:\n        print(i)\n    else:\n        train(i)\n", 3),
        ("print(1)\n", 1),
        ("this is no Python\n", 1),
    ],
)
def test_what_is_not_understood_gets_no_edit(tmp_path, text, line):
    assert edits_of(tmp_path, text, line)[1] == ()


def test_other_findings_and_files_that_are_gone_get_none(tmp_path):
    assert edits_of(tmp_path, GUARDED, 4, kind="slow_decode")[1] == ()
    assert edits_for([finding(tmp_path / "gone.py", 3)], step_seconds=1.0) == ()


def test_a_file_that_has_changed_meanwhile_is_left_alone(tmp_path):
    path, (edit,) = edits_of(tmp_path, GUARDED, 4)
    path.write_text("print(1)\n")
    assert write_edits([edit]) == []
    assert path.read_text() == "print(1)\n"


def test_a_diff_finds_its_place_where_lines_have_moved(tmp_path):
    _, (edit,) = edits_of(tmp_path, GUARDED, 4)
    assert apply_diff("import torch\n\n" + GUARDED, edit.diff) == "import torch\n\n" + GUARDED.replace(
        "LOG_EVERY", "(20 * LOG_EVERY)"
    )
