"""What the checks of chapter 7 share: kernels, chains, and the norms of the proofs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

import ictd
from ictd.attention import Score
from ictd.claims._draw import normal, stochastic, uniform, unit

STATES = 4


class Problem(NamedTuple):
    """Scores with a positive definite kernel, visits, and discounted transitions; batched."""

    scores: Tensor
    visits: Tensor
    onward: Tensor
    discount: Tensor

    @property
    def kernel(self) -> Tensor:
        """κ = e^g."""
        return self.scores.exp()

    @property
    def density(self) -> Tensor:
        """Z = κ μ."""
        return (self.kernel @ self.visits.unsqueeze(-1)).squeeze(-1)

    @property
    def measure(self) -> Tensor:
        """A ∝ μ z, with sum 1."""
        a = self.visits * self.density
        return a / a.sum(-1, keepdim=True)

    @property
    def attention(self) -> Tensor:
        """M = D_z^-1 κ D_μ."""
        return self.kernel * self.visits.unsqueeze(-2) / self.density.unsqueeze(-1)

    @property
    def drift(self) -> Tensor:
        """M (I - P_γ)."""
        return self.attention @ (eye_like(self.onward) - self.onward)

    @property
    def ratio(self) -> Tensor:
        """R = max z / min z."""
        return self.density.amax(-1) / self.density.amin(-1)

    def process(self) -> ictd.MarkovRewardProcess:
        """The process; its stationary distribution are the visits if they are on-policy."""
        transition = self.onward / self.discount[:, None, None]
        return ictd.MarkovRewardProcess(transition, torch.zeros_like(self.visits), self.discount)

    def score(self) -> Score:
        """A score that returns these scores, whatever the features."""
        return lambda query, key: self.scores


def eye_like(matrix: Tensor) -> Tensor:
    """Identity matrices of the same shape."""
    return torch.eye(matrix.shape[-1], dtype=matrix.dtype).expand_as(matrix)


def kernels(generator: torch.Generator, batch: int, num_states: int = STATES) -> Tensor:
    """Scores: Gaussian ones, inner products of unit vectors, and of vectors of any length."""
    x = unit(normal(generator, batch, num_states, 3))
    x[batch // 2 :] *= 0.3 + 1.4 * uniform(generator, batch - batch // 2, num_states, 1)
    scores = 8 ** uniform(generator, batch, 1, 1, low=-1.0) * (x @ x.mT)
    own = scores.diagonal(dim1=-2, dim2=-1)
    gaussian = scores - (own.unsqueeze(-1) + own.unsqueeze(-2)) / 2
    return torch.where(uniform(generator, batch, 1, 1) < 0.4, gaussian, scores)


def same_diagonal(scores: Tensor) -> Tensor:
    """The Gaussian kernel with the same features: κ(s, s) = 1."""
    own = scores.diagonal(dim1=-2, dim2=-1)
    return scores - (own.unsqueeze(-1) + own.unsqueeze(-2)) / 2


def on_policy(
    generator: torch.Generator, scores: Tensor, *, low: float = 0.1, high: float = 0.99
) -> Problem:
    """A chain for these scores, weighted by its stationary distribution; some have a hub."""
    batch, num_states = scores.shape[:2]
    transition = stochastic(generator, batch, num_states)
    hub = uniform(generator, batch, 1, 1) < 0.3
    stays = torch.eye(num_states, dtype=torch.float64)[0].expand_as(transition)
    pull = uniform(generator, batch, num_states, 1)
    transition = torch.where(hub, pull * transition + (1 - pull) * stays, transition)
    cycle = torch.eye(num_states, dtype=torch.float64).roll(1, -1)
    mix = torch.where(uniform(generator, batch, 1, 1) < 0.3, uniform(generator, batch, 1, 1), 1.0)
    transition = mix * transition + (1 - mix) * cycle
    discount = uniform(generator, batch, low=low, high=high)
    mrp = ictd.MarkovRewardProcess(transition, torch.zeros(batch, num_states).double(), discount)
    onward = discount[:, None, None] * transition
    return Problem(scores, mrp.stationary_distribution(), onward, discount)


def off_policy(generator: torch.Generator, problem: Problem) -> Problem:
    """The same with other visits, and rows that sum to less."""
    visits = problem.visits * (0.5 + uniform(generator, *problem.visits.shape))
    rows = uniform(generator, *problem.visits.shape, 1, low=0.7)
    return problem._replace(
        visits=visits / visits.sum(-1, keepdim=True), onward=rows * problem.onward
    )


def swap(scores: Tensor, discount: Tensor) -> Problem:
    """Two states that follow each other, for scores ``[*B, 2, 2]``."""
    onward = torch.eye(2, dtype=torch.float64).flip(0).expand_as(scores)
    half = torch.full_like(scores[..., 0], 0.5)
    return Problem(scores, half, discount[:, None, None] * onward, discount)


def orthonormal(matrix: Tensor, weights: Tensor) -> Tensor:
    """The matrix in coordinates in which the weighted norm is the plain one."""
    root = weights.sqrt()
    return root.unsqueeze(-1) * matrix / root.unsqueeze(-2)


def norm(matrix: Tensor) -> Tensor:
    """The Euclidean operator norm, from the eigenvalues of the Gram matrix."""
    values: Tensor = torch.linalg.eigvalsh(matrix.mT @ matrix)
    return values.amax(-1).clamp(min=0).sqrt()


def abscissa(matrix: Tensor) -> Tensor:
    """The largest eigenvalue of the symmetric part."""
    values: Tensor = torch.linalg.eigvalsh((matrix + matrix.mT) / 2)
    return values.amax(-1)


def energy_norm(layer: Tensor, attention: Tensor) -> Tensor:
    """The norm of a layer in <x, M^-1 x>, both in orthonormal coordinates."""
    values, vectors = torch.linalg.eigh((attention + attention.mT) / 2)
    root = values.clamp(min=1e-300).sqrt().unsqueeze(-2)
    left, right = vectors / root, vectors * root
    return norm(left.mT @ layer @ right)


def smallest_real(matrix: Tensor) -> Tensor:
    """The smallest real part of an eigenvalue."""
    values: Tensor = torch.linalg.eigvals(matrix)
    return values.real.amin(-1)
