"""Experiments whose arguments a reader moves, where a kernel runs them."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["devices", "live"]

BUILD = "ICTD_BOOK_BUILD"  # in the environment of the kernels that run chapters for the site


def devices() -> list[str]:
    """List the devices that an experiment can run on: the choices of a control.

    Returns:
        ``"cpu"``, and ``"cuda"`` where torch finds a GPU of that kind.

    Example:
        >>> from ictd.widgets import devices
        >>> devices()[0]
        'cpu'
    """
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def live(experiment: Callable[..., None], **controls: Any) -> None:
    """Run an experiment anew whenever a reader moves one of its arguments.

    In a notebook this shows one control per keyword, made by ``ipywidgets``, and below them what
    the experiment draws. Where nobody can move a control the experiment runs once, with the
    defaults of its arguments: in a script, and when the site is built, whose pages have no kernel.

    Args:
        experiment: A function that draws a figure, or prints. Every argument has a default: where
            the controls start.
        **controls: By argument, what ``ipywidgets.interact`` takes: ``(low, high, step)`` for a
            slider, a list for a menu, a bool for a check box.

    Raises:
        ValueError: If an argument has no default, or a control no argument.

    Note:
        A slider acts when it is let go: experiments take a moment.

    Example:
        >>> from ictd.widgets import live
        >>> def experiment(discount: float = 0.9) -> None:
        ...     print(f"A reward of 1 for ever is worth {1 / (1 - discount):.0f}")
        >>> live(experiment, discount=(0.0, 0.99, 0.01))
        A reward of 1 for ever is worth 10
    """
    arguments = inspect.signature(experiment).parameters
    bare = [name for name, a in arguments.items() if a.default is inspect.Parameter.empty]
    if bare:
        raise ValueError(f"experiment: expected a default for every argument, got none for {bare}")
    unknown = [name for name in controls if name not in arguments]
    if unknown:
        raise ValueError(f"controls: expected arguments {list(arguments)}, got {unknown}")
    if not _has_kernel() or os.environ.get(BUILD):
        experiment()
        return
    from IPython.display import display
    from ipywidgets import interactive

    widget = interactive(experiment, **controls)
    for control in widget.children:
        if "continuous_update" in control.trait_names():
            control.continuous_update = False
    display(widget)  # type: ignore[no-untyped-call]


def _has_kernel() -> bool:
    """Whether this runs in the kernel of a notebook, not in a script or a terminal."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None
