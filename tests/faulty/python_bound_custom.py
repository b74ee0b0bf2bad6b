"""Expected finding: python_bound_data.

A dataset of one's own takes each row out of tensors in memory one by one, into a dict; fixed, it is asked
for a whole batch of rows at once.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler


class Ratings(Dataset):
    def __init__(self, count=300_000, users=2000, items=3000):
        generator = torch.Generator().manual_seed(1)
        self.user = torch.randint(users, (count,), generator=generator)
        self.item = torch.randint(items, (count,), generator=generator)
        self.rating = torch.rand(count, generator=generator) * 5

    def __len__(self):
        return len(self.rating)

    def __getitem__(self, index):
        return {"user": self.user[index], "item": self.item[index], "rating": self.rating[index]}


class Factorisation(nn.Module):
    def __init__(self, users=2000, items=3000, width=32):
        super().__init__()
        self.user, self.item = nn.Embedding(users, width), nn.Embedding(items, width)
        self.mix = nn.Sequential(nn.Linear(2 * width, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, user, item):
        return self.mix(torch.cat([self.user(user), self.item(item)], dim=1)).squeeze(1)


class Trainer:
    def __init__(self, args):
        self.args = args
        torch.set_num_threads(1)
        data = Ratings()
        if args.fixed:
            self.loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), 1024, False), batch_size=None)
        else:
            self.loader = DataLoader(data, batch_size=1024, shuffle=True)
        self.model = Factorisation()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)

    def fit(self):
        step = 0
        while True:
            for batch in self.loader:
                prediction = self.model(batch["user"], batch["item"])
                loss = nn.functional.mse_loss(prediction, batch["rating"])
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                step += 1
                if step >= self.args.steps:
                    return


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--fixed", action="store_true")
    Trainer(parser.parse_args()).fit()
