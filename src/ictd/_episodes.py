"""Episodes of an environment, one after the other, as the fields of a prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ictd._checks import values_checkable


def join(
    observations: Sequence[Any],
    rewards: Sequence[Any],
    terminated: Sequence[Any],
    truncated: Sequence[Any],
    discount: float,
    features: Callable[[Any], Any] | None,
) -> dict[str, Tensor]:
    """See :meth:`ictd.Prompt.from_episodes`."""
    count = len(observations)
    lists = {"rewards": rewards, "terminated": terminated, "truncated": truncated}
    for name, value in lists.items():
        if len(value) != count:
            raise ValueError(f"{name}: expected one entry per episode ({count}), got {len(value)}")
    if count == 0:
        raise ValueError("observations: expected at least one episode, got none")
    episodes = [
        _episode(i, observations[i], rewards[i], terminated[i], truncated[i], discount, features)
        for i in range(count)
    ]
    widths = [episode["features"].shape[1] for episode in episodes]
    for i, width in enumerate(widths):
        if width != widths[0]:
            raise ValueError(
                f"features: expected {widths[0]} per observation as in episode 0, "
                f"got {width} in episode {i}"
            )
    return {name: torch.cat([episode[name] for episode in episodes]) for name in episodes[0]}


def _episode(
    i: int,
    observations: Any,
    rewards: Any,
    terminated: Any,
    truncated: Any,
    discount: float,
    features: Callable[[Any], Any] | None,
) -> dict[str, Tensor]:
    """The fields of a prompt that holds episode ``i``, ``T_i + 1`` tokens."""
    table = _as_tensor(observations if features is None else features(observations))
    if not table.is_floating_point():
        raise TypeError(
            f"observations[{i}]: expected floating-point features, got {table.dtype}; pass "
            "features=, a map from the observations of an episode to [T + 1, d]"
        )
    reward = _as_tensor(rewards).to(table)
    steps = reward.shape[0] if reward.ndim == 1 else -1
    if steps < 1 or table.ndim != 2 or table.shape[0] != steps + 1:
        raise ValueError(
            f"episode {i}: expected rewards [T] with T >= 1 and features [T + 1, d], "
            f"got {tuple(reward.shape)} and {tuple(table.shape)}"
        )
    flags = []
    for name, given in (("terminated", terminated), ("truncated", truncated)):
        flag = _as_tensor(given).to(table.device, torch.bool).reshape(-1)
        if flag.shape[0] not in (1, steps):
            raise ValueError(
                f"{name}[{i}]: expected one flag or one per step ({steps}), got {flag.shape[0]}"
            )
        if values_checkable(flag) and flag[:-1].any():
            raise ValueError(
                f"{name}[{i}]: expected the episode to end where it is flagged, got a flag at step "
                f"{int(flag.nonzero()[0, 0])} of {steps}; split the episode there"
            )
        flags.append(flag[-1])
    is_last = torch.arange(steps + 1, device=table.device) == steps
    discounts = torch.full_like(table[:, 0], discount)
    discounts[-1] = 0
    discounts[-2] = torch.where(flags[0], 0.0, discounts[-2])
    return {
        "features": table,
        "rewards": F.pad(reward, (0, 1)),
        "discounts": discounts,
        "is_transition": ~is_last,
        "is_terminal": is_last & flags[0],
    }


def _as_tensor(values: Any) -> Tensor:
    """A tensor from what a loop over an environment collects: arrays, and lists of them."""
    first = values[0] if isinstance(values, list | tuple) and values else values
    if isinstance(values, Tensor):
        return values
    if isinstance(first, Tensor):
        return torch.stack(tuple(values))
    if isinstance(first, np.ndarray | np.generic):
        return torch.from_numpy(np.array(values))  # a copy: of any stride, and writable
    return torch.as_tensor(values)
