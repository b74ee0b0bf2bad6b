"""Edits: diffs that do something more rarely, and nothing where the source is not understood."""

import pytest
import torch

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


IN_A_FUNCTION = """\
def validate(model, loader):
    model.eval()
    right = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    return right


def main():
    for step, batch in enumerate(loader):
        train(batch)
        if step % VALIDATE_EVERY == 0:
            best = max(best, validate(model, held_out))
"""


def test_what_a_function_does_becomes_rarer_where_it_is_called(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(IN_A_FUNCTION)
    told = [finding(path, 3, kind="validation_often", recoverable=0.6)]
    (edit,) = edits_for(told, step_seconds=1.0, times_an_epoch={"validation_often": 24.6})
    assert edit.line == 10 and "+        if step % (25 * VALIDATE_EVERY) == 0:" in edit.diff
    assert "25 times more rarely, once an epoch" in edit.because and edit.recoverable == 0.6


def test_a_function_is_not_taken_for_anothers_of_its_name(tmp_path):
    text = (
        "import torch\n\n\ndef save(model):\n    torch.save(model.state_dict(), 'last.pt')\n\n\n"
        "for step in range(1000):\n    train(step)\n    if step % SAVE_EVERY == 0:\n        save(model)\n"
    )
    _, (edit,) = edits_of(tmp_path, text, 5, kind="checkpoint_often", recoverable=0.6)
    assert "+    if step % (100 * SAVE_EVERY) == 0:" in edit.diff


def test_a_method_becomes_rarer_where_it_is_called(tmp_path):
    text = (
        "class Trainer:\n    def validate(self):\n        return self.model(self.x)\n\n    def train(self):\n"
        "        for step in range(1000):\n            self.step()\n            if step % 10 == 0:\n"
        "                self.validate()\n"
    )
    _, (edit,) = edits_of(tmp_path, text, 3, kind="validation_often", recoverable=0.6)
    assert "+            if step % 1000 == 0:" in edit.diff


def test_a_function_that_is_called_at_several_places_is_left(tmp_path):
    twice = IN_A_FUNCTION + "    print(validate(model, held_out))\n"
    assert edits_of(tmp_path, twice, 3, kind="validation_often")[1] == ()
    handed = IN_A_FUNCTION + "    schedule(validate)\n"
    assert edits_of(tmp_path, handed, 3, kind="validation_often")[1] == ()


def test_a_condition_that_counts_counts_further(tmp_path):
    path, (edit,) = edits_of(tmp_path, GUARDED, 4)
    assert "+    if step % (20 * LOG_EVERY) == 0:" in edit.diff
    assert write_edits([edit]) == [f"changed {path}:3"]
    assert path.read_text() == GUARDED.replace("LOG_EVERY", "(20 * LOG_EVERY)")


def test_a_number_is_multiplied(tmp_path):
    _, (edit,) = edits_of(tmp_path, GUARDED.replace("LOG_EVERY", "5"), 4)
    assert "+    if step % 100 == 0:" in edit.diff


def test_a_sum_is_multiplied_as_a_whole(tmp_path):
    _, (edit,) = edits_of(tmp_path, GUARDED.replace("LOG_EVERY", "(n + 1)"), 4)
    assert "+    if step % ((20 * (n + 1))) == 0:" in edit.diff


def test_what_is_done_in_every_round_gets_a_condition(tmp_path):
    path, (edit,) = edits_of(tmp_path, COUNTED, 5, recoverable=0.4)
    write_edits([edit])
    assert "        if step % 50 == 0:\n            print(\n                step,\n" in path.read_text()
    compile(path.read_text(), "train.py", "exec")


@pytest.mark.parametrize(
    "changed",
    [
        lambda text: text.replace(b"\n", b"\r\n"),
        lambda text: text.rstrip(b"\n"),
        lambda text: b"# one\n\x0c\n" + text,
        lambda text: "# \u2028 äöü\n\n".encode() + text,
    ],
    ids=["line ends of another system", "no end of the last line", "a form feed", "other letters"],
)
def test_nothing_but_the_line_is_changed(tmp_path, changed):
    path = tmp_path / "train.py"
    path.write_bytes(changed(GUARDED.replace("LOG_EVERY", "5").encode()))
    line = 1 + path.read_bytes().split(b"print")[0].count(b"\n")
    edits = edits_for([finding(path, line)], step_seconds=1.0)
    assert write_edits(edits) == [f"changed {path}:{line - 1}"]
    assert path.read_bytes() == changed(GUARDED.replace("LOG_EVERY", "100").encode())


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real.py").write_text(GUARDED)
    (tmp_path / "train.py").symlink_to("real.py")
    write_edits(edits_for([finding(tmp_path / "train.py", 4)], step_seconds=1.0))
    assert (tmp_path / "train.py").is_symlink() and "20 * LOG_EVERY" in (tmp_path / "real.py").read_text()


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
    assert "1)\n    correct = correct + (predicted.view_as(y) == y).sum()\n    seen" in path.read_text()
    assert edit.because == "Logging in each step: summed up as a tensor, without reading it"


@pytest.mark.parametrize(
    "told, changed",
    [
        ("total += loss.item()", "total = total + loss.detach()"),
        ("total += loss_of(x).item() * len(x)", "total = total + loss_of(x).detach() * len(x)"),
        ("total += loss.item()  # of the epoch", "total = total + loss.detach()  # of the epoch"),
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
        ("for x in loader:\n    total += loss.cpu().numpy().item()\n", 2),  # which has no detach
        ("for x in loader:\n    totals[read()] += loss.item()\n", 2),  # it would be read twice
    ],
)
def test_what_is_read_for_something_else_is_read_as_before(tmp_path, text, line):
    assert edits_of(tmp_path, text, line, kind="sync_points")[1] == ()


PADDED_ONE_BY_ONE = """\
import torch

def collate(samples):
    batch = torch.zeros(len(samples), max(map(len, samples)), dtype=torch.long)
    for row, tokens in enumerate(samples):
        for column, token in enumerate(tokens):
            batch[row, column] = token
    return batch
"""


@pytest.mark.parametrize("kind", ["slow_collate", "slow_transform", "script_bound"])
@pytest.mark.parametrize(
    "loop",
    [
        "for column, token in enumerate(tokens):\n            batch[row, column] = token",
        "for column in range(len(tokens)):\n            batch[row, column] = tokens[column]",
    ],
)
@pytest.mark.parametrize(
    "samples", [[[1, 2], [3]], [torch.tensor([1, 2]), torch.tensor([3])]], ids=["lists", "tensors"]
)
def test_what_is_copied_one_by_one_is_copied_at_once(tmp_path, kind, loop, samples):
    text = PADDED_ONE_BY_ONE.replace(PADDED_ONE_BY_ONE.split("\n        ", 1)[1].split("\n    return")[0], loop)
    path, (edit,) = edits_of(tmp_path, text, 7, kind=kind)
    write_edits([edit])
    assert (
        "        batch[row, : len(tokens)] = torch.as_tensor(tokens, dtype=batch.dtype)\n    return"
        in path.read_text()
    )
    before, after = run_of(text)["collate"], run_of(path.read_text())["collate"]
    assert torch.equal(before(samples), after(samples))


def run_of(text):
    """The names that a script leaves."""
    names = {}
    exec(compile(text, "train.py", "exec"), names)
    return names


@pytest.mark.parametrize(
    "before, after",
    [
        ("= token\n", "= token + 1\n"),
        ("batch[row, column]", "batch[column, row]"),  # a column of the batch: the same could be done, and is rare
        ("batch[row, column]", "batch[column, column]"),
        ("enumerate(tokens)", "enumerate(tokens, 1)"),
        ("enumerate(tokens)", "enumerate(read(row))"),
        ("= token\n", "= token\n            count += 1\n"),
        ("import torch\n", "import torch as t\n"),
        ("batch[row, column]", "batch[column]"),  # perhaps of whole rows
        ("batch = torch.zeros", "batch = numpy.zeros"),
        ("    return batch", "    print(column)\n    return batch"),
    ],
)
def test_another_loop_is_left_as_it_is(tmp_path, before, after):
    assert edits_of(tmp_path, PADDED_ONE_BY_ONE.replace(before, after), 7, kind="slow_collate")[1] == ()


COMPOSED = """\
transform = Compose([Resize(256), ColorJitter(0.4), GaussianBlur(9), RandomCrop(size=224), ToTensor()])
"""


def test_a_crop_goes_before_what_is_done_to_every_pixel(tmp_path):
    path, (edit,) = edits_of(tmp_path, COMPOSED, 1, kind="slow_transform")
    write_edits([edit])
    assert path.read_text() == COMPOSED.replace(
        "ColorJitter(0.4), GaussianBlur(9), RandomCrop(size=224)",
        "RandomCrop(size=224), ColorJitter(0.4), GaussianBlur(9)",
    )


def test_a_compose_in_another_is_one_too(tmp_path):
    text = "t = Compose([\n  ToTensor(),\n  Compose([\n    Normalize(a,\n     b), CenterCrop(8)]), RandomCrop(4)])\n"
    path, (edit,) = edits_of(tmp_path, text, 1, kind="slow_transform")
    write_edits([edit])
    assert path.read_text() == text.replace(
        "Normalize(a,\n     b), CenterCrop(8)", "CenterCrop(8), Normalize(a,\n     b)"
    )


def test_every_compose_is_looked_at_and_lines_stay_lines(tmp_path):
    one = "Compose([\n    v2.GaussianBlur(9),\n    v2.CenterCrop(224),\n])\n"
    path, (edit,) = edits_of(tmp_path, f"train = v2.{one}test = v2.{one}", 1, kind="slow_transform")
    write_edits([edit])
    cropped = "Compose([\n    v2.CenterCrop(224),\n    v2.GaussianBlur(9),\n])\n"
    assert path.read_text() == f"train = v2.{cropped}test = v2.{cropped}" and edit.line == 2


@pytest.mark.parametrize(
    "text",
    [
        "Compose([Resize(256), RandomCrop(224)])\n",  # another size of what is cropped
        "Compose([GaussianBlur(9), RandomCrop(32, padding=4)])\n",  # the padding would be blurred
        "Compose([RandomRotation(9), RandomCrop(224)])\n",  # its corners come from afar
        "Compose([Mine(), RandomCrop(224)])\n",
        "Compose([GaussianBlur(9), RandomResizedCrop(224)])\n",  # the blur would be another
        "Compose([\n    GaussianBlur(9),  # as in the paper\n    RandomCrop(224),\n])\n",
        "Compose([GaussianBlur(9)] + [RandomCrop(224)])\n",
        "Compose([ToTensor(), RandomCrop(28)])\n",  # which may be given arrays
        "Compose([ColorJitter(0.4, 0.4), RandomCrop(28)])\n",  # contrast is against the whole image's mean
    ],
)
def test_what_would_make_other_images_is_left_as_it_is(tmp_path, text):
    assert edits_of(tmp_path, text, 1, kind="slow_transform")[1] == ()


@pytest.mark.parametrize(
    "before, after",
    [
        ("net = Net().double()\n", "net = Net().float()\n"),
        ("x = net(x.double()).double()\n", "x = net(x.float()).float()\n"),
        ("torch.set_default_dtype(torch.double)\n", "torch.set_default_dtype(torch.float32)\n"),
        ("x = torch.from_numpy(rows).to(torch.float64)\n", "x = torch.from_numpy(rows).to(torch.float32)\n"),
    ],
)
def test_what_is_float64_by_name_becomes_float32(tmp_path, before, after):
    path, (edit,) = edits_of(tmp_path, before, 1, kind="double_precision")
    write_edits([edit])
    assert path.read_text() == after


@pytest.mark.parametrize(
    "text",
    [
        "net = Net()\n",
        "x = torch.from_numpy(rows)\nnet = Net().double()\n",
        "x = torch.tensor(rows)\nnet = Net().double()\n",
        "loader = DataLoader(rows)\nnet = Net().double()\n",
        "np.float64(3)\n",
        "if args.double:\n    x = np.zeros(3, np.double)\n",
    ],
)
def test_float64_that_would_remain_elsewhere_is_left(tmp_path, text):
    assert edits_of(tmp_path, text, 1, kind="double_precision")[1] == ()


LOOKED_UP = """\
import torch
text = "to be or not to be"
number = {letter: n for n, letter in enumerate(sorted(set(text)))}

def get_batch(starts):
    return torch.tensor([[number[c] for c in text[s : s + 4]] for s in starts])
"""


def test_what_never_changes_is_looked_up_once(tmp_path):
    path, (edit,) = edits_of(tmp_path, LOOKED_UP, 6, kind="script_bound")
    write_edits([edit])
    changed = path.read_text()
    assert "(text)))}\ntext_number = torch.tensor([number[x] for x in text])\n" in changed
    assert "    return torch.stack([text_number[s : s + 4] for s in starts])\n" in changed
    before, after = run_of(LOOKED_UP)["get_batch"]([0, 3, 9]), run_of(changed)["get_batch"]([0, 3, 9])
    assert torch.equal(before, after) and before.dtype == after.dtype


@pytest.mark.parametrize(
    "more",
    [
        "text = text[1:]\n",
        "number['x'] = 3\n",
        "number.update(x=3)\n",
        "def main(text):\n    pass\n",
        "for text in ():\n    pass\n",
        "text_number = 3\n",
        "random.shuffle(text)\n",
    ],
)
def test_what_may_change_is_looked_up_each_time(tmp_path, more):
    assert edits_of(tmp_path, LOOKED_UP + more, 6, kind="script_bound")[1] == ()


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
        ("for i in range(9):\n    if i % 4 != 0:\n        print(i)\n", 3),  # it would be more often
        ("for i in range(9):\n    if i % 4 == 0:\n        target.load_state_dict(online)\n        print(i)\n", 4),
        ("for i in range(9):\n    if i % 4 == 0:\n        lr *= 0.5\n        print(i)\n", 4),
        ("for i in range(9):\n    while left():\n        print(i)\n", 3),
        ('for i in range(9):\n    print("""a\n    b""")\n', 2),  # another text
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
    assert write_edits([edit]) == [f"left {path}:3 as it is: the diff does not fit; apply it by hand"]
    assert path.read_text() == "print(1)\n"


def test_a_diff_finds_its_place_where_lines_have_moved(tmp_path):
    _, (edit,) = edits_of(tmp_path, GUARDED, 4)
    assert apply_diff("import torch\n\n" + GUARDED, edit.diff) == "import torch\n\n" + GUARDED.replace(
        "LOG_EVERY", "(20 * LOG_EVERY)"
    )
