"""Weights that were trained before: those that come with the package, and those of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch

from ictd.pretraining.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from ictd.pretraining.distributed import find_device
from ictd.pretraining.models import unstack_parameters
from ictd.pretraining.train import PretrainResult

__all__ = ["load_pretrained", "pretrained_names", "save_pretrained"]

FOLDER = Path(__file__).parent / "weights"


def pretrained_names() -> list[str]:
    """List the weights that come with the package.

    Returns:
        Names for :func:`load_pretrained`.

    Example:
        >>> from ictd.pretraining import pretrained_names
        >>> isinstance(pretrained_names(), list)
        True
    """
    return sorted(path.stem for path in FOLDER.glob("*.safetensors"))


def load_pretrained(
    name_or_path: str | Path, *, device: torch.device | str = "cpu"
) -> PretrainResult:
    """Load pretrained Transformers, with the config and the history of their training.

    Args:
        name_or_path: One of :func:`pretrained_names`, a checkpoint, or the directory of a run.
        device: Where the models go; what they were trained on does not matter.

    Returns:
        What :func:`ictd.pretraining.pretrain` returned.

    Raises:
        FileNotFoundError: If there is neither such a name nor such a file.
        ValueError: If torch does not find the device; a
            :class:`ictd.pretraining.CheckpointError`, if the file is damaged or foreign.

    Note:
        No pickle is read: a file cannot run code.

    Example:
        >>> from ictd.pretraining import load_pretrained
        >>> load_pretrained("no such weights")
        Traceback (most recent call last):
        FileNotFoundError: no such weights: expected a checkpoint or one of [...], got neither
    """
    path = Path(name_or_path)
    shipped = FOLDER / f"{name_or_path}.safetensors"
    if not path.exists():
        if not shipped.is_file():
            known = ", ".join(pretrained_names())
            raise FileNotFoundError(
                f"{name_or_path}: expected a checkpoint or one of [{known}], got neither"
            )
        path = shipped
    saved = load_checkpoint(path, find_device(device))
    models = tuple(unstack_parameters(saved.config, saved.parameters))
    return PretrainResult(saved.config, saved.step, saved.history, models)


def save_pretrained(source: str | Path, target: str | Path) -> None:
    """Copy a checkpoint without what the optimizer remembers: small, but not to be resumed.

    Of the history the first and the last record are kept.

    Args:
        source: The checkpoint, or the directory of a run.
        target: The file to write; over no checkpoint that could be resumed.

    Raises:
        FileExistsError: If the target is such a checkpoint, the source itself for example.
        ValueError: A :class:`ictd.pretraining.CheckpointError`, if the source is no checkpoint, or
            the target is a file that is none.
    """
    saved = load_checkpoint(Path(source))
    if Path(target).is_file() and load_checkpoint(Path(target)).optimizer:
        raise FileExistsError(
            f"target: expected a file that no run could be resumed from, got {target}: write "
            "elsewhere, what its optimizer remembers would be lost"
        )
    ends = [saved.history[0], saved.history[-1]]
    alone = Checkpoint(saved.config, saved.step, ends, saved.parameters, {}, saved.versions)
    save_checkpoint(Path(target), alone)
