"""What only the user's source can change: the line that a finding names, and a short example of what to write instead."""

from __future__ import annotations

from collections.abc import Sequence

from hasten.records import Finding, Suggestion

EXAMPLES = {
    "logging_each_step": "if step % 50 == 0:\n    print(step, loss.item())",
    "sync_points": "total += loss.detach()  # stays a tensor\nif step % 50 == 0: print(total.item())",
    "validation_often": "if step % len(train_loader) == 0:  # once an epoch\n    validate(model)",
    "checkpoint_often": "if step % len(train_loader) == 0:  # once an epoch\n    torch.save(model.state_dict(), path)",
    "slow_collate": "def collate(samples):  # arrays from __getitem__, one stack\n    return torch.from_numpy(np.stack(samples))",
    "slow_sampler": "order = torch.randperm(len(data)).tolist()  # once an epoch\nfor i in range(0, len(order), size): yield order[i : i + size]",
    "slow_transport": "window = recording[start:end:16]  # only what training reads, in the smallest dtype\nreturn torch.from_numpy(window.astype(np.float32))",
    "waiting_samples": "rows = client.get_many(keys)  # one request a batch: __getitems__ gets all its indices\nreturn [decode(row) for row in rows]",
    "slow_transform": "image = crop(image)  # first, so that nothing is done to pixels that are thrown away\nimage = blur(image)",
    "double_precision": "model = Net().float()\nx = torch.from_numpy(rows).float()",
    "script_bound": "loader = DataLoader(Samples(), num_workers=4)  # in workers, ahead of the step\nfor x, y in loader: ...",
}
"""By the kind of finding."""


def suggestions_for(findings: Sequence[Finding]) -> tuple[Suggestion, ...]:
    """One suggestion for each finding that names a line and that no fix from outside can answer."""
    return tuple(
        Suggestion(
            kind=finding.kind,
            file=finding.where.file,
            line=finding.where.line,
            source=finding.where.source,
            title=finding.title,
            example=EXAMPLES[finding.kind],
            recoverable=finding.recoverable,
        )
        for finding in findings
        if finding.where is not None and finding.kind in EXAMPLES
    )
