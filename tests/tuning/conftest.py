"""A bench that starts nothing: what a step takes under each settings is told it beforehand."""

import random
from pathlib import Path

import pytest

from hasten.launch.side import Frequencies, NotAppliedError, SideError, SideResult


class FakeBench:
    """Launches of a script whose step takes 100 ms, divided by what each fix gains, with some noise."""

    def __init__(self, gains=None, *, noise=0.01, drift=0.0, seed=0, failing=(), refused=None):
        self.gains = gains or {}
        self.noise, self.drift = noise, drift
        self.failing, self.refused = set(failing), refused or {}
        self.draw = random.Random(seed)
        self.launches = []
        self.folder = Path("sides")
        self.takes_turns = True

    def run(self, *, spec, environment):
        settings = {fix.name: fix.value for fix in spec.fixes}
        self.launches.append(settings)
        if self.failing & set(settings):
            raise SideError("the script failed (exit code 1): RuntimeError: no")
        for name in self.refused.keys() & settings.keys():
            raise NotAppliedError(f"{name} is not applied: {self.refused[name]}")
        seconds = 0.1 * (1 + self.drift) ** len(self.launches)
        for name in settings:
            seconds /= self.gains.get(name, 1.0)
        seconds *= self.draw.lognormvariate(0.0, self.noise)
        return SideResult(
            parts={"regular": seconds},
            num_steps=30,
            samples_per_step=32.0,
            startup_seconds=2.0 + self._compiling(settings),
            peak_bytes=1e9,
        )

    def _compiling(self, settings):
        """30 s the first time; what was compiled is found from then on."""
        compiled = sum("compile" in launched for launched in self.launches)
        return 0.0 if "compile" not in settings else 30.0 if compiled == 1 else 1.0


@pytest.fixture
def bench():
    return FakeBench


@pytest.fixture
def frequencies():
    return Frequencies(by_phase={})
