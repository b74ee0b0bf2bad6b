"""The Python API: what it offers, what it returns, and that its examples run."""

import doctest
import subprocess
import sys
from types import SimpleNamespace

import msgspec
import pytest
import torch
from command import environment, train, write
from pages import full_run, search
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hasten
import hasten.api
import hasten.data.loader
from hasten.notebook import Measured
from hasten.result import Diagnosed, Tuned

PUBLIC = {
    "Loader",
    "measure",
    "diagnose",
    "tune",
    "load_plan",
    "Measured",
    "LoaderStats",
    "Forecast",
    "errors",
    "records",
}


def test_completion_and_help_show_what_is_public():
    assert set(dir(hasten)) >= PUBLIC and dir(hasten) == hasten.__all__
    assert all(getattr(hasten, name) is not None for name in dir(hasten))
    assert all(getattr(hasten, name).__doc__ for name in PUBLIC)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = hasten.nothing


@pytest.mark.contract
@pytest.mark.slow
def test_the_import_of_hasten_imports_nothing_else():
    code = "import sys; before = {*sys.modules}; import hasten; print(sorted(m for m in {*sys.modules} - before if 'hasten' in m))"
    answer = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60
    )
    assert answer.stdout == "['hasten']\n"


@pytest.mark.parametrize("module", [hasten.api, hasten.data.loader])
def test_the_examples_of_the_docstrings_run(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = doctest.testmod(module, extraglobs={"hasten": hasten})
    assert outcome.failed == 0 and outcome.attempted > 0


def test_a_result_is_saved_where_report_and_compare_find_it(ask, tmp_path):
    result = Diagnosed(full_run(), tmp_path)
    assert result.save() == hasten.launch.results.RESULTS / "runs" / result.record.id / "run.json"
    assert ask("report").returncode == 0
    assert msgspec.json.decode(result.save(tmp_path / "a" / "b.json").read_bytes())["id"] == result.record.id
    assert result.to_html(tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    (tmp_path / "file").write_text("")
    with pytest.raises(hasten.errors.DirectoryError, match="use another path"):
        result.save(tmp_path / "file" / "run.json")


def test_a_tuned_result_says_what_was_gained(tmp_path):
    tuning = search(full_run())
    result = Tuned(tuning, full_run(), tmp_path, tmp_path / "hasten.toml")
    assert result.settings == {"cache": "auto", "num_workers": 2}
    assert result.speedup.value == 1.8 and result.is_proven
    assert (
        repr(result).startswith("1.80x faster")
        and "What was tried" in result.to_html(tmp_path / "a.html").read_text()
    )
    empty = Tuned(msgspec.structs.replace(tuning, settings={}), full_run(), tmp_path, tmp_path / "hasten.toml")
    assert empty.speedup is None and not empty.is_proven


def test_what_is_wrong_is_raised_as_a_public_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(hasten.errors.CommandError, match=r"no such script: nothing.py"):
        hasten.diagnose("nothing.py")
    with pytest.raises(hasten.errors.PlanError, match="one group around the number"):
        hasten.tune("nothing.py", metric="F1: [0-9]+")
    with pytest.raises(hasten.errors.PlanError, match="there is no plan"):
        hasten.load_plan("nothing.toml")


@pytest.mark.slow
@pytest.mark.parametrize("as_words", [False, True])
def test_a_script_is_diagnosed_from_python(tmp_path, monkeypatch, as_words):
    monkeypatch.chdir(tmp_path)
    script = write(tmp_path / "train.py", train())
    stages = []
    command = [script] if as_words else f"'{script}'"
    result = hasten.diagnose(command, seconds=2, quick=True, on_progress=lambda stage, *_: stages.append(stage))
    assert result.record.steps and result.diagnosis.verdict in repr(result).replace("\n", " ")
    assert (result.path / "run.json").is_file() and stages


# ------------------------------------------------------------------------------------------------------ Loader


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.tensor([float(index)])


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 4, "shuffle": True},
        {"batch_size": 4, "drop_last": True},
        {"batch_size": None},
        {"batch_sampler": [[0, 1], [5]]},
        {"batch_size": 3, "num_workers": 1, "prefetch_factor": 3, "collate_fn": torch.stack},
    ],
    ids=["shuffled", "without the last", "without batches", "a batch sampler", "a worker"],
)
@pytest.mark.slow
def test_a_loader_made_from_a_dataloader_gives_the_same_batches(arguments):
    of, again = (DataLoader(Numbers(), **arguments, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    ours = hasten.Loader.from_dataloader(again, cache="1 MiB")
    assert [batch.tolist() for batch in ours] == [batch.tolist() for batch in of]
    assert (ours.batch_size, ours.num_workers, ours.drop_last) == (of.batch_size, of.num_workers, of.drop_last)
    assert ours.cache == "1 MiB"


def test_what_is_given_replaces_what_contradicts_it():
    of = DataLoader(Numbers(), batch_size=4, num_workers=2, prefetch_factor=3, persistent_workers=True)
    alone = hasten.Loader.from_dataloader(of, num_workers=0, shuffle=True, batch_size=5)
    assert sorted(row for batch in alone for [row] in batch.tolist()) == [*map(float, range(10))]
    assert (alone.num_workers, alone.batch_size) == (0, 5)
    batches = hasten.Loader.from_dataloader(of, num_workers=0, batch_sampler=[[1, 2]])
    assert [batch.tolist() for batch in batches] == [[[1.0], [2.0]]]
    again = hasten.Loader.from_dataloader(hasten.Loader(Numbers(), 4, cache="1 MiB", pixels="close"))
    assert (again.cache, again.pixels) == ("1 MiB", "close")


def test_another_dataset_gets_an_order_of_its_own():
    shuffled = hasten.Loader.from_dataloader(DataLoader(range(8), 4, shuffle=True), dataset=range(16))
    assert sorted(number for batch in shuffled for number in batch.tolist()) == [*range(16)]
    ordered = hasten.Loader.from_dataloader(DataLoader(range(8), 4), dataset=range(3))
    assert [batch.tolist() for batch in ordered] == [[0, 1, 2]]
    with pytest.raises(ValueError, match="list is made for the old dataset: give sampler= or shuffle="):
        hasten.Loader.from_dataloader(DataLoader(range(8), 4, sampler=[7, 7]), dataset=range(3))


def test_batches_and_single_samples_are_collated_as_such():
    single, batched = DataLoader(range(4), batch_size=None), DataLoader(range(4), batch_size=2)
    assert [batch.tolist() for batch in hasten.Loader.from_dataloader(single, batch_size=2)] == [[0, 1], [2, 3]]
    assert [*hasten.Loader.from_dataloader(batched, batch_size=None)] == [0, 1, 2, 3]


def test_a_collate_function_that_was_chosen_stays():
    of = DataLoader(range(4), batch_size=2, collate_fn=torch.utils.data.default_convert)
    assert [*hasten.Loader.from_dataloader(of)] == [*of] == [[0, 1], [2, 3]]


def test_workers_that_are_adjusted_stay_so():
    again = hasten.Loader.from_dataloader(hasten.Loader(Numbers(), num_workers="auto"))
    assert again.adjusts_workers


class Twice(DataLoader):
    def __iter__(self):
        yield from (batch for batch in super().__iter__() for _ in range(2))


@pytest.mark.parametrize(("given", "said"), [([1, 2], "not list"), (Twice(range(3)), "an __iter__ of its own")])
def test_what_is_no_plain_dataloader_is_refused(given, said):
    with pytest.raises(TypeError, match=said):
        hasten.Loader.from_dataloader(given)


@pytest.mark.parametrize("call", [hasten.diagnose, hasten.tune])
def test_a_time_of_nothing_is_refused(call):
    with pytest.raises(hasten.errors.CommandError, match="seconds=-1 is not valid"):
        call("train.py", seconds=-1)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(5))


def test_a_loader_of_a_stream_is_made_too():
    ours = hasten.Loader.from_dataloader(DataLoader(Stream(), batch_size=2))
    assert [batch.tolist() for batch in ours] == [[0, 1], [2, 3], [4]]


# --------------------------------------------------------------------------------------------------- callbacks


class Busy(TensorDataset):
    """Long enough to be measured, in steps of a few milliseconds."""

    def __init__(self):
        super().__init__(torch.randn(64_000, 32), torch.randint(0, 4, (64_000,)))


def network():
    return nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 4))


@pytest.mark.slow
@pytest.mark.xdist_group("timing")
def test_a_callback_measures_lightnings_fit(tmp_path, capsys):
    lightning = pytest.importorskip("lightning")
    from hasten.integrations.lightning import MeasureCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network()

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    callback = MeasureCallback(html=tmp_path / "step.html")
    trainer = lightning.Trainer(
        max_time={"seconds": 6},
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        accelerator="cpu",
        callbacks=[callback],
    )
    trainer.fit(Module(), DataLoader(Busy(), batch_size=64))
    assert isinstance(callback.result, Measured) and len(callback.result.record.steps) > 5
    assert (tmp_path / "step.html").exists() and "wrote" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.xdist_group("timing")
def test_a_callback_measures_the_hugging_face_trainer(tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    from hasten.integrations.transformers import MeasureCallback

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network()

        def forward(self, rows, labels):
            return {"loss": nn.functional.cross_entropy(self.network(rows), labels)}

    arguments = transformers.TrainingArguments(
        output_dir=tmp_path,
        per_device_train_batch_size=64,
        max_steps=1500,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    callback = MeasureCallback()
    data = [{"rows": rows, "labels": label} for rows, label in zip(*Busy().tensors)]
    trainer = transformers.Trainer(model=Model(), args=arguments, train_dataset=data, callbacks=[callback])
    trainer.train()
    assert len(callback.result.record.steps) > 5
    assert callback.result.diagnosis.verdict[:40] in capsys.readouterr().out


@pytest.mark.slow
def test_a_fault_of_the_measurement_does_not_stop_a_training(capsys, monkeypatch):
    from hasten.integrations.measuring import MeasuredTraining

    training = MeasuredTraining()
    monkeypatch.setattr("hasten.integrations.measuring.measure", lambda: 1 / 0)
    training.start()
    training.end()
    assert "hasten: the training is not measured (division by zero)" in capsys.readouterr().err


@pytest.mark.slow
def test_hooks_of_a_training_that_failed_are_gone_with_its_callback():
    from hasten.integrations.measuring import MeasuredTraining

    training = MeasuredTraining()
    training.start()
    assert torch.Tensor.backward.__module__ != "torch._tensor" or hasattr(torch.Tensor.backward, "__wrapped__")
    del training
    assert not hasattr(torch.Tensor.backward, "__wrapped__")


@pytest.mark.slow
def test_a_training_that_is_too_short_to_measure_is_not_stopped_by_its_callback(capsys):
    pytest.importorskip("lightning")
    from hasten.integrations.lightning import MeasureCallback

    callback = MeasureCallback()
    callback.on_train_start()
    callback.on_train_end(SimpleNamespace(is_global_zero=True))
    assert callback.result is None and "hasten: no optimizer step was seen" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------ IPython


@pytest.mark.slow
@pytest.mark.xdist_group("timing")
def test_a_cell_magic_measures_its_cell():
    pytest.importorskip("IPython")
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "hasten")
    shell.run_cell(
        "import time, torch\nfrom torch import nn\nmodel = nn.Linear(8, 2)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
    )
    loop = (
        "until = time.monotonic() + 5\nwhile time.monotonic() < until:\n    optimizer.zero_grad()\n"
        "    model(torch.randn(4, 8)).sum().backward()\n    optimizer.step()"
    )
    result = shell.run_cell_magic("hasten", "", loop)
    assert len(result.record.steps) > 5 and "until" in shell.user_ns, "the cell's names stay"
    assert shell.run_cell_magic("hasten", "", "1 / 0") is None
    interrupted = shell.run_cell_magic("hasten", "", f"{loop}\nraise KeyboardInterrupt")
    assert len(interrupted.record.steps) > 5, "what was done until then is shown"
