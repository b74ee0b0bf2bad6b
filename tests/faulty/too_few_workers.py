"""Expected finding: too_few_workers.

Images are decoded and augmented in the training process (num_workers=0) while the second core idles; fixed,
two workers do it in the meantime.
"""

import io
import sys

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import nn
from torch.utils.data import DataLoader, Dataset

MENDED = "--fixed" in sys.argv
STEPS = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 100_000
WORKERS = 2 if MENDED else 0


def synthetic_jpegs(count):
    rng = np.random.default_rng(0)
    for _ in range(count):
        image = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize((256, 192), Image.BICUBIC)
        buffer = io.BytesIO()
        image.save(buffer, format="JPEG", quality=85)
        yield buffer.getvalue()


class Birds(Dataset):
    def __init__(self):
        self.files = list(synthetic_jpegs(200))

    def __len__(self):
        return len(self.files) * 100

    def __getitem__(self, index):
        index %= len(self.files)
        image = Image.open(io.BytesIO(self.files[index])).convert("RGB")
        image = ImageOps.autocontrast(image.resize((96, 96), Image.BILINEAR), cutoff=1)
        if torch.rand(()) < 0.5:
            image = ImageOps.mirror(image)
        pixels = np.asarray(image, dtype=np.float32) / 255
        pixels = (pixels - pixels.mean()) / pixels.std()
        return torch.from_numpy(pixels).permute(2, 0, 1), index % 20


class RowReader(nn.Module):
    """Reads the image row by row with a recurrent network."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3 * 96, 64, batch_first=True)
        self.out = nn.Linear(64, 20)

    def forward(self, images):
        rows = images.permute(0, 2, 1, 3).flatten(2)
        return self.out(self.rnn(rows)[0][:, -1])


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(Birds(), batch_size=32, shuffle=True, num_workers=WORKERS, drop_last=True)
    model = RowReader()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    for _ in range(10_000):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                return


if __name__ == "__main__":
    main()
