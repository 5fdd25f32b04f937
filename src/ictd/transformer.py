"""The Transformer that runs softmax TD: its depth counts TD steps."""

from __future__ import annotations

from typing import Self, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ictd._checks import check_floating, check_positive_int, check_shape
from ictd.layers import DualHeadLayer, Layer, Parametrization, SingleHeadLayer
from ictd.prompt import Prompt

__all__ = ["InContextTD"]


class InContextTD(nn.Module):
    r"""Run TD in the forward pass: a softmax Transformer whose depth counts TD steps.

    The prompt is written as the matrix :math:`Z_0`, passes through the layers, and the last row of
    :math:`Z_L` is read out: the value of every token after ``L`` steps.

    Book: :prf:ref:`thm-equivalence`.

    Args:
        feature_dim: ``d``, the number of features.
        num_layers: ``L``, at least 1.
        looped: Whether all layers share their weights.
        parametrization: "structured" or "full", see :class:`ictd.DualHeadLayer`.
        num_heads: 1 for :class:`ictd.SingleHeadLayer`, 2 for :class:`ictd.DualHeadLayer`.
        generator: Source of the initial weights; torch's global one if None.
        device: Of the parameters.
        dtype: Of the parameters.

    Raises:
        ValueError: If a number is out of range or the parametrization is unknown.

    Note:
        No attention matrix is kept where torch has a fused kernel, so long contexts fit. Fused
        kernels have first derivatives only: for second ones use
        ``torch.nn.attention.sdpa_kernel(SDPBackend.MATH)``.

    Example:
        >>> import torch, ictd
        >>> prompt = ictd.Prompt(
        ...     torch.ones(2, 1), torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.0]),
        ...     torch.tensor([True, False]),
        ... )
        >>> model = ictd.InContextTD.from_construction(torch.ones(1, 1), 3, 1.0)
        >>> with torch.no_grad():
        ...     model(prompt, return_history=True)[:, 0]
        tensor([0.0000, 1.0000, 1.5000, 1.7500])
    """

    def __init__(
        self,
        feature_dim: int,
        num_layers: int,
        *,
        looped: bool = True,
        parametrization: Parametrization = "structured",
        num_heads: int = 1,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive_int("num_layers", num_layers)
        if num_heads not in (1, 2):
            raise ValueError(f"num_heads: expected 1 or 2, got {num_heads}")
        self.num_layers = num_layers
        self.looped = looped
        make = SingleHeadLayer if num_heads == 1 else DualHeadLayer
        self.layers = nn.ModuleList(
            make(
                feature_dim,
                parametrization=parametrization,
                generator=generator,
                device=device,
                dtype=dtype,
            )
            for _ in range(1 if looped else num_layers)
        )

    @classmethod
    def from_construction(
        cls,
        matrix: Float[Tensor, "feature feature"],
        num_layers: int,
        step_size: float,
        *,
        looped: bool = True,
        parametrization: Parametrization = "structured",
        num_heads: int = 1,
    ) -> Self:
        r"""Build the Transformer that runs softmax TD with the score of this matrix.

        :math:`Q = \mathrm{diag}(A, 0)` and :math:`w = \alpha (1, 1, -1)` in every layer.

        Args:
            matrix: :math:`A`, ``[d, d]``; gives dtype and device.
            num_layers: ``L``, at least 1.
            step_size: :math:`\alpha`, dimensionless.
            looped: Whether all layers share their weights.
            parametrization: "structured" or "full".
            num_heads: 1 or 2.

        Returns:
            A model that gives the values of :func:`ictd.softmax_td` with ``BilinearScore(matrix)``.

        Raises:
            ValueError: If the matrix is not square or a number is out of range.

        Note:
            The parameters are copies; training them leaves ``matrix`` as it is.

        Example:
            >>> import torch, ictd
            >>> ictd.InContextTD.from_construction(torch.eye(4), 10, 0.5).layers[0].value_weights
            Parameter containing:
            tensor([ 0.5000,  0.5000, -0.5000], requires_grad=True)
        """
        check_floating("matrix", matrix)
        check_shape("matrix", matrix, (*matrix.shape[:1], *matrix.shape[:1]), "[d, d]")
        model = cls(
            matrix.shape[0],
            num_layers,
            looped=looped,
            parametrization=parametrization,
            num_heads=num_heads,
            device="meta",  # draws nothing: every entry is set here
            dtype=matrix.dtype,
        ).to_empty(device=matrix.device)
        for layer in model.layers:
            cast(Layer, layer).construct(matrix, step_size)
        return model

    def forward(
        self,
        prompt: Prompt,
        return_history: bool = False,
        *,
        initial_values: Float[Tensor, "*batch token"] | None = None,
    ) -> Float[Tensor, "*batch token"] | Float[Tensor, "layer *batch token"]:
        """Read the values of all tokens off the last layer, or off every layer.

        Args:
            prompt: The context, with ``d`` features.
            return_history: Whether to return the values after every layer.
            initial_values: Memory at the start, ``[*B, N]``; 0 if None.

        Returns:
            Values in reward units, ``[*B, N]``, or ``[L + 1, *B, N]`` with the history.

        Raises:
            ValueError: If the prompt has another number of features.
            TypeError: If the prompt's dtype is not that of the parameters.
        """
        Z = prompt.matrix(initial_values)
        history = [Z[..., -1, :]]
        for index in range(self.num_layers):
            layer = self.layers[0 if self.looped else index]
            Z = layer(
                Z,
                prompt.discounts,
                prompt.is_transition,
                prompt.is_terminal,
                num_keys=prompt.num_keys,
            )
            history.append(Z[..., -1, :])
        return torch.stack(history) if return_history else history[-1]
