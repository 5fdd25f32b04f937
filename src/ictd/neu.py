"""The norm of the expected update: how far weights are from a fixed point of pretraining."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from ictd._checks import check_floating, check_shape
from ictd._population import Record, Task
from ictd.mrp import MarkovRewardProcess
from ictd.population import (
    Context,
    Parameters,
    asked,
    batched,
    check_model,
    per_task,
    semi_gradient,
    task_values,
)
from ictd.prompt import Prompt
from ictd.td import num_transitions, td_errors
from ictd.transformer import InContextTD

__all__ = [
    "expected_update",
    "norm_of_expected_update",
    "sampled_update",
    "squared_norm_of_mean",
]

Estimator = Literal["plain", "halves", "u"]


def expected_update(
    model: InContextTD,
    mrp: MarkovRewardProcess,
    features: Float[Tensor, "*features_batch state feature"],
    context: Context = None,
) -> Float[Tensor, "*batch parameter"]:
    r"""Compute each task's expected semi-gradient TD update of the weights.

    .. math::
        u = \sum_s \mu(s)\, \big(r + \gamma P v_\theta - v_\theta\big)(s)\,
            \nabla_\theta v_\theta(s)

    The mean runs over a test transition from the stationary distribution, independent of the
    context given the task, and is exact. Nothing is differentiated through the target.

    Book: :prf:ref:`def-neu`.

    Args:
        model: The Transformer, as in :func:`ictd.population_values`. With a context: any weights.
        mrp: The tasks, as there.
        features: ``[*B, m, d]``, or ``[m, d]`` for all tasks.
        context: What the model reads, ``[*B, N]`` tokens; None: an infinite context. A trajectory
            is the cheap form for structured layers: its length costs nothing.

    Returns:
        ``[*B, p]``: entries are ordered as ``model.parameters()``, each flattened. The unit is that
        of squared rewards, per unit of the weight.

    Raises:
        ValueError: As :func:`ictd.value_jacobian`.
        TypeError: If the model is no :class:`ictd.InContextTD` or dtypes differ.

    Note:
        One backward pass. Differentiable in the parameters (with a context too: its attention
        matrices are kept). Unlike :func:`ictd.sampled_update` it needs to know the process.

    Example:
        One layer and one state, :math:`v = w_R r`: the update of :math:`w_R` is
        :math:`r^2 (1 - (1 - \gamma) w_R)`.

        >>> import torch, ictd
        >>> mrp = ictd.MarkovRewardProcess(torch.ones(1, 1), torch.tensor([2.0]), 0.75)
        >>> model = ictd.InContextTD.from_construction(torch.ones(1, 1), 1, 1.0)
        >>> ictd.expected_update(model, mrp, torch.ones(1, 1)).detach()  # A, then w
        tensor([0., 3., 0., 0.])
    """
    return per_task(_update, model, mrp, features, context)


def sampled_update(
    model: InContextTD, context: Prompt, test: Prompt
) -> Float[Tensor, "*batch parameter"]:
    r"""Compute each task's semi-gradient TD update on test transitions.

    .. math::
        \frac{1}{K} \sum_{k=1}^{K} \big(R_k + \gamma_k v_\theta(S'_k) - v_\theta(S_k)\big)\,
        \nabla_\theta v_\theta(S_k)

    Values are those of queries put to the context. The mean over independent tests from the
    stationary distribution is :func:`ictd.expected_update`.

    Book: :prf:ref:`def-neu`, :prf:ref:`prop-neu-estimators`.

    Args:
        model: The Transformer, at any weights.
        context: What it reads, ``[*B, N]`` tokens: one context per task.
        test: Transitions of the same tasks, ``[*B, T]`` tokens, drawn independently of the
            contexts.

    Returns:
        ``[*B, p]``: entries are ordered as ``model.parameters()``, each flattened; 0 for a task
        without a test transition.

    Raises:
        ValueError: If the batch shapes or the numbers of features differ.
        TypeError: If the model is no :class:`ictd.InContextTD` or dtypes differ.

    Note:
        One backward pass; differentiable in the parameters.

    Example:
        >>> import torch, ictd
        >>> one = ictd.Prompt(
        ...     torch.ones(2, 1), torch.tensor([2.0, 0.0]), torch.tensor([0.75, 0.0]),
        ...     torch.tensor([True, False]),
        ... )
        >>> model = ictd.InContextTD.from_construction(torch.ones(1, 1), 1, 1.0)
        >>> ictd.sampled_update(model, one, test=one).detach()  # A, then w
        tensor([0., 3., 0., 0.])
    """
    check_model(model, context.features)
    shape = (*context.batch_shape, len(test), context.feature_dim)
    check_shape("test.features", test.features, shape, "[*B, T, d]")

    def update(parameters: Parameters, context: Prompt, test: Prompt) -> Tensor:
        def values(parameters: Parameters) -> Tensor:
            return asked(model, parameters, context, test.features)

        return semi_gradient(
            values, parameters, lambda v: td_errors(test, v) / num_transitions(test)
        )

    return batched(update, model, (context, test), context.batch_shape)


def squared_norm_of_mean(
    updates: Float[Tensor, "*batch task parameter"], estimator: Estimator = "u"
) -> Float[Tensor, "*batch"]:
    r"""Estimate the squared norm of an expectation from independent samples :math:`u_1, …, u_B`.

    .. math::
        \text{plain: } \lVert \bar u \rVert^2, \qquad
        \text{halves: } \bar u_{\text{first}}^\top \bar u_{\text{second}}, \qquad
        \text{u: } \frac{\lVert \sum_i u_i \rVert^2 - \sum_i \lVert u_i \rVert^2}{B (B - 1)}

    Plain is biased by :math:`\mathrm{tr}\,\Sigma / B`, the others are unbiased and may be negative;
    the U-statistic has the least variance.

    Book: :prf:ref:`prop-neu-estimators`.

    Args:
        updates: One update per task, ``[*B, B, p]``. Tasks are the independent unit.
        estimator: "plain", "halves" or "u".

    Returns:
        One estimate per batch, ``[*B]``, in squared units of the updates.

    Raises:
        ValueError: If the estimator is unknown, or the tasks are too few: one for "plain", two for
            "u", an even number for "halves".

    Note:
        Differentiable. That the samples are independent is not checked: halves of one task are not.

    Example:
        >>> import torch, ictd
        >>> u = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
        >>> [ictd.squared_norm_of_mean(u, name).item() for name in ("plain", "halves")]
        [0.5, 0.5]
        >>> ictd.squared_norm_of_mean(u, "u")
        tensor(0.3333)
    """
    check_floating("updates", updates)
    tasks = updates.shape[-2] if updates.ndim >= 2 else 0
    least = {"plain": 1, "halves": 2, "u": 2}
    if estimator not in least:
        raise ValueError(f"estimator: expected 'plain', 'halves' or 'u', got {estimator!r}")
    if tasks < least[estimator] or (estimator == "halves" and tasks % 2):
        number = "an even number of" if estimator == "halves" else f"at least {least[estimator]}"
        shape = tuple(updates.shape)
        raise ValueError(f"updates: expected [*B, B, p] with {number} tasks, got {shape}")
    if estimator == "plain":
        return updates.mean(-2).square().sum(-1)
    if estimator == "halves":
        first, second = (half.mean(-2) for half in updates.tensor_split(2, -2))
        return (first * second).sum(-1)
    both = updates.sum(-2).square().sum(-1) - updates.square().sum((-1, -2))
    return both / (tasks * (tasks - 1))


def norm_of_expected_update(
    model: InContextTD,
    mrp: MarkovRewardProcess,
    features: Float[Tensor, "*features_batch state feature"],
    context: Context = None,
    *,
    estimator: Estimator = "plain",
) -> Float[Tensor, ""]:
    r"""Compute the norm of the expected update (NEU), squared, over a set of tasks.

    .. math::
        \mathrm{NEU}(\theta) = \Big\lVert \mathbb E\big[(R + \gamma v_\theta(S') - v_\theta(S))\,
        \nabla_\theta v_\theta(S)\big] \Big\rVert^2

    Zero says that semi-gradient TD on these tasks does not move the weights. Without a context and
    with the plain estimator this is exact for the given tasks, with infinite contexts. If tasks or
    contexts are a sample, the plain estimator is biased upwards: use "u".

    Book: :prf:ref:`def-neu`, :prf:ref:`thm-neu`.

    Args:
        model: The Transformer, as in :func:`ictd.expected_update`.
        mrp: The tasks, ``[*B]``; the mean runs over all of them.
        features: ``[*B, m, d]``, or ``[m, d]`` for all tasks.
        context: One context per task, ``[*B, N]`` tokens; None: infinite ones. Trajectories are
            the cheap form for structured layers.
        estimator: "plain", "halves" or "u", see :func:`ictd.squared_norm_of_mean`.

    Returns:
        A tensor of no axes, in the model's dtype.

    Raises:
        ValueError: As :func:`ictd.expected_update` and :func:`ictd.squared_norm_of_mean`.
        TypeError: If the model is no :class:`ictd.InContextTD` or dtypes differ.

    Note:
        Differentiable in the parameters, except for the full parametrisation without a context,
        whose updates are exact but not their derivatives.

    Example:
        One state, one layer, :math:`\alpha = 1`: :math:`(r^2)^2 (1 - (1 - \gamma))^2`.

        >>> import torch, ictd
        >>> mrp = ictd.MarkovRewardProcess(torch.ones(1, 1), torch.tensor([2.0]), 0.75)
        >>> model = ictd.InContextTD.from_construction(torch.ones(1, 1), 1, 1.0)
        >>> ictd.norm_of_expected_update(model, mrp, torch.ones(1, 1)).detach()
        tensor(9.)
    """
    updates = expected_update(model, mrp, features, context)
    return squared_norm_of_mean(updates.reshape(-1, updates.shape[-1]), estimator)


def _update(
    model: InContextTD, parameters: Parameters, task: Task, context: Prompt | Record | None
) -> Tensor:
    return semi_gradient(
        lambda p: task_values(model, p, task, context),
        parameters,
        lambda v: task.visits * task.expected_td_errors(v),
    )
