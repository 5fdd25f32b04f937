"""Sphinx extension of the book: everything local, and a notebook with outputs per chapter."""

from __future__ import annotations

import json
import os
import zlib
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nbformat
from docutils import nodes
from jupyter_cache import get_cache
from myst_nb.core.read import create_nb_reader
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment
from sphinx.environment.collectors.toctree import TocTreeCollector
from sphinx.util import logging
from sphinx.util.typing import ExtensionMetadata
from sphinx_codeautolink.extension.block import CodeBlockAnalyser

import ictd
from exercises import without_solutions
from fingerprint import CODE, ROOT, fingerprint

logger = logging.getLogger(__name__)

BUILD = ROOT / "_build"
INVENTORIES = Path(__file__).with_name("inventories.json")
DESCRIPTIONS = Path(__file__).with_name("descriptions.json")
INSTALL_CELL = """\
# Colab has PyTorch and Matplotlib; this adds the book's package, version {version}.
%pip install --quiet "ictd[gym,widgets] @ git+{repository}@{revision}\""""
# The commit or tag that the notebooks install: the workflow that publishes names its commit.
REVISION = os.environ.get("ICTD_REVISION") or f"v{ictd.__version__}"


def write_inventory(project: str, names: dict[str, list[str]]) -> str:
    """Write Sphinx's list of where a project documents its names; return its path.

    Sphinx would fetch the whole list from the project's site; the few names that the book links to
    stand in inventories.json.
    """
    head = (
        f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
        "# The remainder of this file is compressed using zlib.\n"
    )
    lines = [f"{name} py:{role} 1 {page} -\n" for name, (role, page) in sorted(names.items())]
    path = BUILD / "inventories" / f"{project}.inv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head.encode() + zlib.compress("".join(lines).encode()))
    return str(path)


def configure(app: Sphinx, config: Config) -> None:
    """Settings that _config.yml cannot hold."""
    os.environ["ICTD_BOOK_BUILD"] = "1"  # the kernels inherit it: `ictd.widgets.live` reads it
    for project, listed in json.loads(INVENTORIES.read_text(encoding="utf-8")).items():
        inventory = write_inventory(project, listed["names"])
        config.intersphinx_mapping[project] = (listed["url"], inventory)
    config.html_static_path += [str(ROOT / "_vendor" / "static"), str(ROOT / "book" / "_static")]
    # The cache knows a chapter by its cells alone: a change of the package must miss it.
    config.nb_execution_cache_path = str(BUILD / ".jupyter_cache" / fingerprint(CODE))
    # In this order: the loader, where it finds modules, the widgets' front end. All after the
    # scripts of the previews, which would take themselves for modules once the loader is there.
    config.nb_ipywidgets_js = {
        "vendor/widgets/require.js": {"defer": "defer"},
        "vendor/widgets/config.js": {"defer": "defer"},
        "vendor/widgets/@jupyter-widgets/html-manager/dist/embed-amd.js": {"defer": "defer"},
    }
    config.notfound_urls_prefix = urlsplit(config.html_baseurl).path
    config.html_theme_options["navbar_persistent"] = []  # else a second search button


def number_by_file_name(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Number chapter 03-….md as chapter 3, whichever chapters are written so far."""
    for docname, numbers in env.toc_secnumbers.items():
        digits = docname.rpartition("/")[2].partition("-")[0]
        if not digits.isdecimal():
            continue
        chapter = int(digits)
        for anchor, number in numbers.items():
            numbers[anchor] = (chapter, *number[1:])
        titled: list[nodes.Element] = [env.titles[docname]]
        titled += env.tocs[docname].findall(nodes.reference)
        for node in titled:
            if node.get("secnumber"):
                node["secnumber"] = [chapter, *node["secnumber"][1:]]
    return TocTreeCollector().assign_figure_numbers(env)


def executed_notebook(app: Sphinx, docname: str) -> nbformat.NotebookNode | None:
    """The chapter with its outputs, from the cache of this build; None for a page without cells."""
    env: Any = app.env  # MyST-NB adds to it
    path = env.doc2path(docname)
    text = Path(path).read_text(encoding="utf-8")
    reader = create_nb_reader(path, env.myst_config, env.mystnb_config, text)
    if reader is None or "kernelspec" not in env.metadata.get(docname, {}):
        return None
    cache = get_cache(app.config.nb_execution_cache_path)
    notebook: nbformat.NotebookNode
    try:
        _, notebook = cache.merge_match_into_notebook(reader.read(text))
    except KeyError:
        logger.warning("no outputs in the cache", location=docname)
        return None
    notebook.metadata.pop("jupytext", None)  # it would look for the Markdown beside the notebook
    for part in (notebook, *notebook.cells):
        part.metadata.pop("source_map", None)
    return notebook


def install_cell(repository: str) -> nbformat.NotebookNode:
    """The first cell of a notebook that leaves the repository."""
    source = INSTALL_CELL.format(version=ictd.__version__, repository=repository, revision=REVISION)
    metadata = {"tags": ["install"]}
    cell: nbformat.NotebookNode
    cell = nbformat.v4.new_code_cell(source, id="install", metadata=metadata)
    return cell


def macro_cell(macros: dict[str, Any]) -> nbformat.NotebookNode:
    """The macros of the pages' formulas, for programs that do not read _config.yml."""
    lines = []
    for name, meaning in macros.items():
        body, arguments = (
            (meaning, "") if isinstance(meaning, str) else (meaning[0], f"[{meaning[1]}]")
        )
        lines.append(rf"\newcommand{{\{name}}}{arguments}{{{body}}}")
    source = "$" + " ".join(lines) + "$"
    cell: nbformat.NotebookNode = nbformat.v4.new_markdown_cell(source, id="macros")
    return cell


def describe_page(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document
) -> None:
    """Say in the head what the page is about; and the OpenGraph extension, in its words."""
    text = json.loads(DESCRIPTIONS.read_text(encoding="utf-8")).get(pagename)
    if text is not None:
        context["metatags"] += f'<meta name="description" content="{escape(text)}" />\n'
        context["meta"] = {**(context["meta"] or {}), "og:description": escape(text)}


def finish_page(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document
) -> None:
    """Keep the page's scripts local and write the chapter's notebook, with a button for Colab."""
    context["script_files"] = local_scripts(context["script_files"])
    notebook = executed_notebook(app, pagename) if doctree is not None else None
    if notebook is None:
        return
    repository = app.config.html_theme_options["repository_url"]
    macros = app.config.mathjax3_config["tex"]["macros"]
    notebook.cells[:0] = [install_cell(repository), macro_cell(macros)]
    write_notebook(app, notebook, pagename)
    slug = repository.removeprefix("https://github.com/")
    add_button(
        context,
        "launch-buttons",
        {
            "text": "Colab",
            "tooltip": "Run in Colab",
            "icon": "_static/images/logo_colab.png",
            # Colab opens notebooks only; the site's branch has them.
            "url": "https://colab.research.google.com/github/"
            f"{slug}/blob/gh-pages/_sources/{pagename}.ipynb",
        },
    )
    add_button(
        context,
        "download-buttons",
        {
            "text": ".ipynb",
            "tooltip": "Download as a notebook, with outputs",
            "icon": "fas fa-code",
            "url": context["pathto"](f"_sources/{pagename}.ipynb", resource=True),
        },
    )
    if "{exercise}" not in "".join(cell.source for cell in notebook.cells):
        return
    write_notebook(app, without_solutions(notebook), f"{pagename}-exercises")
    add_button(
        context,
        "download-buttons",
        {
            "text": "exercises",
            "tooltip": "Download as a notebook without solutions",
            "icon": "fas fa-pencil-alt",
            "url": context["pathto"](f"_sources/{pagename}-exercises.ipynb", resource=True),
        },
    )


def write_notebook(app: Sphinx, notebook: nbformat.NotebookNode, name: str) -> None:
    """Write a notebook beside the sources of the pages."""
    path = Path(app.outdir) / "_sources" / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)


def add_button(context: dict[str, Any], group: str, button: dict[str, str]) -> None:
    """Put a link first into one of the theme's menus at the top of the page."""
    for menu in context["header_buttons"]:
        if menu.get("label") == group:
            menu["buttons"].insert(0, {"type": "link", **button})


def local_scripts(scripts: list[Any]) -> list[Any]:
    """Each script once (the theme declares one inline script twice), and none of Thebe's.

    Thebe runs cells on a server of others and comes from another host.
    """
    kept = {}
    for script in scripts:
        attributes = getattr(script, "attributes", {})
        key = (getattr(script, "filename", script), attributes.get("body"))
        if "thebe" not in f"{key}".lower():
            kept[key] = script
    return list(kept.values())


def remove_caches(app: Sphinx, exception: Exception | None) -> None:
    """Remove what sphinx-tippy keeps for tips from other sites, of which there are none."""
    for path in Path(app.outdir).glob("tippy_*_cache.json"):
        path.unlink()


def leave_section(visitor: Any, node: nodes.section) -> None:
    """Forget the title of a section, if it had one: a proof is a section without."""
    if visitor.title_stack:
        visitor.title_stack.pop()


def setup(app: Sphinx) -> ExtensionMetadata:
    """Connect all of it."""
    CodeBlockAnalyser.depart_section = leave_section  # it fails where a section has no title
    app.add_css_file("site.css")
    app.add_js_file("site.js")
    app.connect("config-inited", configure)
    app.connect("env-get-updated", number_by_file_name, priority=900)
    app.connect("html-page-context", describe_page, priority=400)
    app.connect("html-page-context", finish_page, priority=900)
    app.connect("build-finished", remove_caches, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
