"""Click prediction: user/item embeddings and a small MLP head."""

import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler

N_USERS, N_ITEMS, DIM = 50_000, 25_000, 48
N_EVENTS, BATCH = 120_000, 256


class Clicks(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(11)
        self.user = torch.randint(0, N_USERS, (N_EVENTS,), generator=g)
        self.item = torch.randint(0, N_ITEMS, (N_EVENTS,), generator=g)
        self.click = ((self.user * 31 + self.item * 17) % 7 < 3).float()

    def __len__(self):
        return N_EVENTS

    def __getitem__(self, idx):  # idx is a list: batches are gathered at once
        idx = torch.as_tensor(idx)
        return self.user[idx], self.item[idx], self.click[idx]


class ClickModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(N_USERS, DIM)
        self.items = nn.Embedding(N_ITEMS, DIM)
        self.head = nn.Sequential(nn.Linear(3 * DIM, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, u, i):
        u, i = self.users(u), self.items(i)
        return self.head(torch.cat([u, i, u * i], 1)).squeeze(1)


def train():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = Clicks()
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    loader = DataLoader(data, sampler=BatchSampler(sampler, BATCH, drop_last=True), batch_size=None)
    net = DDP(ClickModel(), gradient_as_bucket_view=True)
    opt = torch.optim.SGD(net.parameters(), lr=0.2)
    bce = nn.BCEWithLogitsLoss()

    n, start = 0, time.time()
    for epoch in range(5000):
        sampler.set_epoch(epoch)
        for u, i, c in loader:
            opt.zero_grad()
            loss = bce(net(u, i), c)
            loss.backward()
            opt.step()
            n += 1
            if n % 50 == 0 and rank == 0:
                print(f"{n} steps  bce={loss.item():.4f}  {(time.time() - start) / 50 * 1e3:.0f} ms", flush=True)
                start = time.time()
    dist.destroy_process_group()


if __name__ == "__main__":
    train()
