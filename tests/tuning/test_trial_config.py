"""How launches are made: warm where something is kept, in trials and in the diagnosis after a kept fix alike."""

import pytest
from PIL import Image
from runs import loader, run, steps

from hasten.measurement.diagnose import situation_of
from hasten.measurement.measure import MeasureOptions, measure
from hasten.tuning import trial_config
from hasten.tuning.trial_config import (
    TRIAL_SECONDS,
    TrialConfig,
    base_spec,
    config_for,
    pair_seconds,
    spec_of,
    trial_seconds,
)

ENDLESS = """
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

class Photographs(Dataset):
    '''One file under many numbers: an epoch of them is never seen to its end.'''

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        image = Image.open("photograph.png").convert("RGB").resize((16, 16))
        return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).float(), index

def main():
    weight = torch.nn.Parameter(torch.zeros(768))
    optimizer = torch.optim.SGD([weight], lr=1e-9)
    while True:
        for images, _ in DataLoader(Photographs(), batch_size=4, shuffle=True):
            optimizer.zero_grad()
            (images @ weight).square().mean().backward()
            optimizer.step()

if __name__ == "__main__":
    main()
"""


def test_only_what_keeps_samples_is_measured_warm():
    first = situation_of(run(loaders=(loader(),)), {})
    cold, kept = {"bf16": True}, {"cache": "8 GiB"}
    assert base_spec(cold, config_for(first, cold)).repeated_batches is None
    warm = base_spec(kept, config_for(first, kept))
    assert 0 < warm.repeated_batches < warm.warm_steps
    side = spec_of(kept, config_for(first, kept))
    assert (side.repeated_batches, side.warm_steps) == (warm.repeated_batches, warm.warm_steps)


@pytest.mark.parametrize("together, seconds", [(True, 8.0 + 2 * 3.0), (False, 2 * (8.0 + 3.0))])
def test_launches_that_take_turns_start_together(monkeypatch, together, seconds):
    monkeypatch.setattr(trial_config, "POSSIBLE", together)
    assert pair_seconds(situation_of(run(first_step_seconds=8.0), {})) == seconds


def test_a_validation_is_waited_for_by_what_changes_it_and_by_the_whole_plan():
    def seconds(*, every, **more):
        seen = run(steps=steps(rare={"validation": (5, every)}), facts={"steps_per_validation": 100.0})
        return config_for(situation_of(seen, {}), {}, **more).seconds

    short = TrialConfig.seconds
    assert seconds(every=0.1) == seconds(every=0.1, added={"no_grad_validation": True}) > short
    assert seconds(every=0.1, added={"bf16": True}) == short
    assert seconds(every=1.0, added={"bf16": True}) > short


def test_a_trial_that_waits_for_what_comes_rarely_takes_longer():
    rare = run(
        steps=steps(rare={"validation": (5, 0.1)}), facts={"steps_per_validation": 100.0}, first_step_seconds=8.0
    )
    first = situation_of(rare, {})
    assert trial_seconds(first, {"no_grad_validation": True}) > trial_seconds(first, {"bf16": True}) == TRIAL_SECONDS
    assert trial_seconds(first, {"compile": "default"}) > TRIAL_SECONDS, "compiling takes its time"


def test_a_longer_queue_is_tried_for_longer_than_it_lasts_and_through_an_epochs_end():
    def seconds(settings, *, step=0.2, epoch=10_000.0):
        feeding = loader(num_workers=2, prefetch_factor=2)
        seen = run(loaders=(feeding,), steps=steps(seconds=step), facts={"steps_per_epoch": epoch})
        return config_for(situation_of(seen, {}), settings).seconds

    assert seconds({"prefetch_factor": 8}) == pytest.approx(2 * 8 * 2 * 0.2)
    assert seconds({"prefetch_factor": 8, "num_workers": 1}) == pytest.approx(2 * 8 * 0.2)
    assert seconds({"prefetch_factor": 64}, step=1.0) == 12.0
    assert seconds({"bf16": True}) == seconds({"prefetch_factor": 8}, step=0.02) == TrialConfig.seconds
    assert seconds({"prefetch_factor": 8}, step=0.02, epoch=200.0) > 200 * 0.02
    assert seconds({"bf16": True}, step=0.02, epoch=200.0) == TrialConfig.seconds


def test_a_set_that_memory_does_not_hold_is_not_held_in_a_trial_either():
    def budget(num_samples):
        feeding = loader(num_samples=num_samples, decoded_bytes_per_sample=1e6)
        config = config_for(situation_of(run(loaders=(feeding,)), {}), {"cache": "auto"})
        assert value({"cache": "8 GiB"}, config) == "8 GiB"
        return config.repeated_batches * 32, value({"cache": "auto"}, config)

    def value(settings, config):
        (fix,) = base_spec(settings, config).fixes
        return fix.value

    repeated, held = budget(10_000_000)
    whole = held / repeated * 10_000_000
    assert held < repeated * 1e6, "ten terabytes are not held"
    assert budget(20_000_000)[1] == pytest.approx(held / 2, rel=0.01)
    assert budget(repeated)[1] == pytest.approx(whole), "all of the memory where all of the set is repeated"


@pytest.mark.slow
def test_a_run_with_a_cache_is_diagnosed_once_its_samples_are_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.effect_noise((300, 300), 80).save("photograph.png")
    (tmp_path / "train.py").write_text(ENDLESS)
    settings = {"cache": "512 MiB"}  # all of the set fits, so every sample is welcome
    spec = base_spec(settings, TrialConfig(repeated_batches=8, warm_steps=9))
    found, _ = measure(
        ["train.py"], options=MeasureOptions(quick=True, seconds=1.0, spec=spec), root=tmp_path / ".hasten"
    )
    (photographs,) = found.facts.loaders
    assert photographs.num_cache_misses <= 4, "all samples are made from one file"
    assert sum(tier.num_hits for tier in photographs.cache) >= 4 * len(found.steps)


@pytest.mark.parametrize("step", [5.0, 15.0, 40.0])
def test_a_launch_of_slow_steps_has_time_for_those_it_must_make(step):
    found = config_for(situation_of(run(steps=steps(count=8, seconds=step)), {}), {})
    assert 4 * found.seconds >= 7 * step, "three to warm up and four that count"
