"""A context: the tokens that a Transformer, or an algorithm, is given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ictd._batched import BatchedRecord, register
from ictd._checks import (
    check_bool,
    check_finite,
    check_floating,
    check_like,
    check_none,
    check_shape,
    values_checkable,
)
from ictd._closure import trim
from ictd._episodes import join
from ictd.scores import same_features

__all__ = ["Prompt"]


@register
@dataclasses.dataclass(frozen=True, eq=False)
class Prompt(BatchedRecord):
    r"""Hold a context of ``N`` tokens: features, and the transitions between them.

    Token ``j`` holds :math:`\varphi(S_j)`, the reward :math:`R_{j+1}` and the discount
    :math:`\gamma_{j+1}` of the transition from token ``j`` to token ``j + 1``, and whether there is
    one. Tokens that no transition leaves (an episode's last observation, padding, queries) are
    never attended to: whatever rewards and discounts they are given, NaN included, is stored as 0
    and reaches neither a value nor a gradient.

    Book: :prf:ref:`def-prompt`.

    Args:
        features: :math:`\varphi`, ``[*B, N, d]``, finite everywhere (padding: zeros).
        rewards: :math:`R_{j+1}`, ``[*B, N]``, in reward units.
        discounts: :math:`\gamma_{j+1} \in [0, 1]`, ``[*B, N]``: 0 where the successor is terminal.
        is_transition: ``[*B, N]`` of bool; never True at the last token.
        is_terminal: ``[*B, N]`` of bool, or None. The value of a terminal token is 0 in every
            algorithm and every layer. None pins nothing, and nothing is inferred from discounts.

    Raises:
        ValueError: If shapes disagree, a feature is not finite, a discount that counts lies outside
            [0, 1], a reward that counts is not finite, a transition leaves the last token or a
            terminal one.
        TypeError: If a dtype is wrong.

    Note:
        Frozen, a pytree (``torch.vmap`` maps it), with ``len``, ``[...]`` over the batch axes,
        ``.to``, ``.device``, ``.dtype`` and ``.batch_shape``. Values are not checked while a
        program is compiled or mapped.

    Example:
        >>> import torch, ictd
        >>> prompt = ictd.Prompt(
        ...     features=torch.eye(3),
        ...     rewards=torch.tensor([1.0, 10.0, 0.0]),
        ...     discounts=torch.tensor([0.5, 0.0, 0.0]),
        ...     is_transition=torch.tensor([True, True, False]),
        ... )
        >>> len(prompt), prompt.feature_dim
        (3, 3)
    """

    features: Float[Tensor, "*batch token feature"]
    rewards: Float[Tensor, "*batch token"]
    discounts: Float[Tensor, "*batch token"]
    is_transition: Bool[Tensor, "*batch token"]
    is_terminal: Bool[Tensor, "*batch token"] | None = None

    _num_keys: int | None = dataclasses.field(init=False, repr=False)

    _reference = "features"
    _reference_ndim = 2

    def __post_init__(self) -> None:
        check_floating("features", self.features)
        if self.features.ndim < 2 or 0 in self.features.shape[-2:]:
            raise ValueError(
                "features: expected shape [*B, N, d] with at least one token and one feature, "
                f"got {tuple(self.features.shape)}"
            )
        for name in ("rewards", "discounts", "is_transition", "is_terminal"):
            value = getattr(self, name)
            if value is None and name == "is_terminal":
                continue
            (check_bool if name.startswith("is_") else check_floating)(name, value)
            check_shape(name, value, self.features.shape[:-1], "[*B, N]")
            check_like("features", self.features, name, value)
        for name in ("rewards", "discounts"):
            counts = torch.where(self.is_transition, getattr(self, name), 0.0)
            object.__setattr__(self, name, counts)
        num_keys = None
        if values_checkable(*self._tensors().values()):
            self._check_values()
            leaves = self.is_transition.reshape(-1, len(self)).any(0).nonzero()
            num_keys = int(leaves[-1]) + 1 if len(leaves) else 1
        object.__setattr__(self, "_num_keys", num_keys)

    def _check_values(self) -> None:
        check_finite("features", self.features)
        last = torch.arange(len(self), device=self.device) == len(self) - 1
        expected = "no transition from the last token, which has no successor"
        check_none("is_transition", self.is_transition & last, expected)
        if self.is_terminal is not None:
            both = self.is_transition & self.is_terminal
            check_none("is_transition", both, "no transition from a terminal token")
        check_finite("rewards", self.rewards)
        outside = ~((self.discounts >= 0) & (self.discounts <= 1))
        check_none("discounts", outside, "numbers in [0, 1] at transitions", self.discounts)

    def __len__(self) -> int:
        return self.features.shape[-2]

    @property
    def num_keys(self) -> int:
        """The number of first tokens among which all keys lie, at least 1.

        The last of them is the last that a transition leaves; where values cannot be read, as in
        ``torch.vmap``, it is the last token but one.
        """
        return max(len(self) - 1, 1) if self._num_keys is None else self._num_keys

    @property
    def feature_dim(self) -> int:
        """The number ``d`` of features of a token."""
        return self.features.shape[-1]

    @staticmethod
    def from_episodes(
        observations: Sequence[Any],
        rewards: Sequence[Any],
        terminated: Sequence[Any],
        truncated: Sequence[Any],
        *,
        discount: float,
        features: Callable[[Any], Any] | None = None,
    ) -> Prompt:
        r"""Lay the episodes of an environment one after the other.

        Every argument has one entry per episode; the result has no batch axes. A terminated
        episode ends with discount 0 and a terminal token, a truncated one (or one that is still
        running) bootstraps from its last observation. An episode that is both is terminated. No
        transition joins two episodes.

        Args:
            observations: Episode ``i``: ``[T_i + 1, ...]``, from reset to the last observation.
            rewards: Episode ``i``: ``[T_i]``, in reward units.
            terminated: Episode ``i``: the flag of its last step, or an array of the flags of all.
            truncated: The same for truncation.
            discount: :math:`\gamma \in [0, 1]`.
            features: Maps the observations of one episode to ``[T_i + 1, d]``. None takes the
                observations themselves.

        Returns:
            A prompt of :math:`\sum_i (T_i + 1)` tokens in the features' dtype, on their device.

        Raises:
            ValueError: If lengths disagree, an episode is empty, or one goes on after its end.
            TypeError: If the features are not floating-point numbers.

        Note:
            The flags are those of Gymnasium's ``step``.

        Example:
            >>> import ictd
            >>> prompt = ictd.Prompt.from_episodes(
            ...     [[[0.0], [1.0]], [[2.0], [3.0], [4.0]]], [[1.0], [1.0, 1.0]],
            ...     [True, False], [False, True], discount=0.9,
            ... )
            >>> prompt.discounts
            tensor([0.0000, 0.0000, 0.9000, 0.9000, 0.0000])
            >>> prompt.is_transition
            tensor([ True, False,  True,  True, False])
        """
        if not 0 <= discount <= 1:
            raise ValueError(f"discount: expected a number in [0, 1], got {discount}")
        return Prompt(**join(observations, rewards, terminated, truncated, discount, features))

    def with_queries(self, features: Float[Tensor, "*batch query feature"]) -> Prompt:
        """Append query tokens: they read the context and change nothing else.

        Args:
            features: ``[*B, Q, d]``, or ``[Q, d]`` to put the same queries to every context.

        Returns:
            A prompt of ``N + Q`` tokens.

        Raises:
            ValueError: If the shape does not fit.
            TypeError: If the dtype is not the prompt's.

        Example:
            >>> import torch, ictd
            >>> prompt = ictd.Prompt(
            ...     torch.eye(2), torch.ones(2), torch.ones(2), torch.tensor([True, False])
            ... )
            >>> len(prompt.with_queries(torch.zeros(5, 2)))
            7
        """
        check_floating("features", features)
        if features.ndim == 2:
            features = features.expand(*self.batch_shape, *features.shape)
        queries = features.shape[-2] if features.ndim >= 2 else 0
        expected = (*self.batch_shape, queries, self.feature_dim)
        check_shape("features", features, expected, "[*B, Q, d]")
        check_like("the prompt", self.features, "features", features)
        padded = _pad(self, len(self) + queries)
        joined = torch.cat([self.features, features], -2)
        return dataclasses.replace(padded, features=joined)

    @staticmethod
    def stack(prompts: Sequence[Prompt]) -> Prompt:
        """Stack prompts along a new first batch axis, padding the shorter ones.

        Args:
            prompts: At least one; of equal batch shape, feature width, dtype and device.

        Returns:
            A prompt ``[len(prompts), *B, max N, d]``; the padding is never attended to.

        Raises:
            ValueError: If the list is empty or the prompts do not fit together.

        Example:
            >>> import torch, ictd
            >>> one = ictd.Prompt(torch.eye(1), *torch.zeros(2, 1), torch.tensor([False]))
            >>> ictd.Prompt.stack([one, one.with_queries(torch.ones(2, 1))]).features.shape
            torch.Size([2, 3, 1])
        """
        if not prompts:
            raise ValueError("prompts: expected at least one, got none")
        first = prompts[0]
        for i, prompt in enumerate(prompts):
            got = (tuple(prompt.batch_shape), prompt.feature_dim)
            if got != (tuple(first.batch_shape), first.feature_dim):
                raise ValueError(
                    f"prompts[{i}]: expected batch shape {tuple(first.batch_shape)} and "
                    f"{first.feature_dim} features as prompts[0], got {got[0]} and {got[1]}"
                )
            check_like("prompts[0]", first.features, f"prompts[{i}]", prompt.features)
        if any(prompt.is_terminal is not None for prompt in prompts):
            prompts = [_with_terminal(prompt) for prompt in prompts]
        length = max(len(prompt) for prompt in prompts)
        rows = [_pad(prompt, length)._tensors() for prompt in prompts]
        return Prompt(**{name: torch.stack([row[name] for row in rows]) for name in rows[0]})

    def matrix(self, initial_values: Tensor | None = None) -> Float[Tensor, "*batch row token"]:
        r"""Write the context as the paper's prompt matrix :math:`Z_0`.

        Column ``j``: the features :math:`\varphi(S_j)`, the reward :math:`R_{j+1}`, the target
        memory :math:`\gamma_{j+1} v_0(S_{j+1})` and the current memory :math:`v_0(S_j)`.

        Args:
            initial_values: :math:`v_0` at every token, ``[*B, N]``; zeros if None.

        Returns:
            ``[*B, d + 3, N]``, with reward and target memory 0 wherever no transition leaves.

        Raises:
            ValueError: If ``initial_values`` has another shape.

        Example:
            >>> import torch, ictd
            >>> prompt = ictd.Prompt(
            ...     torch.ones(2, 1), torch.tensor([3.0, 0.0]), torch.full((2,), 0.5),
            ...     torch.tensor([True, False]),
            ... )
            >>> prompt.matrix(torch.tensor([1.0, 2.0]))
            tensor([[1., 1.],
                    [3., 0.],
                    [1., 0.],
                    [1., 2.]])
        """
        current = first_values(self, initial_values)
        target = self.discounts * F.pad(current[..., 1:], (0, 1))
        memory = torch.stack([self.rewards, target, current], -2)
        return torch.cat([self.features.mT, memory], -2)

    def trim(self) -> Prompt:
        r"""Drop the tail of the context until every bootstrapped successor is a source.

        A source is a token that a kept transition leaves; two tokens are the same state if their
        features are equal. This closure is what makes the fixed point certainty equivalence.

        Book: :prf:ref:`thm-no-closure`.

        Returns:
            The prompt with the longest prefix of transitions that is closed. Queries stay. In a
            batch whose items are cut at different places, the dropped transitions of the longer
            prefixes become tokens that nothing leaves.

        Note:
            Compares all pairs of tokens: memory :math:`O(N^2 d)`.

        Example:
            >>> import torch, ictd
            >>> prompt = ictd.Prompt(
            ...     torch.eye(3)[[0, 1, 0, 2]], torch.ones(4), torch.full((4,), 0.9),
            ...     torch.tensor([True, True, True, False]),
            ... )
            >>> len(prompt.trim())  # the successor 2 is no source: its transition goes
            3
        """
        if self.features.numel() == 0:  # no contexts
            return self
        same = same_features(self.features, self.features)
        return Prompt(**trim(self._tensors(), same))


def pin(prompt: Prompt, values: Float[Tensor, "*batch token"]) -> Float[Tensor, "*batch token"]:
    """Set the values of terminal tokens to 0."""
    return values if prompt.is_terminal is None else torch.where(prompt.is_terminal, 0.0, values)


def first_values(prompt: Prompt, values: Tensor | None) -> Float[Tensor, "*batch token"]:
    """The first values of an iteration: those given, pinned, or zeros."""
    if values is None:
        return torch.zeros_like(prompt.rewards)
    check_shape("initial_values", values, prompt.rewards.shape, "[*B, N]")
    check_like("the prompt", prompt.features, "initial_values", values)
    return pin(prompt, values)


def _with_terminal(prompt: Prompt) -> Prompt:
    if prompt.is_terminal is not None:
        return prompt
    return dataclasses.replace(prompt, is_terminal=torch.zeros_like(prompt.is_transition))


def _pad(prompt: Prompt, length: int) -> Prompt:
    """Append tokens with zero features that nothing leaves, up to ``length`` tokens."""
    more = length - len(prompt)
    padded = {
        name: F.pad(value, (0, 0, 0, more) if name == "features" else (0, more))
        for name, value in prompt._tensors().items()
    }
    return Prompt(**padded)
