"""The replicas: independent models whose weights are stacked along a first axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ictd._linear_layer import query_columns, transition_columns
from ictd.layers import Layer
from ictd.limits import EmpiricalModel
from ictd.linear import LinearInContextTD
from ictd.pretraining.config import PretrainConfig
from ictd.pretraining.tasks import Tasks, seeded
from ictd.state_attention import lumped_attention
from ictd.transformer import InContextTD

__all__ = ["Model", "make_model", "state_values"]

Model = InContextTD | LinearInContextTD
Parameters = Mapping[str, Tensor]  # with a first axis of replicas
Layers = Sequence[Mapping[str, Tensor]]  # the weights of each layer, by the layer's own names


def make_model(config: PretrainConfig, seed: int) -> Model:
    """Make a model with the initial weights of this seed, on the CPU."""
    generator = seeded(seed, "weights")
    options: dict[str, Any] = {
        "looped": config.looped,
        "parametrization": config.parametrization,
        "generator": generator,
        "device": "cpu",
        "dtype": config.torch_dtype,
    }
    model: Model
    if config.attention == "linear":
        model = LinearInContextTD(config.feature_dim, config.num_layers, **options)
    else:
        options["num_heads"] = config.heads
        model = InContextTD(config.feature_dim, config.num_layers, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(config.initial_scale / 0.1)  # what the layers draw
    return model


def stack_parameters(models: Sequence[Model]) -> dict[str, nn.Parameter]:
    """Stack the weights of the models along a new first axis."""
    named = [dict(model.named_parameters()) for model in models]
    return {
        name: nn.Parameter(torch.stack([own[name].detach() for own in named])) for name in named[0]
    }


def unstack_parameters(config: PretrainConfig, parameters: Parameters) -> list[Model]:
    """Make one model of each replica's weights, on their device."""
    replicas = len(next(iter(parameters.values())))
    models = []
    for replica in range(replicas):
        model = make_model(config, 0).to(next(iter(parameters.values())).device)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(parameters[name][replica])
        models.append(model)
    return models


def state_values(
    template: Model, parameters: Parameters, tasks: Tasks, return_history: bool = False
) -> Tensor:
    """Ask every replica for the value of every state, ``[replica, task, m]``, after its context.

    Structured layers see nothing of a context but how often its states were left, their mean
    rewards and where they led to, so these run on states. The others run on tokens. The numbers
    are the same. With the history the values after every layer come first, ``[L + 1, …]``.
    """
    if is_lumped(template):
        run = _linear_on_states if isinstance(template, LinearInContextTD) else _on_states
        return run(layer_parameters(template, parameters), tasks, return_history)
    wide = {name: value.unsqueeze(1) for name, value in parameters.items()}
    context = tasks.context.prompt(tasks.features)
    module: nn.Module = template
    given: tuple[Any, ...]
    if isinstance(template, LinearInContextTD):  # its queries are columns of their own
        keys = transition_columns(context)
        Z = torch.cat([keys, query_columns(tasks.features)], -1)
        module, given = _OnMatrix(template), (Z, context.is_transition[..., : keys.shape[-1]])
        wide = {f"model.{name}": value for name, value in wide.items()}
    else:
        given = (context.with_queries(tasks.features),)
    values: Tensor = functional_call(module, wide, (*given, return_history))
    return values[..., -tasks.mrp.num_states :].masked_fill(tasks.mrp.terminal, 0.0)


class _OnMatrix(nn.Module):
    """Call the model on the prompt matrix: `functional_call` knows ``forward`` alone."""

    def __init__(self, model: LinearInContextTD) -> None:
        super().__init__()
        self.model = model

    def forward(self, Z: Tensor, is_transition: Tensor, return_history: bool) -> Tensor:
        return self.model.on_matrix(Z, is_transition, return_history)


def is_lumped(template: Model) -> bool:
    """Whether the model can run on states instead of tokens."""
    return cast(Layer, template.layers[0]).parametrization == "structured"


def layer_parameters(template: Model, parameters: Parameters) -> list[dict[str, Tensor]]:
    """The weights of each layer, by the layer's own names."""
    layers = [0 if template.looped else index for index in range(template.num_layers)]
    names = [name for name, _ in template.layers[0].named_parameters()]
    return [{name: parameters[f"layers.{i}.{name}"] for name in names} for i in layers]


def attention_on(weights: Tensor, tasks: Tasks, matrix: Tensor) -> Tensor:
    """The attention of states to states, ``[replica, task, m, m]``, for ``matrix [replica, d, d]``.

    ``weights`` says how often each state is there.
    """
    wide = matrix.unsqueeze(1)
    return lumped_attention(weights, tasks.features, lambda q, k: q @ wide.mT @ k.mT)


def _on_states(layers: Layers, tasks: Tasks, return_history: bool) -> Tensor:
    seen = tasks.record
    history = [torch.zeros_like(seen.reward)]
    attention: dict[int, Tensor] = {}
    for layer in layers:
        matrix = layer["attention"]
        if id(matrix) not in attention:  # looped layers share theirs
            found = attention_on(seen.counts, tasks, matrix)
            attention[id(matrix)] = found.masked_fill(tasks.mrp.terminal.unsqueeze(-1), 0.0)
        read = reads(seen, history[-1])
        weighed = (read * layer["value_weights"][:, None, :, None]).sum(-2)
        history.append(history[-1] + (attention[id(matrix)] @ weighed.unsqueeze(-1)).squeeze(-1))
    return torch.stack(history) if return_history else history[-1]


def _linear_on_states(layers: Layers, tasks: Tasks, return_history: bool) -> Tensor:
    """Linear attention moves d weights for each of φ(S') and φ(S); the values are −φᵀ(those of S).

    What it reads of a context are three averages over its transitions.
    """
    seen, features = tasks.record, tasks.features
    share = seen.counts / seen.counts.sum(-1, keepdim=True).clamp(min=1)
    keys = (share.unsqueeze(-1) * features).mT
    paid = keys @ seen.reward.unsqueeze(-1)
    onward, here = keys @ seen.transition @ features, keys @ features
    target = current = torch.zeros_like(paid)
    history = [current]
    for layer in layers:
        errors = paid + onward @ target + here @ current
        update = layer["attention"].unsqueeze(1) @ errors
        weights = layer["value_weights"][:, None, :, None]
        target = target + weights[..., :1, :] * update
        current = current + weights[..., 1:, :] * update
        history.append(current)
    found = torch.stack(history) if return_history else current
    values = 0.0 - (features @ found).squeeze(-1)  # where nothing is read, not −0
    return values.masked_fill(tasks.mrp.terminal, 0.0)


def reads(seen: EmpiricalModel, values: Tensor) -> Tensor:
    """What a state's value weights weigh: mean reward, discounted successor, itself."""
    target = (seen.transition @ values.unsqueeze(-1)).squeeze(-1)
    return torch.stack([seen.reward, target, values], -2)
