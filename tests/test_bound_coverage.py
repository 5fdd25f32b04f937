"""The benchmark behind the table of bounds in chapter 5, and the file that it wrote."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def benchmark() -> ModuleType:
    path = ROOT / "benchmarks" / "bound_coverage.py"
    spec = importlib.util.spec_from_file_location("bound_coverage", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_benchmark_writes_rows_like_those_of_the_book(
    benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "rows.json"
    options = ["--lengths", "60", "--chains", "2", "--output", str(output)]
    rows = benchmark.main(options)
    assert len(capsys.readouterr().out.splitlines()) == len(rows) == 2
    report = json.loads(output.read_text(encoding="utf-8"))
    book = json.loads((ROOT / "src/ictd/data/bound-coverage.json").read_text(encoding="utf-8"))
    assert {**report, "rows": None} == {**book, "rows": None}  # same command, seed, confidence
    assert [row.keys() for row in report["rows"]] == [book["rows"][0].keys()] * 2
    assert all(row["contexts"] == 10 for row in report["rows"])
    assert book["rows"][0]["contexts"] == 1000


def test_bounds_are_ordered(benchmark: ModuleType) -> None:
    """Componentwise bounds are at most the norm bound, single intervals at most all together."""
    rows = benchmark.measure([200], 3, seed=1)
    for row in rows:
        widths = {name: entry["width"] for name, entry in row.items() if isinstance(entry, dict)}
        assert widths["Hoeffding, by state"] <= widths["Hoeffding, norm"]
        assert widths["plug-in, one state"] < widths["plug-in, all states"]
        assert widths["Bernstein, computable"] <= 20.01  # 2 R_max / (1 - γ)
        assert row["error"] < widths["Hoeffding, by state"]
