"""Scores and kernels: how alike two states are, before and after the exponential."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ictd._checks import check_floating, check_like, check_none, check_shape, values_checkable

__all__ = [
    "BilinearScore",
    "GaussianKernel",
    "GaussianScore",
    "IdentityKernel",
    "LinearKernel",
    "LogKernelScore",
    "median_bandwidth",
]


class BilinearScore(nn.Module):
    r"""Score two states by a bilinear form of their features.

    .. math:: g(s, s') = \varphi(s')^\top A\, \varphi(s)

    There is no hidden scale factor: the temperature is in :math:`A`.

    Args:
        matrix: :math:`A`, ``[d, d]``, dimensionless. Kept as it is given, so gradients reach it.

    Raises:
        ValueError: If the matrix is not square.

    Note:
        ``score(query [*B, Q, d], key [*B, K, d])`` is ``[*B, Q, K]`` and differentiable in
        everything.

    Example:
        >>> import torch, ictd
        >>> score = ictd.BilinearScore(torch.tensor([[0.0, 2.0], [0.0, 0.0]]))
        >>> e = torch.eye(2)
        >>> score(e, e)  # g(s, s') = 2 for s = 1 (query), s' = 0 (key)
        tensor([[0., 0.],
                [2., 0.]])
    """

    matrix: Float[Tensor, "feature feature"]

    def __init__(self, matrix: Float[Tensor, "feature feature"]) -> None:
        super().__init__()
        check_floating("matrix", matrix)
        check_shape("matrix", matrix, (*matrix.shape[:1], *matrix.shape[:1]), "[d, d]")
        _keep(self, "matrix", matrix)

    def forward(
        self, query: Float[Tensor, "*batch query feature"], key: Float[Tensor, "*batch key feature"]
    ) -> Float[Tensor, "*batch query key"]:
        """Score every query against every key."""
        _check_pair(query, key, self.matrix.shape[0])
        check_like("matrix", self.matrix, "query", query)
        return (query @ self.matrix.mT) @ key.mT


class GaussianScore(nn.Module):
    r"""Score two states by the squared distance of their features.

    .. math:: g(s, s') = -\frac{\lVert \varphi(s) - \varphi(s') \rVert^2}{2 h^2}

    Args:
        bandwidth: :math:`h > 0`, in the unit of the features; a number or a tensor of no axes.

    Raises:
        ValueError: If the bandwidth is not a positive finite number.

    Note:
        Differentiable in the features and in a bandwidth given as a tensor. Differences are
        squared and summed directly (memory ``Q·K·d``), so that equal features score exactly 0.

    Example:
        >>> import torch, ictd
        >>> x = torch.tensor([[0.0], [2.0]])
        >>> ictd.GaussianScore(1.0)(x, x)
        tensor([[-0., -2.],
                [-2., -0.]])
    """

    bandwidth: float | Float[Tensor, ""]

    def __init__(self, bandwidth: float | Float[Tensor, ""]) -> None:
        super().__init__()
        _keep_bandwidth(self, bandwidth)

    def forward(
        self, query: Float[Tensor, "*batch query feature"], key: Float[Tensor, "*batch key feature"]
    ) -> Float[Tensor, "*batch query key"]:
        """Score every query against every key."""
        _check_pair(query, key)
        return _squared_distance(query, key, self.bandwidth) / -2


class LogKernelScore(nn.Module):
    r"""Turn a non-negative kernel into a score, :math:`g(s, s') = \log \kappa(s, s')`.

    Softmax attention with this score is the kernel divided by its row sum (Nadaraya and Watson).
    Where :math:`\kappa = 0` the score is :math:`-\infty`, with gradient 0.

    Args:
        kernel: The kernel :math:`\kappa`, with the call of :class:`ictd.GaussianKernel`.

    Raises:
        ValueError: When called, if the kernel has a negative entry.

    Example:
        >>> import torch, ictd
        >>> x = torch.tensor([[1.0], [2.0]])
        >>> ictd.LogKernelScore(ictd.LinearKernel())(x, x).exp()
        tensor([[1., 2.],
                [2., 4.]])
    """

    def __init__(self, kernel: nn.Module) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(
        self, query: Float[Tensor, "*batch query feature"], key: Float[Tensor, "*batch key feature"]
    ) -> Float[Tensor, "*batch query key"]:
        """Score every query against every key."""
        kernel = self.kernel(query, key)
        expected = "entries >= 0 (kernel_td takes any kernel)"
        check_none("kernel(query, key)", ~(kernel >= 0), expected, kernel)
        positive = kernel > 0
        return torch.where(positive, torch.where(positive, kernel, 1.0).log(), -torch.inf)


class LinearKernel(nn.Module):
    r"""Multiply the features, :math:`\kappa(s, s') = \varphi(s)^\top \varphi(s')`.

    Example:
        >>> import torch, ictd
        >>> ictd.LinearKernel()(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 1.0]]))
        tensor([[5.]])
    """

    def forward(
        self, query: Float[Tensor, "*batch query feature"], key: Float[Tensor, "*batch key feature"]
    ) -> Float[Tensor, "*batch query key"]:
        """Evaluate the kernel at every pair of a query and a key."""
        _check_pair(query, key)
        return query @ key.mT


class GaussianKernel(nn.Module):
    r"""Evaluate :math:`\kappa(s, s') = \exp(-\lVert\varphi(s)-\varphi(s')\rVert^2 / (2h^2))`.

    Args:
        bandwidth: :math:`h > 0`, in the unit of the features; a number or a tensor of no axes.

    Raises:
        ValueError: If the bandwidth is not a positive finite number.

    Example:
        >>> import torch, ictd
        >>> x = torch.tensor([[0.0], [2.0]])
        >>> ictd.GaussianKernel(2.0)(x, x)
        tensor([[1.0000, 0.6065],
                [0.6065, 1.0000]])
    """

    bandwidth: float | Float[Tensor, ""]

    def __init__(self, bandwidth: float | Float[Tensor, ""]) -> None:
        super().__init__()
        _keep_bandwidth(self, bandwidth)

    def forward(
        self, query: Float[Tensor, "*batch query feature"], key: Float[Tensor, "*batch key feature"]
    ) -> Float[Tensor, "*batch query key"]:
        """Evaluate the kernel at every pair of a query and a key."""
        _check_pair(query, key)
        return (_squared_distance(query, key, self.bandwidth) / -2).exp()


class IdentityKernel(nn.Module):
    r"""Evaluate :math:`\kappa(s, s') = 1` where the features are equal, 0 elsewhere.

    Features that tell all states apart make this the kernel of tabular TD.

    Note:
        Piecewise constant: no gradient reaches the features.

    Example:
        >>> import torch, ictd
        >>> x = torch.tensor([[0.0], [1.0], [0.0]])
        >>> ictd.IdentityKernel()(x, x)
        tensor([[1., 0., 1.],
                [0., 1., 0.],
                [1., 0., 1.]])
    """

    def forward(
        self, query: Float[Tensor, "*batch query feature"], key: Float[Tensor, "*batch key feature"]
    ) -> Float[Tensor, "*batch query key"]:
        """Evaluate the kernel at every pair of a query and a key."""
        _check_pair(query, key)
        return same_features(query, key).to(query.dtype)


def median_bandwidth(features: Float[Tensor, "token feature"]) -> Float[Tensor, ""]:
    r"""Choose a bandwidth from the data: the median distance of distinct pairs of features.

    Args:
        features: ``[N, d]``, at least two rows.

    Returns:
        A tensor of no axes, in the features' dtype and unit, on their device.

    Raises:
        ValueError: If fewer than two rows are given, or half of the pairs or more coincide, so
            that the median is 0 and no bandwidth.

    Example:
        >>> import torch, ictd
        >>> ictd.median_bandwidth(torch.tensor([[0.0], [1.0], [3.0]]))
        tensor(2.)
    """
    check_floating("features", features)
    if features.ndim != 2 or features.shape[0] < 2:
        raise ValueError(
            "features: expected shape [N, d] with N >= 2 to take a bandwidth from, "
            f"got {tuple(features.shape)}"
        )
    work = features.to(torch.promote_types(features.dtype, torch.float32))
    bandwidth = torch.pdist(work).median().to(features.dtype)
    if values_checkable(bandwidth) and not 0 < bandwidth.item() < float("inf"):
        raise ValueError(
            f"bandwidth: the median distance of the features is {bandwidth.item():g}, expected a "
            "positive finite number; pass distinct features (each state once) or set it by hand"
        )
    return bandwidth


def same_features(
    a: Float[Tensor, "*batch query feature"], b: Float[Tensor, "*batch key feature"]
) -> Tensor:
    """Whether two tokens carry exactly the same features, ``[*B, Q, K]`` of bool."""
    return (a.unsqueeze(-2) == b.unsqueeze(-3)).all(-1)


def _squared_distance(query: Tensor, key: Tensor, unit: float | Tensor) -> Tensor:
    """The squared distance in units of the bandwidth, whose own square might underflow."""
    return ((query.unsqueeze(-2) - key.unsqueeze(-3)) / unit).square().sum(-1)


def _keep(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Store a tensor so that it follows the module and gradients still reach it."""
    if isinstance(tensor, nn.Parameter):
        module.register_parameter(name, tensor)
    else:
        module.register_buffer(name, tensor)


def _keep_bandwidth(module: nn.Module, bandwidth: float | Tensor) -> None:
    value = bandwidth
    if isinstance(bandwidth, Tensor):
        check_floating("bandwidth", bandwidth)
        check_shape("bandwidth", bandwidth, (), "[]")
        _keep(module, "bandwidth", bandwidth)
        value = bandwidth.item() if values_checkable(bandwidth) else 1.0
    else:
        object.__setattr__(module, "bandwidth", bandwidth)
    if not 0 < value < math.inf:
        raise ValueError(f"bandwidth: expected a positive finite number, got {value}")


def _check_pair(query: Tensor, key: Tensor, feature_dim: int | None = None) -> None:
    check_floating("query", query)
    check_floating("key", key)
    for name, value in (("query", query), ("key", key)):
        if value.ndim < 2:
            raise ValueError(f"{name}: expected [*B, tokens, d], got {tuple(value.shape)}")
    width = query.shape[-1:] if feature_dim is None else (feature_dim,)
    check_shape("query", query, (*query.shape[:-2], *query.shape[-2:-1], *width), "[*B, Q, d]")
    check_shape("key", key, (*query.shape[:-2], *key.shape[-2:-1], *width), "[*B, K, d]")
    check_like("query", query, "key", key)
