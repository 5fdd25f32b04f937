"""One layer of the Transformer, to touch: the explorer of the chapters on the layer."""

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
from ictd.widgets._random import Mulberry32

__all__ = ["LayerExplorer"]

_TOKENS, _LAYERS, _MIDDLE, _END, _QUERY = 7, 20, 2, 4, 3
_HALF = math.sqrt(0.5)
_FEATURES = ((0.0, -1.0), (_HALF, -_HALF), (1.0, 0.0), (_HALF, _HALF), (0.0, 1.0))
_ROWS = ("φ₀", "φ₁", "reward", "target memory", "current memory")


class LayerExplorer(Explorer):
    r"""Look inside a layer: the prompt matrix, and where the update of each column comes from.

    The context is a walk of seven tokens on the states 1, 2, 3 between two ends, 0 and 4, where it
    starts anew in the middle. A step costs 0.1, the step into 4 pays 1. The features are five
    directions, 45 degrees from one to the next. The last column is a query for state 3. Shown are
    :math:`Z_l` (:meth:`ictd.Prompt.matrix` at first), what one column reads from the keys
    (:func:`ictd.attention_weights`), and what :class:`ictd.DualHeadLayer` or
    :class:`ictd.SingleHeadLayer` makes of it.

    Book: :prf:ref:`thm-equivalence`, :prf:ref:`thm-reparameterization`.

    Args:
        layer: :math:`l`, the number of layers that the matrix has passed, 0..20.
        heads: ``"two"``, or ``"one"`` with the temporal shift.
        mask: Whether columns without a transition are masked as keys. The theorems say yes.
        beta: :math:`\beta` in :math:`A = \beta I`, an inverse temperature, 0..12.
        step_size: :math:`\alpha`, 0.05..1.
        discount: :math:`\gamma`, 0..1.
        seed: Of the walk, 0..99.
        column: The column that is looked at, 0..7.

    Raises:
        TypeError: If an argument is no setting.
        traitlets.TraitError: If a setting is out of its range, also later on.

    Note:
        Settings are attributes: to set one moves the page.

    Example:
        >>> from ictd.widgets import LayerExplorer
        >>> explorer = LayerExplorer(layer=3, column=0)
        >>> shown = explorer.compute()
        >>> shown["forms_differ"] < 1e-12, len(shown["attention"])
        (True, 8)
    """

    script = "layer"
    title = "Explorer: inside the layer"

    layer = setting(Int(1, min=0, max=_LAYERS), "Layers passed, l")
    heads = setting(
        traitlets.Enum(["two", "one"], "two"),
        "Form of the layer",
        options={"two": "two heads", "one": "one head and the shift"},
    )
    beta = setting(Float(3.0, min=0.0, max=12.0), "β (A = β I)", step=0.1)
    step_size = setting(Float(1.0, min=0.05, max=1.0), "Step size α", step=0.05)
    discount = setting(Float(0.9, min=0.0, max=1.0), "Discount γ", step=0.01)
    seed = setting(Int(28, min=0, max=99), "Seed of the walk")
    mask = setting(traitlets.Bool(True), "Mask what is no key")
    column = setting(Int(2, min=0, max=_TOKENS))

    def walk(self) -> ictd.Trajectory:
        """Draw the walk.

        Returns:
            The trajectory of seven tokens, in float64.
        """
        draw = Mulberry32(self.seed)
        path = [_MIDDLE]
        while len(path) < _TOKENS:
            here = path[-1]
            is_end = here in (0, _END)
            path.append(_MIDDLE if is_end else here - 1 if draw() < 0.5 else here + 1)
        states = torch.tensor(path)
        is_terminal = (states == 0) | (states == _END)
        after = states.roll(-1)
        rewards = torch.full(states.shape, -0.1, dtype=torch.float64)
        rewards = torch.where(after == _END, 1.0, rewards)
        discounts = torch.where(is_terminal.roll(-1), 0.0, torch.full_like(rewards, self.discount))
        return ictd.Trajectory(states, rewards, discounts, is_terminal=is_terminal)

    def prompt(self) -> ictd.Prompt:
        """Write the walk as a prompt, and append the query.

        Returns:
            The prompt of eight tokens with two features, in float64.
        """
        features = torch.tensor(_FEATURES, dtype=torch.float64)
        return self.walk().prompt(features).with_queries(features[_QUERY : _QUERY + 1])

    def draw(self, figure: Figure) -> None:
        """Draw the prompt matrix, and what the column that is looked at reads.

        Args:
            figure: An empty figure.
        """
        shown, j = self.compute(), self.column
        top, bottom = figure.subplots(2, height_ratios=[5, 2], sharex=True)
        matrix = torch.tensor(shown["matrix"])
        top.imshow(matrix.abs().numpy(), cmap="Blues", vmin=0, vmax=3, aspect="auto")
        for row, column in torch.cartesian_prod(*map(torch.arange, matrix.shape)).tolist():
            text = f"{matrix[row, column]:.2f}"
            top.text(column, row, text, ha="center", va="center", size="small")
        for column, is_key in enumerate(shown["is_key"]):
            if not is_key:
                top.axvspan(column - 0.5, column + 0.5, fill=False, hatch="//", alpha=0.3)
        top.set_yticks(range(5), _ROWS)
        top.set_title(f"after layer {self.layer}" if self.layer else "the prompt")
        bottom.bar(range(_TOKENS + 1), shown["attention"], color=plotting.PALETTE["blue"])
        bottom.set(ylim=(0, 1), ylabel="weight", xlabel=f"attention of column {j}")
        kinds = ["end" if is_end else "state" for is_end in shown["is_terminal"][:-1]] + ["query"]
        names = [f"{kind} {state}" for kind, state in zip(kinds, shown["states"], strict=True)]
        bottom.set_xticks(range(_TOKENS + 1), names, size="small")
        top.grid(False)

    def compute(self) -> dict[str, Any]:
        """Compute what the page shows, by the package's functions.

        Returns:
            Numbers and lists, the ``matrix``, the row of ``attention`` of the column that is looked
            at, what the keys hold (``parts``), what the column reads (``contributions``, their sum
            ``update``), what that makes of its memory, and how far the two forms are apart.
        """
        prompt, j = self.prompt(), self.column
        is_key = prompt.is_transition | (not self.mask)
        assert prompt.is_terminal is not None
        score = ictd.BilinearScore(self.beta * torch.eye(2, dtype=torch.float64))
        attention = score(prompt.features, prompt.features).softmax(-1)
        attention = attention.masked_fill(prompt.is_terminal.unsqueeze(-1), 0.0)
        if self.mask:
            attention = ictd.attention_weights(prompt, score)
        histories = {heads: self._run(prompt, is_key, heads) for heads in ("one", "two")}
        history = histories[self.heads]
        everything = torch.ones_like(is_key)
        other = self._run(prompt, everything if self.mask else prompt.is_transition, self.heads)
        Z, after = history[self.layer], history[self.layer + 1]
        weights = self.step_size * torch.tensor([[1.0], [1.0], [-1.0]], dtype=torch.float64)
        parts = torch.where(is_key, weights * Z[2:], 0.0)
        shares = attention[j] * parts
        updates = attention @ parts.sum(0)
        shifted = ictd.temporal_shift(updates, prompt.discounts, prompt.is_transition)
        return {
            "states": [*self.walk().states.tolist(), _QUERY],
            "is_key": is_key.tolist(),
            "is_terminal": prompt.is_terminal.tolist(),
            "discounts": prompt.discounts.tolist(),
            "matrix": Z.tolist(),
            "attention": attention[j].tolist(),
            "parts": {
                "reward": parts[0].tolist(),
                "target": parts[1].tolist(),
                "current": parts[2].tolist(),
                "errors": parts.sum(0).tolist(),
            },
            "contributions": shares.sum(0).tolist(),
            "from_reward": shares[0].sum().item(),
            "from_target": shares[1].sum().item(),
            "from_current": shares[2].sum().item(),
            "update": updates[j].item(),
            "next_value": after[-1, j].item(),
            "handed_on": shifted[j - 1].item() if j > 0 else 0.0,
            "received": shifted[j].item(),
            "next_target": after[-2, j].item(),
            "forms_differ": (histories["one"] - histories["two"]).abs().max().item(),
            "mask_matters": (Z - other[self.layer]).abs().max().item(),
        }

    @torch.no_grad()
    def _run(self, prompt: ictd.Prompt, is_key: Tensor, heads: str) -> Tensor:
        """The prompt matrix before each layer, and after the last: ``[layers + 2, row, token]``."""
        matrix = self.beta * torch.eye(2, dtype=torch.float64)
        make = ictd.SingleHeadLayer if heads == "one" else ictd.DualHeadLayer
        layer = make(
            2, generator=torch.Generator(), dtype=torch.float64
        )  # what it draws is replaced
        layer.construct(matrix, self.step_size)
        history = [prompt.matrix()]
        for _ in range(_LAYERS + 1):
            history.append(layer(history[-1], prompt.discounts, is_key, prompt.is_terminal))
        return torch.stack(history)
