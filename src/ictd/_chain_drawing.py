"""Where the nodes and arrows of a drawn Markov chain go. All lengths are in data coordinates."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from matplotlib.patches import Circle, FancyArrowPatch
from matplotlib.path import Path

Point: TypeAlias = tuple[float, float]

_TEXT_GAP = 0.14  # from an arrow to its probability
_HEAD: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 14}


def node_positions(num_states: int, layout: str) -> tuple[list[Point], float]:
    """Place the nodes, and give them a radius that keeps neighbours apart."""
    if layout == "line":
        return [(float(state), 0.0) for state in range(num_states)], 0.2
    if layout != "circle":
        raise ValueError(f"layout: expected 'circle' or 'line', got {layout!r}")
    start = math.pi if num_states == 2 else math.pi / 2  # two states lie side by side
    angles = [start - 2 * math.pi * state / num_states for state in range(num_states)]
    chord = 2 * math.sin(math.pi / max(num_states, 2))
    return [(math.cos(angle), math.sin(angle)) for angle in angles], min(0.2, 0.3 * chord)


def make_arrow(
    source: int, target: int, nodes: list[Circle], layout: str
) -> tuple[FancyArrowPatch, Point]:
    """Make the arrow of a transition, and find a place for text beside the middle of it."""
    if source != target:
        bend = _bend(source, target, len(nodes), layout)
        return _arc(nodes[source], nodes[target], bend)
    upwards = layout == "line" or len(nodes) == 1
    return _loop(nodes[source], (0.0, 1.0) if upwards else nodes[source].center)


def _bend(source: int, target: int, num_states: int, layout: str) -> float:
    """Choose how far an arrow bends to its left, to meet neither its reverse nor other nodes."""
    if layout == "line":
        return 0.5 / math.sqrt(abs(target - source))
    clockwise = (target - source) % num_states
    if clockwise in (1, num_states - 1) or 2 * clockwise == num_states:
        return 0.2
    # Past a neighbour both ways lead inside the circle, one farther inside than the other.
    return -0.12 if 2 * clockwise < num_states else 0.32


def _arc(source: Circle, target: Circle, bend: float) -> tuple[FancyArrowPatch, Point]:
    """Make a bent arrow between two nodes."""
    (x0, y0), (x1, y1) = source.center, target.center
    arrow = FancyArrowPatch(
        (x0, y0),
        (x1, y1),
        patchA=source,
        patchB=target,
        shrinkA=0,
        shrinkB=1,
        connectionstyle=f"arc3,rad={-bend}",
        **_HEAD,
    )
    # The arc is a quadratic Bézier curve: half as far from the chord as its control point.
    along, up = x1 - x0, y1 - y0
    away = bend / 2 + math.copysign(_TEXT_GAP, bend) / math.hypot(along, up)
    return arrow, ((x0 + x1) / 2 - away * up, (y0 + y1) / 2 + away * along)


def _loop(node: Circle, outward: Point) -> tuple[FancyArrowPatch, Point]:
    """Make an arrow from a node to itself on its outer side."""
    (x, y), (u, v) = node.center, outward

    def point(along: float, across: float) -> Point:
        return (
            x + node.radius * (along * u - across * v),
            y + node.radius * (along * v + across * u),
        )

    corners = [point(0.9, 0.5), point(3.2, 1.6), point(3.2, -1.6), point(0.9, -0.5)]
    path = Path(corners, [Path.MOVETO, *3 * [Path.CURVE4]])
    return FancyArrowPatch(path=path, **_HEAD), point(3.3, 0.0)
