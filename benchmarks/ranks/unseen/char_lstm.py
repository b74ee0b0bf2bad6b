"""Character LSTM on a synthetic Markov corpus."""

import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

VOCAB, SEQ, BATCH = 64, 96, 40


def make_corpus(n_chars=1_200_000):
    g = torch.Generator().manual_seed(7)
    nxt = torch.randint(0, VOCAB, (VOCAB, 4), generator=g).tolist()
    picks = torch.randint(0, 4, (n_chars,), generator=g).tolist()
    out, c = [], 0
    for p in picks:
        c = nxt[c][p]
        out.append(c)
    return torch.tensor(out)


class Windows(Dataset):
    def __init__(self, corpus):
        self.corpus = corpus

    def __len__(self):
        return (len(self.corpus) - 1) // SEQ

    def __getitem__(self, i):
        chunk = self.corpus[i * SEQ : i * SEQ + SEQ + 1]
        return chunk[:-1], chunk[1:]


class CharLSTM(nn.Module):
    def __init__(self, emb=48, hidden=128):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, emb)
        self.rnn = nn.LSTM(emb, hidden, batch_first=True)
        self.out = nn.Linear(hidden, VOCAB)

    def forward(self, x):
        h, _ = self.rnn(self.emb(x))
        return self.out(h)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)

    ds = Windows(make_corpus())
    sampler = DistributedSampler(ds, num_replicas=world, rank=rank, shuffle=True, drop_last=True)
    loader = DataLoader(ds, batch_size=BATCH, sampler=sampler, drop_last=True)
    model = DDP(CharLSTM())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)

    step, t0 = 0, time.time()
    for epoch in range(10_000):
        sampler.set_epoch(epoch)
        for x, y in loader:
            opt.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            step += 1
            if rank == 0 and step % 50 == 0:
                print(f"step {step} loss {loss.item():.3f} {(time.time() - t0) / 50 * 1e3:.0f} ms/step", flush=True)
                t0 = time.time()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
