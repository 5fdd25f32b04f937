"""Weigh every page of the built site: what it loads, and when it can be used.

Times are those of this machine with nothing in the browser's cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser

from browse import chromium, isolate, pages, serve
from build_book import SITE_FOLDER

WATCH = """
window.longTasks = [];
new PerformanceObserver((list) => longTasks.push(...list.getEntries()))
  .observe({ type: "longtask", buffered: true });
"""
# A page can be used when it is parsed and the last long task has ended: a second without one.
READ = """async () => {
  await window.MathJax?.startup?.promise;
  const end = () => Math.max(0, ...longTasks.map((task) => task.startTime + task.duration));
  while (performance.now() < end() + 1000)
    await new Promise((done) => setTimeout(done, 100));
  const [page] = performance.getEntriesByType("navigation");
  const files = [page, ...performance.getEntriesByType("resource")]
    .filter((file) => !file.name.includes("/vendor/mathjax/") && !file.name.startsWith("data:"));
  const sum = (name) => files.reduce((total, file) => total + file[name], 0);
  return {
    files: files.length,
    transferred: sum("encodedBodySize"),
    unpacked: sum("decodedBodySize"),
    interactive: Math.max(end(), page.domContentLoadedEventEnd),
  };
}"""


@dataclass(frozen=True)
class Load:
    """What one page costs its reader; MathJax, which all pages share, is left out of the bytes."""

    files: int
    transferred: int  # bytes on the way, compressed as GitHub Pages does it
    unpacked: int  # bytes
    interactive: float  # milliseconds, MathJax included


def weigh(folder: Path, browser: Browser) -> Iterator[tuple[str, Load]]:
    """Open every page but the sources in a browser that knows nothing yet."""
    with serve(folder) as address:
        for page in pages(folder):
            if page.startswith("_modules/"):
                continue
            context = browser.new_context(viewport={"width": 1300, "height": 900})
            isolate(context, address)
            context.add_init_script(WATCH)
            tab = context.new_page()
            tab.goto(address + page, wait_until="load")
            yield page, Load(**tab.evaluate(READ))
            context.close()


def main() -> None:
    print("| page | files | MB transferred | MB unpacked | interactive after (s) |")
    print("|---|---|---|---|---|")
    with chromium() as browser:
        for page, load in weigh(SITE_FOLDER, browser):
            sizes = f"{load.transferred / 1e6:.2f} | {load.unpacked / 1e6:.2f}"
            print(f"| {page} | {load.files} | {sizes} | {load.interactive / 1000:.1f} |")


if __name__ == "__main__":
    main()
