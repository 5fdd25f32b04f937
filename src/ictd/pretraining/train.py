"""The loop: fresh tasks, one step of the optimizer, and now and then a record or a checkpoint."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ictd.pretraining.checkpoint import (
    NAME,
    Checkpoint,
    CheckpointError,
    as_json,
    check_folder,
    folder_of,
    json_lines,
    load_checkpoint,
    save_checkpoint,
    versions,
    write_atomically,
)
from ictd.pretraining.config import PretrainConfig, check_config
from ictd.pretraining.distributed import Processes, joined
from ictd.pretraining.loss import query_loss
from ictd.pretraining.metrics import measure
from ictd.pretraining.models import (
    Model,
    make_model,
    stack_parameters,
    state_values,
    unstack_parameters,
)
from ictd.pretraining.optimizer import clip, make_optimizer
from ictd.pretraining.signals import stop_on_signals
from ictd.pretraining.tasks import draw_tasks

__all__ = ["PretrainResult", "pretrain"]

Record = dict[str, Any]
Callback = Callable[[int, Record | None], bool | None]


@dataclass(frozen=True)
class PretrainResult:
    """Hold what a run, or a checkpoint of one, came to.

    Args:
        config: The settings.
        step: How many steps were taken.
        history: The records of the metrics, by step. A metric has one entry per replica.
        models: One Transformer per replica.
    """

    config: PretrainConfig
    step: int
    history: list[Record]
    models: tuple[Model, ...]

    @property
    def model(self) -> Model:
        """The Transformer of the first replica."""
        return self.models[0]


def pretrain(
    config: PretrainConfig,
    *,
    resume: str | Path | None = None,
    callback: Callback | None = None,
    out: str | Path | None = None,
) -> PretrainResult:
    r"""Pretrain Transformers by semi-gradient TD on tasks that are new in every step.

    Each step draws tasks, lets the model read one context of each, and asks it for the values of
    transitions :math:`(S, R, S')` that are independent of the context. The weights follow

    .. math:: \mathbb E\big[(R + \gamma v_\theta(S') - v_\theta(S))\,\nabla_\theta v_\theta(S)\big]

    by an optimizer of torch. SIGINT or SIGTERM ends the run after the step: the checkpoint is
    written, and what is there is returned. A second signal acts at once.

    Args:
        config: The settings.
        resume: A checkpoint to go on from, or the directory of a run. On the CPU the result is,
            bit for bit, that of a run that was never interrupted.
        callback: Called after every step with its number and with the record of the metrics, where
            there is one, else None. The run ends if it returns True.
        out: The directory to write ``checkpoint.safetensors``, ``metrics.jsonl`` and
            ``config.json`` to. None: that of ``resume``, or nothing is written.

    Returns:
        The models, on the config's device, and the history.

    Raises:
        FileExistsError: If ``out`` already holds a checkpoint that is not resumed.
        NotADirectoryError: If ``out`` is a file.
        FileNotFoundError: If there is nothing to resume.
        TypeError: If ``config`` is something else.
        ValueError: If the config is not that of the checkpoint, the tasks cannot be shared out
            among the processes, or torch does not find the device; a
            :class:`ictd.pretraining.CheckpointError` if the file is damaged or foreign.

    Note:
        Under ``torchrun`` every process draws the whole batch and takes its slice, and gradients
        are added up; the first one writes, calls back, and has the history. Torch's global random
        state is not touched.

    Example:
        >>> from ictd.pretraining import PretrainConfig, pretrain
        >>> result = pretrain(PretrainConfig(num_steps=2, num_tasks=4, num_layers=2))
        >>> result.step, [record["step"] for record in result.history]
        (2, [0, 2])
    """
    check_config(config)
    source = None if resume is None else Path(resume)
    folder = folder_of(source, None if out is None else Path(out))
    if folder is not None:
        check_folder(folder, source)
    with torch.inference_mode(False), torch.enable_grad(), joined(config.device) as processes:
        processes.part(config.num_tasks)
        run = Trainer(config, processes, folder)
        if source is not None:
            run.resume(load_checkpoint(source, processes.device))
        run.go(callback)
        return run.result()


class Trainer:
    """Hold a run: stacked weights, the optimizer, the number of steps, the history."""

    def __init__(
        self,
        config: PretrainConfig,
        processes: Processes | None = None,
        folder: Path | None = None,
    ) -> None:
        if processes is None:
            processes = Processes(0, 1, torch.device(config.device))
        self.config, self.processes, self.folder = config, processes, folder
        self.seeds = range(config.seed, config.seed + config.num_seeds)
        models = [make_model(config, seed).to(processes.device) for seed in self.seeds]
        self.template = models[0]
        self.parameters = stack_parameters(models)
        self.optimizer = make_optimizer(config, self.parameters)
        self.step = 0
        self.history: list[Record] = []
        self.evaluation = draw_tasks(
            config,
            self.seeds,
            0,
            stream="evaluation",
            num_tasks=config.num_evaluation_tasks,
            device=processes.device,
        )

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on where a checkpoint was made."""
        config = self.config
        config.check_resumes(checkpoint.config)
        if checkpoint.step and not checkpoint.optimizer:
            raise CheckpointError("resume: expected the optimizer's state, got weights alone")
        if checkpoint.step > config.num_steps:
            raise ValueError(
                f"num_steps: expected at least the {checkpoint.step} of the checkpoint, "
                f"got {config.num_steps}"
            )
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(checkpoint.parameters[name])
        found = self.optimizer.state_dict()
        names = {name: index for index, name in enumerate(self.parameters)}
        found["state"] = {names[name]: state for name, state in checkpoint.optimizer.items()}
        self.optimizer.load_state_dict(found)
        self.step = checkpoint.step
        # A record that was made only because the run ended there is not part of a longer one.
        self.history = [
            record
            for record in checkpoint.history
            if "off_schedule" not in record or record["step"] == config.num_steps
        ]

    def go(self, callback: Callback | None) -> None:
        """Take the steps that are left."""
        config, first = self.config, self.processes.is_first
        start = self.step
        schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda done: config.learning_rate_factor(start + done)
        )
        if first:
            self._begin()
        with stop_on_signals() as request:
            while self.step < config.num_steps:
                loss, norm = self.advance()
                schedule.step()
                self.step += 1
                due = self.step % config.log_every == 0 or self.step == config.num_steps
                record = self._record(loss, norm) if due and first else None
                ends = bool(callback and first and callback(self.step, record))
                ends = self.processes.any(ends or request.made)
                if ends and first and not due:
                    self._record(loss, norm)
                last = ends or self.step == config.num_steps
                if first and (last or self.step % config.checkpoint_every == 0):
                    self._save()
                if ends:
                    break
        self.processes.wait()

    def _begin(self) -> None:
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            about = {
                "config": self.config.to_dict(),
                "versions": versions(),
                "command": sys.argv,
                "processes": self.processes.size,
            }
            text = json.dumps(about, indent=2) + "\n"
            write_atomically(self.folder / "config.json", text.encode())
            lines = json_lines(self.history).encode()
            write_atomically(self.folder / "metrics.jsonl", lines)
        if self.step == 0:
            self._record(None, None)
        self._save()  # after a resumption: with what of the config has changed

    def advance(self) -> tuple[Tensor, Tensor]:
        """Take one step; returns loss and norm of the gradient, ``[replica]``."""
        config, processes = self.config, self.processes
        part = processes.part(config.num_tasks)
        tasks = draw_tasks(config, self.seeds, self.step, part=part, device=processes.device)
        self.optimizer.zero_grad(set_to_none=True)
        values = state_values(self.template, self.parameters, tasks)
        loss = query_loss(values, tasks.queries).sum(-1) / config.num_tasks
        torch.autograd.backward(loss.sum())
        gradients = [parameter.grad for parameter in self.parameters.values()]
        found = [gradient for gradient in gradients if gradient is not None]
        loss = loss.detach()
        processes.add_up([*found, loss])
        norm = clip(found, config.max_gradient_norm)
        self.optimizer.step()
        return loss, norm

    def _record(self, loss: Tensor | None, norm: Tensor | None) -> Record:
        record: Record = {"step": self.step, "loss": loss, "gradient_norm": norm}
        if self.step % self.config.log_every:
            record["off_schedule"] = True
        record |= measure(self.config, self.template, self.parameters, self.evaluation)
        record = as_json(record)
        self.history.append(record)
        if self.folder is not None:
            with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json_lines([record]))
        return record

    def _save(self) -> None:
        if self.folder is None:
            return
        state = {
            name: {k: v for k, v in self.optimizer.state[parameter].items() if v is not None}
            for name, parameter in self.parameters.items()
            if parameter in self.optimizer.state
        }
        parameters: dict[str, Tensor] = dict(self.parameters)
        saved = Checkpoint(self.config, self.step, self.history, parameters, state, versions())
        save_checkpoint(self.folder / NAME, saved)

    def result(self) -> PretrainResult:
        """What the run came to."""
        models = tuple(unstack_parameters(self.config, self.parameters))
        return PretrainResult(self.config, self.step, self.history, models)
