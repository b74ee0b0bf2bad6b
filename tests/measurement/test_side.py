"""One side of a comparison is a launch of the real script, and tells how it failed."""

import sys
from dataclasses import replace

import pytest

from hasten.launch.side import Bench, SideError
from hasten.tuning.trial_config import TrialConfig, spec_of

LATE = """
import time, torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
time.sleep(2)
while True:
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    time.sleep(0.01)
"""

pytestmark = pytest.mark.slow


def bench_in(folder, workspace, source, *, patience):
    (folder / "train.py").write_text(source)
    return Bench([sys.executable, str(folder / "train.py")], workspace, patience=patience)


def test_a_first_step_is_waited_for_as_long_as_the_fixes_may_need(tmp_path, workspace):
    bench = bench_in(tmp_path, workspace, LATE, patience=1.0)
    spec = spec_of({}, TrialConfig(seconds=0.5))
    with pytest.raises(SideError, match="no optimizer step in 1 s"):
        bench.run(spec=spec, environment={})
    seen = bench.run(spec=replace(spec, start_seconds=20.0), environment={})
    assert seen.num_steps > 10 and seen.startup_seconds > 2.0
    assert not [*workspace.folder.glob("launch-*")]


def test_a_script_that_fails_is_told_by_its_last_line(tmp_path, workspace):
    bench = bench_in(tmp_path, workspace, "import torch\nraise ValueError('no such column')", patience=20.0)
    with pytest.raises(SideError, match=r"exit code 1.*ValueError: no such column"):
        bench.run(spec=spec_of({}, TrialConfig()), environment={})
