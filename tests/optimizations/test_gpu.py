"""On a GPU: a model trains under each fix that concerns it, and everything is as it was afterwards."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hasten.devices import cuda

pytestmark = pytest.mark.gpu


def fit(steps=8):
    """Losses of a small training, and the dtypes that its convolution handed out."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 4)).to("cuda")
    dtypes = set()
    model[0].register_forward_hook(lambda *given: dtypes.add(given[2].dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(32, 3, 16, 16, generator=generator)
    loader = DataLoader(TensorDataset(images, torch.arange(32) % 4), batch_size=32)
    losses, pinned = [], set()
    for _ in range(steps):
        for batch, labels in loader:
            pinned.add(batch.is_pinned())
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch.to("cuda")), labels.to("cuda"))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, dtypes, pinned


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bf16", True),
        ("fp16", True),
        ("tf32", True),
        ("cudnn_benchmark", True),
        ("channels_last", True),
        ("fused_optimizer", True),
        ("pin_memory", True),
        ("set_to_none", True),
    ],
)
def test_it_learns_as_well_under(put_on, name, value):
    if name == "bf16" and not cuda.has_bf16():
        pytest.skip("this GPU has no bfloat16 units")
    plain, _, _ = fit()
    states = put_on(name, value)
    losses, dtypes, pinned = fit()
    assert states == {name: "on"}
    assert losses == pytest.approx(plain, rel=0.1, abs=0.03) and losses[-1] < losses[0]
    assert dtypes == {{"bf16": torch.bfloat16, "fp16": torch.float16}.get(name, torch.float32)}
    assert pinned == {name == "pin_memory"}


def test_tf32_is_off_again_when_the_fix_is(put_on, process):
    before = cuda.allows_tf32()
    put_on("tf32")
    fit(steps=1)
    assert cuda.allows_tf32()
    process.patches.undo()
    assert cuda.allows_tf32() == before


def test_copies_of_pinned_batches_do_not_wait(put_on):
    plain, _, _ = fit()
    put_on("pin_memory")
    states = put_on("non_blocking")
    losses, _, pinned = fit()
    assert states == {"pin_memory": "on", "non_blocking": "on"} and pinned == {True}
    assert losses == pytest.approx(plain, rel=1e-3)


def test_memory_stays_with_the_allocator_though_the_script_gives_it_back(put_on, process):
    def step():
        torch.zeros(1 << 24, device="cuda")
        torch.cuda.empty_cache()

    step()
    before = cuda.memory_requests()
    step()
    assert cuda.memory_requests() > before
    put_on("keep_device_memory")
    step()
    kept = cuda.memory_requests()
    for _ in range(3):
        step()
    assert cuda.memory_requests() == kept
    process.patches.undo()
    step()
    step()
    assert cuda.memory_requests() > kept
