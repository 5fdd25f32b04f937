"""One style for every figure of the book, and the few drawings that chapters share.

Call :func:`ictd.plotting.use_style` once at the top of a chapter. Every figure is then a light card
with dark ink, which reads the same on a light and on a dark page, and every curve has a line style
of its own besides its colour.

The module needs Matplotlib (the ``book`` extra) and is imported by hand,
``from ictd import plotting``: ``import ictd`` alone never loads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.patches import Circle
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from ictd._chain_drawing import make_arrow, node_positions
from ictd._checks import check_finite, check_none
from ictd._figure_style import (
    CARD,
    INK,
    LINE_STYLES,
    PALETTE,
    contrast_ratio,
    new_axes,
    style,
    use_style,
)
from ictd.mrp import MarkovRewardProcess

__all__ = [
    "CARD",
    "INK",
    "LINE_STYLES",
    "PALETTE",
    "contrast_ratio",
    "plot_attention",
    "plot_chain",
    "plot_convergence",
    "style",
    "use_style",
]

_ANNOTATED_CELLS = 6  # a heat map with at most this many rows and columns prints its numbers
_LABELLED_TICKS = 12  # an axis with at most this many entries labels each of them
_LABELLED_STATES = 4  # a chain with at most this many states prints its probabilities


def plot_chain(
    mrp: MarkovRewardProcess,
    ax: Axes | None = None,
    *,
    layout: str = "circle",
    labels: Sequence[str] | None = None,
    min_probability: float = 0.0,
    show_probabilities: bool | None = None,
) -> Axes:
    """Draw a Markov chain: a node for each state, an arrow for each transition.

    An arrow is as wide as its transition is probable, a hairline at least.
    A terminal state has a double border, and no arrow leaves it.

    Args:
        mrp: One process, no batch: its ``transition`` and ``terminal`` are drawn.
        ax: Where to draw. None: a new figure.
        layout: ``"circle"``, clockwise from the top, or ``"line"``, from left to right.
        labels: A short text for each state. None: its number.
        min_probability: Transitions less probable than this, in [0, 1], are left out.
        show_probabilities: Whether to print them. None: only for at most four states.

    Returns:
        The axes, for a title and further marks.

    Raises:
        ValueError: If ``mrp`` is a batch, or ``labels`` or ``layout`` do not fit.

    Example:
        >>> import matplotlib, torch, ictd
        >>> matplotlib.use("agg")
        >>> from ictd import plotting
        >>> transition = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
        >>> ax = plotting.plot_chain(ictd.MarkovRewardProcess(transition, torch.zeros(2), 0.9))
        >>> [text.get_text() for text in ax.texts]
        ['0', '1', '1', '0.5', '0.5']
        >>> matplotlib.pyplot.close(ax.figure)
    """
    shape = tuple(mrp.transition.shape)
    if len(shape) != 2:
        raise ValueError(
            f"mrp: expected one process (transition of shape [m, m]), got a transition of shape "
            f"{shape}; index the batch first"
        )
    names = [str(state) for state in range(shape[0])] if labels is None else list(labels)
    if len(names) != shape[0]:
        raise ValueError(f"labels: expected {shape[0]}, one for each state, got {len(names)}")
    centers, radius = node_positions(shape[0], layout)
    if show_probabilities is None:
        show_probabilities = shape[0] <= _LABELLED_STATES
    if ax is None:
        ax = new_axes(figsize=(6.0, 3.6 if layout == "circle" else 2.0))
    nodes = []
    border = {"edgecolor": INK, "linewidth": 1.5, "zorder": 3}
    for center, name, is_terminal in zip(centers, names, mrp.terminal.tolist(), strict=True):
        nodes.append(Circle(center, 1.2 * radius if is_terminal else radius, fc="white", **border))
        ax.add_patch(nodes[-1])
        if is_terminal:
            ax.add_patch(Circle(center, radius, fill=False, **border))
        size = "medium" if len(name) <= 2 else "small"
        ax.text(*center, name, ha="center", va="center", size=size, zorder=4)
    box = {"facecolor": CARD, "edgecolor": "none", "pad": 0.5}
    shown = (mrp.transition > 0) & (mrp.transition >= min_probability) & ~mrp.terminal[:, None]
    for source, target in shown.nonzero().tolist():
        probability = mrp.transition[source, target].item()
        arrow, middle = make_arrow(source, target, nodes, layout)
        arrow.set(linewidth=max(4.0 * probability, 0.4), color=PALETTE["blue"], zorder=2)
        ax.add_patch(arrow)
        if show_probabilities:
            text = f"{probability:.2g}"
            ax.text(*middle, text, ha="center", va="center", size="small", bbox=box, zorder=1.5)
    ax.set_aspect("equal")
    ax.margins(0.08)
    ax.set_axis_off()
    return ax


def plot_attention(
    weights: Float[Tensor, "query key"],
    ax: Axes | None = None,
    *,
    query_labels: Sequence[str] | None = None,
    key_labels: Sequence[str] | None = None,
    annotate: bool | None = None,
    limits: tuple[float, float] | None = None,
    label: str = "attention weight",
) -> Axes:
    r"""Draw attention weights as a heat map: a row for each query, a column for each key.

    The colour map grows lighter evenly and reads alike with any colour vision.
    Small matrices print their numbers.

    Args:
        weights: :math:`H`, ``[Q, K]``, finite, dimensionless. Rows need not sum to 1.
        ax: Where to draw. None: a new figure.
        query_labels: A text for each row. None: numbers.
        key_labels: A text for each column. None: numbers.
        annotate: Whether to print the weights. None: only up to six rows and columns.
        limits: The weights at both ends of the colour bar. None: from 0, or the least weight if
            that is negative, to the largest.
        label: The text beside the colour bar.

    Returns:
        The axes of the heat map. The colour bar is ``ax.images[0].colorbar``.

    Raises:
        ValueError: If ``weights`` are no matrix, are empty or not finite, or labels do not fit.

    Example:
        >>> import matplotlib, torch
        >>> matplotlib.use("agg")
        >>> from ictd import plotting
        >>> ax = plotting.plot_attention(torch.tensor([[0.75, 0.25]]))
        >>> [text.get_text() for text in ax.texts]
        ['0.75', '0.25']
        >>> matplotlib.pyplot.close(ax.figure)
    """
    if weights.ndim != 2 or weights.numel() == 0:
        raise ValueError(
            f"weights: expected shape [Q, K], Q >= 1, K >= 1, got {tuple(weights.shape)}"
        )
    check_finite("weights", weights)
    cells = weights.detach().cpu().double()
    num_queries, num_keys = cells.shape
    if annotate is None:
        annotate = max(num_queries, num_keys) <= _ANNOTATED_CELLS
    low, high = (min(0.0, cells.min().item()), cells.max().item()) if limits is None else limits
    is_oblong = max(num_queries, num_keys) > 2 * min(num_queries, num_keys)
    if ax is None:
        ax = new_axes(figsize=(4.8, 3.6), layout="compressed")
    image = ax.imshow(
        cells.numpy(),
        vmin=low,
        vmax=high,
        cmap="cividis",
        interpolation="none",
        aspect="auto" if is_oblong else "equal",
    )
    ax.figure.colorbar(image, ax=ax, label=label)
    ax.grid(False)
    ax.set(xlabel="key", ylabel="query")
    _label_ticks(ax.xaxis, num_keys, "key_labels", key_labels)
    _label_ticks(ax.yaxis, num_queries, "query_labels", query_labels)
    if annotate:
        colors = image.to_rgba(cells.numpy()).tolist()
        for row, column in torch.ones_like(cells).nonzero().tolist():
            ratios = {
                ink: contrast_ratio(ink, tuple(colors[row][column])) for ink in ("black", "white")
            }
            ink = max(ratios, key=ratios.__getitem__)
            text = f"{cells[row, column].item():.2f}"
            ax.text(column, row, text, ha="center", va="center", size="small", color=ink)
    return ax


def plot_convergence(
    errors: Float[Tensor, "step *batch"],
    ax: Axes | None = None,
    label: str | None = None,
    *,
    quantiles: tuple[float, float] = (0.1, 0.9),
    **line: Any,
) -> Axes:
    """Draw errors against depth, on a logarithmic axis: the median of a batch inside a band.

    Curves drawn on the same axes one after the other differ in colour and in line style.

    Args:
        errors: ``[L + 1, *B]``, finite, >= 0, in reward units. The first axis is the depth, as in
            what ``return_history=True`` gives. Without further axes one curve is drawn, no band.
            An error of exactly 0 has no place on a logarithmic axis: it leaves a gap.
        ax: Where to draw. None: a new figure.
        label: The curve's entry in the legend; call ``ax.legend()`` after the last curve.
        quantiles: The lower and the upper edge of the band, in [0, 1].
        **line: More properties of the median's line, as ``Axes.plot`` takes them.

    Returns:
        The axes. The median is ``ax.lines[-1]``.

    Raises:
        ValueError: If ``errors`` are empty, negative or not finite, or ``quantiles`` out of order.

    Example:
        >>> import matplotlib, torch
        >>> matplotlib.use("agg")
        >>> from ictd import plotting
        >>> errors = 0.5 ** torch.arange(4.0)[:, None] * torch.tensor([1.0, 2.0, 8.0])
        >>> ax = plotting.plot_convergence(errors)
        >>> ax.lines[-1].get_ydata().tolist()
        [2.0, 1.0, 0.5, 0.25]
        >>> matplotlib.pyplot.close(ax.figure)
    """
    lower, upper = quantiles
    if not 0.0 <= lower <= upper <= 1.0:
        raise ValueError(f"quantiles: expected 0 <= lower <= upper <= 1, got {quantiles}")
    if errors.ndim == 0 or errors.numel() == 0:
        raise ValueError(
            f"errors: expected shape [L + 1, *B], not empty, got {tuple(errors.shape)}"
        )
    check_finite("errors", errors)
    check_none("errors", errors < 0, "entries >= 0", errors)
    if ax is None:
        ax = new_axes()
    runs = errors.detach().cpu().double().reshape(len(errors), -1)
    edges = runs.quantile(torch.tensor([lower, 0.5, upper], dtype=runs.dtype), dim=1)
    # An error of 0 becomes NaN, a gap; its logarithm would send the curve down to the axis.
    low, median, high = edges.where(edges > 0.0, torch.nan).numpy()
    (curve,) = ax.plot(range(len(runs)), median, label=label, **line)
    if errors.ndim > 1 and bool((edges > 0.0).any()):
        color = curve.get_color()
        ax.fill_between(range(len(runs)), low, high, color=color, alpha=0.18, linewidth=0)
    ax.set_yscale("log")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(xlabel="depth (layers)", ylabel="error")
    return ax


def _label_ticks(axis: Axis, count: int, argument: str, labels: Sequence[str] | None) -> None:
    """Label every entry of a short axis, and whole numbers on a long one."""
    if labels is not None and len(labels) != count:
        raise ValueError(f"{argument}: expected {count} labels, got {len(labels)}")
    if labels is None and count > _LABELLED_TICKS:
        axis.set_major_locator(MaxNLocator(integer=True))
    else:
        axis.set_ticks(range(count), labels)
