"""Serve the built site on this machine and open it in Chromium, cut off from everything else."""

from __future__ import annotations

import gzip
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
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


TIMEOUT = 120_000  # milliseconds: long pages take their time where other programs run too

# What GitHub Pages compresses on the way.
COMPRESSED = {".css", ".html", ".ipynb", ".js", ".json", ".md", ".svg", ".txt", ".xml"}


@cache
def compressed(path: Path, time: int) -> bytes:
    """The file as it travels; the time of its last change tells versions apart."""
    return gzip.compress(path.read_bytes(), mtime=0)


class SubPathHandler(SimpleHTTPRequestHandler):
    """Serve a folder under /ictd/ and nothing else, compressed, as a project page is served."""

    def translate_path(self, path: str) -> str:
        inside = path.removeprefix("/ictd/")
        return super().translate_path("/" + inside if inside != path else "/no such page")

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        accepted = "gzip" in self.headers.get("Accept-Encoding", "")
        if path.suffix in COMPRESSED and accepted and path.is_file():
            body = compressed(path, path.stat().st_mtime_ns)
            self.send(200, self.guess_type(path), body, {"Content-Encoding": "gzip"})
        else:
            super().do_GET()

    def send_error(self, code: int, *arguments: str | None) -> None:
        page = Path(self.directory, "404.html")
        if code == 404 and page.exists():
            self.send(404, "text/html", page.read_bytes(), {})
        else:
            super().send_error(code, *arguments)

    def send(self, status: int, kind: str, body: bytes, headers: dict[str, str]) -> None:
        """Send a whole answer."""
        self.send_response(status)
        headers |= {"Content-Type": kind, "Content-Length": str(len(body))}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

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
    context.set_default_timeout(TIMEOUT)
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
