"""Pretraining: Transformers that learn to learn by TD, on tasks that are new in every step.

Imported by hand, ``from ictd import pretraining``: it loads safetensors, which ``import ictd`` does
not.
"""

from ictd.pretraining.checkpoint import CheckpointError
from ictd.pretraining.config import PretrainConfig
from ictd.pretraining.effective import effective_weights
from ictd.pretraining.evaluate import Changes, evaluate
from ictd.pretraining.layers import LayerValues, layer_values
from ictd.pretraining.optimum import optimum
from ictd.pretraining.pretrained import load_pretrained, pretrained_names, save_pretrained
from ictd.pretraining.saved import Experiment, experiment_names, load_experiment
from ictd.pretraining.train import PretrainResult, pretrain
from ictd.pretraining.yardsticks import multiply_adds, yardsticks

__all__ = [
    "Changes",
    "CheckpointError",
    "Experiment",
    "LayerValues",
    "PretrainConfig",
    "PretrainResult",
    "effective_weights",
    "evaluate",
    "experiment_names",
    "layer_values",
    "load_experiment",
    "load_pretrained",
    "multiply_adds",
    "optimum",
    "pretrain",
    "pretrained_names",
    "save_pretrained",
    "yardsticks",
]
