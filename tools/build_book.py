"""Run every chapter and build the site into _build/html; any warning is an error.

A chapter whose cells have already run with the same package and pins is taken from the cache in
_build. With --if-stale nothing happens where the site is current.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from filelock import FileLock

import assets

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "book" / "_ext"))
from fingerprint import SITE, fingerprint  # noqa: E402

BUILD = ROOT / "_build"
SITE_FOLDER = BUILD / "html"
STAMP = BUILD / "html.stamp"
# --all: a warning comes only when a page is read, and a static file is copied only when one is
# written; --keep-going: all warnings at once; -n: a reference that leads nowhere is a warning.
FLAGS = ("--all", "--keep-going", "-W", "-n")
# An exception that ends Jupyter Book has a cause, which Sphinx has told by then: its message does.
PROGRAM = """
import sys
from jupyter_book.cli.main import main

def report(kind, error, trace):
    print(error, file=sys.stderr) if error.__cause__ else sys.__excepthook__(kind, error, trace)

sys.excepthook = report
main()
"""


def is_current() -> bool:
    """Whether the last build succeeded and nothing that it read has changed since."""
    there = STAMP.exists() and (SITE_FOLDER / "index.html").exists()
    return there and STAMP.read_text(encoding="utf-8") == fingerprint(SITE)


def build() -> None:
    """Build the site anew, or exit with Jupyter Book's status and leave no stamp."""
    STAMP.unlink(missing_ok=True)
    shutil.rmtree(SITE_FOLDER, ignore_errors=True)
    before = fingerprint(SITE)
    # One thread: on the chapters' small matrices several wait for each other longer than they work.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, "build", ".", *FLAGS]
    status = subprocess.run(command, cwd=ROOT, env=environment).returncode
    if status != 0:
        sys.exit(f"The book was not built: Jupyter Book ended with status {status}, see above.")
    STAMP.write_text(before, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--if-stale", action="store_true", help="build only if something changed")
    arguments = parser.parse_args()
    BUILD.mkdir(exist_ok=True)
    with FileLock(BUILD / "lock"):
        if not (arguments.if_stale and is_current()):
            assets.main()
            build()
    print(f"\nThe book is built. Open {SITE_FOLDER / 'index.html'} in a browser.")


if __name__ == "__main__":
    main()
