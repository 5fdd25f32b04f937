"""Live cells: controls where a kernel runs them, one run with the defaults where none does."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
import torch
from nbclient import NotebookClient

from ictd.widgets import devices, live

WIDGET = "application/vnd.jupyter.widget-view+json"
EXPERIMENT = """\
from ictd.widgets import live

runs = []


def experiment(discount=0.5, name="a", exact=True):
    runs.append(discount)
    print(discount, name, exact)


live(experiment, discount=(0.0, 0.9, 0.1), name=["a", "b"], exact=True)
"""
MOVE = """
from ipywidgets import FloatSlider
from ipywidgets.widgets.widget import _instances

(slider,) = (w for w in _instances.values() if isinstance(w, FloatSlider))
assert not slider.continuous_update
assert (slider.value, slider.max, slider.description) == (0.5, 0.9, "discount")
slider.value = 0.7
assert runs == [0.5, 0.7]
"""


def run(source: str, **environment: str) -> list[nbformat.NotebookNode]:
    """The outputs of a cell in a kernel."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source, id="cell")])
    client = NotebookClient(notebook, timeout=60)
    client.execute(env={**os.environ, **environment})
    outputs: list[nbformat.NotebookNode] = notebook.cells[0].outputs
    return outputs


def test_where_the_site_is_built_the_experiment_runs_once() -> None:
    (output,) = run(EXPERIMENT, ICTD_BOOK_BUILD="1")
    assert output.output_type == "stream"
    assert output.text == "0.5 a True\n"


def test_in_a_notebook_there_are_controls_that_run_it_again() -> None:
    outputs = run(EXPERIMENT + MOVE, ICTD_BOOK_BUILD="")
    assert [output.output_type for output in outputs] == ["display_data"]
    assert WIDGET in outputs[0].data


def test_in_a_script_the_experiment_runs_once(capsys: pytest.CaptureFixture[str]) -> None:
    live(lambda discount=0.5: print(discount), discount=(0.0, 0.9))
    assert capsys.readouterr().out == "0.5\n"


def test_faults_are_told_before_anything_runs() -> None:
    def experiment(discount: float, depth: int = 3) -> None:
        raise AssertionError("it ran")

    with pytest.raises(ValueError, match=r"experiment: expected a default .* none for \['discount"):
        live(experiment)
    with pytest.raises(ValueError, match=r"controls: expected arguments \['b'\], got \['a'\]"):
        live(lambda b=1: None, a=(0, 1))


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert devices() == ["cpu"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert devices() == ["cpu", "cuda"]


def test_on_a_page_a_live_cell_is_a_figure(site: Path) -> None:
    """And no control that nothing would follow."""
    found = []
    for path in sorted((site / "_sources" / "book").glob("0*.ipynb")):
        if path.stem.endswith("-exercises"):
            continue
        notebook = nbformat.read(path, as_version=4)
        found += [cell for cell in notebook.cells if "\nlive(" in cell.source]
    outputs = [output for cell in found for output in cell.get("outputs", [])]
    assert len(found) >= 5
    assert len(outputs) == len(found)
    assert all("image/svg+xml" in output.data for output in outputs)
    assert not any(WIDGET in output.data for output in outputs)
