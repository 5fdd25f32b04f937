"""Tell one state of the project's files from another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
# All that a chapter's outputs depend on besides its own cells.
CODE = ("src", "pyproject.toml", "constraints.txt")
# All that the site depends on.
SITE = (*CODE, "book", "tools/assets.py", "_config.yml", "_toc.yml", "CHANGELOG.md")


def fingerprint(names: Iterable[str], root: Path = ROOT) -> str:
    """Hash the names and contents of files, and of all files in folders."""
    digest = hashlib.sha256()
    for name in names:
        path = root / name
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            if "__pycache__" not in file.parts and file.exists():
                content = file.read_bytes()
                digest.update(f"{file.relative_to(root).as_posix()}\0{len(content)}\0".encode())
                digest.update(content)
    return digest.hexdigest()[:16]
