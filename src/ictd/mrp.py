"""Markov reward processes: values, Bellman operator, stationary distribution, sampling."""

from __future__ import annotations

import dataclasses

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ictd._batched import BatchedRecord, register
from ictd._checks import (
    check_bool,
    check_discount,
    check_dtype,
    check_finite,
    check_floating,
    check_int,
    check_like,
    check_none,
    check_probabilities,
    check_shape,
    check_square,
    values_checkable,
)
from ictd._markov import reachable, recurrent, stationary_distribution
from ictd._sampling import sample_states
from ictd.trajectory import Trajectory

__all__ = ["MarkovRewardProcess", "Trajectory"]


@register
@dataclasses.dataclass(frozen=True, eq=False, init=False)
class MarkovRewardProcess(BatchedRecord):
    r"""Hold a finite Markov reward process on the states :math:`0, \dots, m-1`, or a batch of them.

    Its value is :math:`v_\pi(s) = \mathbb E[\sum_k \gamma^k R_{k+1} \mid S_0 = s]`.

    Book: :prf:ref:`def-mrp`.

    Args:
        transition: :math:`P(s, s')`, ``[*B, m, m]``: the probability to go from s to s'. Rows sum
            to 1 within max(1e-6, 4·m·eps) and are used as given.
        reward: :math:`r(s) = \mathbb E[R \mid s]`, ``[*B, m]``, or :math:`R(s, s')`,
            ``[*B, m, m]``; in reward units, earned on leaving s.
        discount: :math:`\gamma \in [0, 1]`, a number or ``[*B]``; kept as ``[*B]``. Dimensionless.
        initial: The distribution of :math:`S_0`, ``[*B, m]``. None: uniform over the states that
            are not terminal.
        terminal: ``[*B, m]`` of bool: absorbing states, of value 0, where nothing is earned. Their
            rows of ``transition`` are read by :meth:`stationary_distribution` only. None: no state.

    Raises:
        ValueError: If a shape or device does not fit, an entry is not finite or negative where it
            may not be, a row does not sum to 1; the message names argument and index.
        TypeError: If a dtype is wrong.

    Note:
        Frozen, a pytree (``torch.vmap`` maps it), with ``[...]`` over the batch axes, ``.to``,
        ``.device``, ``.dtype`` and ``.batch_shape``. Values are not checked while a program is
        compiled or mapped; nor are they again after ``.to`` has rounded them.

    Example:
        Stay in state 0 with probability ½, else end; one unit of reward per step (value 1/(1 - ½)).

        >>> import torch, ictd
        >>> mrp = ictd.MarkovRewardProcess(
        ...     torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([1.0, 0.0]), 1.0,
        ...     terminal=torch.tensor([False, True]),
        ... )
        >>> mrp.value()
        tensor([2., 0.])
    """

    transition: Float[Tensor, "*batch state next_state"]
    reward: Float[Tensor, "*batch state"] | Float[Tensor, "*batch state next_state"]
    discount: Float[Tensor, "*batch"]
    initial: Float[Tensor, "*batch state"]
    terminal: Bool[Tensor, "*batch state"]

    _reference = "transition"
    _reference_ndim = 2

    def __init__(
        self,
        transition: Float[Tensor, "*batch state next_state"],
        reward: Float[Tensor, "*batch state"] | Float[Tensor, "*batch state next_state"],
        discount: float | Float[Tensor, "*batch"],
        *,
        initial: Float[Tensor, "*batch state"] | None = None,
        terminal: Bool[Tensor, "*batch state"] | None = None,
    ) -> None:
        check_square("transition", transition)
        batch, states = transition.shape[:-2], transition.shape[:-1]
        check_floating("reward", reward)
        if reward.ndim == transition.ndim:
            check_shape("reward", reward, transition.shape, "[*B, m, m]")
        else:
            check_shape("reward", reward, states, "[*B, m]")
        check_discount("discount", discount, batch, "[*B]")
        if not isinstance(discount, Tensor):
            discount = transition.new_full(batch, discount)
        if terminal is None:
            terminal = torch.zeros(states, dtype=torch.bool, device=transition.device)
        check_bool("terminal", terminal)
        check_shape("terminal", terminal, states, "[*B, m]")
        if initial is None:
            none_left = terminal.all(-1)
            check_none("terminal", none_left, "a state that is not terminal, or `initial`")
            initial = terminal.logical_not().to(transition.dtype)
            initial = initial / initial.sum(-1, keepdim=True)
        check_floating("initial", initial)
        check_shape("initial", initial, states, "[*B, m]")
        fields = {
            "transition": transition,
            "reward": reward,
            "discount": discount,
            "initial": initial,
            "terminal": terminal,
        }
        for name, value in fields.items():
            check_like("transition", transition, name, value)
            object.__setattr__(self, name, value)
        check_probabilities("transition", transition)
        check_finite("reward", reward)
        check_probabilities("initial", initial)

    @property
    def num_states(self) -> int:
        """The number ``m`` of states."""
        return self.transition.shape[-1]

    def expected_reward(self) -> Float[Tensor, "*batch state"]:
        r"""Return :math:`r(s) = \mathbb E[R \mid s] = \sum_{s'} P(s, s') R(s, s')`.

        Returns:
            ``[*B, m]`` in reward units; 0 at terminal states.

        Example:
            >>> import torch, ictd
            >>> half = torch.full((2, 2), 0.5)
            >>> ictd.MarkovRewardProcess(half, torch.eye(2), 0.9).expected_reward()
            tensor([0.5000, 0.5000])
        """
        reward = self.reward
        if reward.ndim == self.transition.ndim:
            reward = (self.transition * reward).sum(-1)
        return reward.masked_fill(self.terminal, 0.0)

    def bellman(self, values: Float[Tensor, "*batch state"]) -> Float[Tensor, "*batch state"]:
        r"""Apply the Bellman operator, :math:`(Tv)(s) = r(s) + \gamma \sum_{s'} P(s, s') v(s')`.

        Terminal states are never bootstrapped from: what ``values`` holds there is not read, and
        the result there is 0.

        Book: :prf:ref:`thm-bellman-contraction`.

        Args:
            values: :math:`v`, ``[*B, m]``, in reward units.

        Returns:
            :math:`Tv`, ``[*B, m]``.

        Raises:
            ValueError: If the shape or device does not fit.
            TypeError: If the dtype is not that of the process.

        Example:
            >>> import torch, ictd
            >>> mrp = ictd.MarkovRewardProcess(torch.eye(2), torch.tensor([1.0, 2.0]), 0.5)
            >>> mrp.bellman(torch.tensor([2.0, 4.0]))  # v_π is the fixed point
            tensor([2., 4.])
        """
        check_floating("values", values)
        check_shape("values", values, self.terminal.shape, "[*B, m]")
        check_like("transition", self.transition, "values", values)
        following = values.masked_fill(self.terminal, 0.0).unsqueeze(-1)
        expected = (self.transition @ following).squeeze(-1)
        result = self.expected_reward() + self.discount.unsqueeze(-1) * expected
        return result.masked_fill(self.terminal, 0.0)

    def value(self) -> Float[Tensor, "*batch state"]:
        r"""Solve for the value :math:`v_\pi = (I - \gamma P)^{-1} r`.

        With :math:`\gamma = 1` the sum of rewards converges if every recurrent class is a terminal
        state or has expected reward exactly 0 in all its states; its value is then 0.

        Book: :prf:ref:`thm-bellman-contraction`.

        Returns:
            ``[*B, m]`` in reward units; exactly 0 at terminal states.

        Raises:
            ValueError: If :math:`\gamma = 1` and a recurrent class pays rewards, or the equations
                are singular to the dtype's accuracy.

        Note:
            Cost O(m³). Differentiable in ``transition``, ``reward`` and ``discount`` (in classes of
            value 0 at :math:`\gamma = 1` the gradient is 0). Half precision is solved in float32.
            Where values cannot be checked, states without a value get NaN instead of an error.

        Example:
            >>> import torch, ictd
            >>> swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
            >>> ictd.MarkovRewardProcess(swap, torch.tensor([3.0, 0.0]), 0.5).value()
            tensor([4., 2.])
        """
        zero, undefined = self.terminal, torch.zeros_like(self.terminal)
        if not values_checkable(self.discount) or bool((self.discount == 1).any()):
            zero, undefined = self._undiscounted()
            expected = "a number < 1 (a recurrent class that is not terminal pays rewards)"
            got = self.discount.unsqueeze(-1).expand_as(undefined)
            check_none("discount", undefined, expected, got)
        work = torch.promote_types(self.dtype, torch.float32)
        onward = self.transition.masked_fill(zero.unsqueeze(-2), 0.0)  # no bootstrap from them
        identity = torch.eye(self.num_states, dtype=work, device=self.device)
        matrix = identity - self.discount.to(work).unsqueeze(-1).unsqueeze(-1) * onward.to(work)
        reward = self.expected_reward().to(work)
        solution, _ = torch.linalg.solve_ex(matrix, reward.unsqueeze(-1))
        values: Tensor = solution.squeeze(-1).to(self.dtype).masked_fill(zero, 0.0)
        finite = f"equations that {self.dtype} can solve (v finite)"
        check_none("transition", values.isfinite().logical_not(), finite, values)
        return values.masked_fill(undefined, torch.nan)

    def _undiscounted(self) -> tuple[Bool[Tensor, "*batch state"], Bool[Tensor, "*batch state"]]:
        """Return which states have value 0 in any case, and which have none as discount = 1."""
        edges = (self.transition > 0) & self.terminal.logical_not().unsqueeze(-1)
        reach = reachable(edges)
        closed = recurrent(reach) & (self.discount == 1).unsqueeze(-1)
        paying = closed & (self.expected_reward() != 0)
        undefined = (reach & paying.unsqueeze(-2)).any(-1)
        return self.terminal | closed, undefined

    def stationary_distribution(self) -> Float[Tensor, "*batch state"]:
        r"""Return the distribution with :math:`\mu P = \mu`, of ``transition`` as given.

        By the elimination of Grassmann, Taksar and Heyman (1985), which subtracts nothing: every
        entry is accurate relatively, for nearly decomposable chains too. Periodic chains are fine.

        Book: :prf:ref:`def-stationary-distribution`.

        Returns:
            ``[*B, m]``, summing to 1; exactly 0 at transient states.

        Raises:
            ValueError: If there are several recurrent classes (then it is not unique), or the dtype
                cannot hold the result.

        Note:
            Cost O(m³). Differentiable in ``transition``; terminal states play no role. Half
            precision is computed in float32. Where values cannot be checked, a result that does not
            exist is NaN instead of an error.

        Example:
            >>> import torch, ictd
            >>> transition = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
            >>> mrp = ictd.MarkovRewardProcess(transition, torch.zeros(2), 0.9)
            >>> mrp.stationary_distribution()
            tensor([0.6667, 0.3333])
        """
        return stationary_distribution(self.transition)

    def sample(
        self,
        num_steps: int,
        *,
        generator: torch.Generator,
        start: int | Int[Tensor, "*batch"] | None = None,
    ) -> Trajectory:
        r"""Draw a trajectory of ``num_steps + 1`` tokens from each process of the batch.

        The reward of a transition is :math:`r(S_j)` or :math:`R(S_j, S_{j+1})`, as ``reward`` was
        given. After a terminal state a new episode starts from ``initial``: that step is no
        transition, and counts.

        Book: :prf:ref:`def-trajectory`.

        Args:
            num_steps: The number of steps, at least 0.
            generator: The source of randomness, on any device.
            start: :math:`S_0`, an integer or ``[*B]`` of int64. None: drawn from ``initial``.

        Returns:
            A trajectory ``[*B, num_steps + 1]`` on the device of the process. Its last token has
            reward 0, discount 0 and no transition.

        Raises:
            ValueError: If ``start`` is no state, or has another shape or device.
            TypeError: If ``num_steps`` or ``start`` is not made of integers.

        Note:
            Uniform numbers are drawn in float64 on the device of the generator and moved, so one
            seed gives one trajectory on every device and in every dtype (up to rounding of the
            probabilities). A transition of probability 0 is never taken. Gradients reach ``reward``
            and ``discount``.

        Example:
            >>> import torch, ictd
            >>> cycle = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
            >>> mrp = ictd.MarkovRewardProcess(cycle, torch.tensor([1.0, 2.0, 3.0]), 0.9)
            >>> trajectory = mrp.sample(4, generator=torch.Generator().manual_seed(0), start=1)
            >>> trajectory.states, trajectory.rewards
            (tensor([1, 2, 0, 1, 2]), tensor([2., 3., 1., 2., 0.]))
        """
        check_int("num_steps", num_steps, 0)
        first = None if start is None else self._start(start)
        uniforms = torch.rand(
            (num_steps + 1, *self.batch_shape),
            generator=generator,
            device=generator.device,
            dtype=torch.float64,
        ).to(self.device)
        states = sample_states(self.transition, self.initial, self.terminal, first, uniforms)
        is_terminal = self.terminal.gather(-1, states)
        is_transition = ~is_terminal
        is_transition[..., -1] = False
        successors = states.roll(-1, -1)
        if self.reward.ndim == self.transition.ndim:
            index = states * self.num_states + successors
            rewards = self.reward.flatten(-2).gather(-1, index)
        else:
            rewards = self.reward.gather(-1, states)
        bootstraps = is_transition & ~self.terminal.gather(-1, successors)
        return Trajectory(
            states,
            rewards.masked_fill(~is_transition, 0.0),
            torch.where(bootstraps, self.discount.unsqueeze(-1), 0.0),
            is_transition,
            is_terminal,
        )

    def _start(self, start: int | Tensor) -> Int[Tensor, "*batch"]:
        if not isinstance(start, Tensor):
            check_int("start", start, 0)
            start = torch.full(self.batch_shape, start, dtype=torch.int64, device=self.device)
        check_dtype("start", start, torch.int64)
        check_shape("start", start, self.batch_shape, "[*B]")
        check_like("transition", self.transition, "start", start)
        outside = (start < 0) | (start >= self.num_states)
        check_none("start", outside, f"states in 0..{self.num_states - 1}", start)
        return start
