"""Expected finding: logging_each_step.

Norms and histograms of all weights go into a JSON-lines log, and the predictions are printed, after every step;
fixed, after every hundredth.
"""

import json
import os
import sys
import tempfile

import torch
from torch import nn

MENDED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000
LOG_EVERY = 100 if MENDED else 1


class JsonLogger:
    def __init__(self, path):
        self.file = open(path, "w")

    def log(self, step, loss, model):
        record = {"step": step, "loss": loss.item()}
        for name, weight in model.named_parameters():
            record[name] = {
                "norm": weight.norm().item(),
                "grad": weight.grad.norm().item(),
                "histogram": torch.histc(weight.detach(), bins=64).tolist(),
            }
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    logger = JsonLogger(os.path.join(tempfile.gettempdir(), "hasten-faulty-logging_each_step.jsonl"))
    model = nn.Sequential(nn.Linear(30, 128), nn.ELU(), nn.Linear(128, 128), nn.ELU(), nn.Linear(128, 4))
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    x, y = torch.randn(20_000, 30), torch.randn(20_000, 4)
    for step in range(STEPS):
        start = step * 512 % 19_456
        prediction = model(x[start : start + 512])
        loss = nn.functional.smooth_l1_loss(prediction, y[start : start + 512])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % LOG_EVERY == 0:
            logger.log(step, loss, model)
            print(f"step {step}: loss {loss} predictions {prediction[:32]}")


if __name__ == "__main__":
    main()
