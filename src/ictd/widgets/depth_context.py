"""Depth and context, to touch: the explorer of the chapter on convergence."""

from __future__ import annotations

from typing import Any

import torch
import traitlets
from matplotlib.figure import Figure
from torch import Tensor

import ictd
from ictd import plotting
from ictd.widgets._base import Explorer, Float, Int, setting
from ictd.widgets._random import Mulberry32, categorical, normalized

__all__ = ["DepthContextExplorer"]

_LAYERS, _WALKS, _LONGEST, _CONFIDENCE = 60, 5, 2000, 0.9
_BETAS = [0.5 * i for i in range(49)]


class DepthContextExplorer(Explorer):
    r"""Watch the error fall with depth and level off where the context ends, below its bound.

    Drawn are the errors :math:`\lVert v_l - v_\pi \rVert_\infty` of softmax TD
    (:func:`ictd.lumped_td`) on five contexts, closed by :meth:`ictd.Trajectory.trim`, over the
    states that they visit; that of the infinite context (:func:`ictd.population_attention`); both
    bounds, :func:`ictd.depth_bound` and :func:`ictd.context_bound` with probability 0.9, of one of
    the contexts; and where their condition fails, :math:`m_0 \le (1 + \gamma)/2`.

    Book: :prf:ref:`thm-depth`, :prf:ref:`thm-certainty-error`, :prf:ref:`cor-depth-context`.

    Args:
        num_layers: :math:`L`, the depth at which numbers are read off, 0..60.
        context_length: :math:`n`, transitions drawn, 20..2000.
        discount: :math:`\gamma`, 0..0.98.
        beta: :math:`\beta` in :math:`A = \beta I`, an inverse temperature, 0..24.
        step_size: :math:`\alpha`, 0.05..2.
        chain: ``"boyan"``, a random Boyan's chain of six states with one-hot features, or
            ``"ring"``, eight states with features on the circle.
        walk: Which of the five contexts the bounds are about, 0..4.
        seed: Of rewards, chain and walks, 0..99.

    Raises:
        TypeError: If an argument is no setting.
        traitlets.TraitError: If a setting is out of its range, also later on.

    Note:
        Settings are attributes: to set one moves the page. Rewards are a function of the state.

    Example:
        >>> from ictd.widgets import DepthContextExplorer
        >>> shown = DepthContextExplorer(num_layers=60).compute()
        >>> shown["is_certified"], shown["error"] <= shown["bound"]
        (True, True)
    """

    script = "depth_context"
    title = "Explorer: depth and context"

    num_layers = setting(Int(30, min=0, max=_LAYERS), "Layers L")
    context_length = setting(Int(400, min=20, max=_LONGEST), "Transitions n", step=20)
    discount = setting(Float(0.8, min=0.0, max=0.98), "Discount γ", step=0.01)
    beta = setting(Float(7.0, min=0.0, max=24.0), "β (A = β I)", step=0.1)
    step_size = setting(Float(1.0, min=0.05, max=2.0), "Step size α", step=0.05)
    chain = setting(
        traitlets.Enum(["boyan", "ring"], "boyan"),
        "Chain",
        options={"boyan": "Boyan's chain", "ring": "ring of states"},
    )
    walk = setting(Int(0, min=0, max=_WALKS - 1), "Chosen context")
    seed = setting(Int(7, min=0, max=99), "Seed of the chain")

    def process(self) -> ictd.MarkovRewardProcess:
        """Draw the chain.

        Returns:
            The process, in float64.
        """
        draw = Mulberry32(self.seed)

        def uniform(count: int) -> list[float]:
            return [1 - draw() for _ in range(count)]

        if self.chain == "ring":
            m = 8
            stay = torch.eye(m, dtype=torch.float64)
            transition = 0.2 * stay + 0.7 * stay.roll(1, 1) + 0.1 * stay.roll(-1, 1)
            reward = [1 - 2 * u for u in uniform(m)]
        else:
            m = 6
            split, last = uniform(m - 2), normalized(uniform(m))
            reward = [1 - 2 * u for u in uniform(m)]
            transition = torch.zeros(m, m, dtype=torch.float64)
            for s, ahead in enumerate(split):
                transition[s, s + 1], transition[s, s + 2] = ahead, 1 - ahead
            transition[-2, -1] = 1.0
            transition[-1] = torch.tensor(last, dtype=torch.float64)
        rewards = torch.tensor(reward, dtype=torch.float64)
        return ictd.MarkovRewardProcess(transition, rewards, self.discount)

    def features(self) -> Tensor:
        """Make the features of the states.

        Returns:
            ``[m, d]``, in float64.
        """
        if self.chain == "boyan":
            return ictd.one_hot_features(6, dtype=torch.float64)
        angle = 2 * torch.pi * torch.arange(8, dtype=torch.float64) / 8
        return torch.stack([angle.cos(), angle.sin()], -1)

    def context(self, walk: int) -> ictd.Trajectory:
        """Draw one of the contexts, with its tail.

        Args:
            walk: Which, 0..4.

        Returns:
            A trajectory of ``context_length`` transitions.
        """
        mrp, draw = self.process(), Mulberry32(self.seed + 1000 * (walk + 1))
        rows, path = mrp.transition.tolist(), [0]
        for _ in range(self.context_length):
            path.append(categorical(rows[path[-1]], draw()))
        states = torch.tensor(path)
        discounts = torch.full(states.shape, self.discount, dtype=torch.float64)
        return ictd.Trajectory(states, mrp.reward[states], discounts)

    def draw(self, figure: Figure) -> None:
        """Draw errors and bounds against depth, and the diagonality against temperature.

        Args:
            figure: An empty figure.
        """
        shown = self.compute()
        left, right = figure.subplots(1, 2, width_ratios=[3, 2])
        for walk, errors in enumerate(shown["errors"]):
            if walk != self.walk:
                left.semilogy(errors, color=plotting.PALETTE["blue"], ls="-", lw=0.8)
        left.semilogy(shown["errors"][self.walk], lw=2.5, ls="-", label="error")
        left.semilogy(shown["population_errors"], label="infinite context")
        if shown["is_certified"]:
            left.semilogy(shown["depth_bounds"], label="depth bound")
        left.axhline(shown["context_bound"], color="black", ls="-.", label="context bound")
        low = max(min(min(errors) for errors in shown["errors"]) / 10, 1e-6)
        high = 100 * max(shown["context_bound"], 0.1)  # room for the legend
        left.set(xlabel="depth (layers)", ylabel="error", ylim=(low, high))
        left.legend(fontsize="small", loc="upper right")
        right.plot(_BETAS, shown["diagonalities"], label="smallest own share")
        right.axhline(shown["threshold"], color=plotting.PALETTE["vermillion"], ls="--")
        right.plot(self.beta, shown["rates"]["diagonality"], "o", color=plotting.INK)
        right.set(xlabel="β", ylabel="$m_0$", ylim=(0, 1.02))

    def compute(self) -> dict[str, Any]:
        """Compute what the page shows, by the package's functions.

        Returns:
            Numbers and lists, ``errors`` of the five contexts after every layer,
            ``population_errors``, both bounds of one context, its ``rates`` and whether it
            ``is_certified``; ``depth_bound`` and ``bound`` are None where it is not.
        """
        mrp, features = self.process(), self.features()
        m, truth = mrp.num_states, mrp.value()
        score = ictd.BilinearScore(self.beta * torch.eye(features.shape[-1], dtype=torch.float64))
        M = ictd.population_attention(mrp, features, score)
        population = self._iterate(M, mrp.transition * mrp.discount, mrp.reward, truth)
        contexts = [self.context(walk).trim() for walk in range(_WALKS)]
        runs = [self._run(context, features, score, truth) for context in contexts]
        chosen, rates = contexts[self.walk], runs[self.walk]
        counts = ictd.empirical_model(chosen, m).counts
        visited = counts > 0
        limit = ictd.certainty_equivalence(chosen, m)
        spread = ictd.target_spread(truth, self.discount)
        context_bound = ictd.context_bound(
            counts, spread, self.discount, _CONFIDENCE, self.context_length
        ).item()
        seen = ictd.empirical_attention(chosen, features, score)
        depth_bounds = [
            ictd.depth_bound(
                seen,
                self.discount,
                self.step_size,
                layers,
                limit[visited].abs().max(),
                visited=visited,
            ).item()
            for layers in range(_LAYERS + 1)
        ]
        identity = ictd.BilinearScore(torch.eye(features.shape[-1], dtype=torch.float64))
        scaled = torch.tensor(_BETAS, dtype=torch.float64).sqrt()[:, None, None] * features
        attentions = ictd.lumped_attention(counts.expand(len(_BETAS), m), scaled, identity)
        is_certified = rates["factor"] < 1
        depth_bound = depth_bounds[self.num_layers]
        return {
            "true_values": truth.tolist(),
            "stationary": mrp.stationary_distribution().tolist(),
            "counts": counts.tolist(),
            "closed": int(chosen.is_transition.sum()),
            "errors": [run["errors"] for run in runs],
            "population_errors": population["errors"],
            "error": rates["errors"][self.num_layers],
            "population_error": population["errors"][self.num_layers],
            "certainty_error": (limit - truth)[visited].abs().max().item(),
            "depth_bounds": depth_bounds,
            "depth_bound": depth_bound if is_certified else None,
            "context_bound": context_bound,
            "bound": depth_bound + context_bound if is_certified else None,
            "threshold": (1 + self.discount) / 2,
            "is_certified": is_certified,
            "rates": _rates(rates),
            "population": _rates(population),
            "diagonalities": ictd.kernel_diagonality(attentions)[:, visited].amin(-1).tolist(),
        }

    def _run(
        self, context: ictd.Trajectory, features: Tensor, score: ictd.BilinearScore, truth: Tensor
    ) -> dict[str, Any]:
        """Softmax TD on one context, among the states that it visits."""
        counts, reward, onward = ictd.empirical_model(context, len(features))
        M, kept = ictd.empirical_attention(context, features, score), counts > 0
        return self._iterate(M[kept][:, kept], onward[kept][:, kept], reward[kept], truth[kept])

    def _iterate(self, M: Tensor, onward: Tensor, reward: Tensor, truth: Tensor) -> dict[str, Any]:
        """Errors after every layer, and the rates; the discount is inside ``onward``."""
        step = self.step_size
        history = ictd.lumped_td(
            M, reward, onward, 1.0, num_steps=_LAYERS, step_size=step, return_history=True
        )
        return {
            "errors": (history - truth).abs().amax(-1).tolist(),
            "diagonality": ictd.kernel_diagonality(M).min().item(),
            "factor": ictd.contraction_factor(M, self.discount, step).item(),
            "radius": ictd.spectral_radius(ictd.iteration_matrix(M, onward, 1.0, step)).item(),
        }


def _rates(run: dict[str, Any]) -> dict[str, float]:
    return {name: run[name] for name in ("diagonality", "factor", "radius")}
