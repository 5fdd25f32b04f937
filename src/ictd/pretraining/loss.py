"""What is descended: squared TD errors whose targets are held fixed, or distances to returns."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from ictd.pretraining.tasks import Queries

__all__ = ["query_loss"]


def query_loss(
    values: Float[Tensor, "replica task state"], queries: Queries
) -> Float[Tensor, "replica task"]:
    r"""Compute half the mean squared error of the values at the queries, per task.

    .. math:: \tfrac12 \operatorname{mean}_q\,(y_q - v(S_q))^2, \qquad y = R + \gamma v(S')

    No gradient reaches the target :math:`y`, so that minus the gradient is the mean of
    :math:`\delta \nabla v(S)`: semi-gradient TD. With Monte-Carlo targets :math:`y` is the return.
    """
    answers = values.gather(-1, queries.states)
    if queries.returns is None:
        following = values.detach().gather(-1, queries.successors)
        targets = queries.rewards + queries.discounts * following
    else:
        targets = queries.returns
    return (targets - answers).square().mean(-1) / 2
