"""What all tests share: run-time type checks, the built site, the browser."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jaxtyping import install_import_hook
from playwright.sync_api import Browser

ROOT = Path(__file__).parents[1]


def pytest_configure(config: pytest.Config) -> None:
    """Check types and axes at run time, in every call, before anything imports the package.

    torch.compile cannot trace these checks: `pytest -m compile` runs without them.

    Every process has one thread, those that tests start too: the tests' matrices are small, and
    `pytest -n 2` has a process for each core.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if config.option.markexpr != "compile":
        install_import_hook("ictd", "runtime_types.check")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the compile tests to their own call."""
    if config.option.markexpr != "compile":
        apart = [item for item in items if item.get_closest_marker("compile")]
        config.hook.pytest_deselected(items=apart)
        items[:] = [item for item in items if item not in apart]


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the built site, which is built if anything has changed since the last time.

    Of several processes one builds and the others wait at the build's lock.
    """
    command = [sys.executable, "tools/build_book.py", "--if-stale"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.fail(f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}", pytrace=False)
    return ROOT / "_build" / "html"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium; without one the test is skipped, but in CI it fails."""
    from browse import chromium, find_chromium

    if find_chromium() is None and os.environ.get("CI") != "true":
        pytest.skip("no Chromium: install it, or name it in $CHROMIUM")
    with chromium() as running:
        yield running
