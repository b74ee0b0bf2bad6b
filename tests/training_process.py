"""The process of the tests as a training process, to apply optimizations to."""

from hasten.agent.handle import Handle
from hasten.agent.models import Models
from hasten.optimizations.catalog import CATALOG
from hasten.optimizations.optimization import spec_of
from hasten.patches import Patches


class Process:
    """What was applied, and whether it still is."""

    def __init__(self):
        self.patches = Patches()
        self.models = Models(self.patches)
        self.states = {}  # of each optimization: "on", or why it is not applied

    def handle(self, name="a fix"):
        """An enabled optimization that does nothing yet."""
        handle = Handle(name, self.models, on_refuse=lambda reason: self.states.update({name: reason}))
        handle.is_enabled = True
        self.states[name] = "on"
        self.patches.on_undo(handle.disable)
        return handle

    def put_on(self, name, value=True):
        """Apply an optimization of the catalog, by its name."""
        enable = CATALOG[name].enable
        assert enable is not None
        self.handle(name).enable(spec_of(name, enable, value).installer, value)
        return self.states
