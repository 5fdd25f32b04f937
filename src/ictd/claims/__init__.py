"""Every numbered result of the book with a numeric check.

One registry serves ``ictd verify``, the tests and the tables of the book. A check draws random
problems, or builds exact examples, and compares the two sides of the result; it never compares a
thing with itself.
"""

from __future__ import annotations

from importlib import import_module

from ictd.claims._registry import CASES, CLAIMS, Claim, Outcome, Result, claim, seeded

__all__ = ["CASES", "MODULES", "Claim", "Outcome", "Result", "claim", "registry", "seeded"]

MODULES = (
    "temporal_difference",
    "kernel",
    "kernel_softmax",
    "softmax_layer",
    "reparameterization",
    "convergence",
    "finite_sample",
    "diagonality",
    "diagonality_powers",
    "neu",
    "neu_layers",
    "beyond",
    "beyond_kernels",
    "beyond_few_states",
    "beyond_hub",
    "beyond_certificates",
    "emergence",
)
"""The modules that hold the checks, in the order of the chapters."""


def registry() -> dict[str, Claim]:
    """Return all claims of the book.

    Returns:
        The claims by label, chapter by chapter.
    """
    for name in MODULES:
        import_module(f"{__name__}.{name}")
    return dict(CLAIMS)
