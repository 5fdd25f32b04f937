"""The kernel, to touch: the explorer of the second chapter."""

from __future__ import annotations

import math
from typing import Any

import torch
import traitlets
from matplotlib.figure import Figure
from torch import Tensor

import ictd
from ictd import plotting
from ictd.widgets._base import Explorer, Float, Int, setting

__all__ = ["KernelExplorer"]

_METRICS = {"identity": (1.0, 1.0), "anisotropic": (1.0, 4.0), "indefinite": (1.0, -1.0)}
_PLACES = [[1.0, 0.0], [0.75, 0.65], [0.15, 0.95], [-0.8, 0.6], [-0.6, -0.5], [0.3, -0.4]]


class KernelExplorer(Explorer):
    r"""Move states in the plane, and see how much each attends to each.

    Attention is the lumped softmax :math:`M(s, u) \propto N(u) \exp g(s, u)` of
    :func:`ictd.lumped_attention`, with the score :math:`\varphi(u)^\top G \varphi(s) / h^2` or
    :math:`-\lVert \varphi(s) - \varphi(u) \rVert_G^2 / 2h^2`. The page says how far it is from a
    table (every state for itself), from its linear limit
    :math:`a(u) (1 + g(s, u) - \sum_x a(x) g(s, x))` with the shares :math:`a = N / n`, and from
    equal treatment, :math:`a(u)`.

    Book: :prf:ref:`prop-dot-is-gaussian`, :prf:ref:`prop-bandwidth`.

    Args:
        score: ``"dot"`` or ``"gaussian"``.
        metric: :math:`G`: ``"identity"``, ``"anisotropic"``, diag(1, 4), or ``"indefinite"``,
            diag(1, −1), for which the second "distance" is none.
        bandwidth: :math:`h`, 0.05..20, in the unit of the features.
        weights: How often each state was left: ``"equal"``, or ``"increasing"``, s + 1 times.
        selected: The state whose attention the plane shows, an index.
        positions: :math:`\varphi`, two to eight pairs of numbers in [−1.5, 1.5].

    Raises:
        TypeError: If an argument is no setting.
        traitlets.TraitError: If a setting is out of its range, also later on.

    Note:
        Settings are attributes: to set one moves the page, and the reader's hand sets them.

    Example:
        >>> from ictd.widgets import KernelExplorer
        >>> explorer = KernelExplorer(score="gaussian", bandwidth=0.05)
        >>> explorer.compute()["least_diagonality"] > 0.999  # every state for itself
        True
    """

    script = "kernel"
    title = "Explorer: the kernel"

    score = setting(
        traitlets.Enum(["dot", "gaussian"], "dot"),
        "Score",
        options={"dot": "dot product", "gaussian": "Gaussian"},
    )
    metric = setting(
        traitlets.Enum(list(_METRICS), "identity"),
        "Metric G",
        options={
            "identity": "identity",
            "anisotropic": "diag(1, 4)",
            "indefinite": "diag(1, −1)",
        },
    )
    bandwidth = setting(Float(0.7, min=0.05, max=20.0), "Bandwidth h", log=True, decimals=2)
    weights = setting(
        traitlets.Enum(["equal", "increasing"], "equal"),
        "Visits",
        options={"equal": "all equally often", "increasing": "state s: s + 1 times"},
    )
    selected = setting(Int(1, min=0, max=7))
    positions = setting(traitlets.List(traitlets.List(traitlets.Float()), _PLACES))

    @traitlets.validate("positions")
    def _check_positions(self, proposal: dict[str, Any]) -> list[list[float]]:
        places: list[list[float]] = proposal["value"]
        fits = all(len(place) == 2 and all(abs(x) <= 1.5 for x in place) for place in places)
        if not (2 <= len(places) <= 8 and fits):
            raise traitlets.TraitError(
                f"positions: expected two to eight pairs of numbers in [-1.5, 1.5], got {places}"
            )
        return places

    def _scores(self, query: Tensor, key: Tensor) -> Tensor:
        """The score g, as :func:`ictd.lumped_attention` asks for it."""
        metric = torch.tensor(_METRICS[self.metric], dtype=query.dtype)
        form = ictd.BilinearScore(torch.diag(metric) / self.bandwidth**2)
        scores: Tensor = form(query, key)
        if self.score == "dot":
            return scores
        if self.metric != "indefinite":
            root = metric.sqrt()
            scores = ictd.GaussianScore(self.bandwidth)(query * root, key * root)
        else:
            of_query, of_key = (form(x, x).diagonal(dim1=-2, dim2=-1) / 2 for x in (query, key))
            scores = scores - of_query.unsqueeze(-1) - of_key.unsqueeze(-2)
        return scores

    def compute(self) -> dict[str, Any]:
        """Compute what the page shows, by the package's functions.

        Returns:
            Numbers and lists, ``attention``, ``weights`` (shares), ``diagonality`` and its least
            entry, and the largest differences ``from_tabular``, ``from_linear``,
            ``from_constant``.
        """
        features = torch.tensor(self.positions, dtype=torch.float64)
        m = len(features)
        visits = torch.ones(m) if self.weights == "equal" else torch.arange(1.0, m + 1)
        visits = visits.double()
        attention = ictd.lumped_attention(visits, features, self._scores)
        share, scores = visits / visits.sum(), self._scores(features, features)
        linear = share * (1 + scores - (scores @ share).unsqueeze(-1))
        diagonality = ictd.kernel_diagonality(attention)

        def distance(other: Tensor) -> float:
            return (attention - other).abs().max().item()

        return {
            "attention": attention.tolist(),
            "weights": share.tolist(),
            "selected": min(self.selected, m - 1),
            "diagonality": diagonality.tolist(),
            "least_diagonality": diagonality.min().item(),
            "from_tabular": distance(torch.eye(m, dtype=torch.float64)),
            "from_linear": distance(linear),
            "from_constant": distance(share.expand(m, m)),
        }

    def draw(self, figure: Figure) -> None:
        """Draw the states in the plane, and the matrix.

        Args:
            figure: An empty figure.
        """
        shown = self.compute()
        figure.set_size_inches(7.0, 3.2)
        plane, heat = figure.subplots(1, 2)
        x, y = zip(*self.positions, strict=True)
        row = shown["attention"][shown["selected"]]
        color = plotting.PALETTE["blue"]
        for s, weight in enumerate(row):
            ends = [x[shown["selected"]], x[s]], [y[shown["selected"]], y[s]]
            plane.plot(*ends, "-", color=color, linewidth=8 * weight)
            size = 20 + 40 * math.sqrt(weight)
            plane.plot(x[s], y[s], "o", color=color, alpha=0.25, markersize=size)
            plane.text(x[s], y[s], str(s), ha="center", va="center")
        plane.set(xlim=(-1.6, 1.6), ylim=(-1.6, 1.6), aspect="equal")
        plane.set_title(f"attention of state {shown['selected']}")
        plotting.plot_attention(torch.tensor(shown["attention"]), heat)
