"""Random and classic Markov reward processes to learn from.

Random numbers are drawn in float64 on the device of the generator, then cast and moved: one seed
gives the same problem in every dtype and on every device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ictd._checks import check_int, check_positive_int
from ictd.mrp import MarkovRewardProcess

__all__ = ["boyan_chain", "garnet", "loop_chain", "random_walk"]


def boyan_chain(
    num_states: int,
    *,
    discount: float | Float[Tensor, "*batch"] = 0.9,
    generator: torch.Generator,
    batch_shape: Sequence[int] = (),
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> MarkovRewardProcess:
    r"""Draw a random Boyan's chain: it runs forwards by one or two states, then starts anew.

    From :math:`s < m - 2` it goes to :math:`s + 1` with probability :math:`p_s` and to
    :math:`s + 2` otherwise, :math:`p_s` uniform on (0, 1]; from :math:`m - 2` to :math:`m - 1`;
    from :math:`m - 1` to a random distribution over all states, which is uniform numbers divided by
    their sum. So is ``initial``. Rewards :math:`r(s)` are uniform on [-1, 1). The chain is
    irreducible: state 0 is always possible after :math:`m - 1`.

    The structure is that of Wang et al. (2025), who randomise the chain of Boyan (1999).

    Args:
        num_states: :math:`m \ge 2`.
        discount: :math:`\gamma \in [0, 1]`, a number or ``[*B]``. Dimensionless.
        generator: The source of randomness.
        batch_shape: ``*B``, independent draws.
        device: Where the result lives; None: torch's default.
        dtype: Its floating-point dtype; None: torch's default.

    Returns:
        A process ``[*B]`` without terminal states.

    Raises:
        ValueError: If ``num_states`` is below 2 or a discount lies outside [0, 1].
        TypeError: If ``num_states`` is no integer.

    Note:
        Cost O(m²) per process. In half precision tiny probabilities may round to 0.

    Example:
        >>> import torch, ictd
        >>> mrp = ictd.boyan_chain(4, generator=torch.Generator().manual_seed(0))
        >>> (mrp.transition > 0).int()
        tensor([[0, 1, 1, 0],
                [0, 0, 1, 1],
                [0, 0, 0, 1],
                [1, 1, 1, 1]], dtype=torch.int32)
    """
    check_int("num_states", num_states, 2)
    split = _uniform((*batch_shape, num_states - 2), generator)
    last = _distribution((*batch_shape, num_states), generator)
    reward = 1 - 2 * _uniform((*batch_shape, num_states), generator)
    initial = _distribution((*batch_shape, num_states), generator)
    ahead = split.new_ones((*batch_shape, 1))
    one = torch.diag_embed(torch.cat([split, ahead], -1), offset=1)
    two = torch.diag_embed(1 - split, offset=2)
    transition = one + two
    transition[..., -1, :] = last
    return _process(transition, reward, discount, initial, device, dtype)


def loop_chain(
    num_states: int,
    *,
    connectivity: float = 0.5,
    discount: float | Float[Tensor, "*batch"] = 0.9,
    generator: torch.Generator,
    batch_shape: Sequence[int] = (),
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> MarkovRewardProcess:
    r"""Draw a loop with random shortcuts.

    The loop :math:`s \to s + 1 \bmod m` is always there, so the chain is irreducible. Every other
    pair :math:`s \to s'`, :math:`s' \ne s`, is joined with probability ``connectivity``. The edges
    of a state get probabilities proportional to numbers uniform on (0, 1]. Rewards :math:`r(s)` are
    uniform on [-1, 1), and ``initial`` is uniform numbers divided by their sum.

    The structure is that of Wang et al. (2025); their threshold is ``1 - connectivity``.

    Args:
        num_states: :math:`m \ge 1`.
        connectivity: The probability of an edge that is not of the loop, in [0, 1].
        discount: :math:`\gamma \in [0, 1]`, a number or ``[*B]``. Dimensionless.
        generator: The source of randomness.
        batch_shape: ``*B``, independent draws.
        device: Where the result lives; None: torch's default.
        dtype: Its floating-point dtype; None: torch's default.

    Returns:
        A process ``[*B]`` without terminal states.

    Raises:
        ValueError: If an argument lies outside its range.
        TypeError: If ``num_states`` is no integer.

    Note:
        Cost O(m²) per process. In half precision tiny probabilities may round to 0.

    Example:
        >>> import torch, ictd
        >>> generator = torch.Generator().manual_seed(0)
        >>> ictd.loop_chain(3, connectivity=0.0, generator=generator).transition
        tensor([[0., 1., 0.],
                [0., 0., 1.],
                [1., 0., 0.]])
    """
    check_positive_int("num_states", num_states)
    if not 0 <= connectivity <= 1:
        raise ValueError(f"connectivity: expected a number in [0, 1], got {connectivity}")
    shape = (*batch_shape, num_states, num_states)
    joined = _uniform(shape, generator) <= connectivity
    weights = _uniform(shape, generator)
    reward = 1 - 2 * _uniform(shape[:-1], generator)
    initial = _distribution(shape[:-1], generator)
    stay = torch.eye(num_states, dtype=torch.bool, device=weights.device)
    loop = stay.roll(1, -1)
    weights = torch.where(loop | (joined & ~stay), weights, 0.0)
    transition = weights / weights.sum(-1, keepdim=True)
    return _process(transition, reward, discount, initial, device, dtype)


def garnet(
    num_states: int,
    branching_factor: int,
    *,
    discount: float | Float[Tensor, "*batch"] = 0.9,
    generator: torch.Generator,
    batch_shape: Sequence[int] = (),
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> MarkovRewardProcess:
    r"""Draw a Garnet problem: a chain with random successors and no structure.

    Every state gets ``branching_factor`` distinct successors, all sets equally likely. Their
    probabilities are the lengths into which uniform cuts divide [0, 1]. Rewards :math:`r(s)` are
    uniform on [-1, 1); ``initial`` is uniform over the states.

    After Archibald, McKinnon and Thomas (1995), without actions. Not always irreducible: with few
    successors :meth:`~ictd.MarkovRewardProcess.stationary_distribution` may refuse a draw, or
    vanish at some states.

    Args:
        num_states: :math:`m \ge 1`.
        branching_factor: The number of successors, in 1..m.
        discount: :math:`\gamma \in [0, 1]`, a number or ``[*B]``. Dimensionless.
        generator: The source of randomness.
        batch_shape: ``*B``, independent draws.
        device: Where the result lives; None: torch's default.
        dtype: Its floating-point dtype; None: torch's default.

    Returns:
        A process ``[*B]`` without terminal states.

    Raises:
        ValueError: If an argument lies outside its range.
        TypeError: If a number of states is no integer.

    Note:
        Cost O(m² log m) per process.

    Example:
        >>> import torch, ictd
        >>> mrp = ictd.garnet(6, 2, generator=torch.Generator().manual_seed(0))
        >>> (mrp.transition > 0).sum(-1)
        tensor([2, 2, 2, 2, 2, 2])
    """
    check_positive_int("num_states", num_states)
    check_positive_int("branching_factor", branching_factor)
    if branching_factor > num_states:
        raise ValueError(
            f"branching_factor: expected at most num_states = {num_states}, got {branching_factor}"
        )
    shape = (*batch_shape, num_states)
    shuffled = _uniform((*shape, num_states), generator).argsort(dim=-1)
    cuts = _uniform((*shape, branching_factor - 1), generator).sort(dim=-1).values
    reward = 1 - 2 * _uniform(shape, generator)
    left, right = cuts.new_zeros((*shape, 1)), cuts.new_ones((*shape, 1))
    lengths = torch.cat([left, cuts, right], -1).diff(dim=-1)
    successors = shuffled[..., :branching_factor]
    transition = torch.zeros_like(shuffled, dtype=lengths.dtype).scatter(-1, successors, lengths)
    return _process(transition, reward, discount, None, device, dtype)


def random_walk(
    num_states: int = 5,
    *,
    discount: float | Float[Tensor, "*batch"] = 1.0,
    batch_shape: Sequence[int] = (),
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> MarkovRewardProcess:
    r"""Make the classic random walk between two terminal states.

    The states :math:`1, \dots, n` are walked on, left or right with probability ½; states 0 and
    :math:`n + 1` are terminal, and :math:`R(n, n + 1) = 1` is the only reward. Episodes start in
    the middle (for even n, in one of the two middle states). With :math:`\gamma = 1`,
    :math:`v_\pi(s) = s / (n + 1)`: the chance to end on the right.

    Example 6.2 of Sutton and Barto (2018) is the default. Terminal rows of ``transition`` hold
    ``initial``, so that ``stationary_distribution`` is that of episodes played one after the other.

    Args:
        num_states: n, at least 1, *without* the terminal states: the process has n + 2 states.
        discount: :math:`\gamma \in [0, 1]`, a number or ``[*B]``. Dimensionless.
        batch_shape: ``*B``, equal processes.
        device: Where the result lives; None: torch's default.
        dtype: Its floating-point dtype; None: torch's default.

    Returns:
        A process ``[*B]`` of n + 2 states; ``reward`` is :math:`R(s, s')`.

    Raises:
        ValueError: If ``num_states`` is below 1 or a discount lies outside [0, 1].
        TypeError: If ``num_states`` is no integer.

    Note:
        Nothing is drawn at random.

    Example:
        >>> import ictd
        >>> ictd.random_walk(3).value()
        tensor([0.0000, 0.2500, 0.5000, 0.7500, 0.0000])
    """
    check_positive_int("num_states", num_states)
    total = num_states + 2
    device = torch.get_default_device() if device is None else device
    state = torch.arange(total, device=device)
    terminal = (state == 0) | (state == total - 1)
    middle = (2 * state - (total - 1)).abs() <= 1
    initial = middle.double() / middle.sum()
    step = 0.5 * ((state.unsqueeze(-1) - state).abs() == 1)
    transition = torch.where(terminal.unsqueeze(-1), initial, step.double())
    reward = torch.zeros_like(transition)
    reward[-2, -1] = 1.0
    transition, reward, initial, terminal = (
        field.expand(*batch_shape, *field.shape).contiguous()
        for field in (transition, reward, initial, terminal)
    )
    return _process(transition, reward, discount, initial, device, dtype, terminal)


def _uniform(shape: Sequence[int], generator: torch.Generator) -> Float[Tensor, "..."]:
    """Draw from (0, 1]: never 0, so that every weight and every edge counts."""
    draw = torch.rand(
        tuple(shape), generator=generator, device=generator.device, dtype=torch.float64
    )
    return 1 - draw


def _distribution(
    shape: Sequence[int], generator: torch.Generator
) -> Float[Tensor, "*batch state"]:
    """Draw uniform numbers and divide them by their sum."""
    weights = _uniform(shape, generator)
    return weights / weights.sum(-1, keepdim=True)


def _process(
    transition: Tensor,
    reward: Tensor,
    discount: float | Tensor,
    initial: Tensor | None,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
    terminal: Tensor | None = None,
) -> MarkovRewardProcess:
    """Cast and move what was drawn."""
    device = torch.get_default_device() if device is None else device
    dtype = torch.get_default_dtype() if dtype is None else dtype
    return MarkovRewardProcess(
        transition.to(device, dtype),
        reward.to(device, dtype),
        discount,
        initial=None if initial is None else initial.to(device, dtype),
        terminal=terminal,
    )
