"""The look of every figure: one light card, colours for any colour vision, a line style for each.

:mod:`ictd.plotting` hands out all that is public here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TypeAlias

import matplotlib as mpl
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

Color: TypeAlias = str | tuple[float, float, float] | tuple[float, float, float, float]

CARD = "#fcfcfa"
"""Background of every figure: nearly white and opaque, a light card on a dark page."""

INK = "#1a1a1a"
"""Colour of text, with a contrast of more than 16:1 on the card."""

PALETTE: Mapping[str, str] = MappingProxyType(
    {
        "blue": "#0072B2",
        "vermillion": "#D55E00",
        "green": "#009E73",
        "black": "#000000",
        "purple": "#CC79A7",
        "orange": "#E69F00",
        "sky": "#56B4E9",
    }
)
"""The colours of Okabe and Ito, which readers with any colour vision can tell apart.

The first four stand out from the card by more than 3:1; the yellow is left out, as it does not.
"""

LINE_STYLES: tuple[str | tuple[float, tuple[float, ...]], ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1.2, 1.2)),
    (0, (6, 1.5, 1.2, 1.5)),
    (0, (10, 2)),
    (0, (6, 1.5, 1.2, 1.5, 1.2, 1.5)),
    (0, (2.5, 2.5)),
)
"""One line style for each colour of the palette, so that curves differ without colour."""

_AXES = "#595959"
_GRID = "#dededa"

_STYLE: dict[Any, Any] = {
    "figure.figsize": (6.0, 3.6),
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.1,
    "figure.constrained_layout.w_pad": 0.1,
    "figure.facecolor": CARD,
    "savefig.facecolor": CARD,
    "savefig.transparent": False,
    "axes.facecolor": CARD,
    "axes.edgecolor": _AXES,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=list(PALETTE.values())) + cycler(linestyle=list(LINE_STYLES)),
    "grid.color": _GRID,
    "grid.linewidth": 0.8,
    # A figure 6 in wide is shown at 60 % on a page 375 px wide: 12 pt come out at 9.5 px.
    "font.size": 13,
    "axes.titlesize": 14,
    "axes.labelsize": 13,
    "xtick.labelsize": 12,
    "ytick.labelsize": 12,
    "legend.fontsize": 12,
    "xtick.color": _AXES,
    "ytick.color": _AXES,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "legend.handlelength": 2.8,
    "legend.facecolor": CARD,
    "legend.edgecolor": _GRID,
    "legend.framealpha": 0.9,
    "lines.linewidth": 2.0,
    "lines.scale_dashes": True,
    "image.cmap": "cividis",
    "svg.hashsalt": "ictd",
    "svg.fonttype": "path",
}


def use_style() -> None:
    """Give all figures from here on the style of the book.

    Sets Matplotlib's ``rcParams``. In IPython it also makes figures SVG, without a date and with
    fixed identifiers, so that the same code gives the same file.

    Note:
        Changes global state: meant for the first cell of a notebook.
        :func:`ictd.plotting.style` undoes itself.

    Example:
        >>> import matplotlib
        >>> from ictd import plotting
        >>> with matplotlib.rc_context():  # so that this example leaves nothing behind
        ...     plotting.use_style()
        ...     matplotlib.rcParams["figure.figsize"]
        [6.0, 3.6]
    """
    mpl.rcParams.update(_STYLE)
    if "IPython" in sys.modules:
        _use_svg()


@contextmanager
def style() -> Iterator[None]:
    """Give the figures made inside a ``with`` block the style of the book.

    Yields:
        Nothing. When the block ends, the ``rcParams`` are what they were.

    Example:
        >>> import matplotlib
        >>> from ictd import plotting
        >>> before = matplotlib.rcParams["font.size"]
        >>> with plotting.style():
        ...     matplotlib.rcParams["font.size"]
        13.0
        >>> matplotlib.rcParams["font.size"] == before
        True
    """
    with mpl.rc_context(_STYLE):
        yield


def contrast_ratio(first: Color, second: Color) -> float:
    r"""Compute the contrast of two colours as WCAG 2 defines it.

    With the relative luminances :math:`L_1 \ge L_2` it is :math:`(L_1 + 0.05) / (L_2 + 0.05)`.
    Text needs 4.5, and 7 at the stricter level; lines need 3.

    Args:
        first: Any colour that Matplotlib reads; its opacity is ignored.
        second: Likewise.

    Returns:
        The ratio, dimensionless, from 1 (equal) to 21 (black on white), the same in either order.

    Example:
        >>> from ictd import plotting
        >>> round(plotting.contrast_ratio("black", "white"), 6)
        21.0
        >>> plotting.contrast_ratio(plotting.INK, plotting.CARD) > 16
        True
    """
    darker, lighter = sorted((_luminance(first), _luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def new_axes(**figure: Any) -> Axes:
    """Make a figure with one pair of axes; pyplot, which picks a backend, is loaded only here."""
    from matplotlib import pyplot

    axes: Axes = pyplot.subplots(**figure)[1]
    return axes


def _luminance(color: Color) -> float:
    """Compute the relative luminance of an sRGB colour, from 0 (black) to 1 (white)."""
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in to_rgb(color)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _use_svg() -> None:
    """Make IPython, if this is a cell of it, show figures as reproducible SVG."""
    from IPython import get_ipython

    if get_ipython() is None:
        return
    # To import it first also sets up the inline backend, which would put PNG back later on.
    from matplotlib_inline.backend_inline import set_matplotlib_formats

    set_matplotlib_formats("svg", bbox_inches=None, metadata={"Date": None})  # type: ignore[no-untyped-call]
