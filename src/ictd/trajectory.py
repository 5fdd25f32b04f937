"""What a Markov reward process leaves behind: states, rewards and discounts, token by token."""

from __future__ import annotations

import dataclasses

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ictd._batched import BatchedRecord, register
from ictd._checks import (
    check_bool,
    check_dtype,
    check_finite,
    check_floating,
    check_like,
    check_none,
    check_shape,
)
from ictd._closure import bootstrap_discounts, closed_prefix, cut
from ictd.prompt import Prompt

__all__ = ["Trajectory"]


@register
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class Trajectory(BatchedRecord):
    r"""Hold ``N`` visited states :math:`S_0, \dots, S_{N-1}` and what was earned between them.

    Token ``j`` holds the state :math:`S_j`, and the reward :math:`R_{j+1}` and the discount
    :math:`\gamma_{j+1}` of the transition to token ``j + 1``, if there is one. ``discounts`` is
    :math:`\gamma`, or 0 where the successor is terminal.

    Book: :prf:ref:`def-trajectory`.

    Args:
        states: :math:`S_j`, ``[*B, N]`` of int64, at least 0.
        rewards: :math:`R_{j+1}`, ``[*B, N]``, in reward units.
        discounts: :math:`\gamma_{j+1} \in [0, 1]`, ``[*B, N]``, dimensionless.
        is_transition: ``[*B, N]`` of bool, never True at the last token or at a terminal one. None:
            True everywhere else.
        is_terminal: ``[*B, N]`` of bool: the value of these tokens is 0. None pins nothing.

    Raises:
        ValueError: If shapes or devices disagree, a state is negative, a transition leaves the last
            token or a terminal one, or its reward or discount is not finite or not in [0, 1].
        TypeError: If a dtype is wrong.

    Note:
        Frozen, a pytree, with ``len``, ``[...]`` over the batch axes, ``.to``, ``.device``,
        ``.dtype`` and ``.batch_shape``. What rewards and discounts hold where no transition leaves
        is never read. Values are not checked while a program is compiled or mapped.

    Example:
        >>> import torch, ictd
        >>> trajectory = ictd.Trajectory(
        ...     torch.tensor([0, 1, 2]), torch.tensor([1.0, 10.0, 0.0]), torch.tensor([0.5, 0, 0]),
        ...     is_terminal=torch.tensor([False, False, True]),
        ... )
        >>> trajectory.is_transition
        tensor([ True,  True, False])
    """

    states: Int[Tensor, "*batch token"]
    rewards: Float[Tensor, "*batch token"]
    discounts: Float[Tensor, "*batch token"]
    is_transition: Bool[Tensor, "*batch token"]
    is_terminal: Bool[Tensor, "*batch token"] | None

    _reference = "rewards"
    _reference_ndim = 1

    def __init__(
        self,
        states: Int[Tensor, "*batch token"],
        rewards: Float[Tensor, "*batch token"],
        discounts: Float[Tensor, "*batch token"],
        is_transition: Bool[Tensor, "*batch token"] | None = None,
        is_terminal: Bool[Tensor, "*batch token"] | None = None,
    ) -> None:
        check_dtype("states", states, torch.int64)
        if states.ndim < 1 or states.shape[-1] < 1:
            raise ValueError(
                f"states: expected [*B, N] with at least one token, got shape {tuple(states.shape)}"
            )
        check_floating("rewards", rewards)
        check_floating("discounts", discounts)
        if is_terminal is not None:
            check_bool("is_terminal", is_terminal)
            check_shape("is_terminal", is_terminal, states.shape, "[*B, N]")
        if is_transition is None:
            is_transition = _is_last(states).logical_not()
            if is_terminal is not None:
                is_transition = is_transition & is_terminal.logical_not()
        check_bool("is_transition", is_transition)
        fields = {
            "states": states,
            "rewards": rewards,
            "discounts": discounts,
            "is_transition": is_transition,
            "is_terminal": is_terminal,
        }
        for name, value in fields.items():
            if value is not None:
                check_shape(name, value, states.shape, "[*B, N]")
                check_like("rewards", rewards, name, value)
            object.__setattr__(self, name, value)
        self._check_values()

    def _check_values(self) -> None:
        check_none("states", self.states < 0, "states >= 0", self.states)
        leaves = self.is_transition
        at_end = leaves & _is_last(self.states)
        check_none("is_transition", at_end, "no transition from the last token")
        if self.is_terminal is not None:
            both = leaves & self.is_terminal
            check_none("is_transition", both, "no transition from a terminal token")
        check_finite("rewards", torch.where(leaves, self.rewards, 0.0))
        inside = (self.discounts >= 0) & (self.discounts <= 1)
        outside = leaves & inside.logical_not()
        check_none("discounts", outside, "numbers in [0, 1] at transitions", self.discounts)

    def __len__(self) -> int:
        return self.states.shape[-1]

    def prompt(self, features: Float[Tensor, "*features_batch state feature"]) -> Prompt:
        r"""Replace each state by its features :math:`\varphi(S_j)`.

        Args:
            features: :math:`\varphi`, ``[m, d]`` for all batch items, or ``[*B, m, d]``.

        Returns:
            A prompt of as many tokens, in the same dtype, on the same device.

        Raises:
            ValueError: If the shape does not fit or a state has no row in ``features``.
            TypeError: If the dtype is not that of the rewards.

        Note:
            Gradients reach ``features``.

        Example:
            >>> import torch, ictd
            >>> trajectory = ictd.Trajectory(
            ...     torch.tensor([0, 1]), torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.0])
            ... )
            >>> trajectory.prompt(torch.tensor([[3.0], [4.0]])).features
            tensor([[3.],
                    [4.]])
        """
        check_floating("features", features)
        shared = features.ndim == 2
        if not shared and (features.ndim < 2 or features.shape[:-2] != self.batch_shape):
            raise ValueError(
                f"features: expected shape [m, d], or [*B, m, d] with *B = "
                f"{tuple(self.batch_shape)}, got {tuple(features.shape)}"
            )
        check_like("rewards", self.rewards, "features", features)
        num_states = features.shape[-2]
        missing = self.states >= num_states
        check_none("states", missing, f"states < {num_states} (rows of features)", self.states)
        if shared:
            tokens = features[self.states]
        else:
            index = self.states.unsqueeze(-1).expand(*self.states.shape, features.shape[-1])
            tokens = features.gather(-2, index)
        return Prompt(tokens, self.rewards, self.discounts, self.is_transition, self.is_terminal)

    def trim(self) -> Trajectory:
        r"""Drop the tail until every bootstrapped successor is a source (closure).

        The result keeps the longest prefix of transitions such that each kept transition with
        :math:`\gamma_{j+1} \ne 0` leads to a state that a kept transition leaves. Then certainty
        equivalence is defined: see `certainty_equivalence`.

        Book: :prf:ref:`thm-no-closure`.

        Returns:
            The shorter trajectory (at least one token). In a batch whose items are cut at different
            places, dropped transitions of the shorter prefixes become tokens that nothing leaves.

        Note:
            Cost O(N + m) for states below m. The same cut as `Prompt.trim` with one-hot features.

        Example:
            >>> import torch, ictd
            >>> trajectory = ictd.Trajectory(
            ...     torch.tensor([0, 1, 0, 2]), torch.ones(4), torch.full((4,), 0.9)
            ... )
            >>> trajectory.trim().states  # state 2 is no source
            tensor([0, 1, 0])
        """
        if self.states.numel() == 0:  # no trajectories
            return self
        length = len(self)
        token = torch.arange(length, device=self.device).expand_as(self.states)
        source = torch.where(self.is_transition, token, length)
        first = source.new_full((*self.batch_shape, int(self.states.max()) + 1), length)
        first = first.scatter_reduce(-1, self.states, source, "amin")
        first_source = first.gather(-1, self.states)
        tensors = self._tensors()
        prefix = closed_prefix(first_source, self.is_transition, bootstrap_discounts(tensors))
        return Trajectory(**cut(tensors, prefix))


def _is_last(states: Int[Tensor, "*batch token"]) -> Bool[Tensor, "*batch token"]:
    """Return where the last token is."""
    length = states.shape[-1]
    return (torch.arange(length, device=states.device) == length - 1).expand(states.shape)
