"""Checkpoints: one safetensors file with JSON in its header, replaced in one move. No pickle.

A file holds the stacked weights (``parameters/…``), what the optimizer remembers
(``optimizer/<weight>/…``), and as JSON the config, the number of steps, the history, the versions
and a digest of all that. Everything that is drawn comes from the seed and the number of the
step, so no state of a generator is needed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ictd import __version__
from ictd.pretraining.config import PretrainConfig

__all__ = ["CheckpointError", "load_checkpoint", "save_checkpoint", "write_atomically"]

FORMAT = "ictd pretraining checkpoint"
VERSION = 1
NAME = "checkpoint.safetensors"


class CheckpointError(ValueError):
    """A file that is no checkpoint, or a damaged one; the message says which and why."""


@dataclass(frozen=True)
class Checkpoint:
    """Hold what a checkpoint file says."""

    config: PretrainConfig
    step: int
    history: list[dict[str, Any]]
    parameters: dict[str, Tensor]
    optimizer: dict[str, dict[str, Tensor]]
    versions: dict[str, str]


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; whatever happens meanwhile, ``path`` holds the old one or the new one."""
    tensors = {f"parameters/{name}": value for name, value in checkpoint.parameters.items()}
    for name, state in checkpoint.optimizer.items():
        tensors |= {f"optimizer/{name}/{key}": value for key, value in state.items()}
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    about = {
        "format": FORMAT,
        "version": VERSION,
        "config": checkpoint.config.to_dict(),
        "step": checkpoint.step,
        "history": checkpoint.history,
        "versions": checkpoint.versions,
    }
    about["digest"] = digest(tensors, about)
    metadata = {"ictd": json.dumps(about, allow_nan=False)}
    write_atomically(path, safetensors.torch.save(tensors, metadata))


def load_checkpoint(path: Path, device: torch.device | str = "cpu") -> Checkpoint:
    """Read a checkpoint.

    Args:
        path: The file, or the directory that a run wrote to.
        device: Where the tensors go.

    Returns:
        The checkpoint.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If the file is foreign, damaged, or of a later version.
    """
    path = path / NAME if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"{path}: expected a checkpoint, got no file")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            names = file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path}: expected a whole safetensors file, got one that is damaged or of another "
            f"kind ({error})"
        ) from error
    about = _read_json(path, metadata.get("ictd"))
    if about.get("version") != VERSION:
        raise CheckpointError(
            f"{path}: expected version {VERSION} of the format, got {about.get('version')}"
        )
    if about.pop("digest", None) != digest(tensors, about):
        raise CheckpointError(f"{path}: damaged: the content is not what was saved")
    try:
        config = PretrainConfig.from_dict(about["config"])
        step, history, versions = about["step"], about["history"], about["versions"]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: its settings cannot be used: {error}") from error
    parameters, optimizer = _sort(tensors, torch.device(device))
    return Checkpoint(config, step, history, parameters, optimizer, versions)


def _read_json(path: Path, text: str | None) -> dict[str, Any]:
    try:
        about = json.loads(text or "null", parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged: its header is no JSON ({error})") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: expected a checkpoint of ictd.pretraining, got a foreign safetensors file"
        )
    return about


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON")


def _sort(
    tensors: Mapping[str, Tensor], device: torch.device
) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    parameters: dict[str, Tensor] = {}
    optimizer: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        kind, _, rest = name.partition("/")
        if kind == "parameters":
            parameters[rest] = value.to(device)
        else:
            parameter, _, key = rest.rpartition("/")
            optimizer.setdefault(parameter, {})[key] = value
    return parameters, optimizer


def digest(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> str:
    """A hash of the JSON, and of the tensors' names, dtypes, shapes and bytes."""
    found = hashlib.sha256(json.dumps(about, allow_nan=False, sort_keys=True).encode())
    for name in sorted(tensors):
        value = tensors[name]
        found.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        found.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader, or a crash, sees all of the old one or all of the new one."""
    temporary = path.with_name(f".{path.name}.writing")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    if os.name == "posix":  # the move itself reaches the disk with the directory
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def folder_of(resume: Path | None, out: Path | None) -> Path | None:
    """Where a run writes to: ``out``, or where that lies which it resumes, or nowhere."""
    if out is not None or resume is None:
        return out
    return resume if resume.is_dir() else resume.parent


def check_folder(folder: Path, source: Path | None) -> None:
    """Raise unless a run may write there: over nothing but what it resumes."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"out: expected a directory, got the file {folder}")
    there = folder / NAME
    if not there.exists():
        return
    if source is None:
        raise FileExistsError(
            f"out: expected a directory without a checkpoint, got {folder}: resume it, or move it"
        )
    source = source / NAME if source.is_dir() else source
    if source.exists() and not source.samefile(there):
        raise FileExistsError(
            f"out: expected a directory without another checkpoint than {source}, got {folder}: "
            "move that one, or write elsewhere"
        )


def json_lines(records: list[dict[str, Any]]) -> str:
    """One line per record."""
    return "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)


def as_json(value: Any) -> Any:
    """Tensors as nested lists, and numbers that are not finite as None."""
    if isinstance(value, Tensor):
        return as_json(value.tolist())
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def versions() -> dict[str, str]:
    """What a run was made with."""
    return {
        "ictd": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
