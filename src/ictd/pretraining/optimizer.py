"""The optimizer of stacked weights: replicas stay independent of each other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ictd.pretraining.config import PretrainConfig

__all__ = ["clip", "make_optimizer"]


def make_optimizer(
    config: PretrainConfig, parameters: dict[str, nn.Parameter]
) -> torch.optim.Optimizer:
    """Make the optimizer; all of them work entry by entry, so that replicas stay independent."""
    options: dict[str, Any] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    values = list(parameters.values())
    if config.optimizer == "sgd":
        return torch.optim.SGD(values, momentum=config.momentum, **options)
    made = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return made(values, **options)


@torch.no_grad()
def clip(gradients: list[Tensor], max_norm: float) -> Tensor:
    """Cut the gradient of each replica to a norm, in place; returns the norms before."""
    squares = [gradient.reshape(len(gradient), -1).square().sum(-1) for gradient in gradients]
    norm = torch.stack(squares).sum(0).sqrt()
    if max_norm:
        scale = (max_norm / norm).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(scale.reshape(-1, *(1,) * (gradient.ndim - 1)))
    return norm
