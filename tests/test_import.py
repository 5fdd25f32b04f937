"""What `import ictd` must not do to the program that imports it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROBE = """
import json, logging, sys, time
import torch
loaded, level, handlers = set(sys.modules), logging.root.level, list(logging.root.handlers)
start = time.perf_counter()
import ictd
seconds = time.perf_counter() - start
print(json.dumps({
    "new": sorted({name.partition(".")[0] for name in set(sys.modules) - loaded}),
    "logging": [logging.root.level == level, logging.root.handlers == handlers],
    "seconds": seconds,
}))
"""
HEAVY = {
    "safetensors",
    "matplotlib",
    "ipywidgets",
    "anywidget",
    "traitlets",
    "gymnasium",
    "pandas",
    "scipy",
    "IPython",
    "tyro",
    "rich",
}


@pytest.fixture(scope="module")
def probe() -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBE], check=True, capture_output=True, text=True
    )


def test_import_loads_nothing_heavy(probe: subprocess.CompletedProcess[str]) -> None:
    told = json.loads(probe.stdout)
    # Shown by `pytest -rP`, not tested: clocks vary.
    print(f"import ictd takes {told['seconds']:.3f} s beyond torch")
    assert not HEAVY & set(told["new"])


def test_import_leaves_logging_alone(probe: subprocess.CompletedProcess[str]) -> None:
    assert json.loads(probe.stdout)["logging"] == [True, True]


def test_import_prints_nothing(probe: subprocess.CompletedProcess[str]) -> None:
    assert len(probe.stdout.splitlines()) == 1  # the probe's own line
    assert probe.stderr == ""


def test_type_checkers_see_the_types() -> None:
    import importlib.resources

    assert importlib.resources.files("ictd").joinpath("py.typed").is_file()
