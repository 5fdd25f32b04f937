"""What :func:`ictd.stability` found, in numbers and in words."""

from __future__ import annotations

import dataclasses
import html

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ictd._batched import BatchedRecord, register

__all__ = ["CONDITIONS", "StabilityReport"]

CONDITIONS = (
    "diagonality",
    "weaker diagonality, every step",
    "weaker diagonality, small steps",
    "row dominance",
    "weighted row sums",
    "density ratio",
    "density ratio, small steps",
    "Schur test",
    "norm of the transition",
    "numerical range",
)
NUMBERS = {
    "step_size": "α",
    "discount": "γ",
    "diagonality": "m_0",
    "density_ratio": "r",
    "transition_norm": "‖P_γ‖",
    "numerical_range": "η",
    "smallest_eigenvalue": "λ",
}


@register
@dataclasses.dataclass(frozen=True, eq=False)
class StabilityReport(BatchedRecord):
    r"""Hold what is known of the convergence of softmax TD; see :func:`ictd.stability`.

    The columns of ``holds``, ``rate`` and ``step_limit`` are the conditions, in the order of
    :attr:`conditions`. Where a condition does not apply it does not hold, its rate is infinite
    and its step limit 0. Printed, one problem is a table, and a batch the shares of it.

    Book: :prf:ref:`thm-master`, :prf:ref:`thm-schur`.

    Args:
        holds: Whether the condition certifies small steps at least, ``[*B, conditions]``.
        rate: The factor of a layer that it certifies at this step size, in a norm of its own (for
            weaker diagonality: in the limit of many layers); infinite where it certifies none.
        step_limit: It certifies every smaller step size; 0 where it does not hold.
        step_size: :math:`\alpha`, ``[*B]``.
        spectral_radius: The exact rate in the limit of many layers, ``[*B]``.
        exact_step_limit: The step size at which convergence ends, ``[*B]``; 0: every one diverges.
        kernel_td_step_limit: What kernel TD with the kernel :math:`e^g` is allowed, ``[*B]``; 0
            where nothing is certified.
        discount: The largest expected discount of a state, ``[*B]``.
        diagonality: :math:`m_0 = \min_s M(s, s)`, ``[*B]``.
        density_ratio: :math:`r = \max z / \min z`, ``[*B]``.
        transition_norm: :math:`\lVert P_\gamma \rVert_a`, :math:`a \propto \mu z`, ``[*B]``.
        numerical_range: :math:`\eta` of :math:`P_\gamma` in the same measure, ``[*B]``.
        smallest_eigenvalue: :math:`\lambda` of the attention, ``[*B]``; NaN unless the kernel is
            symmetric and positive definite.
        smallest_weight: The smallest entry of :math:`a`, which sums to 1, ``[*B]``.

    Note:
        Frozen, a pytree, with ``[...]`` over the batch axes, ``.to``, ``.device`` and ``.dtype``.

    Example:
        >>> import torch, ictd
        >>> mrp = ictd.MarkovRewardProcess(torch.full((2, 2), 0.5), torch.zeros(2), 0.5)
        >>> print(ictd.stability(mrp, torch.eye(2), score=ictd.BilinearScore(4 * torch.eye(2))))
        condition                        holds    rate       steps
        -------------------------------  -----  ------  ----------
        diagonality                        yes  0.5360   α < 1.333
        weaker diagonality, every step     yes  0.5180   α < 1.333
        weaker diagonality, small steps    yes  0.5180   α < 1.333
        row dominance                      yes  0.5000   α < 2.075
        weighted row sums                  yes  0.5000   α < 1.333
        density ratio                      yes  0.5263   α < 1.333
        density ratio, small steps         yes       –  α < 0.4444
        Schur test                         yes  0.5263   α < 1.333
        norm of the transition             yes  0.5263   α < 1.333
        numerical range                    yes       –  α < 0.4444
        exact (eigenvalues)                yes  0.5000   α < 2.075
        α = 1, γ = 0.5, m_0 = 0.982, r = 1, ‖P_γ‖ = 0.5, η = 0.5, λ = 0.964
        kernel TD: α < 0.04796
    """

    holds: Bool[Tensor, "*batch condition"]
    rate: Float[Tensor, "*batch condition"]
    step_limit: Float[Tensor, "*batch condition"]
    step_size: Float[Tensor, "*batch"]
    spectral_radius: Float[Tensor, "*batch"]
    exact_step_limit: Float[Tensor, "*batch"]
    kernel_td_step_limit: Float[Tensor, "*batch"]
    discount: Float[Tensor, "*batch"]
    diagonality: Float[Tensor, "*batch"]
    density_ratio: Float[Tensor, "*batch"]
    transition_norm: Float[Tensor, "*batch"]
    numerical_range: Float[Tensor, "*batch"]
    smallest_eigenvalue: Float[Tensor, "*batch"]
    smallest_weight: Float[Tensor, "*batch"]

    _reference = "spectral_radius"
    _reference_ndim = 0

    @property
    def conditions(self) -> tuple[str, ...]:
        """The names of the conditions."""
        return CONDITIONS

    @property
    def certified(self) -> Bool[Tensor, "*batch"]:
        """Whether a condition certifies convergence at this step size."""
        return (self.rate < 1).any(-1)

    @property
    def best_rate(self) -> Float[Tensor, "*batch"]:
        """The smallest certified rate; infinite where there is none."""
        return self.rate.amin(-1)

    @property
    def best_condition(self) -> Int[Tensor, "*batch"]:
        """Which condition gave it, a place in ``conditions``; -1 where none did."""
        return torch.where(self.certified, self.rate.argmin(-1), -1)

    @property
    def best_name(self) -> str | None:
        """The name of that condition, for a single problem."""
        best = int(self.best_condition)
        return None if best < 0 else CONDITIONS[best]

    @property
    def certified_step_limit(self) -> Float[Tensor, "*batch"]:
        """Every smaller step size is certified, by one condition; 0 where none holds."""
        return self.step_limit.amax(-1)

    def __str__(self) -> str:
        """A table of the conditions, then what is exact."""
        head, rows, notes = self._table()
        widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
        lines = [
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in (head, ["-" * width for width in widths], *rows)
        ]
        return "\n".join([*lines, *notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The same as a table for notebooks."""
        head, rows, notes = self._table()
        top = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in head)
        body = "".join(
            f'<tr><th scope="row">{html.escape(first)}</th>'
            + "".join(f"<td>{html.escape(cell)}</td>" for cell in rest)
            + "</tr>"
            for first, *rest in rows
        )
        below = "<br>".join(html.escape(note) for note in notes)
        return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table><p>{below}</p>"

    def _table(self) -> tuple[list[str], list[list[str]], list[str]]:
        if self.batch_shape:
            return self._shares()
        rows = []
        for name, holds, rate, limit in zip(
            CONDITIONS, self.holds, self.rate, self.step_limit, strict=True
        ):
            certified = f"{rate:.4f}" if rate < 1 else "–"
            steps = f"α < {limit:.4g}" if holds else "–"
            rows.append([name, "yes" if holds else "no", certified, steps])
        radius, limit = float(self.spectral_radius), float(self.exact_step_limit)
        exact = f"α < {limit:.4g}" if limit > 0 else "none"
        rows.append(["exact (eigenvalues)", "yes" if limit > 0 else "no", f"{radius:.4f}", exact])
        numbers = [f"{sign} = {float(getattr(self, name)):.4g}" for name, sign in NUMBERS.items()]
        notes = [", ".join(numbers), f"kernel TD: α < {float(self.kernel_td_step_limit):.4g}"]
        return ["condition", "holds", "rate", "steps"], rows, notes

    def _shares(self) -> tuple[list[str], list[list[str]], list[str]]:
        """For a batch: how many of the problems."""
        number = self.spectral_radius.numel()

        def share(flags: Tensor) -> str:
            return f"{100 * float(flags.double().mean()):.1f} %" if number else "–"

        rows = [
            [name, share(self.holds[..., i]), share(self.rate[..., i] < 1)]
            for i, name in enumerate(CONDITIONS)
        ]
        rows.append(["any of them", share(self.holds.any(-1)), share(self.certified)])
        exact = share(self.exact_step_limit > 0), share(self.spectral_radius < 1)
        rows.append(["exact (eigenvalues)", *exact])
        return ["condition", "holds", "certified at α"], rows, [f"{number:,} problems"]
