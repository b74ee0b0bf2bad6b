"""Fixes that break what is learnt, each in a way that a real one might. Called in the training process by name."""

from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import Dataset

from hasten.fixes.inside.loaders import change_loaders


def dropped_gradients(site, _fix, _value):
    """Every third step is made without gradients."""
    steps = [0]

    def before(optimizer, _arguments, _settings):
        steps[0] += 1
        if steps[0] % 3 == 0:
            optimizer.zero_grad()

    site.patches.on_undo(register_optimizer_step_pre_hook(before).remove)


def remembered_samples(site, _fix, _value):
    """A cache that takes random crops for what is the same in every epoch."""
    change_loaders(site, lambda given: given.update(dataset=Remembering(given["dataset"])))


def nothing(_site, _fix, _value):
    """A fix that changes nothing that is learnt."""


class Remembering(Dataset):
    def __init__(self, dataset):
        self.dataset, self.known = dataset, {}

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        if index not in self.known:
            self.known[index] = self.dataset[index]
        return self.known[index]
