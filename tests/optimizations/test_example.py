"""The optimization that CONTRIBUTING.md shows is a whole one: it is suspected, enabled, undone and proposed."""

import importlib.util
import re
from pathlib import Path

import pytest
import runs
import torch

from hasten.launch.shares import Shares
from hasten.measurement.followups import spec_for
from hasten.optimizations.optimization import Symptoms
from hasten.records import Facts, OptimizerFacts

PAGE = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The module as a file that can be imported by name."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    path = tmp_path / "foreach_optimizer.py"
    path.write_text(code, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("foreach_optimizer", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(importlib.sys.modules, "foreach_optimizer", module)
    spec.loader.exec_module(module)
    return module


def symptoms(foreach):
    optimizer = OptimizerFacts(name="Adam", num_parameters=9, num_tensors=3, foreach=foreach)
    facts = Facts(boundary="optimizer", num_threads=1, optimizers=(optimizer,))
    shares = Shares(step=0.1, regular=0.1, phases={"optimizer": 0.02}, faults=None, others_cpu=0.0)
    return Symptoms(facts=facts, shares=shares, machine=runs.machine())


def test_it_is_suspected_where_the_script_updates_single_tensors(example):
    assert example.suspect(symptoms(foreach=False)) is True
    assert example.suspect(symptoms(foreach=None)) is None


def test_what_it_enables_is_undone(example, process):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight], lr=0.1, foreach=False)
    (experiment,) = example.OPTIMIZATION.experiments
    handle = process.handle("foreach_optimizer")
    handle.enable(spec_for(experiment, example.OPTIMIZATION, True).installer, True)
    weight.sum().backward()
    optimizer.step()
    assert optimizer.param_groups[0]["foreach"] is True and process.states == {"foreach_optimizer": "on"}
    handle.disable()
    assert optimizer.param_groups[0]["foreach"] is False


def test_it_needs_no_more_than_sixty_lines(example):
    assert len(Path(example.__file__).read_text(encoding="utf-8").splitlines()) <= 60
