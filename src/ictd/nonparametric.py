"""TD in function space: kernel TD and weighted softmax TD."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ictd._checks import check_int, check_like, check_shape
from ictd.attention import Score, key_weights
from ictd.prompt import Prompt, first_values, pin
from ictd.td import num_transitions, scalar_step, td_errors

__all__ = ["kernel_td", "softmax_td"]


def kernel_td(
    prompt: Prompt,
    kernel: Score,
    *,
    num_steps: int,
    step_size: float | Tensor,
    initial_values: Float[Tensor, "*batch token"] | None = None,
    return_history: bool = False,
) -> Float[Tensor, "*batch token"] | Float[Tensor, "step *batch token"]:
    r"""Run batch TD in function space with a kernel.

    .. math:: v_{t+1}(s) = v_t(s) + \frac{\alpha}{n} \sum_k \kappa(s, S_{k-1})\,\delta_k^{(t)}

    The linear kernel is linear TD, the identity kernel tabular TD.

    Args:
        prompt: The context, ``N`` tokens, ``n`` transitions.
        kernel: :math:`\kappa`: queries ``[*B, Q, d]`` and keys ``[*B, K, d]`` to ``[*B, Q, K]``.
        num_steps: Number of steps, at least 0.
        step_size: :math:`\alpha`, in units of one over the kernel's.
        initial_values: :math:`v_0` at every token, ``[*B, N]``; 0 if None.
        return_history: Whether to return the values after every step.

    Returns:
        Values in reward units at every token, ``[*B, N]``, or ``[num_steps + 1, *B, N]``.

    Raises:
        ValueError: If a shape does not fit or ``num_steps`` is negative.

    Note:
        Differentiable. Memory :math:`O(N n)`. Convergence is not checked.

    Example:
        >>> import torch, ictd
        >>> prompt = ictd.Prompt(
        ...     torch.tensor([[2.0], [1.0]]), torch.tensor([1.0, 0.0]), torch.zeros(2),
        ...     torch.tensor([True, False]),
        ... )
        >>> ictd.kernel_td(prompt, ictd.LinearKernel(), num_steps=1, step_size=0.5)
        tensor([2., 1.])
    """
    keys = prompt.features[..., : prompt.num_keys, :]
    kernel_values = kernel(prompt.features, keys)
    expected = (*prompt.batch_shape, len(prompt), prompt.num_keys)
    check_shape("kernel(query, key)", kernel_values, expected, "[*B, Q, K]")
    step = scalar_step(prompt, step_size) / num_transitions(prompt)
    return iterate(prompt, kernel_values, step, num_steps, initial_values, return_history)


def softmax_td(
    prompt: Prompt,
    score: Score,
    *,
    num_steps: int,
    step_size: float | Tensor,
    weight: Float[Tensor, "*batch token"] | None = None,
    initial_values: Float[Tensor, "*batch token"] | None = None,
    return_history: bool = False,
) -> Float[Tensor, "*batch token"] | Float[Tensor, "step *batch token"]:
    r"""Run weighted softmax TD: every token moves by an attention-weighted mean of TD errors.

    .. math::
        v_{t+1}(s) = v_t(s) + \alpha\,\omega(s) \sum_k K(S_{k-1}, s)\,\delta_k^{(t)}, \qquad
        K(S_{k-1}, s) = \frac{\exp g(s, S_{k-1})}{\sum_i \exp g(s, S_{i-1})}

    Book: :prf:ref:`def-softmax-td`; the layer that runs it: :prf:ref:`thm-equivalence`.

    Args:
        prompt: The context, ``N`` tokens.
        score: The score :math:`g`: queries ``[*B, Q, d]`` and keys ``[*B, K, d]`` to
            ``[*B, Q, K]``.
        num_steps: Number of steps, at least 0.
        step_size: :math:`\alpha`, dimensionless; a number or a tensor of no axes.
        weight: :math:`\omega` at every token, ``[*B, N]``, dimensionless; 1 if None.
        initial_values: :math:`v_0` at every token, ``[*B, N]``; 0 if None.
        return_history: Whether to return the values after every step.

    Returns:
        Values in reward units at every token, ``[*B, N]``, or ``[num_steps + 1, *B, N]`` with the
        history; the first row is :math:`v_0`.

    Raises:
        ValueError: If a shape does not fit or ``num_steps`` is negative.

    Note:
        Differentiable in everything but ``num_steps``. The weights are computed once: memory
        :math:`O(N n)` and time :math:`O(N n)` a step for ``n`` tokens up to the last transition.
        For long contexts use :class:`ictd.InContextTD`, which keeps no such matrix.
        Convergence is not checked.

    Example:
        >>> import torch, ictd
        >>> prompt = ictd.Prompt(
        ...     torch.ones(2, 1), torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.0]),
        ...     torch.tensor([True, False]),
        ... )
        >>> score = ictd.BilinearScore(torch.ones(1, 1))
        >>> ictd.softmax_td(prompt, score, num_steps=3, step_size=1.0, return_history=True)[:, 0]
        tensor([0.0000, 1.0000, 1.5000, 1.7500])
    """
    step = scalar_step(prompt, step_size)
    if weight is not None:
        check_shape("weight", weight, prompt.rewards.shape, "[*B, N]")
        check_like("the prompt", prompt.features, "weight", weight)
        step = step * weight
    return iterate(
        prompt, key_weights(prompt, score), step, num_steps, initial_values, return_history
    )


def iterate(
    prompt: Prompt,
    weights: Float[Tensor, "*batch token key"],
    step: Tensor,
    num_steps: int,
    initial_values: Tensor | None,
    return_history: bool,
) -> Tensor:
    """Move every token by ``step`` times the weighted sum of TD errors, again and again."""
    check_int("num_steps", num_steps, 0)
    values = first_values(prompt, initial_values)
    history = [values]
    for _ in range(num_steps):
        errors = td_errors(prompt, values)[..., : weights.shape[-1], None]
        values = pin(prompt, values + step * (weights @ errors).squeeze(-1))
        if return_history:
            history.append(values)
    return torch.stack(history) if return_history else values
