"""Pretraining played back: the explorer of the chapter on emergence."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

import torch
import traitlets
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import ictd
from ictd import plotting
from ictd.widgets._base import Explorer, Int, setting

__all__ = ["EmergencePlayer"]

_EVERY = 50  # steps between two records
_LAST = 3000
_WEIGHTS = ("$w_R$, reward", "$w_{v'}$, next value", "$w_v$, own value")


class EmergencePlayer(Explorer):
    r"""Play back how a Transformer learns to learn by TD.

    A run of :func:`ictd.pretraining.pretrain` that was saved, of one layer with the weights
    :math:`(A, w)`, applied ten times. Drawn are the value weights :math:`w`, which TD has with the
    signs :math:`(+, +, -)`; the kernel diagonality, mean of 64 tasks; and for one task that no run
    was trained on: the attention of its states, the values that the network gives them, and their
    mean squared error, beside that of the values that fit the context exactly
    (:func:`ictd.certainty_equivalence`).

    Book: :prf:ref:`def-diagonality`.

    Args:
        run: ``"small start"``, initial weights of standard deviation 0.1, or ``"large start"``, of
            1.
        seed: Of the run, 2..4: the initial weights of both runs are the same but for their size,
            and so are the tasks.
        step: Steps of pretraining, a multiple of 50, 0..3000.

    Raises:
        TypeError: If an argument is no setting.
        traitlets.TraitError: If a setting is out of its range, also later on.

    Note:
        ``data`` holds what ``python tools/player.py`` saved: the weights to four digits, as they
        are used here.

    Example:
        >>> from ictd.widgets import EmergencePlayer
        >>> player = EmergencePlayer(run="small start", seed=2, step=3000)
        >>> player.compute()["signs"]
        '+ + −'
    """

    script = "emergence"
    title = "Explorer: pretraining, played back"

    run = setting(traitlets.Enum(["small start", "large start"], "small start"), "Run")
    seed = setting(Int(4, min=2, max=4), "Seed")
    step = setting(Int(_LAST, min=0, max=_LAST), "Step", step=_EVERY)
    data = setting(traitlets.Dict(read_only=True))

    @traitlets.default("data")
    def _load(self) -> dict[str, Any]:
        return _data()

    @traitlets.validate("step")
    def _is_recorded(self, proposal: Any) -> int:
        step: int = proposal["value"]
        if step % _EVERY:
            raise traitlets.TraitError(f"step: expected a multiple of {_EVERY}, got {step}")
        return step

    def compute(self) -> dict[str, Any]:
        """Compute what the page shows, by the package's functions.

        Returns:
            Numbers and lists, ``weights``, ``signs``, ``kernel_diagonality``,
            ``kernel_diagonality_uniform`` and ``spectral_radius`` at the step; ``attention``,
            ``own_attention`` (the mean of its diagonal) and ``values`` on the task; ``errors``, the
            mean squared errors of all records, and ``error``, that of the step; ``context_error``
            and ``true_values``.
        """
        saved, record = self.data["runs"][self.run]["seeds"][str(self.seed)], self.step // _EVERY
        weights = saved["value_weights"][record]
        attention, values = _answers(self.run, self.seed)
        errors = _errors(values)
        return {
            "weights": weights,
            "signs": " ".join("+" if w > 0 else "−" if w < 0 else "0" for w in weights),
            "kernel_diagonality": saved["kernel_diagonality"][record],
            "kernel_diagonality_uniform": saved["kernel_diagonality_uniform"][record],
            "spectral_radius": saved["spectral_radius"][record],
            "attention": attention[record].tolist(),
            "own_attention": ictd.kernel_diagonality(attention[record]).mean().item(),
            "values": values[record].tolist(),
            "true_values": _task("true_values").tolist(),
            "errors": errors.tolist(),
            "error": errors[record].item(),
            "context_error": _errors(ictd.certainty_equivalence(_context(), len(values[0]))).item(),
        }

    def draw(self, figure: Figure) -> None:
        """Draw the weights, the diagonality, the attention and the values.

        Args:
            figure: An empty figure.
        """
        shown, run = self.compute(), self.data["runs"][self.run]
        saved, steps = run["seeds"][str(self.seed)], run["steps"]
        (top, right), (left, bottom) = figure.subplots(2, 2)
        for name, column in zip(_WEIGHTS, zip(*saved["value_weights"], strict=True), strict=True):
            top.plot(steps, column, label=name)
        right.plot(steps, saved["kernel_diagonality"], label="own visits")
        right.plot(steps, saved["kernel_diagonality_uniform"], label="equal weights")
        for ax, label in ((top, "value weights"), (right, "diagonality")):
            ax.axvline(self.step, color="black", linewidth=1, linestyle="-")
            ax.set(ylabel=label, xlabel="step")
            ax.legend(fontsize="xx-small")
        attention = torch.tensor(shown["attention"])
        plotting.plot_attention(attention, left, limits=(0.0, 1.0), label="attention")
        left.tick_params(labelsize="x-small")
        self._draw_values(bottom, shown)

    def _draw_values(self, ax: Axes, shown: dict[str, Any]) -> None:
        states = range(len(shown["values"]))
        ax.plot(states, shown["true_values"], "_", markersize=14, color="black", label="true value")
        ax.plot(states, shown["values"], "o", color=plotting.PALETTE["blue"], label="network")
        ax.set(xlabel="state", ylabel="value", xticks=list(states))
        ax.legend(fontsize="xx-small")


@cache
def _data() -> dict[str, Any]:
    text = (files("ictd") / "data" / "emergence" / "player.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def _task(name: str) -> Tensor:
    """A quantity of the task that is shown."""
    whole = name == "states"
    return torch.tensor(_data()["task"][name], dtype=torch.int64 if whole else torch.float64)


def _context() -> ictd.Trajectory:
    return ictd.Trajectory(_task("states"), _task("rewards"), _task("discounts"))


def _errors(values: Tensor) -> Tensor:
    """Mean squared errors of values ``[*B, m]``, states weighed by how often they are visited."""
    return (_task("visits") * (values - _task("true_values")).square()).sum(-1)


@cache
def _answers(run: str, seed: int) -> tuple[Tensor, Tensor]:
    """Attention ``[record, m, m]`` and values ``[record, m]`` of the task, by the network."""
    saved = _data()["runs"][run]
    config, weights = saved["config"], saved["seeds"][str(seed)]
    features, context = _task("features"), _context()
    prompt = context.prompt(features).with_queries(features)
    model = ictd.InContextTD(
        config["feature_dim"],
        config["num_layers"],
        generator=torch.Generator(),  # what it draws is replaced
        dtype=torch.float64,
    )
    attention, values = [], []
    for matrix, w in zip(weights["attention"], weights["value_weights"], strict=True):
        loaded = {"attention": matrix, "value_weights": w}
        own = {name: torch.tensor(value, dtype=torch.float64) for name, value in loaded.items()}
        model.layers[0].load_state_dict(own)
        score = ictd.BilinearScore(own["attention"])
        attention.append(ictd.empirical_attention(context, features, score))
        values.append(model(prompt)[-len(features) :].detach())
    return torch.stack(attention), torch.stack(values)
