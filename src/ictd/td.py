"""Temporal-difference learning on a context: TD errors, tabular and linear TD."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ictd._checks import (
    check_bool,
    check_int,
    check_like,
    check_positive_int,
    check_shape,
)
from ictd.features import one_hot_features
from ictd.prompt import Prompt, pin
from ictd.trajectory import Trajectory

__all__ = ["linear_td", "online_td", "tabular_td", "td_errors", "temporal_shift"]


def temporal_shift(
    values: Float[Tensor, "*batch token"],
    discounts: Float[Tensor, "*batch token"],
    is_transition: Bool[Tensor, "*batch token"],
) -> Float[Tensor, "*batch token"]:
    r"""Move every value to its predecessor and discount it.

    .. math:: (v \Pi \Gamma)_j = \gamma_{j+1} v_{j+1}

    Entry ``j`` is 0 wherever no transition leaves token ``j``.

    Args:
        values: One value per token, ``[*B, N]``, in reward units.
        discounts: Per-transition discounts :math:`\gamma_{j+1}`, ``[*B, N]``.
        is_transition: ``[*B, N]`` of bool.

    Returns:
        The discounted values of the successors, ``[*B, N]``, in the dtype of ``values``.

    Raises:
        ValueError: If the shapes differ.
        TypeError: If the dtypes of values and discounts differ, or the mask is not bool.

    Note:
        Linear in ``values``, differentiable, without parameters.

    Example:
        >>> import torch, ictd
        >>> ictd.temporal_shift(
        ...     torch.tensor([1.0, 2.0, 4.0]), torch.full((3,), 0.5),
        ...     torch.tensor([True, True, False]),
        ... )
        tensor([1., 2., 0.])
    """
    check_shape("discounts", discounts, values.shape, "[*B, N]")
    check_shape("is_transition", is_transition, values.shape, "[*B, N]")
    check_bool("is_transition", is_transition)
    check_like("values", values, "discounts", discounts)
    discounts = torch.where(is_transition, discounts, 0.0)  # first: 0 times NaN has a NaN gradient
    return torch.where(is_transition, shift(values, discounts), 0.0)


def shift(values: Tensor, discounts: Tensor) -> Tensor:
    """The formula of :func:`temporal_shift`, for discounts that are 0 where nothing leaves."""
    return discounts * F.pad(values[..., 1:], (0, 1))


def td_errors(
    prompt: Prompt, values: Float[Tensor, "*batch token"]
) -> Float[Tensor, "*batch token"]:
    r"""Compute the TD error of every transition.

    .. math:: \delta_j = R_{j+1} + \gamma_{j+1} v(S_{j+1}) - v(S_j)

    Book: :prf:ref:`def-td-error`.

    Args:
        prompt: The context.
        values: One value per token, ``[*B, N]``, in reward units; used as given.

    Returns:
        TD errors in reward units, ``[*B, N]``, 0 wherever no transition leaves.

    Raises:
        ValueError: If ``values`` is not ``[*B, N]``.

    Note:
        Linear in rewards and values, differentiable.

    Example:
        >>> import torch, ictd
        >>> prompt = ictd.Prompt(
        ...     torch.eye(3), torch.tensor([1.0, 10.0, 0.0]), torch.tensor([0.5, 0.0, 0.0]),
        ...     torch.tensor([True, True, False]),
        ... )
        >>> ictd.td_errors(prompt, torch.tensor([6.0, 10.0, 0.0]))
        tensor([0., 0., 0.])
    """
    check_shape("values", values, prompt.rewards.shape, "[*B, N]")
    check_like("the prompt", prompt.features, "values", values)
    error = prompt.rewards + shift(values, prompt.discounts) - values
    return torch.where(prompt.is_transition, error, 0.0)


def linear_td(
    prompt: Prompt,
    *,
    num_steps: int,
    step_size: float | Tensor,
    initial_weights: Float[Tensor, "*batch feature"] | None = None,
    return_history: bool = False,
) -> Float[Tensor, "*batch token"] | Float[Tensor, "step *batch token"]:
    r"""Run batch linear TD(0) on the context.

    .. math::
        w_{t+1} = w_t + \frac{\alpha}{n} \sum_k \delta_k^{(t)} \varphi(S_{k-1}), \qquad
        v_t(s) = \varphi(s)^\top w_t

    Args:
        prompt: The context, ``N`` tokens, ``n`` transitions.
        num_steps: Number of steps, at least 0.
        step_size: :math:`\alpha`, in units of one over the squared features'.
        initial_weights: :math:`w_0`, ``[*B, d]``; 0 if None.
        return_history: Whether to return the values after every step.

    Returns:
        Values in reward units at every token, ``[*B, N]``, or ``[num_steps + 1, *B, N]``.

    Raises:
        ValueError: If a shape does not fit or ``num_steps`` is negative.

    Note:
        Differentiable. Its limit, where it has one, is :func:`ictd.lstd`.

    Example:
        >>> import torch, ictd
        >>> prompt = ictd.Prompt(
        ...     torch.tensor([[2.0], [1.0]]), torch.tensor([1.0, 0.0]), torch.zeros(2),
        ...     torch.tensor([True, False]),
        ... )
        >>> ictd.linear_td(prompt, num_steps=1, step_size=0.5)
        tensor([2., 1.])
    """
    check_int("num_steps", num_steps, 0)
    step = scalar_step(prompt, step_size) / num_transitions(prompt)
    weights = _first_weights(prompt, initial_weights)
    history = [pin(prompt, _values(prompt, weights))]
    for _ in range(num_steps):
        errors = td_errors(prompt, history[-1])
        weights = weights + step * (errors.unsqueeze(-2) @ prompt.features).squeeze(-2)
        history = [*(history if return_history else ()), pin(prompt, _values(prompt, weights))]
    return torch.stack(history) if return_history else history[-1]


def tabular_td(
    trajectory: Trajectory,
    num_states: int,
    *,
    num_steps: int,
    step_size: float | Tensor,
    initial_values: Float[Tensor, "*batch state"] | None = None,
    return_history: bool = False,
) -> Float[Tensor, "*batch token"] | Float[Tensor, "step *batch token"]:
    r"""Run tabular batch TD(0): linear TD with one-hot features.

    .. math:: v_{t+1}(s) = v_t(s) + \frac{\alpha}{n} \sum_k 1\{S_{k-1} = s\}\,\delta_k^{(t)}

    Args:
        trajectory: The context in state form, ``N`` tokens, ``n`` transitions.
        num_states: ``m``, the number of states.
        num_steps: Number of steps, at least 0.
        step_size: :math:`\alpha`, dimensionless.
        initial_values: :math:`v_0` of every state, ``[*B, m]``; 0 if None.
        return_history: Whether to return the values after every step.

    Returns:
        Values in reward units at every token, ``[*B, N]``, or ``[num_steps + 1, *B, N]``.

    Raises:
        ValueError: If a shape does not fit or ``num_steps`` is negative.

    Note:
        The value of state ``s`` is the value at any token in ``s``. Its limit is
        :func:`ictd.certainty_equivalence`.

    Example:
        >>> import torch, ictd
        >>> trajectory = ictd.Trajectory(
        ...     torch.tensor([0, 1]), torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.0])
        ... )
        >>> ictd.tabular_td(trajectory, 2, num_steps=1, step_size=1.0)
        tensor([1., 0.])
    """
    prompt = one_hot_prompt(trajectory, num_states)
    return linear_td(
        prompt,
        num_steps=num_steps,
        step_size=step_size,
        initial_weights=initial_values,
        return_history=return_history,
    )


def online_td(
    prompt: Prompt,
    *,
    step_size: float | Tensor,
    initial_weights: Float[Tensor, "*batch feature"] | None = None,
    return_history: bool = False,
) -> Float[Tensor, "*batch feature"] | Float[Tensor, "token *batch feature"]:
    r"""Run online linear TD(0): one step for each transition, in the order of time.

    .. math:: w \leftarrow w + \alpha_k\,\delta_k\,\varphi(S_{k-1})

    One-hot features make it tabular TD(0); the weights are then the values of the states. The
    update is a semi-gradient: the successor's value is held fixed.

    Args:
        prompt: The context, ``N`` tokens.
        step_size: :math:`\alpha`, a number, or a tensor ``[N]`` of one step for each token.
        initial_weights: :math:`w_0`, ``[*B, d]``; 0 if None.
        return_history: Whether to return the weights at every token.

    Returns:
        The last weights ``[*B, d]``, or ``[N, *B, d]``: the weights on arrival at each token.

    Raises:
        ValueError: If a shape does not fit.

    Note:
        Differentiable. A Python loop over the tokens.

    Example:
        >>> import torch, ictd
        >>> prompt = ictd.Prompt(
        ...     torch.eye(2), torch.zeros(2), torch.tensor([0.9, 0.0]),
        ...     torch.tensor([True, False]),
        ... )
        >>> ictd.online_td(prompt, step_size=1.0, initial_weights=torch.ones(2))
        tensor([0.9000, 1.0000])
    """
    weights = _first_weights(prompt, initial_weights)
    steps = torch.as_tensor(step_size, dtype=prompt.dtype, device=prompt.device)
    if steps.ndim:
        check_shape("step_size", steps, (len(prompt),), "[N]")
    steps = steps.expand(len(prompt))
    history = [weights]
    for j in range(len(prompt) - 1):
        pair = _values(prompt, weights, slice(j, j + 2))
        if prompt.is_terminal is not None:
            pair = torch.where(prompt.is_terminal[..., j : j + 2], 0.0, pair)
        error = prompt.rewards[..., j] + prompt.discounts[..., j] * pair[..., 1] - pair[..., 0]
        error = torch.where(prompt.is_transition[..., j], error, 0.0)
        weights = weights + steps[j] * error.unsqueeze(-1) * prompt.features[..., j, :]
        history.append(weights)
    return torch.stack(history) if return_history else weights


def _first_weights(prompt: Prompt, weights: Tensor | None) -> Float[Tensor, "*batch feature"]:
    if weights is None:
        return torch.zeros_like(prompt.features[..., 0, :])
    expected = (*prompt.batch_shape, prompt.feature_dim)
    check_shape("initial_weights", weights, expected, "[*B, d]")
    check_like("the prompt", prompt.features, "initial_weights", weights)
    return weights


def _values(prompt: Prompt, weights: Tensor, tokens: slice = slice(None)) -> Tensor:
    """The linear values of some tokens."""
    return (prompt.features[..., tokens, :] @ weights.unsqueeze(-1)).squeeze(-1)


def scalar_step(prompt: Prompt, step_size: float | Tensor) -> Float[Tensor, ""]:
    """The step size as a tensor of no axes beside the prompt."""
    step = torch.as_tensor(step_size, dtype=prompt.dtype, device=prompt.device)
    check_shape("step_size", step, (), "[]")
    return step


def num_transitions(prompt: Prompt) -> Float[Tensor, "*batch 1"]:
    """The number n of transitions, at least 1, beside an axis of tokens."""
    return prompt.is_transition.sum(-1, keepdim=True).clamp(min=1).to(prompt.dtype)


def one_hot_prompt(trajectory: Trajectory, num_states: int) -> Prompt:
    check_positive_int("num_states", num_states)
    table = one_hot_features(num_states, device=trajectory.device, dtype=trajectory.dtype)
    return trajectory.prompt(table)
