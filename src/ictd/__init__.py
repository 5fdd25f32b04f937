"""Softmax Transformers that run temporal-difference learning in context.

The modules follow the book: problems (:mod:`ictd.mrp`, :mod:`ictd.chains`,
:mod:`ictd.features`), contexts (:mod:`ictd.prompt`, :mod:`ictd.scores`), algorithms
(:mod:`ictd.td`, :mod:`ictd.nonparametric`, :mod:`ictd.limits`) and the Transformer that runs them
(:mod:`ictd.attention`, :mod:`ictd.layers`, :mod:`ictd.transformer`) beside one of linear attention
(:mod:`ictd.linear`), convergence in depth and context (:mod:`ictd.state_attention`,
:mod:`ictd.lumped`, :mod:`ictd.convergence`, :mod:`ictd.spectrum`, :mod:`ictd.finite_sample`,
:mod:`ictd.intervals`, :mod:`ictd.diagonality`, :mod:`ictd.worst_problem`), what pretraining leaves
alone (:mod:`ictd.population`, :mod:`ictd.neu`, :mod:`ictd.neu_bounds`), and stability beyond the
paper's condition (:mod:`ictd.conditions`, :mod:`ictd.certificates`,
:mod:`ictd.stability_report`, :mod:`ictd.stopping`). Figures are drawn by :mod:`ictd.plotting`, and
Transformers are pretrained by :mod:`ictd.pretraining`; these two are imported by hand.
"""

from ictd.attention import attention_weights
from ictd.certificates import stability
from ictd.chains import boyan_chain, garnet, loop_chain, random_walk
from ictd.conditions import (
    density_ratio,
    numerical_range,
    schur_factor,
    self_adjoint_weights,
    weighted_norm,
    weighted_norm_factor,
)
from ictd.convergence import (
    contraction_factor,
    depth_bound,
    drift_matrix,
    iteration_matrix,
    kernel_diagonality,
)
from ictd.diagonality import (
    asymptotic_rate,
    certified_layers,
    diagonality_needed,
    diagonality_step_limit,
    power_bound,
    sharp_rate,
)
from ictd.features import (
    aggregation_features,
    one_hot_features,
    radial_features,
    unit_sphere_features,
)
from ictd.finite_sample import context_bound, target_spread
from ictd.intervals import componentwise_bound, plug_in_interval
from ictd.layers import DualHeadLayer, SingleHeadLayer, TemporalShift
from ictd.limits import (
    EmpiricalModel,
    certainty_equivalence,
    empirical_model,
    fixed_point,
    lstd,
)
from ictd.linear import LinearInContextTD
from ictd.lumped import kernel_interpolant, lumped_td
from ictd.mirrored import mirrored_keys_td, opposite_heads_td
from ictd.mrp import MarkovRewardProcess
from ictd.neu import (
    expected_update,
    norm_of_expected_update,
    sampled_update,
    squared_norm_of_mean,
)
from ictd.neu_bounds import neu_bound
from ictd.nonparametric import kernel_td, softmax_td
from ictd.population import population_values, value_jacobian
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
from ictd.spectrum import spectral_radius, step_size_limit
from ictd.stability_report import StabilityReport
from ictd.state_attention import (
    empirical_attention,
    lumped_attention,
    population_attention,
    successor_attention,
)
from ictd.stock import stock_attention
from ictd.stopping import layers_needed, residual_bound
from ictd.td import linear_td, online_td, tabular_td, td_errors, temporal_shift
from ictd.trajectory import Trajectory
from ictd.transformer import InContextTD
from ictd.worst_problem import worst_case

__version__ = "0.1.0"

__all__ = [
    "BilinearScore",
    "DualHeadLayer",
    "EmpiricalModel",
    "GaussianKernel",
    "GaussianScore",
    "IdentityKernel",
    "InContextTD",
    "LinearInContextTD",
    "LinearKernel",
    "LogKernelScore",
    "MarkovRewardProcess",
    "Prompt",
    "SingleHeadLayer",
    "StabilityReport",
    "TemporalShift",
    "Trajectory",
    "aggregation_features",
    "asymptotic_rate",
    "attention_weights",
    "boyan_chain",
    "certainty_equivalence",
    "certified_layers",
    "componentwise_bound",
    "context_bound",
    "contraction_factor",
    "density_ratio",
    "depth_bound",
    "diagonality_needed",
    "diagonality_step_limit",
    "drift_matrix",
    "empirical_attention",
    "empirical_model",
    "expected_update",
    "fixed_point",
    "garnet",
    "iteration_matrix",
    "kernel_diagonality",
    "kernel_interpolant",
    "kernel_td",
    "layers_needed",
    "linear_td",
    "loop_chain",
    "lstd",
    "lumped_attention",
    "lumped_td",
    "median_bandwidth",
    "mirrored_keys_td",
    "neu_bound",
    "norm_of_expected_update",
    "numerical_range",
    "one_hot_features",
    "online_td",
    "opposite_heads_td",
    "plug_in_interval",
    "population_attention",
    "population_values",
    "power_bound",
    "radial_features",
    "random_walk",
    "residual_bound",
    "sampled_update",
    "schur_factor",
    "self_adjoint_weights",
    "sharp_rate",
    "softmax_td",
    "spectral_radius",
    "squared_norm_of_mean",
    "stability",
    "step_size_limit",
    "stock_attention",
    "successor_attention",
    "tabular_td",
    "target_spread",
    "td_errors",
    "temporal_shift",
    "unit_sphere_features",
    "value_jacobian",
    "weighted_norm",
    "weighted_norm_factor",
    "worst_case",
]
