"""Explorers: what the book shows, to touch, in a notebook or on a page without a kernel.

Each is an `anywidget <https://anywidget.dev>`_: the browser computes and draws, and every setting
is a trait that Python reads and sets. The module needs the ``widgets`` extra and is imported by
hand, ``from ictd.widgets import TDExplorer``: ``import ictd`` alone never loads it.
"""

from ictd.widgets._base import Explorer
from ictd.widgets._live import devices, live
from ictd.widgets.depth_context import DepthContextExplorer
from ictd.widgets.emergence import EmergencePlayer
from ictd.widgets.kernel import KernelExplorer
from ictd.widgets.layer import LayerExplorer
from ictd.widgets.td import TDExplorer

__all__ = [
    "DepthContextExplorer",
    "EmergencePlayer",
    "Explorer",
    "KernelExplorer",
    "LayerExplorer",
    "TDExplorer",
    "devices",
    "live",
]
