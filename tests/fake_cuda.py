"""Tensors that claim to be on a GPU, on a machine and a build of torch without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten


class PlainOperators(TorchFunctionMode):
    """Write ``x[...]``, ``~x`` and two methods as the operators they stand for.

    In Python they ask torch for a device guard, which a build without CUDA does not have for GPUs;
    the operators themselves do not ask.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return PLAIN.get(func, func)(*args, **(kwargs or {}))


def pick(tensor: Tensor, index: Any) -> Tensor:
    """``tensor[index]`` by ``select``, ``slice``, ``unsqueeze`` and ``index``."""
    parts = index if isinstance(index, tuple) else (index,)
    axis = 0
    gathered: dict[int, Tensor] = {}
    for position, part in enumerate(parts):
        if part is ...:
            axis = tensor.ndim - sum(_width(p) for p in parts[position + 1 :])
        elif part is None:
            tensor, axis = tensor.unsqueeze(axis), axis + 1
        elif isinstance(part, slice):
            tensor = aten.slice.Tensor(tensor, axis, part.start, part.stop, part.step or 1)
            axis += 1
        elif isinstance(part, Tensor):
            gathered[axis] = part
            axis += _width(part)
        else:
            tensor = aten.select.int(tensor, axis, int(part))
    if not gathered:
        return tensor
    return aten.index.Tensor(tensor, [gathered.get(i) for i in range(max(gathered) + 1)])


def _width(part: Any) -> int:
    """How many axes of the tensor a part of an index uses up."""
    if isinstance(part, Tensor) and part.dtype == torch.bool:
        return part.ndim
    return 0 if part is None else 1


def place(tensor: Tensor, index: Any, value: Any) -> None:
    """``tensor[index] = value``."""
    aten.copy_.default(pick(tensor, index), torch.as_tensor(value))


PLAIN = {
    Tensor.__getitem__: pick,
    Tensor.__setitem__: place,
    Tensor.__invert__: torch.bitwise_not,
    Tensor.copy_: aten.copy_.default,
    Tensor.contiguous: aten.contiguous.default,
}


@contextmanager
def fake_cuda() -> Iterator[None]:
    """Make ``device="cuda"`` work: nothing is computed, but no mix of devices is let through.

    Without gradients: autograd would ask for a stream of the GPU, and abort.
    """
    with FakeTensorMode(), PlainOperators(), torch.no_grad():
        yield
