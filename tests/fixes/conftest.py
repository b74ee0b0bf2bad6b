import pytest

from hasten.agent.patches import Patches
from hasten.fixes.inside.site import Site
from hasten.protocol import FixSpec


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setattr("hasten.agent.patches._warned", set())
    patches = Patches()
    yield Site(patches)
    patches.undo()


@pytest.fixture
def put_on(site):
    """Put a fix of the catalog on, by its name."""
    from hasten.fixes.catalog import CATALOG

    def put(name, value=True):
        site.install(FixSpec(name=name, installer=CATALOG[name].installer, value=value))
        return site.states

    return put
