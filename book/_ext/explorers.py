"""Sphinx extension: an explorer, and the picture in its place until it is drawn.

A cell that ends in an explorer gives both, and MyST-NB would show the first only. Here they stay
together; site.css hides the picture as soon as the explorer is there.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.typing import ExtensionMetadata

VIEW = "application/vnd.jupyter.widget-view+json"
PICTURE = "image/svg+xml"


class KeepPicture(SphinxPostTransform):
    """Put the picture of an explorer beside its place."""

    default_priority = 3  # before MyST-NB chooses

    def run(self, **kwargs: Any) -> None:
        """Go through all outputs."""
        for bundle in self.document.findall(nodes.container):
            if bundle.get("nb_element") != "mime_bundle":
                continue
            parts = {part["mime_type"]: part for part in bundle.children}
            if VIEW in parts and PICTURE in parts:
                view = nodes.container("", *parts[VIEW].children, classes=["explorer-view"])
                image = parts[PICTURE].children
                picture = nodes.container("", *image, classes=["explorer-picture"])
                parts[VIEW].children = []
                parts[VIEW] += nodes.container("", view, picture, classes=["explorer"])


def setup(app: Sphinx) -> ExtensionMetadata:
    """Add the transform."""
    app.add_post_transform(KeepPicture)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
