"""The linear-attention Transformer of Wang et al.: what this book's softmax is compared with."""

from __future__ import annotations

from typing import Self, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ictd._checks import (
    check_bool,
    check_floating,
    check_like,
    check_nonnegative,
    check_positive_int,
    check_shape,
)
from ictd._linear_layer import Algorithm, LinearLayer, query_columns, transition_columns
from ictd.layers import Parametrization
from ictd.prompt import Prompt

__all__ = ["LinearInContextTD"]

ALGORITHMS = ("td", "residual-gradient", "average-reward")


class LinearInContextTD(nn.Module):
    r"""Run linear TD in the forward pass of a Transformer whose attention is linear.

    The baseline of Wang et al. (2025). Columns of its prompt are transitions
    :math:`(\varphi_k, \gamma_k \varphi_k', R_k)`, and a layer is

    .. math:: Z_{l+1} = Z_l + \tfrac1n\, P Z_l M (Z_l^\top Q Z_l) .

    With their weights the last row holds TD errors, and at a query the value with opposite sign:

    .. math::
        w_{l+1} = w_l + \frac{\alpha}{n}\, C_l \sum_k \delta_k^{(l)} e_k, \qquad
        v_l(s) = \varphi(s)^\top w_l

    :math:`M` masks the queries and makes the traces :math:`e_k = \varphi_k + \lambda e_{k-1}`.

    Args:
        feature_dim: ``d``, the number of features.
        num_layers: ``L``, at least 1.
        algorithm: "td"; "residual-gradient", where :math:`\varphi_k - \gamma_k \varphi_k'` stands
            for :math:`\varphi_k` in the sum; or "average-reward", where the mean of the rewards so
            far is taken off each reward and discounts should be 1.
        trace_decay: :math:`\lambda` in [0, 1], the decay of the traces per transition; they start
            anew after a token that no transition leaves. TD(λ) of the textbooks decays them by
            :math:`\gamma\lambda`, that of Wang et al. by :math:`\lambda`.
        looped: Whether all layers share their weights.
        parametrization: "structured": parameters ``attention`` (:math:`C`, ``[d, d]``) and
            ``value_weights`` (for target and current, :math:`\alpha(1, -1)` in the construction).
            "full": ``projection`` (:math:`P`) and ``query_key`` (:math:`Q`), each
            ``[2d + 1, 2d + 1]``.
        generator: Source of the initial weights; torch's global one if None.
        device: Of the parameters.
        dtype: Of the parameters.

    Raises:
        ValueError: If a number is out of range, or a name unknown.

    Note:
        Every token is asked at once, by query columns after the transitions. Cost
        :math:`O(N d^2)` per layer, with traces :math:`O(N^2 d)`. Wang et al. centre the rewards by
        a second head; here it is done once in the prompt, which gives the same numbers.

    Example:
        >>> import torch, ictd
        >>> prompt = ictd.Prompt(
        ...     torch.ones(2, 1), torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.0]),
        ...     torch.tensor([True, False]),
        ... )
        >>> model = ictd.LinearInContextTD.from_construction(torch.ones(1, 1), 3, 1.0)
        >>> with torch.no_grad():
        ...     model(prompt, return_history=True)[:, 0]
        tensor([0.0000, 1.0000, 1.5000, 1.7500])
    """

    def __init__(
        self,
        feature_dim: int,
        num_layers: int,
        *,
        algorithm: Algorithm = "td",
        trace_decay: float = 0.0,
        looped: bool = True,
        parametrization: Parametrization = "structured",
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive_int("feature_dim", feature_dim)
        check_positive_int("num_layers", num_layers)
        if algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm: expected one of {ALGORITHMS}, got {algorithm!r}")
        if not 0 <= trace_decay <= 1:
            raise ValueError(f"trace_decay: expected a number in [0, 1], got {trace_decay}")
        if parametrization not in ("structured", "full"):
            expected = "'structured' or 'full'"
            raise ValueError(f"parametrization: expected {expected}, got {parametrization!r}")
        self.feature_dim = feature_dim
        self.num_layers = num_layers
        self.algorithm = algorithm
        self.trace_decay = trace_decay
        self.looped = looped
        self.layers = nn.ModuleList(
            LinearLayer(
                feature_dim,
                algorithm=algorithm,
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
        preconditioner: Float[Tensor, "feature feature"] | Float[Tensor, "layer feature feature"],
        num_layers: int,
        step_size: float,
        *,
        algorithm: Algorithm = "td",
        trace_decay: float = 0.0,
        parametrization: Parametrization = "structured",
    ) -> Self:
        r"""Build the Transformer that takes steps of linear TD with these preconditioners.

        Args:
            preconditioner: :math:`C`, ``[d, d]``, for a looped model; or one for each layer,
                ``[L, d, d]``. Gives dtype and device.
            num_layers: ``L``, at least 1.
            step_size: :math:`\alpha \ge 0`, in units of one over the squared features'.
            algorithm: As in the class.
            trace_decay: As in the class.
            parametrization: "structured" or "full".

        Returns:
            A model that gives the values of :func:`ictd.linear_td` where ``preconditioner`` is the
            identity and the rest is left as it is.

        Raises:
            ValueError: If a shape does not fit or a number is out of range.
            TypeError: If the preconditioner holds no floating-point numbers.

        Note:
            The parameters are copies.

        Example:
            >>> import torch, ictd
            >>> model = ictd.LinearInContextTD.from_construction(torch.eye(4), 9, 0.5)
            >>> model.layers[0].value_weights
            Parameter containing:
            tensor([ 0.5000, -0.5000], requires_grad=True)
        """
        check_floating("preconditioner", preconditioner)
        check_positive_int("num_layers", num_layers)
        check_nonnegative("step_size", step_size)
        looped = preconditioner.ndim == 2
        d = preconditioner.shape[-1]
        shape = (d, d) if looped else (num_layers, d, d)
        check_shape("preconditioner", preconditioner, shape, "[d, d] or [L, d, d]")
        model = cls(
            d,
            num_layers,
            algorithm=algorithm,
            trace_decay=trace_decay,
            looped=looped,
            parametrization=parametrization,
            device="meta",  # draws nothing: every entry is set here
            dtype=preconditioner.dtype,
        ).to_empty(device=preconditioner.device)
        for index, layer in enumerate(model.layers):
            own = preconditioner if looped else preconditioner[index]
            cast(LinearLayer, layer).construct(own, step_size)
        return model

    def forward(
        self, prompt: Prompt, return_history: bool = False
    ) -> Float[Tensor, "*batch token"] | Float[Tensor, "layer *batch token"]:
        """Read the values of all tokens off the last layer, or off every layer.

        Args:
            prompt: The context, with ``d`` features.
            return_history: Whether to return the values after every layer.

        Returns:
            Values in reward units, ``[*B, N]``, or ``[L + 1, *B, N]`` with the history.

        Raises:
            ValueError: If the prompt has another number of features.
            TypeError: If the prompt's dtype is not that of the parameters.
        """
        is_key = prompt.is_transition[..., : prompt.num_keys]
        Z = torch.cat([transition_columns(prompt), query_columns(prompt.features)], -1)
        found = self.on_matrix(Z, is_key, return_history)[..., prompt.num_keys :]
        return found if prompt.is_terminal is None else torch.where(prompt.is_terminal, 0.0, found)

    def on_matrix(
        self,
        Z: Float[Tensor, "*batch row column"],
        is_transition: Bool[Tensor, "*batch key"],
        return_history: bool = False,
    ) -> Float[Tensor, "*batch column"] | Float[Tensor, "layer *batch column"]:
        r"""Run the layers on the prompt matrix of Wang et al., whose transitions need not follow.

        Args:
            Z: Columns :math:`(\varphi, \gamma \varphi', R)`, ``[*B, 2d + 1, columns]``; of a query,
                :math:`(\varphi, 0, 0)`.
            is_transition: Which of the first columns are transitions, ``[*B, keys]`` of bool; the
                columns after these are queries.
            return_history: Whether to return the values after every layer.

        Returns:
            The last row with opposite sign, ``[*B, columns]``: the value at a query, minus the TD
            error at a transition; or ``[L + 1, *B, columns]`` with the history.

        Raises:
            ValueError: If a shape or device does not fit.
            TypeError: If a dtype does not fit.

        Note:
            What columns hold that are no transition is not read as keys, NaN included.

        Example:
            >>> import torch, ictd
            >>> model = ictd.LinearInContextTD.from_construction(torch.ones(1, 1), 2, 1.0)
            >>> Z = torch.tensor([[1.0, 1.0], [0.5, 0.0], [1.0, 0.0]])
            >>> model.on_matrix(Z, torch.tensor([True])).detach()
            tensor([-0.2500,  1.5000])
        """
        check_floating("Z", Z)
        check_bool("is_transition", is_transition)
        rows, keys = 2 * self.feature_dim + 1, is_transition.shape[-1]
        check_shape("Z", Z, (*Z.shape[:-2], rows, Z.shape[-1]), "[*B, 2d + 1, columns]")
        check_shape("is_transition", is_transition, (*Z.shape[:-2], keys), "[*B, keys]")
        check_like("Z", Z, "is_transition", is_transition)
        for name, parameter in self.named_parameters():
            check_like("Z", Z, f"parameter {name}", parameter)
        clean = torch.where(is_transition.unsqueeze(-2), Z[..., :keys], 0.0)
        reward = clean[..., -1, :]
        if self.algorithm == "average-reward":
            seen = is_transition.cumsum(-1).clamp(min=1)
            reward = torch.where(is_transition, reward - reward.cumsum(-1) / seen, 0.0)
        clean = torch.cat([clean[..., :-1, :], reward.unsqueeze(-2)], -2)
        Z = torch.cat([clean, Z[..., keys:]], -1)
        traces = self._traces(is_transition, Z.dtype)
        number = is_transition.sum(-1).clamp(min=1).to(Z.dtype)[..., None, None]
        history = [0.0 - Z[..., -1, :]]  # where nothing is read, not −0
        for index in range(self.num_layers):
            Z = self.layers[0 if self.looped else index](Z, traces, number)
            history.append(0.0 - Z[..., -1, :])
        return torch.stack(history) if return_history else history[-1]

    def _traces(self, is_transition: Tensor, dtype: torch.dtype) -> Tensor:
        r"""The mask with traces, :math:`M_{ji} = \lambda^{j-i}` within a run of transitions.

        Without traces M is diagonal; its diagonal is returned then, as one row.
        """
        if self.trace_decay == 0:
            return is_transition.to(dtype).unsqueeze(-2)
        here = is_transition.unsqueeze(-1) & is_transition.unsqueeze(-2)
        place = torch.arange(is_transition.shape[-1], device=is_transition.device)
        age = place.unsqueeze(-1) - place
        run = is_transition.logical_not().cumsum(-1)
        here = here & (run.unsqueeze(-1) == run.unsqueeze(-2)) & (age >= 0)
        decay = self.trace_decay ** age.clamp(min=0).to(dtype)
        return torch.where(here, decay, 0.0)
