"""Frameworks that recreate a loader from its attributes."""

import pytest
import torch
from samples import Nested, same
from torch.utils.data import DataLoader

from hasten.data.loader import Loader

pytestmark = pytest.mark.slow  # the frameworks take seconds to import


def test_lightning_recreates_the_loader_with_the_same_arguments():
    data = pytest.importorskip("lightning.fabric.utilities.data")
    loader = Loader(Nested(), 4, num_workers=2, pixels="close", on_error="replace", workers="processes")
    sampler = torch.utils.data.SequentialSampler(range(20))
    _, keywords = data._get_dataloader_init_args_and_kwargs(loader, sampler)
    again = type(loader)(**keywords)
    assert (again.pixels, again.on_error, again.workers, again.num_workers) == ("close", "replace", "processes", 2)
    assert same(list(again), list(DataLoader(Nested(20), 4)))


def test_lightning_trains_from_it():
    lightning = pytest.importorskip("lightning")

    class Line(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(6, 1), 0

        def training_step(self, batch, number):
            self.seen += len(batch[0])
            return self.layer(batch[0].flatten(1)).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-6)

    model = Line()
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, Loader(Nested(), 4, shuffle=True, num_workers=1))
    assert model.seen == 82


def test_accelerate_gives_the_same_batches():
    accelerate = pytest.importorskip("accelerate")
    prepared = accelerate.Accelerator(cpu=True).prepare_data_loader(Loader(Nested(), 4, num_workers=1))
    assert same(list(prepared), list(DataLoader(Nested(), 4)))


def test_the_hugging_face_trainer_trains_from_it(tmp_path):
    transformers = pytest.importorskip("transformers")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def forward(self, x, labels):
            return {"loss": ((self.layer(x).squeeze(1) - labels) ** 2).mean()}

    class Leaf(torch.utils.data.Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, index):
            return {"x": torch.ones(3) * index, "labels": float(index)}

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self):
            return self.accelerator.prepare(Loader(self.train_dataset, 4, shuffle=True, num_workers=1))

    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=4, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True
    )
    assert Trainer(Model(), arguments, train_dataset=Leaf()).train().global_step == 4
