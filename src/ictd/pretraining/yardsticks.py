"""What one would use instead of a pretrained Transformer, on the tasks that it is evaluated on."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ictd._checks import check_int
from ictd.lumped import lumped_td
from ictd.pretraining.config import PretrainConfig, check_config
from ictd.pretraining.evaluate import Changes, changed, checked, evaluation_tasks
from ictd.pretraining.tasks import Tasks
from ictd.scores import BilinearScore
from ictd.state_attention import lumped_attention
from ictd.td import linear_td

__all__ = ["multiply_adds", "yardsticks"]

STEP_SIZES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)
SCALES = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)  # κ of A = κI


def yardsticks(
    config: PretrainConfig, changes: Changes | None = None, *, device: torch.device | str = "cpu"
) -> dict[str, dict[str, float]]:
    r"""Measure algorithms on the tasks that :func:`ictd.pretraining.evaluate` measures models on.

    .. math:: \mathrm{MSVE} = \sum_s \mu(s)\,(v(s) - v_\pi(s))^2

    Args:
        config: The settings of the training; ``num_layers`` is the number L of steps.
        changes: How the tasks differ from those of the training; None: not at all.
        device: Where to compute.

    Returns:
        By the name of the method ``msve``, the mean over the tasks, its ``standard_error``, the
        ``median``, which one task where a method diverges does not spoil, and what was chosen for
        the method: the settings with the least MSVE on as many other tasks, of the next seed. The
        methods:

        - ``zero``: the value 0.
        - ``constant``: the context's mean reward over :math:`1 - \gamma`, at every state.
        - ``best-constant``, ``best-linear``: the constant and the linear function of the features
          that are nearest to the true values. No context tells them; they bound what constants
          and linear functions can reach.
        - ``linear-td``: L steps of batch linear TD, its step size chosen; ``lstd``: its limit; of
          several solutions, where the system is singular, the shortest.
        - ``certainty-equivalence``: the values of the empirical model, which knows which tokens
          are the same state; a state that no transition leaves has the value 0;
          ``certainty-equivalence-mean``: after that it gets the mean of the others, weighted by
          visits.
        - ``softmax-td``: L steps with the hand-made weights :math:`A = \kappa I`, :math:`\kappa`
          and step size chosen; ``softmax-td-limit``: infinitely many, :math:`\kappa` chosen among
          those whose limit float64 can tell from others.

    Raises:
        ValueError: If a number is out of range.
        TypeError: If ``config`` or ``changes`` is of another kind.

    Note:
        In float64, all tasks at once. Step sizes are tried from 1/4 to 8, :math:`\kappa` from 1/2
        to 50: a choice at an end is no optimum.

    Example:
        >>> from ictd.pretraining import Changes, PretrainConfig, yardsticks
        >>> found = yardsticks(PretrainConfig(num_layers=2), Changes(num_tasks=8))
        >>> found["best-linear"]["msve"] <= found["lstd"]["msve"]
        True
    """
    check_config(config)
    config = changed(config, checked(changes))
    config = dataclasses.replace(config, dtype="float64")
    tasks = evaluation_tasks(config, device=device)
    others = evaluation_tasks(dataclasses.replace(config, seed=config.seed + 1), device=device)
    steps = [{"step_size": step} for step in STEP_SIZES]
    scales = [{"scale": scale} for scale in SCALES]
    both = [one | other for one, other in itertools.product(scales, steps)]
    length = config.num_layers
    return {
        "zero": _measured(_zero, tasks),
        "constant": _measured(_constant, tasks),
        "best-constant": _measured(_best_constant, tasks),
        "best-linear": _measured(_best_linear, tasks),
        "linear-td": _chosen(_linear_td, steps, others, tasks, num_steps=length),
        "lstd": _measured(_lstd, tasks),
        "certainty-equivalence": _measured(_certainty_equivalence, tasks),
        "certainty-equivalence-mean": _measured(_certainty_equivalence, tasks, fill=True),
        "softmax-td": _chosen(_softmax_td, both, others, tasks, num_steps=length),
        "softmax-td-limit": _chosen(_softmax_td_limit, scales, others, tasks),
    }


def multiply_adds(config: PretrainConfig, num_queries: int = 1) -> int:
    r"""Count the multiplications, each with an addition, that all layers take on one context.

    Per layer, with n transitions, q queries, d features and h heads, for softmax and linear
    attention,

    .. math::
        (n + q)(d^2 + n d + n) + 3 n \quad\text{and}\quad n d + d^2 + 3 d\,(n + q)

    with structured layers; with full ones, :math:`D = d + 3` and :math:`r = 2 d + 1`,

    .. math::
        (n + q)\big((1 + h) D^2 + 2 n D\big) \quad\text{and}\quad n r^2 + 2 r^3 + (n + q)\,r^2 .

    Args:
        config: What to count for.
        num_queries: q, how many values are asked for.

    Returns:
        The count for the whole depth.

    Raises:
        ValueError: If ``num_queries`` is negative.
        TypeError: If it is no integer, or ``config`` of another kind.

    Note:
        Of the layers as they are defined, on tokens, without the :math:`n (n + q)` exponentials
        of a softmax. An implementation may save: attention that does not change from layer to
        layer, tokens that say the same.

    Example:
        >>> from ictd.pretraining import PretrainConfig, multiply_adds
        >>> softmax, linear = PretrainConfig(), PretrainConfig(attention="linear")
        >>> round(multiply_adds(softmax, 10) / multiply_adds(linear, 10), 1)
        14.1
    """
    check_config(config)
    check_int("num_queries", num_queries, 0)
    n, d = config.context_length, config.feature_dim
    tokens = n + num_queries
    if config.attention == "softmax":
        D = d + 3
        structured = tokens * (d**2 + n * d + n) + 3 * n
        full = tokens * ((1 + config.heads) * D**2 + 2 * n * D)
    else:
        r = 2 * d + 1
        structured = n * d + d**2 + 3 * d * tokens
        full = n * r**2 + 2 * r**3 + tokens * r**2
    return config.num_layers * (structured if config.parametrization == "structured" else full)


Method = Callable[..., Tensor]  # of tasks and options; values [1, task, m]


def _measured(method: Method, tasks: Tasks, **options: Any) -> dict[str, float]:
    errors = (method(tasks, **options) - tasks.mrp.value()).square()
    per_task = (tasks.visits * errors).sum(-1)
    spread = per_task.std() / per_task.numel() ** 0.5
    found = {"msve": per_task.mean(), "standard_error": spread, "median": per_task.median()}
    return {name: float(value) for name, value in found.items()}


def _chosen(
    method: Method, choices: Iterable[dict[str, float]], others: Tasks, tasks: Tasks, **options: Any
) -> dict[str, float]:
    """Measured with the choice that is best on other tasks; what diverges is not."""

    def error(choice: dict[str, float]) -> float:
        found = _measured(method, others, **choice, **options)["msve"]
        return found if math.isfinite(found) else math.inf

    best = min(choices, key=error)
    return _measured(method, tasks, **best, **options) | best


def _zero(tasks: Tasks) -> Tensor:
    return torch.zeros_like(tasks.visits)


def _constant(tasks: Tasks) -> Tensor:
    seen = tasks.record
    mean = (seen.counts * seen.reward).sum(-1) / seen.counts.sum(-1).clamp(min=1)
    return (mean / (1 - tasks.mrp.discount)).unsqueeze(-1).expand_as(tasks.visits)


def _best_constant(tasks: Tasks) -> Tensor:
    return (tasks.visits * tasks.mrp.value()).sum(-1, keepdim=True).expand_as(tasks.visits)


def _best_linear(tasks: Tasks) -> Tensor:
    weights = tasks.visits.sqrt().unsqueeze(-1)
    inverse: Tensor = torch.linalg.pinv(weights * tasks.features)
    values = weights * tasks.mrp.value().unsqueeze(-1)
    return (tasks.features @ (inverse @ values)).squeeze(-1)


def _linear_td(tasks: Tasks, num_steps: int, step_size: float) -> Tensor:
    asked = tasks.context.prompt(tasks.features).with_queries(tasks.features)
    values = linear_td(asked, num_steps=num_steps, step_size=step_size)
    found: Tensor = values[..., -tasks.mrp.num_states :]
    return found


def _lstd(tasks: Tasks) -> Tensor:
    """As :func:`ictd.lstd`, on states, which takes contexts that do not span the features."""
    counts, reward, transition = tasks.record
    keys = (counts.unsqueeze(-1) * tasks.features).mT
    matrix = keys @ (tasks.features - transition @ tasks.features)
    weights: Tensor = torch.linalg.pinv(matrix) @ (keys @ reward.unsqueeze(-1))
    return (tasks.features @ weights).squeeze(-1)


def _certainty_equivalence(tasks: Tasks, fill: bool = False) -> Tensor:
    """As :func:`ictd.certainty_equivalence`, but with a value for every state."""
    counts, reward, transition = tasks.record
    system = torch.eye(counts.shape[-1], dtype=counts.dtype, device=counts.device) - transition
    values: Tensor = torch.linalg.solve(system, reward.unsqueeze(-1)).squeeze(-1)
    if not fill:
        return values
    mean = (counts * values).sum(-1, keepdim=True) / counts.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(counts > 0, values, mean)


def _softmax_td(tasks: Tasks, num_steps: int, step_size: float, scale: float) -> Tensor:
    _, reward, transition = tasks.record
    attention = _attention(tasks, scale)
    found: Tensor = lumped_td(
        attention, reward, transition, 1.0, num_steps=num_steps, step_size=step_size
    )
    return found


def _softmax_td_limit(tasks: Tasks, scale: float) -> Tensor:
    """As :func:`ictd.fixed_point`, on states; NaN where float64 cannot tell it from others."""
    counts, reward, transition = tasks.record
    attention, seen = _attention(tasks, scale), counts > 0
    errors = attention - transition @ attention  # of the values M c, whose c is 0 at unseen states
    identity = torch.eye(counts.shape[-1], dtype=counts.dtype, device=counts.device)
    system = torch.where(seen.unsqueeze(-1), errors, identity)
    coefficients = torch.linalg.solve_ex(system, reward.unsqueeze(-1))[0]
    values: Tensor = (attention @ coefficients).squeeze(-1)
    unsure = torch.linalg.cond(system, 1) > 1 / torch.finfo(system.dtype).eps
    return values.masked_fill(unsure.unsqueeze(-1), torch.nan)


def _attention(tasks: Tasks, scale: float) -> Tensor:
    """Of states to states, with A = κI; none of terminal states."""
    identity = torch.eye(tasks.features.shape[-1], dtype=tasks.features.dtype)
    score = BilinearScore(scale * identity.to(tasks.features.device))
    found: Tensor = lumped_attention(tasks.record.counts, tasks.features, score)
    return found.masked_fill(tasks.mrp.terminal.unsqueeze(-1), 0.0)
