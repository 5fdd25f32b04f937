"""Which conditions certify that softmax TD converges on a problem or a context."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ictd._batched import per_item
from ictd._certify import Certificates, exact, kernel_td_limit, norms, read
from ictd._checks import (
    check_all_like,
    check_floating,
    check_int,
    check_like,
    check_none,
    check_nonnegative,
    check_shape,
)
from ictd._linear import solvable
from ictd._sources import Model, sources, stationary
from ictd.attention import Score
from ictd.mrp import MarkovRewardProcess
from ictd.prompt import Prompt
from ictd.stability_report import StabilityReport

__all__ = ["stability"]


def stability(
    problem: Prompt | MarkovRewardProcess,
    features: Float[Tensor, "*features_batch state feature"] | None = None,
    *,
    score: Score,
    step_size: float | Float[Tensor, "*batch"] = 1.0,
    num_iterations: int = 10,
) -> StabilityReport:
    r"""Report which conditions certify that softmax TD converges, at which rate and which steps.

    A context is certified as it stands: its distinct sources are the states, their numbers of
    visits the weights, and :math:`\hat P_\gamma` the transition. A process is certified on its
    stationary distribution, as an infinite context. In both cases :math:`z = \kappa N`,
    :math:`\kappa = e^g`, and :math:`a \propto N z`.

    ===================================  ========================================================
    diagonality                          :math:`m_0 > (1 + \gamma)/2`, see
                                         :func:`ictd.contraction_factor`
    weaker diagonality, every step       see :func:`ictd.asymptotic_rate`
    weaker diagonality, small steps      :math:`(1 + \gamma^2)(1 + q^2) < 2`, see
                                         :func:`ictd.diagonality_step_limit`
    row dominance                        :math:`M(I - P_\gamma)` is dominated by its diagonal
    weighted row sums                    the same with weights, see
                                         :func:`ictd.weighted_norm_factor`
    density ratio                        :math:`g^2 r < 1`, see :func:`ictd.density_ratio`
    density ratio, small steps           :math:`g(\sqrt r + 1/\sqrt r) < 2`
    Schur test                           :math:`\beta < 1`, see :func:`ictd.schur_factor`
    norm of the transition               :math:`\lVert P_\gamma \rVert_a < 1`
    numerical range                      :math:`\eta < 1`, see :func:`ictd.numerical_range`
    ===================================  ========================================================

    The last five need scores that are symmetric and make a positive definite kernel. There
    :math:`g^2 = \gamma \max_u \sum_s N(s) P_\gamma(s, u) / N(u)`, which is :math:`\gamma^2` on the
    stationary distribution and in a context that ends where it began.

    Book: :prf:ref:`thm-master`, :prf:ref:`thm-schur`, :prf:ref:`prop-exact-step`.

    Args:
        problem: A context, or a process.
        features: :math:`\varphi`, ``[m, d]`` or ``[*B, m, d]``, of the states of a process. A
            context has its own.
        score: The score :math:`g`, as in :func:`ictd.softmax_td`.
        step_size: :math:`\alpha > 0`, a number or ``[*B]``, dimensionless.
        num_iterations: How often the test vectors of the Schur test and of the weighted row sums
            are improved.

    Returns:
        The report, ``[*B]``.

    Raises:
        ValueError: If a context bootstraps from a state that is no source (closure) or holds no
            transition, a score is NaN or infinite, a shape does not fit, or features are missing.
        TypeError: If the problem is of another type, or a dtype does not fit.

    Note:
        Cost O(m³) in the number of states, and O(N² d) to find those of a context. No gradient.
        States of weight 0 are left out. Large scores do no harm: kernel and measure are kept as
        logarithms. Half precision is computed in float32. Whether a kernel is positive definite
        can only be told up to rounding, and so can the sign of eigenvalues: where the smallest one
        of the attention is near the dtype's accuracy, the exact step limit may come out as 0.

    Example:
        >>> import torch, ictd
        >>> mrp = ictd.random_walk(5, discount=0.9)
        >>> report = ictd.stability(mrp, torch.eye(7), score=ictd.GaussianScore(0.5))
        >>> report.certified, report.best_name, report.best_rate, report.spectral_radius
        (tensor(True), 'weighted row sums', tensor(0.8034), tensor(0.7765))
    """
    check_int("num_iterations", num_iterations, 0)
    with torch.no_grad():
        model = _model(problem, features)
        batch, dtype = model.weights.shape[:-1], model.weights.dtype
        check_nonnegative("step_size", step_size, batch, "[*B]")
        step = per_item(step_size, model.weights, 0)
        check_none("step_size", step == 0, "a number > 0 (with 0 nothing moves)", step)
        check_all_like("the problem", model.weights, step_size=step_size)
        scores = score(model.features, model.features)
        check_shape("score(query, key)", scores, model.transition.shape, "[*B, m, m]")
        check_none("score(query, key)", ~(scores < torch.inf), "no NaN and no infinity", scores)
        work = solvable(dtype)
        step = step.expand(batch).to(work)
        report = _report(model.weights.to(work), scores.to(work), model, step, num_iterations)
        return report.to(dtype)


def _model(problem: Prompt | MarkovRewardProcess, features: Tensor | None) -> Model:
    if isinstance(problem, Prompt):
        if features is not None:
            raise ValueError("features: expected None, as a context has its own, got a tensor")
        none = ~problem.is_transition.any(-1)
        check_none("problem", none, "at least one transition in every context")
        return sources(problem)
    if not isinstance(problem, MarkovRewardProcess):
        kind = type(problem).__name__
        raise TypeError(f"problem: expected a Prompt or a MarkovRewardProcess, got {kind}")
    if features is None:
        raise ValueError("features: expected those of the states of the process, got None")
    check_floating("features", features)
    batch = problem.batch_shape if features.ndim != 2 else ()
    expected = (*batch, problem.num_states, *features.shape[-1:])
    check_shape("features", features, expected, "[m, d] or [*B, m, d]")
    check_like("the process", problem.transition, "features", features)
    states = (*problem.batch_shape, problem.num_states)
    return stationary(problem, features.expand(*states, features.shape[-1]))


def _report(
    weights: Tensor, scores: Tensor, model: Model, step: Tensor, num_iterations: int
) -> StabilityReport:
    transition = model.transition.to(weights.dtype)
    visited = weights > 0
    kernel = read(scores, weights)
    drift = kernel.attention - kernel.attention @ transition
    schur, norm, abscissa, inflow, log_measure = norms(
        transition, weights, kernel.log_mass, num_iterations
    )
    gamma = transition.sum(-1).amax(-1)
    mass = kernel.log_mass
    high = torch.where(visited, mass, -torch.inf).amax(-1)
    ratio = (high - torch.where(visited, mass, torch.inf).amin(-1)).exp()
    own = kernel.attention.diagonal(dim1=-2, dim2=-1)
    smallest = torch.where(visited, own, torch.inf).amin(-1)

    found = Certificates(step)
    found.diagonality(smallest, gamma.clamp(max=1))
    found.rows(drift, visited, num_iterations)
    bound = (gamma * inflow).sqrt()
    found.norm("density ratio", bound * ratio.sqrt(), kernel)
    mean = (ratio.sqrt() + 1 / ratio.sqrt()) / 2
    found.abscissa("density ratio, small steps", bound * mean, norm, kernel)
    found.norm("Schur test", schur.sqrt(), kernel)
    found.norm("norm of the transition", norm, kernel)
    found.abscissa("numerical range", abscissa, norm, kernel)
    holds, rate, limit = found.stacked()
    radius, exact_limit = exact(drift, visited, step)
    return StabilityReport(
        holds=holds,
        rate=rate,
        step_limit=limit,
        step_size=step,
        spectral_radius=radius,
        exact_step_limit=exact_limit,
        kernel_td_step_limit=kernel_td_limit(scores, weights, inflow, gamma, kernel.semidefinite),
        discount=gamma,
        diagonality=smallest,
        density_ratio=ratio,
        transition_norm=norm,
        numerical_range=abscissa,
        smallest_eigenvalue=kernel.smallest,
        smallest_weight=torch.where(visited, log_measure, torch.inf).amin(-1).exp(),
    )
