"""Every link of the built site, against what is published: the site and the repository."""

from __future__ import annotations

import json
import os
import posixpath
import re
import subprocess
import sys
from collections.abc import Collection
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import jupytext
import nbformat
import pytest
import yaml
from bs4 import BeautifulSoup

import ictd
from pdf import NAME

ROOT = Path(__file__).parents[1]
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
SITE = CONFIG["html"]["baseurl"]
REPOSITORY = CONFIG["repository"]["url"]
BRANCH = CONFIG["repository"]["branch"]
SLUG = REPOSITORY.removeprefix("https://github.com/")
# Where a link may begin, and in which tree the rest of it is looked up.
TREES = {
    f"https://colab.research.google.com/github/{SLUG}/blob/gh-pages/": "site",
    f"https://mybinder.org/v2/gh/{SLUG}/{BRANCH}?urlpath=lab/tree/": "repository",
    f"{REPOSITORY}/edit/{BRANCH}/": "repository",
    f"{REPOSITORY}/blob/{BRANCH}/": "repository",
    SITE: "site",
}
# What the hosts of the repository and of the launchers have for every repository.
SERVICES = re.compile(re.escape(REPOSITORY) + r"(/issues(/new)?)?/?(\?.*)?$")
LAUNCHED = sorted((ROOT / "book").glob("[0-9]*.md"))
each_chapter = pytest.mark.parametrize("chapter", LAUNCHED, ids=lambda path: path.stem)


@cache
def site_tree(site: Path) -> frozenset[str]:
    """What the workflow pushes to gh-pages, and the PDF, which it prints before."""
    files = (path for path in site.rglob("*") if path.is_file())
    return frozenset({path.relative_to(site).as_posix() for path in files} | {NAME})


@cache
def repository_tree() -> frozenset[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return frozenset(listed.splitlines())


@cache
def links(page: Path) -> tuple[str, ...]:
    soup = BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")
    return tuple(str(link["href"]) for link in soup.select("a[href]"))


@cache
def anchors(page: Path) -> frozenset[str]:
    return frozenset(re.findall(r'\bid="([^"]+)"', page.read_text(encoding="utf-8")))


def target(link: str, page: str) -> tuple[str, str, str] | None:
    """The tree, path and anchor that a link on a page leads to; None if they are of others."""
    address, _, anchor = link.partition("#")
    for start, tree in TREES.items():
        if address.startswith(start):
            return tree, unquote(address.removeprefix(start)) or "index.html", anchor
    if address.startswith(("https://colab.", "https://mybinder.", REPOSITORY)):
        return None if SERVICES.match(address) else ("no tree", address, anchor)
    if re.match(r"[a-z]+:", address):
        return None
    if address.startswith("/"):  # the page for missing addresses, which stands anywhere
        path = "https://x" + address
        return "site", path.removeprefix("https://x/ictd/"), anchor
    here = posixpath.join(posixpath.dirname(page), unquote(address)) if address else page
    return "site", posixpath.normpath(here), anchor


def fault(link: str, page: str, trees: dict[str, Collection[str]], site: Path) -> str | None:
    """What is wrong with a link on a page."""
    found = target(link, page)
    if found is None:
        return None
    tree, path, anchor = found
    if path not in trees.get(tree, ()):
        return f"{link}: no {path} in the {tree}"
    if tree == "site" and path.endswith(".html") and anchor and anchor not in anchors(site / path):
        return f"{link}: no {anchor} in {path}"
    return None


def test_every_link_leads_somewhere(site: Path) -> None:
    trees = {"site": site_tree(site), "repository": repository_tree()}
    faults: dict[str, list[str]] = {}
    for page in sorted(name for name in trees["site"] if name.endswith(".html")):
        if page.startswith("_static/"):
            continue
        checked = (fault(link, page, trees, site) for link in set(links(site / page)))
        faults[page] = sorted(text for text in checked if text)
    assert {page: found for page, found in faults.items() if found} == {}


@pytest.mark.parametrize(
    ("link", "wrong"),
    [
        ("../index.html", False),
        ("b.html#one", False),
        ("#two", True),
        ("b.html#two", True),
        ("c.html", True),
        (f"{SITE}book/b.html#one", False),
        (f"{SITE}b.html", True),
        (f"{SITE}", False),
        ("/ictd/book/b.html", False),
        ("/book/b.html", True),
        (f"https://colab.research.google.com/github/{SLUG}/blob/gh-pages/book/b.html", False),
        (f"https://colab.research.google.com/github/{SLUG}/blob/main/book/b.html", True),
        (f"https://mybinder.org/v2/gh/{SLUG}/{BRANCH}?urlpath=lab/tree/book/b.md", False),
        (f"https://mybinder.org/v2/gh/{SLUG}/{BRANCH}?urlpath=lab/tree/b.md", True),
        (f"{REPOSITORY}/edit/{BRANCH}/book/b.md", False),
        (f"{REPOSITORY}/edit/other/book/b.md", True),
        (f"{REPOSITORY}/issues/new?title=A", False),
        (f"{REPOSITORY}/wiki", True),
        ("https://example.org/x.html", False),
    ],
)
def test_a_link_that_leads_nowhere_is_seen(link: str, wrong: bool, tmp_path: Path) -> None:
    (tmp_path / "book").mkdir()
    for name in ("index.html", "book/a.html", "book/b.html"):
        (tmp_path / name).write_text('<p id="one">A.</p>', encoding="utf-8")
    trees = {"site": site_tree(tmp_path), "repository": {"book/b.md"}}
    assert (fault(link, "book/a.html", trees, tmp_path) is not None) is wrong


@each_chapter
def test_every_chapter_can_be_launched_edited_and_reported(chapter: Path, site: Path) -> None:
    page = f"book/{chapter.stem}.html"
    found = {(found[0], found[1]) for link in links(site / page) if (found := target(link, page))}
    assert ("site", f"_sources/book/{chapter.stem}.ipynb") in found
    assert ("site", f"_sources/book/{chapter.stem}-exercises.ipynb") in found
    assert ("repository", f"book/{chapter.name}") in found
    starts = [
        start for start in TREES if any(link.startswith(start) for link in links(site / page))
    ]
    assert starts[:3] == list(TREES)[:3]  # Colab, Binder, edit
    reports = [link for link in links(site / page) if link.startswith(f"{REPOSITORY}/issues/new")]
    assert [f"book/{chapter.stem}" in unquote(link) for link in reports] == [True]


@each_chapter
def test_colab_opens_a_notebook_that_installs_this_version(chapter: Path, site: Path) -> None:
    path = site / "_sources" / "book" / f"{chapter.stem}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    first, *others = (cell for cell in notebook.cells if cell.cell_type == "code")
    assert ictd.__version__ in first.source
    (pinned,) = re.findall(rf'"ictd\[[a-z,]+\] @ git\+{REPOSITORY}@([^"]+)"', first.source)
    assert re.fullmatch(rf"v{re.escape(ictd.__version__)}|[0-9a-f]{{40}}", pinned)
    assert any(cell.outputs for cell in others)


@each_chapter
def test_binder_opens_a_notebook(chapter: Path) -> None:
    notebook = jupytext.read(chapter)
    assert notebook.metadata.kernelspec.name == "python3"
    assert any(cell.cell_type == "code" for cell in notebook.cells)


def test_binder_opens_markdown_as_notebooks(tmp_path: Path) -> None:
    """What postBuild calls does what its name says."""
    post_build = (ROOT / ".binder" / "postBuild").read_text(encoding="utf-8")
    program, option = re.search(r"^(jupytext-config) (\S+)$", post_build, re.MULTILINE).groups()
    command = [Path(sys.executable).with_name(program), option]
    environment = {**os.environ, "HOME": str(tmp_path), "JUPYTER_CONFIG_DIR": str(tmp_path)}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    (written,) = tmp_path.rglob("default_setting_overrides.json")
    viewers = json.loads(written.read_text(encoding="utf-8"))
    viewers = viewers["@jupyterlab/docmanager-extension:plugin"]["defaultViewers"]
    assert viewers["markdown"] == viewers["myst"] == "Jupytext Notebook"


def test_the_workflows_publish_what_the_links_need() -> None:
    folder = ROOT / ".github" / "workflows"
    check = yaml.safe_load((folder / "check.yml").read_text(encoding="utf-8"))
    book = check["jobs"]["book"]
    *_, upload = book["steps"]
    assert upload["with"]["path"] == "_build/html"
    assert upload["with"]["include-hidden-files"] is True
    assert [step["run"] for step in book["steps"] if "run" in step] == ["make book", "make pdf"]
    assert book["env"]["ICTD_REVISION"] == "${{ github.sha }}"
    publish = yaml.safe_load((folder / "publish.yml").read_text(encoding="utf-8"))
    assert publish[True]["push"]["branches"] == [BRANCH]  # YAML reads `on` as true
    *_, push = publish["jobs"]["publish"]["steps"]
    assert push["working-directory"] == "site"
    assert "touch .nojekyll" in push["run"]  # or Pages leaves out _sources and _static
    assert "--initial-branch gh-pages" in push["run"]
    assert push["run"].rstrip().endswith("gh-pages")
