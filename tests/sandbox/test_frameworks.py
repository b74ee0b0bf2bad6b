"""Frameworks that remove old checkpoints by themselves remove none of the user's while they are measured."""

import json
import sys
from pathlib import Path

import pytest
from command import run, write

from hasten.sandbox.workspace import FORCE

sys.path.append(str(Path(__file__).parent))

from trees import tree_of

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")]

ACCELERATE = """
import os, torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration

settings = ProjectConfiguration(project_dir="run", automatic_checkpoint_naming=True, total_limit=1, iteration=3)
accelerator = Accelerator(project_config=settings, cpu=True)
model = torch.nn.Linear(8, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(10**6):
    optimizer.zero_grad()
    accelerator.backward(model(torch.randn(4, 8)).square().mean())
    optimizer.step()
    if step % 200 == 0:
        accelerator.save_state()
        print("SEES", *sorted(os.listdir("run/checkpoints")), flush=True)
"""
LIGHTNING = """
import os, torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def training_step(self, batch, _):
        loss = self.layer(batch).square().mean()
        self.log("loss", loss)
        if self.global_step % 100 == 99:
            print("SEES", os.path.getsize("run/best.ckpt"), flush=True)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

keeps = ModelCheckpoint("run", filename="best", monitor="loss", save_top_k=1, every_n_train_steps=50,
                        enable_version_counter=False)
trainer = Trainer(max_epochs=10**6, accelerator="cpu", callbacks=[keeps], default_root_dir=".", logger=False,
                  enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Model(), DataLoader(torch.randn(400, 8), 4))
"""
HUGGING_FACE = """
import os, torch
from transformers import Trainer, TrainerCallback, TrainingArguments

class Sees(TrainerCallback):
    def on_save(self, *_, **__):
        print("SEES", *sorted(os.listdir("run")), flush=True)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def forward(self, x, labels=None):
        out = self.layer(x)
        return {"loss": (out.squeeze(-1) - labels).square().mean(), "logits": out}

rows = [{"x": torch.randn(8), "labels": torch.randn(())} for _ in range(400)]
settings = TrainingArguments("run", max_steps=10**6, save_steps=50, save_total_limit=1, report_to=[], use_cpu=True,
                             disable_tqdm=True, per_device_train_batch_size=4)
Trainer(Model(), settings, train_dataset=rows, callbacks=[Sees()]).train()
"""
SEEN = {
    "accelerate": lambda names: len(names) == 1 and names[0] not in ("checkpoint_1", "checkpoint_2"),
    "lightning": lambda sizes: int(sizes[0]) > 500,
    "transformers": lambda names: not {"checkpoint-9", "checkpoint-50"} <= {*names},
}
FRAMEWORKS = {"accelerate": ACCELERATE, "lightning": LIGHTNING, "transformers": HUGGING_FACE}


@pytest.mark.parametrize("form", ["overlay", "landlock"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_old_checkpoints_stay(tmp_path, monkeypatch, name, form):
    pytest.importorskip(name)
    write(tmp_path / "train.py", FRAMEWORKS[name])
    for path in (
        "run/checkpoints/checkpoint_1",
        "run/checkpoints/checkpoint_2",
        "run/checkpoint-50",
        "run/checkpoint-9",
    ):
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "model.pt").write_text("an old model")
    (tmp_path / "run/best.ckpt").write_text("an old best")
    before = tree_of(tmp_path)
    monkeypatch.setenv(FORCE, form)
    answer = run("diagnose", "--quick", "--seconds", "2", "--wait", "90", "train.py", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    record = json.loads(next(tmp_path.glob(".hasten/runs/*/run.json")).read_text())
    assert record["sandbox"] == form
    seen = [line.split()[1:] for line in answer.stdout.splitlines() if line.startswith("SEES")]
    assert SEEN[name](seen[-1]), f"the script sees what it has saved and removed: {seen[-1]}"
    after = {path: what for path, what in tree_of(tmp_path).items() if not path.startswith(".")}
    assert after == {path: what for path, what in before.items() if path != "."}
