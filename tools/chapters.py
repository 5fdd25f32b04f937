"""Check the code in the book's pages with ruff, or mend it with --fix.

ruff reads notebooks: each page becomes one in a temporary folder, and what --fix changes there goes
back. A page that jupytext would write in another way is a fault too: JupyterLab would change it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import jupytext
from jupytext.config import load_jupytext_config

BOOK = Path(__file__).parents[1] / "book"
FORMAT = "md:myst"
WIDTH = "--line-length=76"  # what a page shows without scrolling
# A cell ends in the value that it shows (B018), its prose documents it (D), it prints (T20), and
# its assertions are no tests of pytest's (PT).
CHECK = ("check", "--quiet", WIDTH, "--extend-ignore=B018,D,PT,T20")


def ruff(folder: Path, *arguments: str) -> bool:
    """Run ruff on the notebooks in a folder, by the project's settings; whether it is content."""
    config = BOOK.parent / "pyproject.toml"
    command = [sys.executable, "-m", "ruff", *arguments, f"--config={config}", "."]
    return subprocess.run(command, cwd=folder).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fix", action="store_true", help="mend what can be mended")
    fix = parser.parse_args().fix
    pages = {page: page.read_text(encoding="utf-8") for page in sorted(BOOK.glob("*.md"))}
    pages = {page: text for page, text in pages.items() if "{code-cell}" in text}
    content = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for page, text in pages.items():
            jupytext.write(jupytext.reads(text, FORMAT), folder / f"{page.stem}.ipynb")
        if fix:
            ruff(folder, *CHECK, "--fix")
            ruff(folder, "format", "--quiet", WIDTH)
        content &= ruff(folder, *CHECK)
        content &= ruff(folder, "format", "--diff", "--quiet", WIDTH)
        for page, text in pages.items():
            notebook = jupytext.read(folder / f"{page.stem}.ipynb") if fix else None
            notebook = notebook or jupytext.reads(text, FORMAT)
            written = jupytext.writes(notebook, FORMAT, config=load_jupytext_config(str(page)))
            if fix and written != text:
                page.write_text(written, encoding="utf-8")
            elif written != text:
                print(f"{page}: jupytext writes this page in another way; see `make fix`")
                content = False
    return 0 if content else 1


if __name__ == "__main__":
    sys.exit(main())
