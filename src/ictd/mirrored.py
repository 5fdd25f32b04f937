"""Linear TD out of softmax attention: two heads of opposite temperature, and mirrored keys."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ictd._checks import check_finite, check_like, check_none, check_shape
from ictd.attention import Score, masked_softmax
from ictd.nonparametric import iterate
from ictd.prompt import Prompt
from ictd.scores import LinearKernel
from ictd.td import scalar_step

__all__ = ["mirrored_keys_td", "opposite_heads_td"]


def opposite_heads_td(
    prompt: Prompt,
    *,
    num_steps: int,
    step_size: float | Tensor,
    scale: float | Tensor,
    score: Score | None = None,
    initial_values: Float[Tensor, "*batch token"] | None = None,
    return_history: bool = False,
) -> Float[Tensor, "*batch token"] | Float[Tensor, "step *batch token"]:
    r"""Run TD with the difference of two softmax heads of opposite temperature.

    .. math::
        v_{t+1}(s) = v_t(s) + \frac{\alpha}{2\varepsilon} \sum_k
            \Big(\softmax_k(\varepsilon x(s)) - \softmax_k(-\varepsilon x(s))\Big)\,\delta_k^{(t)},
            \qquad x_k(s) = \varphi(S_{k-1})^\top \varphi(s)

    As :math:`\varepsilon \to 0` this is *centred* linear attention: the sum tends to the covariance
    of :math:`x(s)` and :math:`\delta` over the transitions, up to
    :math:`\tfrac1{48}\varepsilon^2\,\mathrm{range}(x)^3\,\mathrm{range}(\delta)`. Centred is not
    linear TD: a constant feature is never learned.

    Book: :prf:ref:`prop-opposite-heads`, :prf:ref:`prop-centred-is-not-linear`.

    Args:
        prompt: The context, ``N`` tokens, ``n`` transitions.
        num_steps: Number of steps, at least 0.
        step_size: :math:`\alpha`, in units of one over the score's.
        scale: :math:`\varepsilon > 0`, in units of one over the score's.
        score: :math:`x`: queries ``[*B, Q, d]`` and keys ``[*B, K, d]`` to ``[*B, Q, K]``, finite.
            None: the inner product of the features.
        initial_values: :math:`v_0` at every token, ``[*B, N]``; 0 if None.
        return_history: Whether to return the values after every step.

    Returns:
        Values in reward units at every token, ``[*B, N]``, or ``[num_steps + 1, *B, N]``.

    Raises:
        ValueError: If a shape does not fit, ``num_steps`` is negative, ``scale`` is not positive
            or a scaled score is not finite.

    Note:
        Differentiable. Large :math:`\varepsilon x` cannot overflow. At a small :math:`\varepsilon`
        the two heads nearly cancel: rounding adds about the dtype's eps over :math:`\varepsilon`.
        Memory :math:`O(N n)`. Convergence is not checked.

    Example:
        >>> import torch, ictd
        >>> walk = ictd.Trajectory(
        ...     torch.tensor([0, 1, 0]), torch.tensor([4.0, 0.0, 0.0]), torch.full((3,), 0.5)
        ... )  # covariances of (1, 0) and of (0, 1) with (4, 0)
        >>> prompt = walk.prompt(torch.eye(2))
        >>> ictd.opposite_heads_td(prompt, num_steps=1, step_size=1.0, scale=0.01)
        tensor([ 1.0000, -1.0000,  1.0000])
    """
    scores, is_key, scale = _scaled_scores(prompt, score, scale)
    difference = masked_softmax(scores, is_key) - masked_softmax(-scores, is_key)
    weights = difference / (2 * scale)
    step = scalar_step(prompt, step_size)
    return iterate(prompt, weights, step, num_steps, initial_values, return_history)


def mirrored_keys_td(
    prompt: Prompt,
    *,
    num_steps: int,
    step_size: float | Tensor,
    scale: float | Tensor,
    score: Score | None = None,
    initial_values: Float[Tensor, "*batch token"] | None = None,
    return_history: bool = False,
) -> Float[Tensor, "*batch token"] | Float[Tensor, "step *batch token"]:
    r"""Run TD with one softmax over the keys and their mirror images.

    .. math::
        v_{t+1}(s) = v_t(s) + \frac{\alpha}{\varepsilon}\,
            \frac{\sum_k \sinh(\varepsilon x_k(s))\,\delta_k^{(t)}}
                 {\sum_k \cosh(\varepsilon x_k(s))},
            \qquad x_k(s) = \varphi(S_{k-1})^\top \varphi(s)

    One softmax over the ``2n`` keys and values :math:`(\varphi(S_{k-1}), \delta_k)` and
    :math:`(-\varphi(S_{k-1}), -\delta_k)`. As :math:`\varepsilon \to 0` a step is one of linear TD,
    :math:`\frac1n \sum_k x_k \delta_k`, up to
    :math:`\tfrac13\varepsilon^2 \max|x|^3 \max|\delta|`.

    Book: :prf:ref:`prop-mirrored-keys`.

    Args:
        prompt: The context, ``N`` tokens, ``n`` transitions.
        num_steps: Number of steps, at least 0.
        step_size: :math:`\alpha`, in units of one over the score's.
        scale: :math:`\varepsilon > 0`, in units of one over the score's.
        score: :math:`x`: queries ``[*B, Q, d]`` and keys ``[*B, K, d]`` to ``[*B, Q, K]``, finite;
            a mirrored key has the score :math:`-x`. None: the inner product of the features.
        initial_values: :math:`v_0` at every token, ``[*B, N]``; 0 if None.
        return_history: Whether to return the values after every step.

    Returns:
        Values in reward units at every token, ``[*B, N]``, or ``[num_steps + 1, *B, N]``.

    Raises:
        ValueError: If a shape does not fit, ``num_steps`` is negative, ``scale`` is not positive
            or a scaled score is not finite.

    Note:
        Differentiable. Large :math:`\varepsilon x` cannot overflow. At a small :math:`\varepsilon`
        a key and its mirror image nearly cancel: rounding adds about the dtype's eps over
        :math:`\varepsilon`. Memory :math:`O(N n)`. Convergence is not checked.

    Example:
        >>> import torch, ictd
        >>> walk = ictd.Trajectory(
        ...     torch.tensor([0, 1, 0]), torch.tensor([4.0, 0.0, 0.0]), torch.full((3,), 0.5)
        ... )  # means of (1, 0) and of (0, 1) times (4, 0)
        >>> prompt = walk.prompt(torch.eye(2))
        >>> step = ictd.mirrored_keys_td(prompt, num_steps=1, step_size=1.0, scale=0.01)
        >>> step.round(decimals=2)
        tensor([2., 0., 2.])
    """
    scores, is_key, scale = _scaled_scores(prompt, score, scale)
    mirrored = torch.cat([scores, -scores], -1)
    shares = masked_softmax(mirrored, torch.cat([is_key, is_key], -1))
    original, image = shares.chunk(2, -1)
    weights = (original - image) / scale
    step = scalar_step(prompt, step_size)
    return iterate(prompt, weights, step, num_steps, initial_values, return_history)


def _scaled_scores(
    prompt: Prompt, score: Score | None, scale: float | Tensor
) -> tuple[Float[Tensor, "*batch token key"], Tensor, Float[Tensor, ""]]:
    """The scores of all tokens against the transitions times the scale, their mask, the scale."""
    if isinstance(scale, Tensor):
        check_shape("scale", scale, (), "[]")
        check_like("the prompt", prompt.features, "scale", scale)
        check_none("scale", ~((scale > 0) & scale.isfinite()), "a positive finite number", scale)
    elif not 0 < scale < math.inf:
        raise ValueError(f"scale: expected a positive finite number, got {scale}")
    scale = torch.as_tensor(scale, dtype=prompt.dtype, device=prompt.device)
    keys = prompt.features[..., : prompt.num_keys, :]
    scores = (LinearKernel() if score is None else score)(prompt.features, keys)
    if score is None:
        scores = scores.to(prompt.dtype)  # autocast may have narrowed it
    expected = (*prompt.batch_shape, len(prompt), prompt.num_keys)
    check_shape("score(query, key)", scores, expected, "[*B, Q, K]")
    check_like("the prompt", prompt.features, "score(query, key)", scores)
    is_key = prompt.is_transition[..., None, : prompt.num_keys]
    scaled = torch.where(is_key, scale * scores, 0.0)
    check_finite("scale * score(query, key)", scaled)
    return scaled, is_key, scale
