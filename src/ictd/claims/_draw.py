"""What the checks share: random problems, dense formulas of a record, and how far two sides are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ictd.trajectory import Trajectory


def uniform(
    generator: torch.Generator, *shape: int, low: float = 0.0, high: float = 1.0
) -> Float[Tensor, "..."]:
    """Numbers between ``low`` and ``high`` in float64."""
    return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)


def normal(generator: torch.Generator, *shape: int) -> Float[Tensor, "..."]:
    """Standard normal numbers in float64."""
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def unit(vectors: Float[Tensor, "*batch feature"]) -> Float[Tensor, "*batch feature"]:
    """The vectors at length one."""
    return vectors / vectors.square().sum(-1, keepdim=True).sqrt()


def stochastic(
    generator: torch.Generator, batch: int, num_states: int
) -> Float[Tensor, "batch state next_state"]:
    """Positive matrices whose rows sum to one; some rows are nearly deterministic."""
    weights = uniform(generator, batch, num_states, num_states, low=0.001) ** 3
    return weights / weights.sum(-1, keepdim=True)


def pick(table: Float[Tensor, "batch state"], states: Int[Tensor, "batch token"]) -> Tensor:
    """The entry of each token's state."""
    return table.gather(-1, states)


# --- Records


def walks(
    generator: torch.Generator,
    batch: int,
    num_steps: int,
    num_states: int,
    *,
    low: float = 0.3,
    high: float = 0.8,
    endings: float = 0.1,
    shared: bool = False,
    all_states: bool = False,
) -> Trajectory:
    """Closed walks, one episode each that ends in its first state.

    Discounts lie in ``[low, high]``, with ``shared`` one for each walk, and are 0 with probability
    ``endings``. With ``all_states`` every state is visited.
    """
    states = torch.randint(num_states, (batch, num_steps + 1), generator=generator)
    if all_states:
        states[:, :num_states] = uniform(generator, batch, num_states).argsort(-1)
    states[:, -1] = states[:, 0]
    discounts = uniform(generator, batch, 1 if shared else num_steps + 1, low=low, high=high)
    discounts = discounts.expand(batch, num_steps + 1)
    ends = uniform(generator, batch, num_steps + 1) < endings
    discounts = torch.where(ends, 0.0, discounts)
    return Trajectory(states, normal(generator, batch, num_steps + 1), discounts)


def episodes(
    generator: torch.Generator,
    batch: int,
    num_tokens: int,
    num_states: int,
    *,
    terminal: bool = True,
) -> Trajectory:
    """Records of several episodes, ended or cut, some without a transition; discounts vary.

    The one terminal state, where there is one, is the last of ``num_states + 1``.
    """
    states = torch.randint(num_states, (batch, num_tokens), generator=generator)
    leaves = uniform(generator, batch, num_tokens) < 0.8
    leaves[:, -1] = False
    ends = ~leaves & (uniform(generator, batch, num_tokens) < (0.5 if terminal else 0.0))
    states = torch.where(ends, num_states, states)
    discounts = uniform(generator, batch, num_tokens, low=0.4, high=0.95)
    dropped = uniform(generator, batch, num_tokens) < 0.15
    into_end = torch.nn.functional.pad(ends[:, 1:], (0, 1))
    discounts = torch.where(dropped | into_end, 0.0, discounts)
    rewards = normal(generator, batch, num_tokens)
    return Trajectory(states, rewards, discounts, leaves, ends if terminal else None)


class Counted(NamedTuple):
    """Hold visits, mean rewards and discounted frequencies of a record; 0 where nothing leaves."""

    counts: Float[Tensor, "batch state"]
    reward: Float[Tensor, "batch state"]
    transition: Float[Tensor, "batch state next_state"]

    @property
    def visited(self) -> Tensor:
        """Which states a transition leaves."""
        return self.counts > 0

    def value(self) -> Float[Tensor, "batch state"]:
        """The values of the process that moves as the record did: a sum of powers."""
        return (geometric(self.transition) @ self.reward.unsqueeze(-1)).squeeze(-1)

    def attention(
        self, scores: Float[Tensor, "batch state next_state"]
    ) -> Float[Tensor, "batch state next_state"]:
        """The lumped attention: rows read, columns are sources."""
        weight = self.counts.unsqueeze(-2) * scores.exp()
        return weight / weight.sum(-1, keepdim=True)

    def bellman_error(self, values: Float[Tensor, "batch state"]) -> Float[Tensor, "batch state"]:
        """The mean TD error of each state; 0 where nothing leaves."""
        onward = (self.transition @ values.unsqueeze(-1)).squeeze(-1)
        return torch.where(self.visited, self.reward + onward - values, 0.0)


def count(trajectory: Trajectory, num_states: int) -> Counted:
    """Count a record, by sums over all pairs of a transition and a state."""
    one_hot = torch.nn.functional.one_hot(trajectory.states, num_states).double()
    here, there = one_hot[:, :-1] * trajectory.is_transition[:, :-1, None], one_hot[:, 1:]
    counts = here.sum(1)
    share = 1 / counts.clamp(min=1)
    rewards = (trajectory.rewards[:, :-1, None] * here).sum(1)
    onward = here.mT @ (trajectory.discounts[:, :-1, None] * there)
    return Counted(counts, rewards * share, onward * share.unsqueeze(-1))


def geometric(matrix: Float[Tensor, "*batch row row"]) -> Float[Tensor, "*batch row row"]:
    """The sum of all powers of a matrix, by doubling: 2^16 of them."""
    total = torch.eye(matrix.shape[-1], dtype=matrix.dtype).expand_as(matrix)
    power = matrix
    for _ in range(16):
        total, power = total + power @ total, power @ power
    return total


# --- How far apart


def gap(actual: Tensor, expected: Tensor) -> float:
    """The largest difference relative to the problem's largest entry, or 1; problems come first."""
    size = expected.detach().abs().reshape(len(expected), -1).amax(-1).clamp(min=1)
    apart = (actual - expected).detach().abs().reshape(len(expected), -1).amax(-1)
    return float((apart / size).max())


def excess(left: Tensor, right: Tensor, size: float = 1.0) -> tuple[float, float]:
    """By how much ``left <= right`` fails, relatively, and the largest ``left / right``.

    Relative to ``right`` where it is larger than ``size``: choose it where both sides are small.
    """
    over = ((left - right) / right.abs().clamp(min=size)).max()
    ratio = torch.where(right > 1e-9 * size, left / right.clamp(min=1e-9 * size), 0.0).max()
    return float(over), float(ratio)


def worst(*deviations: float) -> float:
    """The largest deviation; NaN if one is."""
    return float(torch.tensor(deviations, dtype=torch.float64).max())
