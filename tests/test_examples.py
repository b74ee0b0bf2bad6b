"""The examples run as they stand."""

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples" / "notebook.ipynb"


@pytest.mark.slow
def test_the_notebook_runs_and_its_run_shows_itself(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = next(cell for cell in cells if cell.source == "run").outputs[0]["data"]
    assert 'class="bars"' in shown["text/html"] and "Step " in shown["text/plain"]
    verdict = cells[-2].outputs[0]["text"].splitlines()[0]
    assert verdict and verdict in shown["text/html"]


def test_the_notebook_is_kept_without_its_outputs():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") for cell in cells)
