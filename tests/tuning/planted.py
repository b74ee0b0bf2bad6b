"""Fixes that break what is learnt, each in a way that a real one might. Called in the training process by name."""

from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import Dataset, Subset

from hasten.agent.loader_arguments import change_loaders


def dropped_gradients(handle, _value):
    """Every third step is made without gradients."""
    steps = [0]

    def before(optimizer, _arguments, _settings):
        steps[0] += 1
        if steps[0] % 3 == 0:
            optimizer.zero_grad()

    handle.patches.on_undo(register_optimizer_step_pre_hook(before).remove)


def coarse_sums(handle, _value):
    """Gradients are off by a few thousandths of themselves, on both sides alike."""

    def before(optimizer, _arguments, _settings):
        for parameter in optimizer.param_groups[0]["params"]:
            flat = parameter.grad.view(-1)
            flat[::2] *= 1.004
            flat[1::2] *= 0.996

    handle.patches.on_undo(register_optimizer_step_pre_hook(before).remove)


def other_gradients(handle, _value):
    """Half of all gradients are twice as large."""

    def before(optimizer, _arguments, _settings):
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad.view(-1)[::2] *= 2

    handle.patches.on_undo(register_optimizer_step_pre_hook(before).remove)


def remembered_samples(handle, _value):
    """A cache that takes random crops for what is the same in every epoch."""
    change_loaders(handle, lambda given: given.update(dataset=Remembering(given["dataset"])))


def higher_loss(handle, _value):
    """The loss is one percent higher, at every seed."""

    def higher(original):
        def cross_entropy(*arguments, **settings):
            loss = original(*arguments, **settings)
            return loss + 0.01 * loss.detach()

        return cross_entropy

    handle.patches.wrap(nn.functional, "cross_entropy", higher)


def frozen_head(handle, _value):
    """The smallest parameter, a head's bias, is never trained."""

    def before(optimizer, _arguments, _settings):
        min(optimizer.param_groups[0]["params"], key=lambda parameter: parameter.numel()).grad = None

    handle.patches.on_undo(register_optimizer_step_pre_hook(before).remove)


def other_validation(handle, _value):
    """Held-out samples come in another order."""

    def change(given):
        if not given.get("shuffle"):
            given["dataset"] = Subset(given["dataset"], range(len(given["dataset"]) - 1, -1, -1))

    change_loaders(handle, change)


def later_zeros(handle, _value):
    """From the fourth epoch on, samples are empty."""
    change_loaders(handle, lambda given: given.update(dataset=Fading(given["dataset"])))


def nothing(_handle, _value):
    """A fix that changes nothing that is learnt."""


class Fading(Dataset):
    def __init__(self, dataset):
        self.dataset, self.taken = dataset, 0

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        self.taken += 1
        image, label = self.dataset[index]
        return image * (self.taken <= 3 * len(self.dataset)), label


class Remembering(Dataset):
    def __init__(self, dataset):
        self.dataset, self.known = dataset, {}

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        if index not in self.known:
            self.known[index] = self.dataset[index]
        return self.known[index]
