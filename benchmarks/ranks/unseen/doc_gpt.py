"""Decoder-only LM on documents of mixed length; batches are bucketed to avoid padding."""

import math
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Sampler

VOCAB, D, HEADS, LAYERS, MAXLEN = 256, 96, 4, 2, 288
PAD = 0


class Docs(Dataset):
    def __init__(self, n=4800):
        rng = random.Random(5)
        self.docs = []
        for _ in range(n):
            length = min(MAXLEN, max(16, int(math.exp(rng.gauss(4.2, 0.9)))))
            a, b = rng.randrange(1, 90), rng.randrange(1, 9)
            self.docs.append(
                torch.tensor([1 + (a + b * k + rng.randrange(3)) % (VOCAB - 1) for k in range(length + 1)])
            )

    def __len__(self):
        return len(self.docs)

    def __getitem__(self, i):
        return self.docs[i]


class BucketBatchSampler(Sampler):
    """Each rank takes its own documents, sorts them by length, and shuffles the batches."""

    def __init__(self, docs, batch, rank, world):
        mine = list(range(rank, len(docs) // world * world, world))
        mine.sort(key=lambda i: len(docs[i]))
        self.batches = [mine[k : k + batch] for k in range(0, len(mine) - batch + 1, batch)]
        self.rank, self.epoch = rank, 0

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        order = list(self.batches)
        random.Random(self.epoch * 1000 + self.rank).shuffle(order)
        self.epoch += 1
        return iter(order)


def collate(docs):
    return nn.utils.rnn.pad_sequence(docs, batch_first=True, padding_value=PAD)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(D, 3 * D), nn.GELU(), nn.Linear(3 * D, D))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, D))
        return x + self.mlp(self.n2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, D), nn.Embedding(MAXLEN, D)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, VOCAB, bias=False)

    def forward(self, idx):
        h = self.tok(idx) + self.pos(torch.arange(idx.shape[1]))
        return self.head(self.norm(self.blocks(h)))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    docs = Docs()
    loader = DataLoader(docs, batch_sampler=BucketBatchSampler(docs, 12, rank, world), collate_fn=collate)
    model = DDP(GPT())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step, t = 0, time.time()
    while step < 100_000:
        for seqs in loader:
            logits = model(seqs[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), seqs[:, 1:].flatten(), ignore_index=PAD)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if rank == 0 and step % 50 == 0:
                print(f"step {step:6d} | loss {loss.item():.3f} | {(time.time() - t) * 20:.0f} ms/step", flush=True)
                t = time.time()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
