"""Softmax Transformers that run temporal-difference learning in context.

The modules follow the book: problems (:mod:`ictd.mrp`, :mod:`ictd.chains`,
:mod:`ictd.features`), contexts (:mod:`ictd.prompt`, :mod:`ictd.scores`), algorithms
(:mod:`ictd.td`, :mod:`ictd.nonparametric`, :mod:`ictd.limits`) and the Transformer that runs them
(:mod:`ictd.attention`, :mod:`ictd.layers`, :mod:`ictd.transformer`). Figures are drawn by
:mod:`ictd.plotting`, which is imported by hand.
"""

from ictd.attention import attention_weights
from ictd.chains import boyan_chain, garnet, loop_chain, random_walk
from ictd.features import (
    aggregation_features,
    one_hot_features,
    radial_features,
    unit_sphere_features,
)
from ictd.layers import DualHeadLayer, SingleHeadLayer, TemporalShift
from ictd.limits import (
    EmpiricalModel,
    certainty_equivalence,
    empirical_model,
    fixed_point,
    lstd,
)
from ictd.mirrored import mirrored_keys_td, opposite_heads_td
from ictd.mrp import MarkovRewardProcess
from ictd.nonparametric import kernel_td, softmax_td
from ictd.prompt import Prompt
from ictd.scores import (
    BilinearScore,
    GaussianKernel,
    GaussianScore,
    IdentityKernel,
    LinearKernel,
    LogKernelScore,
    median_bandwidth,
)
from ictd.stock import stock_attention
from ictd.td import linear_td, online_td, tabular_td, td_errors, temporal_shift
from ictd.trajectory import Trajectory
from ictd.transformer import InContextTD

__version__ = "0.1.0"

__all__ = [
    "BilinearScore",
    "DualHeadLayer",
    "EmpiricalModel",
    "GaussianKernel",
    "GaussianScore",
    "IdentityKernel",
    "InContextTD",
    "LinearKernel",
    "LogKernelScore",
    "MarkovRewardProcess",
    "Prompt",
    "SingleHeadLayer",
    "TemporalShift",
    "Trajectory",
    "aggregation_features",
    "attention_weights",
    "boyan_chain",
    "certainty_equivalence",
    "empirical_model",
    "fixed_point",
    "garnet",
    "kernel_td",
    "linear_td",
    "loop_chain",
    "lstd",
    "median_bandwidth",
    "mirrored_keys_td",
    "one_hot_features",
    "online_td",
    "opposite_heads_td",
    "radial_features",
    "random_walk",
    "softmax_td",
    "stock_attention",
    "tabular_td",
    "td_errors",
    "temporal_shift",
    "unit_sphere_features",
]
