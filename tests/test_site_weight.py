"""What a page costs its reader, measured in the browser."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from browse import pages
from weigh import weigh

pytestmark = pytest.mark.browser
LIMIT = 3_000_000  # bytes on the way, without MathJax


def test_no_page_weighs_more_than_three_megabytes(site: Path, browser: Browser) -> None:
    loads = dict(weigh(site, browser))
    assert loads.keys() == {page for page in pages(site) if not page.startswith("_modules/")}
    assert {page: load for page, load in loads.items() if load.transferred > LIMIT} == {}
    for page, load in loads.items():
        assert load.unpacked > load.transferred > (site / page).stat().st_size / 10
        assert load.interactive > 0


def test_the_scale_weighs_what_it_is_given(tmp_path: Path, browser: Browser) -> None:
    """A page with a script of noise, which travels compressed, and a busy half second."""
    noise = "//" + random.Random(0).randbytes(3_500_000).hex()
    (tmp_path / "noise.js").write_text(noise, encoding="utf-8")
    busy = "const end = performance.now() + 500; while (performance.now() < end);"
    page = f'<link rel="icon" href="data:,"><script src="noise.js"></script><script>{busy}</script>'
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    ((name, load),) = weigh(tmp_path, browser)
    assert name == "page.html"
    assert load.files == 2
    assert load.unpacked == len(noise) + len(page)
    assert LIMIT < load.transferred < 0.6 * load.unpacked
    assert load.interactive > 500
