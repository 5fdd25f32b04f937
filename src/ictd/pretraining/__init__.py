"""Pretraining: Transformers that learn to learn by TD, on tasks that are new in every step.

Imported by hand, ``from ictd import pretraining``: it loads safetensors, which ``import ictd`` does
not.
"""

from ictd.pretraining.checkpoint import CheckpointError
from ictd.pretraining.config import PretrainConfig
from ictd.pretraining.evaluate import Changes, evaluate
from ictd.pretraining.pretrained import load_pretrained, pretrained_names, save_pretrained
from ictd.pretraining.train import PretrainResult, pretrain

__all__ = [
    "Changes",
    "CheckpointError",
    "PretrainConfig",
    "PretrainResult",
    "evaluate",
    "load_pretrained",
    "pretrain",
    "pretrained_names",
    "save_pretrained",
]
