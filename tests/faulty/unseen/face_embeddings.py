"""Expected finding: slow_sampler.

The batch sampler looks for the pictures of each chosen person by walking over the labels of
the whole data set, eight times for every batch, in the training process.
"""
import argparse
import random
import time
from collections import defaultdict

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

PEOPLE, PICTURES = 2000, 80000


class Faces(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.owner = torch.randint(0, PEOPLE, (PICTURES,), generator=generator).tolist()
        self.pixels = torch.randint(0, 256, (PICTURES, 3, 24, 24), dtype=torch.uint8, generator=generator)

    def __len__(self):
        return PICTURES

    def __getitem__(self, i):
        return self.pixels[i], self.owner[i]


class PeopleBatches(Sampler):
    """Batches of `people` persons with `each` pictures per person."""

    def __init__(self, owner, people=8, each=6):
        self.owner = owner
        self.people, self.each = people, each

    def __len__(self):
        return len(self.owner) // (self.people * self.each)

    def pictures_of(self, person):
        return [i for i, owner in enumerate(self.owner) if owner == person]

    def __iter__(self):
        for _ in range(len(self)):
            batch = []
            for person in random.sample(range(PEOPLE), self.people):
                batch += random.choices(self.pictures_of(person), k=self.each)
            yield batch


class IndexedPeopleBatches(PeopleBatches):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.index = defaultdict(list)
        for i, owner in enumerate(self.owner):
            self.index[owner].append(i)

    def pictures_of(self, person):
        return self.index[person]


def triplet_loss(embedding, owner, margin=0.2):
    distance = torch.cdist(embedding, embedding)
    same = owner[:, None] == owner[None, :]
    hardest_same = (distance * same).amax(1)
    nearest_other = (distance + 10.0 * same).amin(1)
    return (hardest_same - nearest_other + margin).relu().mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100000)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    random.seed(0)

    faces = Faces()
    sampler = (IndexedPeopleBatches if args.fixed else PeopleBatches)(faces.owner)
    loader = DataLoader(faces, batch_sampler=sampler, num_workers=1, persistent_workers=True)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(64 * 25, 64),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, fused=True)

    step, began = 0, time.perf_counter()
    while step < args.steps:
        for picture, owner in loader:
            embedding = nn.functional.normalize(model(picture.float() / 255), dim=1)
            loss = triplet_loss(embedding, owner)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
    print(f"triplet loss {loss.item():.4f}; {step} steps, {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
