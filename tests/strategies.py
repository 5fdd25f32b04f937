"""Random contexts of every kind the package accepts: the factory that the tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import ictd
from reference import td as reference

# Deterministic and quick: the same examples in every run, none of them timed.
quick = settings(derandomize=True, deadline=None, max_examples=8)

BATCH_SHAPES: list[tuple[int, ...]] = [(), (3,), (2, 3)]


@dataclass(frozen=True)
class Contexts:
    """Contexts of a common size as NumPy arrays with leading batch axes.

    ``states`` names the state of each token; queries and padding have states of their own.
    """

    states: NDArray[np.int64]
    features: reference.Array
    rewards: reference.Array
    discounts: reference.Array
    is_transition: reference.Mask
    is_terminal: reference.Mask

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return self.states.shape[:-1]

    def prompt(self, dtype: torch.dtype = torch.float64) -> ictd.Prompt:
        """The same contexts as the package takes them."""
        return ictd.Prompt(
            torch.as_tensor(self.features, dtype=dtype),
            torch.as_tensor(self.rewards, dtype=dtype),
            torch.as_tensor(self.discounts, dtype=dtype),
            torch.as_tensor(self.is_transition),
            torch.as_tensor(self.is_terminal),
        )

    def trajectory(self) -> ictd.Trajectory:
        """The same contexts as trajectories of states."""
        return ictd.Trajectory(
            torch.as_tensor(self.states),
            torch.as_tensor(self.rewards),
            torch.as_tensor(self.discounts),
            torch.as_tensor(self.is_transition),
            torch.as_tensor(self.is_terminal),
        )

    def indices(self) -> Iterator[tuple[int, ...]]:
        """Every index into the batch axes."""
        return iter(np.ndindex(self.batch_shape))

    def __getitem__(self, index: tuple[int, ...]) -> reference.Context:
        """One context, as the reference takes it."""
        return reference.Context(
            self.features[index],
            self.rewards[index],
            self.discounts[index],
            self.is_transition[index],
            self.is_terminal[index],
        )

    def loop(self, compute: Callable[[reference.Context], NDArray[Any]]) -> torch.Tensor:
        """Apply a reference to every context; the batch axes come just before the last one."""
        results = [compute(self[index]) for index in self.indices()]
        stacked = np.stack(results, axis=-2)
        shape = (*results[0].shape[:-1], *self.batch_shape, results[0].shape[-1])
        return torch.as_tensor(stacked.reshape(shape))

    def with_junk(self) -> Contexts:
        """The same contexts with NaN, inf and huge numbers wherever nothing may read."""
        rng = np.random.default_rng(0)
        junk = rng.choice([np.nan, np.inf, -np.inf, 1e300], size=self.rewards.shape)
        return replace(
            self,
            rewards=np.where(self.is_transition, self.rewards, junk),
            discounts=np.where(self.is_transition, self.discounts, np.flip(junk, -1)),
        )


def random_contexts(
    seed: int = 0,
    *,
    batch_shape: tuple[int, ...] = (),
    num_tokens: int = 14,
    num_states: int = 5,
    feature_dim: int = 3,
    num_queries: int = 2,
    num_padding: int = 1,
    terminal: bool = True,
    closed: bool = False,
) -> Contexts:
    """Draw episodes of random length, then padding, then queries.

    An episode ends at random: terminated (with a terminal token, or only with a zero discount) or
    truncated; it may consist of a single observation. With ``closed`` there is one episode, and
    it starts and ends in the same state, so that every successor is a source.
    """
    rng = np.random.default_rng(seed)
    total = num_tokens + num_padding + num_queries
    table = rng.normal(size=(*batch_shape, num_states, feature_dim))
    table /= np.linalg.norm(table, axis=-1, keepdims=True)
    states = np.zeros((*batch_shape, total), dtype=np.int64)
    features = np.zeros((*batch_shape, total, feature_dim))
    rewards = np.zeros((*batch_shape, total))
    discounts = np.zeros((*batch_shape, total))
    is_transition = np.zeros((*batch_shape, total), dtype=bool)
    is_terminal = np.zeros((*batch_shape, total), dtype=bool)
    for index in np.ndindex(batch_shape):
        walk = rng.integers(num_states, size=num_tokens)
        if closed:
            walk[-1] = walk[0]
        states[index][:num_tokens] = walk
        features[index][:num_tokens] = table[index][walk]
        transitions = np.ones(num_tokens, dtype=bool)
        if not closed:
            transitions = rng.random(num_tokens) < 0.75
        transitions[-1] = False
        rewards[index][:num_tokens] = np.where(transitions, rng.normal(size=num_tokens), 0.0)
        gamma = np.where(rng.random(num_tokens) < 0.15, 0.0, rng.uniform(0.5, 0.95, num_tokens))
        discounts[index][:num_tokens] = np.where(transitions, gamma, 0.0)
        is_transition[index][:num_tokens] = transitions
        for j in np.flatnonzero(~transitions):
            if terminal and not closed and rng.random() < 0.5:
                is_terminal[index][j] = True
                if j:
                    discounts[index][j - 1] = 0.0
        extra = num_padding + num_queries
        states[index][num_tokens:] = num_states + np.arange(extra)
        if num_queries:
            features[index][total - num_queries :] = rng.normal(size=(num_queries, feature_dim))
    return Contexts(states, features, rewards, discounts, is_transition, is_terminal)


def contexts(**fixed: Any) -> st.SearchStrategy[Contexts]:
    """Hypothesis draws of ``random_contexts``; keywords fix what should not vary."""
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "seed": st.integers(0, 2**32 - 1),
        "batch_shape": st.sampled_from(BATCH_SHAPES),
        "num_tokens": st.integers(1, 12),
        "num_states": st.integers(1, 5),
        "feature_dim": st.integers(1, 4),
        "num_queries": st.integers(0, 2),
        "num_padding": st.integers(0, 2),
    }
    drawn.update({name: st.just(value) for name, value in fixed.items()})
    return st.builds(random_contexts, **drawn)


def random_matrix(seed: int, dim: int, scale: float = 1.0) -> NDArray[np.float64]:
    """A square matrix without any symmetry."""
    return np.random.default_rng(seed).normal(size=(dim, dim)) * scale


def tensor(array: Any) -> torch.Tensor:
    """A float64 tensor of the given numbers."""
    return torch.as_tensor(np.asarray(array), dtype=torch.float64)


def gradients(outputs: torch.Tensor, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients of the sum of the squared outputs; zeros for inputs that play no part."""
    found = torch.autograd.grad(outputs.square().sum(), inputs, allow_unused=True)
    pairs = zip(inputs, found, strict=True)
    return [torch.zeros_like(x) if g is None else g for x, g in pairs]


@contextmanager
def refuses(error: type[Exception], match: str) -> Iterator[None]:
    """Expect an error of the package itself, with this message.

    The type checks of the test suite would come first, so they are put aside for as long.
    """
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.raises(error, match=match):
            yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def assert_same(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-12) -> None:
    """Equal to the tolerance, relative to the larger of 1 and the largest expected entry."""
    actual, expected = actual.detach(), expected.detach()
    assert actual.shape == expected.shape
    scale = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=tolerance * scale)
