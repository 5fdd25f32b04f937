"""What the tensor records of the package share: batch axes, devices, dtypes, pytrees."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
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
    one declared with ``init=False`` is a plain Python value that indexing and moving keep, and
    that is None in a record made by a pytree map, which may have changed anything.
    """

    _reference: ClassVar[str]
    _reference_ndim: ClassVar[int]
    _tensor_names: ClassVar[tuple[str, ...]]  # both set by `register`
    _static_names: ClassVar[tuple[str, ...]]

    def _tensors(self) -> dict[str, Any]:
        """The fields that hold a tensor, in the order of their declaration."""
        values = {name: getattr(self, name) for name in self._tensor_names}
        return {name: value for name, value in values.items() if value is not None}

    def _rebuild(self, tensors: dict[str, Any]) -> Self:
        """A record with these tensors and the same static fields; nothing is checked again."""
        static = {name: getattr(self, name) for name in self._static_names}
        return _unchecked(type(self), tensors | static)

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

    def __iter__(self) -> Iterator[Self]:
        """Go through the first batch axis."""
        if not self.batch_shape:
            raise TypeError(
                f"{type(self).__name__}: expected a batch axis to iterate over, got none"
            )
        return (self[i] for i in range(self.batch_shape[0]))

    def __getitem__(self, index: Index) -> Self:
        """Index the batch axes, with everything that indexes a tensor there."""
        index = batch_index(index, len(self.batch_shape), type(self).__name__)
        return self._rebuild({name: value[index] for name, value in self._tensors().items()})


def _unchecked(cls: type[Made], values: dict[str, Any]) -> Made:
    """Make a record without running its checks: leaves may be anything while a pytree is mapped."""
    new = object.__new__(cls)
    record = cast(Any, cls)
    for name in (*record._tensor_names, *record._static_names):
        object.__setattr__(new, name, values.get(name))
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


def per_item(value: float | Tensor, beside: Tensor, num_axes: int) -> Tensor:
    """Return a number, or one per batch item, as a tensor with ``num_axes`` axes after the batch's.

    It has the dtype and the device of ``beside``, and broadcasts with it.
    """
    if not isinstance(value, Tensor):
        return beside.new_full((), value)
    return value.reshape((*value.shape, *(1,) * num_axes))


def register(cls: Record) -> Record:
    """Register a :class:`BatchedRecord` as a pytree, so that ``torch.vmap`` and others map it.

    Fields that are None are structure, not leaves: ``torch.vmap`` maps every leaf.
    """
    fields = dataclasses.fields(cast(Any, cls))
    cls._tensor_names = tuple(field.name for field in fields if field.init)
    cls._static_names = tuple(field.name for field in fields if not field.init)

    def flatten(record: BatchedRecord) -> tuple[list[Any], Any]:
        tensors = record._tensors()
        return list(tensors.values()), tuple(tensors)

    def flatten_with_keys(record: BatchedRecord) -> tuple[list[Any], Any]:
        tensors = record._tensors()
        return [(pytree.GetAttrKey(k), v) for k, v in tensors.items()], tuple(tensors)

    def unflatten(leaves: Any, names: Any) -> Any:
        return _unchecked(cls, dict(zip(names, leaves, strict=True)))

    pytree.register_pytree_node(
        cls,
        flatten,
        unflatten,
        serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
        flatten_with_keys_fn=flatten_with_keys,
    )
    return cls
