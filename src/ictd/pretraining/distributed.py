"""Several processes, started by ``torchrun``: each takes its slice of every batch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ictd.pretraining.config import PretrainConfig

__all__ = ["Processes", "find_device", "joined"]


@dataclass(frozen=True)
class Processes:
    """Say which of how many processes this one is.

    Args:
        rank: Its number; the first one writes and reports.
        size: How many there are.
        device: Where this one computes.
    """

    rank: int
    size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this process writes and reports."""
        return self.rank == 0

    def part(self, number: int) -> slice:
        """Return which of so many tasks this process computes.

        Args:
            number: Of all processes together.

        Returns:
            A slice of ``number / size`` tasks.

        Raises:
            ValueError: If they cannot be shared out evenly.
        """
        if number % self.size:
            raise ValueError(
                f"num_tasks: expected a multiple of the {self.size} processes, got {number}"
            )
        share = number // self.size
        return slice(self.rank * share, (self.rank + 1) * share)

    @torch.no_grad()
    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes, in one message."""
        if self.size == 1:
            return
        message = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(message)
        parts = torch.split(message, [tensor.numel() for tensor in tensors])
        for tensor, summed in zip(tensors, parts, strict=True):
            tensor.copy_(summed.view_as(tensor))

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in one of the processes."""
        if self.size == 1:
            return flag
        message = torch.tensor(float(flag), device=self.device)
        dist.all_reduce(message, dist.ReduceOp.MAX)
        return bool(message)

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.size > 1:
            dist.barrier()


def find_device(device: torch.device | str) -> torch.device:
    """The device, if torch finds it here and tasks can be made on it."""
    config = PretrainConfig(device=str(device))  # which kinds there are
    place = torch.device(config.device)
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device: expected one that torch finds here, got {config.device!r}")
    return place


@contextmanager
def joined(device: str) -> Iterator[Processes]:
    """Join the processes that ``torchrun`` started, if it did: gloo on CPUs, nccl on GPUs."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    place = find_device(device)
    if size == 1:
        yield Processes(0, 1, place)
        return
    if place.type == "cuda":
        place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(place)
    ours = not dist.is_initialized()
    if ours:
        dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield Processes(dist.get_rank(), dist.get_world_size(), place)
    finally:
        if ours:
            dist.destroy_process_group()
