"""Serve the built site on this machine and open it in Chromium, cut off from everything else."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Route, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = [
    "--no-sandbox",  # as root, in a container
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class SubPathHandler(SimpleHTTPRequestHandler):
    """Serve a folder under /ictd/ and nothing else, as a project page is served."""

    def translate_path(self, path: str) -> str:
        inside = path.removeprefix("/ictd/")
        return super().translate_path("/" + inside if inside != path else "/no such page")

    def log_message(self, format: str, *args: object) -> None:
        """Stay quiet."""


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve the folder for the time of the context; give its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SubPathHandler, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/ictd/"
        finally:
            server.shutdown()
            thread.join()


def find_chromium() -> str | None:
    """The browser's path: $CHROMIUM, or one that is installed."""
    candidates = (shutil.which(name) for name in NAMES)
    return os.environ.get("CHROMIUM") or next((path for path in candidates if path), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run Chromium for the time of the context."""
    path = find_chromium()
    if path is None:
        raise FileNotFoundError("no Chromium found: install it, or name it in $CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def isolate(context: BrowserContext, address: str) -> list[str]:
    """Refuse all requests that leave the address; give the list in which they will stand."""
    refused: list[str] = []

    def decide(route: Route) -> None:
        if route.request.url.startswith((address, "data:", "blob:")):
            route.continue_()
        else:
            refused.append(route.request.url)
            route.abort()

    context.route("**/*", decide)
    return refused


def pages(folder: Path) -> list[str]:
    """Every page of the site, relative to its folder, but index.html, which leads to the first."""
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*.html")}
    return sorted(page for page in found - {"index.html"} if not page.startswith("_static/"))
