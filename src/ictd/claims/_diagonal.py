"""What the checks on diagonality share: problems with a given diagonality, the worst among them."""

from __future__ import annotations

import torch
from torch import Tensor

import ictd
from ictd.claims._draw import stochastic, uniform

STATES = 6
WORST = 60  # states of the constructed problems


def distance(e: Tensor, g: Tensor, q: Tensor) -> Tensor:
    """The larger root of (d - g)(d - q) = g q e."""
    return (g + q + ((g + q) ** 2 - 4 * g * q * (1 - e)).sqrt()) / 2


def random_problems(
    generator: torch.Generator, batch: int, least: Tensor, discount: Tensor, *, signed: bool = True
) -> tuple[Tensor, Tensor]:
    """Attentions with this diagonality and G with this norm; a half of them are rings.

    G is stochastic times the discount, and in every fourth problem it has signs too.
    """
    eye = torch.eye(STATES, dtype=torch.float64)
    off, onward = stochastic(generator, batch, STATES), stochastic(generator, batch, STATES)
    powers = torch.stack([eye.roll(k, -1) for k in range(STATES)])
    ring = uniform(generator, batch, 1, 1) < 0.5
    mixing = uniform(generator, batch, 1, 1) ** 4
    for matrix in (off, onward):
        chosen = powers[torch.randint(STATES, (batch,), generator=generator)]
        matrix.copy_(torch.where(ring, mixing * matrix + (1 - mixing) * chosen, matrix))
    share = least[:, None, None]
    own = share + (1 - share) * uniform(generator, batch, STATES, 1) ** 4 * (~ring).double()
    own[:, 0] = least[:, None]
    attention = own * eye + (1 - own) * off
    signs = torch.where(uniform(generator, batch, STATES, STATES) < 0.5, -1.0, 1.0)
    signs = torch.where(uniform(generator, batch, 1, 1) < 0.25, signs, torch.ones_like(signs))
    onward = discount[:, None, None] * onward
    return attention, onward * signs if signed else onward


def drift(attention: Tensor, onward: Tensor) -> Tensor:
    """M (I - G)."""
    return attention - attention @ onward


def worst_problems(steps: tuple[float, ...]) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Diagonality, discount, step and drift of constructed problems, each a batch of one."""
    found = []
    for least, discount in ((0.97, 0.9), (0.86, 0.9), (0.8, 0.5), (0.6, 0.3), (0.995, 0.99)):
        for step in steps:
            attention, transition = ictd.worst_case(least, discount, step, WORST)
            matrix = drift(attention, discount * transition)
            m, g, a = one(least, discount, step)
            found.append((m, g, a, matrix.unsqueeze(0)))
    return found


def one(*numbers: float) -> list[Tensor]:
    """Numbers as tensors of one entry."""
    return [torch.tensor([x], dtype=torch.float64) for x in numbers]


def radius(matrix: Tensor, step: Tensor) -> Tensor:
    """The spectral radius of I - α · matrix."""
    moduli: Tensor = (1 - step[:, None] * torch.linalg.eigvals(matrix)).abs()
    return moduli.amax(-1)
