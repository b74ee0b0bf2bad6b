"""What an interpreter has installed, asked once."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass

from loader_sides.catalog import WORKLOADS

PROBE = """
import importlib, importlib.metadata, importlib.util, json, platform, sys
def there(need):
    name, _, attribute = need.partition(":")
    try:
        found = importlib.util.find_spec(name) is not None
        return found and (not attribute or hasattr(importlib.import_module(name), attribute))
    except ImportError:
        return False
names = {n for need in sys.argv[1:] if there(need) for n in importlib.metadata.packages_distributions().get(need.partition(":")[0].split(".")[0], [])}
versions = {n: importlib.metadata.version(n) for n in sorted(names | {"torch", "torchvision", "numpy", "pillow", "simplejpeg"})}
print(json.dumps([{need: there(need) for need in sys.argv[1:]}, {"python": platform.python_version(), **versions}]))
"""


@dataclass(frozen=True)
class Environment:
    """An interpreter, what it has of what the sides need, and its packages' versions."""

    python: str
    has: dict[str, bool]
    versions: dict[str, str]

    def missing(self, need: str) -> str:
        """Why a side that needs this cannot run; empty where it can."""
        if self.has[need]:
            return ""
        name, _, attribute = need.partition(":")
        return f"{name} has no {attribute}: not there" if attribute and self.has[name] else f"{name}: not installed"


def look_into(python: str) -> Environment:
    needs = {side.needs for workload in WORKLOADS.values() for side in workload.sides}
    needs |= {need.partition(":")[0] for need in needs}
    done = subprocess.run([python, "-c", PROBE, *sorted(needs)], capture_output=True, text=True, check=True)
    has, versions = json.loads(done.stdout.splitlines()[-1])
    return Environment(python, has, versions)
