"""Expected finding: slow_transport.

A batch leaves the worker as a list of 64 molecules with five small tensors each;
the trainer receives every one of the 320 tensors separately and only then merges them.
"""
import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Molecules(Dataset):
    """Molecules stored back to back in flat arrays with offsets."""

    def __init__(self, count=5000, seed=3):
        rng = np.random.default_rng(seed)
        atoms = rng.integers(9, 24, count)
        bonds = atoms * 2
        self.atom_at = np.concatenate([[0], np.cumsum(atoms)])
        self.bond_at = np.concatenate([[0], np.cumsum(bonds)])
        self.kind = rng.standard_normal((self.atom_at[-1], 16)).astype(np.float32)
        self.position = rng.standard_normal((self.atom_at[-1], 3)).astype(np.float32)
        owner = np.repeat(atoms, bonds)
        self.bond = (rng.random((2, len(owner))) * owner).astype(np.int64)
        self.bond_kind = rng.standard_normal((len(owner), 4)).astype(np.float32)
        self.energy = rng.standard_normal(count).astype(np.float32)

    def __len__(self):
        return len(self.energy)

    def __getitem__(self, i):
        a = slice(self.atom_at[i], self.atom_at[i + 1])
        b = slice(self.bond_at[i], self.bond_at[i + 1])
        return {
            "kind": torch.tensor(self.kind[a]),
            "position": torch.tensor(self.position[a]),
            "bond": torch.tensor(self.bond[:, b]),
            "bond_kind": torch.tensor(self.bond_kind[b]),
            "energy": torch.tensor(self.energy[i : i + 1]),
        }


def merge(molecules):
    sizes = torch.tensor([len(m["kind"]) for m in molecules])
    shift = torch.cumsum(sizes, 0) - sizes
    return {
        "kind": torch.cat([m["kind"] for m in molecules]),
        "position": torch.cat([m["position"] for m in molecules]),
        "bond": torch.cat([m["bond"] + s for m, s in zip(molecules, shift)], dim=1),
        "bond_kind": torch.cat([m["bond_kind"] for m in molecules]),
        "energy": torch.cat([m["energy"] for m in molecules]),
        "owner": torch.repeat_interleave(torch.arange(len(molecules)), sizes),
    }


class MessagePassing(nn.Module):
    def __init__(self, width=64, rounds=3):
        super().__init__()
        self.embed = nn.Linear(19, width)
        self.message = nn.ModuleList(nn.Linear(width + 4, width) for _ in range(rounds))
        self.update = nn.ModuleList(nn.GRUCell(width, width) for _ in range(rounds))
        self.head = nn.Linear(width, 1)

    def forward(self, g):
        h = torch.relu(self.embed(torch.cat([g["kind"], g["position"]], 1)))
        source, target = g["bond"]
        for message, update in zip(self.message, self.update):
            m = torch.relu(message(torch.cat([h[source], g["bond_kind"]], 1)))
            h = update(torch.zeros_like(h).index_add(0, target, m), h)
        count = len(g["energy"])
        pooled = torch.zeros(count, h.shape[1]).index_add(0, g["owner"], h)
        return self.head(pooled).squeeze(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100000)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)

    loader = DataLoader(
        Molecules(), batch_size=64, shuffle=True, num_workers=2, drop_last=True,
        persistent_workers=True, collate_fn=merge if args.fixed else list,
    )
    net = MessagePassing()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    done, began = 0, time.perf_counter()
    while done < args.steps:
        for batch in loader:
            graph = batch if args.fixed else merge(batch)
            loss = (net(graph) - graph["energy"]).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            done += 1
            if done % 100 == 0:
                print("step", done, "mse", round(loss.item(), 4))
            if done == args.steps:
                break
    print(f"trained {done} steps, {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
