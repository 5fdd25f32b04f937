"""What the tensor records of the package share: batch axes, devices, dtypes, pytrees."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Self, TypeVar, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Index = Any
Record = TypeVar("Record", bound="type[BatchedRecord]")
Made = TypeVar("Made")


class BatchedRecord:
    """Base of frozen dataclasses whose tensor fields share leading batch axes.

    A subclass names its floating-point reference field in ``_reference`` and the number of axes
    that this field has beyond the batch axes in ``_reference_ndim``. A field is a tensor or None;
    one declared with ``init=False`` is a plain Python value that every derived record keeps.
    """

    _reference: ClassVar[str]
    _reference_ndim: ClassVar[int]

    def _tensors(self) -> dict[str, Any]:
        """The fields that hold a tensor, in the order of their declaration."""
        return {k: v for k, v in _fields(self, init=True).items() if v is not None}

    def _rebuild(self, tensors: dict[str, Any]) -> Self:
        """A record with these tensors and the same static fields; nothing is checked again."""
        return _unchecked(type(self), tensors, _fields(self, init=False))

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return cast(Tensor, getattr(self, self._reference)).device

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point dtype of the tensors."""
        return cast(Tensor, getattr(self, self._reference)).dtype

    @property
    def batch_shape(self) -> torch.Size:
        """The leading batch axes ``*B``."""
        reference = cast(Tensor, getattr(self, self._reference))
        return reference.shape[: reference.ndim - self._reference_ndim]

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move or cast, as :meth:`torch.Tensor.to` does; only floating-point fields are cast.

        Args:
            *args: A device, a dtype, or both.
            **kwargs: ``device=``, ``dtype=``, ``non_blocking=``.

        Returns:
            A new record; this one is unchanged.
        """
        reference = cast(Tensor, getattr(self, self._reference)).to(*args, **kwargs)

        def move(value: Tensor) -> Tensor:
            if value.is_floating_point():
                return value.to(*args, **kwargs)
            return value.to(device=reference.device)

        return self._rebuild({name: move(value) for name, value in self._tensors().items()})

    def __getitem__(self, index: Index) -> Self:
        """Index the batch axes, with everything that indexes a tensor there."""
        index = batch_index(index, len(self.batch_shape), type(self).__name__)
        return self._rebuild({name: value[index] for name, value in self._tensors().items()})


def _fields(record: BatchedRecord, *, init: bool) -> dict[str, Any]:
    fields = dataclasses.fields(cast(Any, record))
    return {field.name: getattr(record, field.name) for field in fields if field.init == init}


def _unchecked(cls: type[Made], tensors: dict[str, Any], static: dict[str, Any]) -> Made:
    """Make a record without running its checks: leaves may be anything while a pytree is mapped."""
    new = object.__new__(cls)
    for field in dataclasses.fields(cast(Any, cls)):
        source = tensors if field.init else static
        object.__setattr__(new, field.name, source.get(field.name))
    return new


def batch_index(index: Index, batch_ndim: int, name: str) -> tuple[Index, ...]:
    """Return ``index`` as a tuple that touches the first ``batch_ndim`` axes only."""
    parts = index if isinstance(index, tuple) else (index,)
    used = 0
    for part in parts:
        if isinstance(part, Tensor) and part.dtype == torch.bool:
            used += part.ndim
        elif part is not None and part is not Ellipsis:
            used += 1
    if used > batch_ndim:
        raise IndexError(
            f"{name}: expected at most {batch_ndim} indices (the batch axes), got {used}; "
            "index the fields themselves to pick along another axis"
        )
    rest = (slice(None),) * (batch_ndim - used)
    for position, part in enumerate(parts):
        if part is Ellipsis:
            return (*parts[:position], *rest, *parts[position + 1 :])
    return parts


def register(cls: Record) -> Record:
    """Register a :class:`BatchedRecord` as a pytree, so that ``torch.vmap`` and others map it.

    Fields that are None are structure, not leaves: ``torch.vmap`` maps every leaf.
    """

    def flatten(record: BatchedRecord) -> tuple[list[Any], Any]:
        tensors = record._tensors()
        return list(tensors.values()), (tuple(tensors), _fields(record, init=False))

    def unflatten(leaves: Any, context: Any) -> Any:
        names, static = context
        return _unchecked(cls, dict(zip(names, leaves, strict=True)), static)

    pytree.register_pytree_node(
        cls, flatten, unflatten, serialized_type_name=f"{cls.__module__}.{cls.__qualname__}"
    )
    return cls
