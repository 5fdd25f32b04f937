"""One layer of linear attention, and the columns that it reads."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ictd.layers import Parametrization
from ictd.prompt import Prompt

Algorithm = Literal["td", "residual-gradient", "average-reward"]


class LinearLayer(nn.Module):
    r"""Hold one layer, :math:`Z \leftarrow Z + \frac1n P Z M (Z^\top Q Z)`.

    It works on whatever ``Z [*B, 2d + 1, columns]`` it is given; the parameters may have leading
    axes of their own that broadcast against ``*B``.
    """

    attention: Float[Tensor, "feature feature"]
    value_weights: Float[Tensor, "2"]
    projection: Float[Tensor, "row row"]
    query_key: Float[Tensor, "row row"]

    def __init__(
        self,
        feature_dim: int,
        *,
        algorithm: Algorithm,
        parametrization: Parametrization,
        generator: torch.Generator | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.feature_dim = feature_dim
        self.algorithm = algorithm
        self.parametrization = parametrization
        rows = 2 * feature_dim + 1
        shapes: dict[str, tuple[int, ...]] = {"projection": (rows, rows), "query_key": (rows, rows)}
        if parametrization == "structured":
            shapes = {"attention": (feature_dim, feature_dim), "value_weights": (2,)}
        for name, shape in shapes.items():
            source = device if generator is None else generator.device
            initial = 0.1 * torch.randn(shape, generator=generator, device=source, dtype=dtype)
            target = torch.get_default_device() if device is None else device
            self.register_parameter(name, nn.Parameter(initial.to(target)))

    @torch.no_grad()
    def construct(self, preconditioner: Float[Tensor, "feature feature"], step_size: float) -> None:
        """Set the weights that take one step with this preconditioner."""
        d = self.feature_dim
        if self.parametrization == "structured":
            self.attention.copy_(preconditioner)
            self.value_weights.copy_(step_size * preconditioner.new_tensor([1.0, -1.0]))
            return
        block = step_size * preconditioner.mT
        self.projection.zero_()[-1, -1] = 1.0
        query_key = self.query_key.zero_()
        query_key[:d, :d], query_key[:d, d : 2 * d] = -block, block
        if self.algorithm == "residual-gradient":
            query_key[d : 2 * d, :d], query_key[d : 2 * d, d : 2 * d] = block, -block

    def forward(self, Z: Tensor, traces: Tensor, number: Tensor) -> Tensor:
        """Return the next prompt matrix; ``traces`` is M over the keys, or its diagonal."""
        d, keys = self.feature_dim, Z[..., : traces.shape[-1]]
        if self.parametrization == "full":
            pooled = carry(keys, traces) @ keys.mT / number
            moved: Tensor = Z + self.projection @ pooled @ self.query_key @ Z
            return moved
        key = keys[..., :d, :]
        if self.algorithm == "residual-gradient":
            key = key - keys[..., d : 2 * d, :]
        update = self.attention @ (key @ carry(keys[..., -1:, :], traces).mT) / number
        target, current = (self.value_weights[..., i, None, None] for i in (0, 1))
        weighed = target * Z[..., d : 2 * d, :] + current * Z[..., :d, :]
        moved = Z[..., -1:, :] + (update * weighed).sum(-2, keepdim=True)
        return torch.cat([Z[..., :-1, :], moved], -2)


def carry(rows: Tensor, traces: Tensor) -> Tensor:
    """Multiply rows by M, given as a matrix or as its diagonal."""
    return rows * traces if traces.shape[-2] == 1 else rows @ traces


def transition_columns(prompt: Prompt) -> Float[Tensor, "*batch row key"]:
    """The columns of the first ``num_keys`` tokens, ``[*B, 2d + 1, num_keys]``."""
    following = torch.cat([prompt.features[..., 1:, :], prompt.features[..., :1, :]], -2)
    discounted = prompt.discounts.unsqueeze(-1) * following
    columns = torch.cat([prompt.features, discounted, prompt.rewards.unsqueeze(-1)], -1)
    return columns[..., : prompt.num_keys, :].mT


def query_columns(
    features: Float[Tensor, "*batch query feature"],
) -> Float[Tensor, "*batch row query"]:
    """The columns of queries, ``[*B, 2d + 1, queries]``."""
    return F.pad(features, (0, features.shape[-1] + 1)).mT
