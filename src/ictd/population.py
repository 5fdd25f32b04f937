"""The Transformer with an infinite context, and derivatives of its values, task by task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call, jacrev, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from ictd._checks import check_like, check_none, check_shape
from ictd._population import Record, Task, answers, check_first_order, is_structured
from ictd.layers import Layer
from ictd.limits import empirical_model
from ictd.mrp import MarkovRewardProcess
from ictd.prompt import Prompt
from ictd.trajectory import Trajectory
from ictd.transformer import InContextTD

__all__ = ["population_values", "value_jacobian"]

Parameters = dict[str, Tensor]
Context = Prompt | Trajectory | None  # None: an infinite one


def population_values(
    model: InContextTD,
    mrp: MarkovRewardProcess,
    features: Float[Tensor, "*features_batch state feature"],
) -> Float[Tensor, "*batch state"]:
    r"""Compute what the Transformer answers when its context is infinitely long.

    With a structured layer this is the lumped recursion

    .. math::
        v_{l+1} = v_l + M \big(w_R\, r + w_{v'} \gamma P v_l + w_v v_l\big), \qquad
        M(s, u) \propto \mu(u)\, e^{\varphi(u)^\top A \varphi(s)} .

    Book: :prf:ref:`thm-neu`.

    Args:
        model: The Transformer, at any weights if structured. Full: scores must read features only,
            ``value_current`` write the last row only and ``value_target`` the last but one.
        mrp: The tasks, ``m`` states each, irreducible, without terminal states.
        features: ``[*B, m, d]``, or ``[m, d]`` for all tasks.

    Returns:
        Values of a query of each state, ``[*B, m]``, in reward units.

    Raises:
        ValueError: If a shape does not fit, a state is terminal, the stationary distribution is not
            unique, or full weights are not as described.
        TypeError: If the model is no :class:`ictd.InContextTD` or dtypes differ.

    Note:
        Differentiable in the model's parameters: any number of times if structured, once if full
        (tokens with the same state and successor are one; second derivatives would need to look
        further ahead). Cost per layer :math:`O(m^2 d)`, or :math:`O(m^4 d)` if full.

    Example:
        >>> import torch, ictd
        >>> mrp = ictd.MarkovRewardProcess(torch.ones(1, 1), torch.ones(1), 0.5)
        >>> model = ictd.InContextTD.from_construction(torch.ones(1, 1), 3, 1.0)
        >>> ictd.population_values(model, mrp, torch.ones(1, 1)).detach()
        tensor([1.7500])
    """
    return per_task(task_values, model, mrp, features, None)


def value_jacobian(
    model: InContextTD,
    mrp: MarkovRewardProcess,
    features: Float[Tensor, "*features_batch state feature"],
    context: Context = None,
) -> Float[Tensor, "*batch state parameter"]:
    r"""Differentiate the value of every state by all weights.

    .. math:: J_L(s) = \nabla_\theta\, v_\theta(s)

    Book: :prf:ref:`prop-neu-jacobian`, :prf:ref:`thm-neu-full`.

    Args:
        model: The Transformer, as in :func:`ictd.population_values`.
        mrp: The tasks.
        features: ``[*B, m, d]``, or ``[m, d]`` for all tasks.
        context: What the model reads, ``[*B, N]`` tokens; None: an infinite context. A trajectory
            is the cheap form for structured layers: its length costs nothing.

    Returns:
        ``[*B, m, p]``: entries are ordered as ``model.parameters()``, each flattened.

    Raises:
        ValueError: As :func:`ictd.population_values`, or if the context's batch shape is not that
            of the tasks.
        TypeError: If the model is no :class:`ictd.InContextTD` or dtypes differ.

    Note:
        Costs ``m`` backward passes.

    Example:
        One layer and one state: the value is :math:`w_R r`, so its derivative by :math:`w_R` is r.

        >>> import torch, ictd
        >>> mrp = ictd.MarkovRewardProcess(torch.ones(1, 1), torch.tensor([3.0]), 0.5)
        >>> model = ictd.InContextTD.from_construction(torch.ones(1, 1), 1, 1.0)
        >>> ictd.value_jacobian(model, mrp, torch.ones(1, 1)).detach()  # A, then w
        tensor([[0., 3., 0., 0.]])
    """
    return per_task(_jacobian, model, mrp, features, context)


def task_values(
    model: InContextTD, parameters: Parameters, task: Task, context: Prompt | Record | None
) -> Tensor:
    """The model's value of every state, ``[m]``, on one context; None: an infinite one."""
    if isinstance(context, Prompt):
        return asked(model, parameters, context, task.features)
    return answers(model, parameters, task, context)


def _jacobian(
    model: InContextTD, parameters: Parameters, task: Task, context: Prompt | Record | None
) -> Tensor:
    blocks = jacrev(lambda p: task_values(model, p, task, context))(parameters)
    return torch.cat([block.flatten(1) for block in blocks.values()], -1)


def semi_gradient(
    values: Callable[[Parameters], Tensor],
    parameters: Parameters,
    weights: Callable[[Tensor], Tensor],
) -> Tensor:
    """Sum ``weights(v) · ∇v`` over the entries of ``v = values(parameters)``, as a vector."""
    outputs = vjp(values, parameters)
    (blocks,) = outputs[1](weights(outputs[0]))
    return torch.cat([block.flatten() for block in blocks.values()])


def asked(model: InContextTD, parameters: Parameters, context: Prompt, features: Tensor) -> Tensor:
    """The model's values at queries put to one context, ``[Q]``."""
    asked = context.with_queries(features)
    values: Tensor = functional_call(model, parameters, (asked,))
    return values[len(context) :]


def per_task(
    function: Callable[..., Tensor],
    model: InContextTD,
    mrp: MarkovRewardProcess,
    features: Tensor,
    context: Context,
) -> Tensor:
    """Call ``function(model, parameters, task, context)`` for every task of the batch at once."""
    check_model(model, mrp.transition)
    check_none("mrp", mrp.terminal, "no terminal state")
    batch, m = mrp.batch_shape, mrp.num_states
    if features.ndim == 2:
        features = features.expand(*batch, *features.shape)
    width = cast(Layer, model.layers[0]).feature_dim
    check_shape("features", features, (*batch, m, width), "[*B, m, d]")
    check_like("mrp.transition", mrp.transition, "features", features)
    reward = mrp.reward if mrp.reward.ndim == len(batch) + 2 else mrp.reward.unsqueeze(-1)
    reward = reward.expand(mrp.transition.shape)
    visits = mrp.stationary_distribution()
    task = (features, visits, reward, mrp.transition, mrp.discount)
    if context is None:
        check_first_order(model)
        return batched(lambda p, *t: function(model, p, Task(*t), None), model, task, batch)
    tokens = context.states if isinstance(context, Trajectory) else context.rewards
    check_shape("context", tokens, (*batch, len(context)), "[*B, N]")
    read: Prompt | Record
    if isinstance(context, Trajectory) and is_structured(model):
        read = Record(*empirical_model(context, m))
    else:
        read = context.prompt(features) if isinstance(context, Trajectory) else context
        shape = (*batch, len(read), width)
        check_shape("context.features", read.features, shape, "[*B, N, d]")

    def on_context(parameters: Parameters, read: Prompt | Record, *task: Tensor) -> Tensor:
        return function(model, parameters, Task(*task), read)

    return batched(on_context, model, (read, *task), batch)


def batched(
    function: Callable[..., Tensor],
    model: InContextTD,
    mapped: tuple[Any, ...],
    batch: torch.Size,
) -> Tensor:
    """Call ``function(parameters, *mapped)`` for every item of the batch axes of ``mapped``.

    Attention is computed by matrix products: the fused kernels have no second derivatives.
    """
    if 0 in batch:  # vmap refuses an axis without items, so one of ones gives the shape
        lone = torch.Size([1] * len(batch))
        ones = pytree.tree_map(lambda x: x.new_ones(lone + x.shape[len(batch) :]), mapped)
        item = batched(function, model, ones, lone)
        return item.expand(batch + item.shape[len(batch) :])
    for _ in batch:
        function = vmap(function, in_dims=(None, *[0] * len(mapped)))
    with sdpa_kernel(SDPBackend.MATH):
        return function(dict(model.named_parameters()), *mapped)


def check_model(model: InContextTD, like: Tensor) -> None:
    if not isinstance(model, InContextTD):
        raise TypeError(f"model: expected an ictd.InContextTD, got {type(model).__name__}")
    for name, parameter in model.named_parameters():
        check_like("the tasks", like, f"parameter {name}", parameter)
