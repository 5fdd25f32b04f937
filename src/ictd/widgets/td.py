"""Temporal differences on Boyan's chain, to touch: the explorer of the first chapter."""

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

__all__ = ["TDExplorer"]

_LAST_STEP = 200  # of batch and of expected TD; online TD ends with its record


class TDExplorer(Explorer):
    r"""Watch TD move the values of a Boyan's chain, step by step.

    Three algorithms: batch TD reads a whole record at every step, online TD one transition, and
    expected TD, :math:`v \leftarrow v + \alpha (T v - v)`, knows the chain. Drawn are the values,
    their TD errors, the true values, and the values that fit the record
    (:func:`ictd.certainty_equivalence`), where batch TD ends.

    Book: :prf:ref:`thm-certainty-equivalence`.

    Args:
        chain: ``"random"``, drawn as :func:`ictd.boyan_chain` does, or ``"classic"``, Boyan's own:
            one or two steps ahead for a reward of −3, and an end.
        algorithm: ``"batch"``, ``"online"`` or ``"expected"``.
        num_states: m, 3..10.
        discount: :math:`\gamma`, 0..0.99.
        step_size: :math:`\alpha`, 0.05..4.
        num_transitions: n, the length of the record, 20..400.
        seed: Of the chain and of the record, 0..99.
        step: t, the number of steps made so far, 0..400.

    Raises:
        TypeError: If an argument is no setting.
        traitlets.TraitError: If a setting is out of its range, also later on.

    Note:
        Settings are attributes: to set one moves the page. The random numbers are the page's own, a
        generator of 32 bits, so a seed draws another chain than it does in :mod:`ictd.chains`.

    Example:
        >>> from ictd.widgets import TDExplorer
        >>> explorer = TDExplorer(chain="classic", num_states=4, discount=0.9)
        >>> explorer.step = 2
        >>> explorer.compute()["step"]
        2
    """

    script = "td"
    title = "Explorer: TD on Boyan's chain"

    algorithm = setting(
        traitlets.Enum(["batch", "online", "expected"], "batch"),
        "Algorithm",
        options={
            "batch": "batch: whole record",
            "online": "online: one transition",
            "expected": "expected: no record",
        },
    )
    chain = setting(
        traitlets.Enum(["random", "classic"], "random"),
        "Chain",
        options={"random": "random draw", "classic": "Boyan's own"},
    )
    num_states = setting(Int(6, min=3, max=10), "States m")
    discount = setting(Float(0.9, min=0.0, max=0.99), "Discount γ", step=0.01)
    step_size = setting(Float(2.0, min=0.05, max=4.0), "Step size α", step=0.05)
    num_transitions = setting(Int(60, min=20, max=400), "Length n of the record", step=20)
    seed = setting(Int(3, min=0, max=99), "Seed of chain and record")
    step = setting(Int(0, min=0, max=400), "Steps t")

    def process(self) -> ictd.MarkovRewardProcess:
        """Draw the chain.

        Returns:
            The process, in float64.
        """
        m = self.num_states
        draw = Mulberry32(self.seed)
        transition = torch.zeros(m, m, dtype=torch.float64)
        terminal = torch.zeros(m, dtype=torch.bool)

        def uniform(count: int) -> list[float]:
            return [1 - draw() for _ in range(count)]

        if self.chain == "classic":
            split, last, initial = [0.5] * (m - 2), [1.0] + [0.0] * (m - 1), [1.0] + [0.0] * (m - 1)
            reward = [-3.0] * (m - 2) + [-2.0, 0.0]
            terminal[-1] = True
        else:
            split, last = uniform(m - 2), normalized(uniform(m))
            reward = [1 - 2 * u for u in uniform(m)]
            initial = normalized(uniform(m))
        for s, ahead in enumerate(split):
            transition[s, s + 1], transition[s, s + 2] = ahead, 1 - ahead
        transition[-2, -1] = 1.0
        transition[-1] = torch.tensor(last, dtype=torch.float64)
        return ictd.MarkovRewardProcess(
            transition,
            torch.tensor(reward, dtype=torch.float64),
            self.discount,
            initial=torch.tensor(initial, dtype=torch.float64),
            terminal=terminal,
        )

    def record(self) -> ictd.Trajectory:
        """Draw the record, one state after the other.

        Returns:
            The trajectory, with its tail, of ``num_transitions + 1`` tokens.
        """
        mrp, draw = self.process(), Mulberry32(self.seed + 1000)
        rows, initial, ends = mrp.transition.tolist(), mrp.initial.tolist(), mrp.terminal.tolist()
        states = [categorical(initial, draw())]
        for _ in range(self.num_transitions):
            row = initial if ends[states[-1]] else rows[states[-1]]
            states.append(categorical(row, draw()))
        path = torch.tensor(states)
        is_terminal = mrp.terminal[path]
        bootstraps = torch.cat([~is_terminal[1:], torch.tensor([False])])
        discounts = torch.where(bootstraps, mrp.discount, 0.0)
        return ictd.Trajectory(
            path, mrp.expected_reward()[path], discounts, is_terminal=is_terminal
        )

    def compute(self) -> dict[str, Any]:
        """Compute what the page shows, by the package's functions.

        Returns:
            Numbers and lists, ``values``, ``true_values``, ``record_values``, ``td_errors`` of the
            states (None where there is none), ``rms_errors`` and ``rms_to_record`` of all steps so
            far, and the chain itself.
        """
        mrp, record = self.process(), self.record()
        kept, m = record.trim(), self.num_states
        model = ictd.empirical_model(kept, m)
        seen, truth = model.counts > 0, mrp.value()
        last = self.num_transitions if self.algorithm == "online" else _LAST_STEP
        step = min(self.step, last)
        history, errors = self._run(mrp, kept, model, step)
        limit = None if self.algorithm == "expected" else ictd.certainty_equivalence(kept, m)
        result: dict[str, Any] = {
            "transition": mrp.transition.tolist(),
            "reward": mrp.expected_reward().tolist(),
            "terminal": mrp.terminal.tolist(),
            "counts": None,
            "true_values": truth.tolist(),
            "record_values": None,
            "values": history[-1].tolist(),
            "td_errors": _list(errors),
            "state": None,
            "step": step,
            "last_step": last,
            "rms_errors": _rms((history - truth)[:, ~mrp.terminal]),
            "rms_to_record": None,
        }
        if self.algorithm == "online":
            result["state"] = record.states[step].item()
        if limit is not None:
            result["counts"] = model.counts.tolist()
            result["record_values"] = _list(limit)
            result["rms_to_record"] = _rms((history - limit)[:, seen])
        return result

    def _run(
        self,
        mrp: ictd.MarkovRewardProcess,
        kept: ictd.Trajectory,
        model: ictd.EmpiricalModel,
        step: int,
    ) -> tuple[Tensor, Tensor]:
        """The values of all states after each step so far, and the last TD errors."""
        m = self.num_states
        if self.algorithm == "expected":
            history = [torch.zeros(m, dtype=torch.float64)]
            for _ in range(step):
                error = mrp.bellman(history[-1]) - history[-1]
                history.append(history[-1] + self.step_size * error)
            return torch.stack(history), mrp.bellman(history[-1]) - history[-1]
        if self.algorithm == "batch":
            at_tokens = ictd.tabular_td(
                kept, m, num_steps=step, step_size=self.step_size, return_history=True
            )
            values = at_tokens.new_zeros(step + 1, m)
            values[:, kept.states] = at_tokens
            error = model.reward + model.transition @ values[-1] - values[-1]
            return values, error.where(model.counts > 0, torch.nan)
        prompt = kept.prompt(torch.eye(m, dtype=torch.float64))
        values = ictd.online_td(prompt, step_size=self.step_size, return_history=True)
        errors = values.new_full((m,), torch.nan)
        if 0 < step < len(kept) and kept.is_transition[step - 1]:
            before = prompt.features @ values[step - 1]
            errors[kept.states[step - 1]] = ictd.td_errors(prompt, before)[step - 1]
        return values[torch.arange(step + 1).clamp(max=len(kept) - 1)], errors

    def draw(self, figure: Figure) -> None:
        """Draw the values beside the true ones, and the chain.

        Args:
            figure: An empty figure.
        """
        shown = self.compute()
        chart, chain = figure.subplots(1, 2, width_ratios=[3, 2])
        half, marks = 0.3, (("true_values", "-", "black"), ("record_values", "--", "vermillion"))
        for name, look, color in marks:
            ticks = [(s, v) for s, v in enumerate(shown[name] or ()) if v is not None]
            for s, value in ticks:
                ends = [s - half, s + half], [value, value]
                chart.plot(*ends, linestyle=look, color=plotting.PALETTE[color])
        blue, green = plotting.PALETTE["blue"], plotting.PALETTE["green"]
        for s, (value, error) in enumerate(zip(shown["values"], shown["td_errors"], strict=True)):
            if error:
                arrow = {"arrowstyle": "->", "color": green}
                chart.annotate("", (s, value + error), (s, value), arrowprops=arrow)
        chart.plot(range(self.num_states), shown["values"], "o", color=blue)
        chart.set(ylabel="value", xlabel="state", title=f"after {shown['step']} steps")
        plotting.plot_chain(self.process(), chain)


def _list(values: Tensor) -> list[float | None]:
    """Numbers, None where there is none."""
    return [None if value != value else value for value in values.tolist()]


def _rms(errors: Tensor) -> list[float]:
    """Root mean squares of rows."""
    roots: list[float] = errors.square().mean(-1).sqrt().tolist()
    return roots
