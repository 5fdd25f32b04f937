"""What a pretraining run is made of: one frozen record, checked when it is made."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, get_args, get_type_hints

import torch

__all__ = ["PretrainConfig", "check_config", "check_kind"]

Family = Literal["boyan", "loop", "garnet", "random-walk"]
Features = Literal["unit-sphere", "one-hot", "uniform"]

_AT_LEAST = {
    "seed": 0,
    "num_seeds": 1,
    "num_steps": 0,
    "num_tasks": 1,
    "num_queries": 1,
    "context_length": 1,
    "num_layers": 1,
    "num_states": 2,
    "feature_dim": 1,
    "warmup_steps": 0,
    "log_every": 1,
    "checkpoint_every": 1,
    "num_evaluation_tasks": 2,
}
_POSITIVE = ("learning_rate", "initial_scale")
_NOT_NEGATIVE = ("weight_decay", "momentum", "max_gradient_norm")
_FREE = {"num_steps", "log_every", "checkpoint_every", "device"}  # may change on resuming


def check_kind(name: str, value: object, kind: type, hint: str) -> None:
    """Raise TypeError unless a record is of its kind; the hint says how one is made."""
    if not isinstance(value, kind):
        got = type(value).__name__
        raise TypeError(f"{name}: expected a {kind.__name__}, got {got}: {hint}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """Hold the settings of a pretraining run.

    These lines are also the help of ``ictd pretrain``, hence the plain symbols.

    Args:
        seed: Of the first replica; replica r has seed + r. With the number of the step it
            determines everything that is drawn.
        num_seeds: How many replicas are trained at once: independent models on independent data.
        num_steps: Steps of the optimizer.
        num_tasks: Fresh processes per step and replica.
        num_queries: Query transitions per task, independent of its context.
        context_length: n, transitions of the context.
        num_layers: The depth L.
        num_states: m, terminal states included.
        feature_dim: d; equal to num_states for one-hot features.
        discount: γ, at least 0, less than 1.
        family: The processes: "boyan", "loop", "garnet" (of which one step in a hundred goes to any
            state, so that every chain is irreducible) or "random-walk" (one process, fresh
            features).
        branching_factor: Successors of a state, for "garnet".
        features: "unit-sphere", "one-hot" or "uniform" (every entry uniform on [-1, 1), as it is).
        attention: "softmax" (ictd.InContextTD) or "linear" (ictd.LinearInContextTD).
        parametrization: "structured" or "full", where every entry of the matrices is trained.
        num_heads: 1 (with the temporal shift) or 2 (two value matrices, nothing shared but the
            attention); None: 2 for full softmax layers, else 1.
        looped: Whether all layers share their weights.
        initial_scale: Standard deviation of the initial weights.
        target: "semi-gradient", R + γ v(S') held fixed, or "monte-carlo", the discounted sum of the
            rewards of a rollout from the query.
        rollout_length: H, of a Monte-Carlo target; None: until γ^H is at most 1/1000.
        optimizer: "adam", "adamw" or "sgd", of torch.
        learning_rate: Its first learning rate.
        momentum: Of "sgd".
        weight_decay: Of the optimizer.
        max_gradient_norm: Longer gradients, of a replica, are cut to this norm; 0 cuts none.
        schedule: "constant", "linear" or "cosine": how the learning rate falls, to 0 at
            num_steps.
        warmup_steps: Over which it rises first, linearly.
        dtype: "float32" or "float64".
        device: "cpu", "cuda" or "cuda:1", of torch.
        log_every: Steps between two records of the metrics.
        num_evaluation_tasks: Processes that metrics are measured on, the same in the whole run.
        checkpoint_every: Steps between two checkpoints.

    Raises:
        ValueError: If a number is out of range, a name unknown, or two settings contradict.
        TypeError: If a value has another type.

    Example:
        >>> from ictd.pretraining import PretrainConfig
        >>> PretrainConfig(num_layers=0)
        Traceback (most recent call last):
        ValueError: num_layers: expected an integer >= 1, got 0
    """

    seed: int = 0
    num_seeds: int = 1
    num_steps: int = 10_000
    num_tasks: int = 64
    num_queries: int = 16
    context_length: int = 40
    num_layers: int = 10
    num_states: int = 10
    feature_dim: int = 4
    discount: float = 0.9
    family: Family = "boyan"
    branching_factor: int = 3
    features: Features = "unit-sphere"
    attention: Literal["softmax", "linear"] = "softmax"
    parametrization: Literal["structured", "full"] = "structured"
    num_heads: int | None = None
    looped: bool = True
    initial_scale: float = 0.1
    target: Literal["semi-gradient", "monte-carlo"] = "semi-gradient"
    rollout_length: int | None = None
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    learning_rate: float = 3e-3
    momentum: float = 0.0
    weight_decay: float = 0.0
    max_gradient_norm: float = 1.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    dtype: Literal["float32", "float64"] = "float32"
    device: str = "cpu"
    log_every: int = 100
    num_evaluation_tasks: int = 64
    checkpoint_every: int = 1000

    def __post_init__(self) -> None:
        for name, annotation in get_type_hints(PretrainConfig).items():
            self._check_type(name, annotation)
        for name, minimum in _AT_LEAST.items():
            if getattr(self, name) < minimum:
                got = getattr(self, name)
                raise ValueError(f"{name}: expected an integer >= {minimum}, got {got}")
        for name in (*_POSITIVE, *_NOT_NEGATIVE):
            value = getattr(self, name)
            if not (0 <= value < math.inf) or (value == 0 and name in _POSITIVE):
                bound = "> 0" if name in _POSITIVE else ">= 0"
                raise ValueError(f"{name}: expected a finite number {bound}, got {value}")
        if not 0 <= self.discount < 1:
            raise ValueError(f"discount: expected a number in [0, 1), got {self.discount}")
        self._check_together()

    def _check_type(self, name: str, annotation: Any) -> None:
        value, choices = getattr(self, name), get_args(annotation)
        if choices and type(None) not in choices:
            if value not in choices:
                raise ValueError(f"{name}: expected one of {list(choices)}, got {value!r}")
            return
        kinds = tuple(c for c in choices if c is not type(None)) or (annotation,)
        if value is None and choices:
            return
        fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
        if float in kinds and isinstance(value, int) and not isinstance(value, bool):
            try:
                object.__setattr__(self, name, float(value))
            except OverflowError:
                raise ValueError(
                    f"{name}: expected a finite number, got one that no float can hold"
                ) from None
        elif not fits:
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise TypeError(f"{name}: expected {expected}, got {type(value).__name__}")

    def _check_together(self) -> None:
        if self.features == "one-hot" and self.feature_dim != self.num_states:
            raise ValueError(
                f"feature_dim: expected num_states = {self.num_states} with one-hot features, "
                f"got {self.feature_dim}"
            )
        if self.family == "random-walk" and self.num_states < 3:
            raise ValueError(
                "num_states: expected an integer >= 3 for a random walk (two states are terminal), "
                f"got {self.num_states}"
            )
        most = self.num_states if self.family == "garnet" else self.branching_factor
        if not 1 <= self.branching_factor <= most:
            raise ValueError(
                f"branching_factor: expected an integer in 1..{self.num_states}, "
                f"got {self.branching_factor}"
            )
        if self.num_heads is not None:
            allowed = [1] if self.attention == "linear" else [1, 2]
            if self.num_heads not in allowed:
                raise ValueError(
                    f"num_heads: expected None or one of {allowed} with {self.attention} "
                    f"attention, got {self.num_heads}"
                )
        if self.rollout_length is not None and self.rollout_length < 1:
            raise ValueError(
                f"rollout_length: expected an integer >= 1 or None, got {self.rollout_length}"
            )
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"momentum: expected 0 with {self.optimizer}, got {self.momentum}")
        try:
            kind = torch.device(self.device).type
        except RuntimeError:
            raise ValueError(f"device: expected a torch device, got {self.device!r}") from None
        if kind not in ("cpu", "cuda"):  # the tasks are made in float64
            raise ValueError(f"device: expected a CPU or a CUDA device, got {self.device!r}")

    @property
    def horizon(self) -> int:
        """Transitions of a rollout, where targets are Monte-Carlo."""
        if self.rollout_length is not None:
            return self.rollout_length
        return 1 if self.discount == 0 else max(1, math.ceil(math.log(1e-3, self.discount)))

    @property
    def heads(self) -> int:
        """How many heads a layer has."""
        if self.num_heads is not None:
            return self.num_heads
        return 2 if (self.attention, self.parametrization) == ("softmax", "full") else 1

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch has it."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    def learning_rate_factor(self, step: int) -> float:
        """Return what the learning rate of a step is multiplied by.

        Args:
            step: Its number; the first step is 0.

        Returns:
            A number in [0, 1].
        """
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return 1.0
        falling = max(self.num_steps - self.warmup_steps, 1)
        share = min((step - self.warmup_steps) / falling, 1.0)
        return 1 - share if self.schedule == "linear" else (1 + math.cos(math.pi * share)) / 2

    def to_dict(self) -> dict[str, Any]:
        """Return all settings, as JSON can hold them.

        Returns:
            Values by name.
        """
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> PretrainConfig:
        """Make a config of what :meth:`to_dict` returned.

        Args:
            settings: Values by name.

        Returns:
            The config.

        Raises:
            ValueError: If a name is unknown, or a value not allowed.
        """
        unknown = settings.keys() - {field.name for field in dataclasses.fields(cls)}
        if unknown:
            raise ValueError(
                f"config: expected the fields of PretrainConfig, got {sorted(unknown)}"
            )
        return cls(**settings)

    def check_resumes(self, earlier: PretrainConfig) -> None:
        """Raise unless a run with these settings may go on where the earlier one stopped.

        Args:
            earlier: The settings of the checkpoint.

        Raises:
            ValueError: If something else than the length of the run, the intervals of log and
                checkpoints, and the device differs.
        """
        free = _FREE if self.schedule == "constant" else _FREE - {"num_steps"}
        for field in dataclasses.fields(self):
            ours, theirs = getattr(self, field.name), getattr(earlier, field.name)
            if field.name not in free and ours != theirs:
                raise ValueError(
                    f"{field.name}: expected {theirs!r}, as in the checkpoint, got {ours!r}"
                )


def check_config(config: object) -> None:
    """Raise TypeError unless this is a config."""
    check_kind("config", config, PretrainConfig, "make one with PretrainConfig(...)")
