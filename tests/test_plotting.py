"""Figures: readable on the card, told apart without colour, and drawn as the numbers say."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import pytest
import torch
from matplotlib.patches import Circle, FancyArrowPatch

from ictd import plotting
from ictd.mrp import MarkovRewardProcess


@pytest.fixture(autouse=True)
def _clean_figures() -> Iterator[None]:
    """Draw without a screen, in the style, and leave no figure behind."""
    mpl.use("agg")
    from matplotlib import pyplot

    with plotting.style():
        yield
    pyplot.close("all")


def chain(rows: list[list[float]], terminal: list[bool] | None = None) -> MarkovRewardProcess:
    transition = torch.tensor(rows, dtype=torch.float64)
    flags = None if terminal is None else torch.tensor(terminal)
    return MarkovRewardProcess(
        transition, torch.zeros(len(rows), dtype=torch.float64), 0.9, terminal=flags
    )


def arrows(ax: mpl.axes.Axes) -> list[FancyArrowPatch]:
    return [patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)]


def circles(ax: mpl.axes.Axes) -> list[Circle]:
    return [patch for patch in ax.patches if isinstance(patch, Circle)]


# Style


def test_contrast_ratio_table() -> None:
    assert plotting.contrast_ratio("white", "black") == pytest.approx(21.0)
    assert plotting.contrast_ratio("#777777", "#ffffff") == pytest.approx(
        4.478, abs=1e-3
    )  # the well-known near miss
    assert plotting.contrast_ratio("#767676", "#ffffff") == pytest.approx(
        4.542, abs=1e-3
    )  # and the next grey, that passes
    assert plotting.contrast_ratio("red", "red") == 1.0
    assert (
        plotting.contrast_ratio("black", (0.0, 0.0, 0.03)) < 1.01
    )  # the linear part of the sRGB curve


@pytest.mark.parametrize(
    "key",
    ["text.color", "axes.labelcolor", "axes.titlecolor", "xtick.labelcolor", "ytick.labelcolor"],
)
def test_text_stands_out_on_the_card(key: str) -> None:
    for background in (
        "figure.facecolor",
        "axes.facecolor",
        "savefig.facecolor",
        "legend.facecolor",
    ):
        assert plotting.contrast_ratio(mpl.rcParams[key], mpl.rcParams[background]) >= 7.0


def test_axes_and_first_curves_stand_out_on_the_card() -> None:
    for color in (
        mpl.rcParams["axes.edgecolor"],
        mpl.rcParams["xtick.color"],
        mpl.rcParams["ytick.color"],
    ):
        assert plotting.contrast_ratio(color, plotting.CARD) >= 4.5
    ratios = [plotting.contrast_ratio(color, plotting.CARD) for color in plotting.PALETTE.values()]
    assert min(ratios[:4]) >= 3.0
    assert min(ratios) >= 2.0


def test_card_is_opaque_and_light() -> None:
    assert mpl.colors.to_rgba(mpl.rcParams["figure.facecolor"])[3] == 1.0
    assert not mpl.rcParams["savefig.transparent"]
    assert plotting.contrast_ratio(plotting.CARD, "black") > 20.0


def test_curves_differ_without_colour() -> None:
    cycle = list(mpl.rcParams["axes.prop_cycle"])
    assert len(cycle) == len(plotting.PALETTE) == len(plotting.LINE_STYLES)
    assert [entry["color"] for entry in cycle] == list(plotting.PALETTE.values())
    for first, second in itertools.combinations(cycle, 2):
        assert first["linestyle"] != second["linestyle"]
        assert first["color"] != second["color"]


def test_style_is_undone_and_use_style_stays() -> None:
    with mpl.rc_context():
        mpl.rcdefaults()
        before = dict(mpl.rcParams)
        with plotting.style():
            assert mpl.rcParams["svg.hashsalt"] == "ictd"
        assert dict(mpl.rcParams) == before
        plotting.use_style()
        assert mpl.rcParams["svg.hashsalt"] == "ictd"
        assert mpl.rcParams["figure.constrained_layout.use"]


def test_text_is_readable_on_a_phone() -> None:
    # A figure 6 in = 432 pt wide is shown 343 px wide on a page of 375 px with its margins.
    scale = 343 / (72 * mpl.rcParams["figure.figsize"][0])
    for key in (
        "font.size",
        "axes.labelsize",
        "xtick.labelsize",
        "ytick.labelsize",
        "legend.fontsize",
    ):
        assert scale * mpl.rcParams[key] >= 9.0


KERNEL = """
import sys
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
import torch
from ictd import plotting

plotting.use_style()
for _ in range(2):
    errors = 0.5 ** torch.arange(9.0)[:, None] * torch.tensor([1.0, 2.0])
    ax = plotting.plot_convergence(errors, label="a")
    ax.legend()
    formats, _ = shell.display_formatter.format(ax.figure)
    assert set(formats) == {"text/plain", "image/svg+xml"}, set(formats)
    print(formats["image/svg+xml"], end="\\f")
"""


def test_ipython_shows_the_same_svg_twice(tmp_path: Path) -> None:
    """In a process of its own: notebooks' inline backend cannot be undone."""
    environment = os.environ | {
        "IPYTHONDIR": str(tmp_path),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }
    command = [sys.executable, "-W", "error", "-c", KERNEL]
    output = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout
    first, second, rest = output.split("\f")
    assert first == second
    assert rest == ""
    assert "<dc:date>" not in first
    assert re.search(r'width="432pt" height="259\.2pt"', first)


def test_use_svg_asks_for_svg_only_inside_ipython(monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython
    from matplotlib_inline import backend_inline

    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(
        backend_inline, "set_matplotlib_formats", lambda *formats, **_: asked.append(formats)
    )
    with mpl.rc_context():
        monkeypatch.setattr(IPython, "get_ipython", lambda: None)
        plotting.use_style()
        assert asked == []
        monkeypatch.setattr(IPython, "get_ipython", object)
        plotting.use_style()
        assert asked == [("svg",)]
        monkeypatch.delitem(sys.modules, "IPython")
        plotting.use_style()
        assert asked == [("svg",)]


def test_import_loads_no_pyplot_and_ictd_no_matplotlib() -> None:
    code = (
        "import sys, ictd; assert 'matplotlib' not in sys.modules; "
        "from ictd import plotting; "
        "assert not {'matplotlib.pyplot', 'IPython'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Chains


def test_chain_draws_one_node_a_state_and_one_arrow_a_transition() -> None:
    ax = plotting.plot_chain(chain([[0.0, 0.25, 0.75], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]))
    assert len(circles(ax)) == 3
    assert len(arrows(ax)) == 5
    assert [text.get_text() for text in ax.texts] == [
        "0",
        "1",
        "2",
        "0.25",
        "0.75",
        "0.5",
        "0.5",
        "1",
    ]
    assert [arrow.get_linewidth() for arrow in arrows(ax)] == [1.0, 3.0, 2.0, 2.0, 4.0]
    assert not ax.axison


def test_chain_leaves_out_improbable_transitions_and_keeps_a_hairline() -> None:
    process = chain([[0.01, 0.99], [0.2, 0.8]])
    assert arrows(plotting.plot_chain(process))[0].get_linewidth() == 0.4
    assert len(arrows(plotting.plot_chain(process, min_probability=0.2))) == 3
    assert (
        len(arrows(plotting.plot_chain(process.to(dtype=torch.float32), min_probability=0.2))) == 3
    )


def test_chain_terminal_state_has_a_double_border_and_no_arrow_out() -> None:
    ax = plotting.plot_chain(chain([[0.0, 1.0], [0.0, 1.0]], terminal=[False, True]))
    assert len(circles(ax)) == 3
    assert len(arrows(ax)) == 1


@pytest.mark.parametrize("layout", ["circle", "line"])
@pytest.mark.parametrize("num_states", [1, 2, 3, 4, 8])
def test_chain_every_arrow_and_its_reverse_go_their_own_ways(layout: str, num_states: int) -> None:
    process = chain([[1.0 / num_states] * num_states for _ in range(num_states)])
    ax = plotting.plot_chain(process, layout=layout, show_probabilities=True)  # type: ignore[arg-type]
    ax.figure.draw_without_rendering()
    assert len(arrows(ax)) == num_states**2
    places = [text.get_position() for text in ax.texts]
    assert len({(round(x, 6), round(y, 6)) for x, y in places}) == num_states + num_states**2
    nodes = circles(ax)
    for arrow in arrows(ax):
        points = ax.transData.inverted().transform(
            arrow.get_transform().transform(arrow.get_path().interpolated(8).vertices)
        )
        touched = sum(
            bool((((points - node.center) ** 2).sum(1) < (0.9 * node.radius) ** 2).any())
            for node in nodes
        )
        assert touched == 0, "an arrow passes through a node"
    for first, second in itertools.combinations(nodes, 2):
        distance = (
            sum((x - y) ** 2 for x, y in zip(first.center, second.center, strict=True)) ** 0.5
        )
        assert distance > first.radius + second.radius


def test_chain_line_runs_from_left_to_right_with_labels() -> None:
    ax = plotting.plot_chain(chain([[0.5, 0.5], [1.0, 0.0]]), layout="line", labels=["A", "exit"])
    assert [node.center for node in circles(ax)] == [(0.0, 0.0), (1.0, 0.0)]
    assert [text.get_text() for text in ax.texts[:2]] == ["A", "exit"]


def test_chain_draws_on_given_axes_without_numbers() -> None:
    from matplotlib import pyplot

    ax = pyplot.subplots()[1]
    assert plotting.plot_chain(chain([[0.5, 0.5], [1.0, 0.0]]), ax, show_probabilities=False) is ax
    assert [text.get_text() for text in ax.texts] == ["0", "1"]


def test_chain_refuses_what_does_not_fit() -> None:
    process = chain([[0.5, 0.5], [1.0, 0.0]])
    with pytest.raises(ValueError, match=r"labels: expected 2, one for each state, got 1"):
        plotting.plot_chain(process, labels=["A"])
    with pytest.raises(ValueError, match=r"layout: expected 'circle' or 'line', got 'tree'"):
        plotting.plot_chain(process, layout="tree")
    batch = MarkovRewardProcess(
        process.transition.expand(3, 2, 2), torch.zeros(3, 2, dtype=torch.float64), 0.9
    )
    with pytest.raises(
        ValueError, match=r"mrp: expected one process.*got a transition of shape \(3, 2, 2\)"
    ):
        plotting.plot_chain(batch)


# Attention


def test_attention_shows_and_prints_the_weights() -> None:
    weights = torch.tensor([[0.75, 0.25, 0.0], [0.1, 0.2, 0.7]], requires_grad=True)
    ax = plotting.plot_attention(weights, label="H")
    (image,) = ax.images
    torch.testing.assert_close(torch.from_numpy(image.get_array().data).float(), weights.detach())
    assert image.get_clim() == (0.0, 0.75)
    assert image.colorbar.ax.get_ylabel() == "H"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key", "query")
    assert [text.get_text() for text in ax.texts] == [
        "0.75",
        "0.25",
        "0.00",
        "0.10",
        "0.20",
        "0.70",
    ]
    assert [text.get_position() for text in ax.texts[:3]] == [(0, 0), (1, 0), (2, 0)]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["0", "1", "2"]


def test_attention_numbers_stand_out_on_every_colour() -> None:
    ax = plotting.plot_attention(torch.linspace(0.0, 1.0, 256)[None], annotate=True)
    (image,) = ax.images
    for text, weight in zip(ax.texts, torch.linspace(0.0, 1.0, 256).tolist(), strict=True):
        assert plotting.contrast_ratio(text.get_color(), image.cmap(image.norm(weight))) >= 4.5


def test_attention_colours_grow_lighter_evenly() -> None:
    grays = [
        plotting.contrast_ratio(tuple(color), "black") for color in mpl.colormaps["cividis"].colors
    ]
    assert all(first < second for first, second in itertools.pairwise(grays))


def test_attention_large_matrix_prints_no_numbers_and_few_ticks() -> None:
    ax = plotting.plot_attention(torch.full((20, 50), 0.02))
    assert len(ax.texts) == 0
    assert len(ax.get_xticks()) < 15
    assert ax.get_aspect() == "auto"
    assert plotting.plot_attention(torch.full((20, 20), 0.05)).get_aspect() == 1.0


def test_attention_takes_labels_limits_axes_and_negative_entries() -> None:
    from matplotlib import pyplot

    ax = pyplot.subplots()[1]
    drawn = plotting.plot_attention(
        torch.tensor([[-1.0, 2.0]]), ax, query_labels=["q"], key_labels=["a", "b"], annotate=False
    )
    assert drawn is ax
    assert len(ax.texts) == 0
    assert ax.images[0].get_clim() == (-1.0, 2.0)
    assert [text.get_text() for text in (*ax.get_xticklabels(), *ax.get_yticklabels())] == [
        "a",
        "b",
        "q",
    ]
    assert plotting.plot_attention(torch.eye(2), limits=(0.0, 2.0)).images[0].get_clim() == (
        0.0,
        2.0,
    )


def test_attention_refuses_what_does_not_fit() -> None:
    with pytest.raises(
        ValueError, match=r"weights: expected finite entries, got nan at index \(0, 1\)"
    ):
        plotting.plot_attention(torch.tensor([[1.0, torch.nan]]))
    with pytest.raises(
        ValueError, match=r"weights: expected shape \[Q, K\], Q >= 1, K >= 1, got \(0, 3\)"
    ):
        plotting.plot_attention(torch.zeros(0, 3))
    with pytest.raises(ValueError, match=r"key_labels: expected 2 labels, got 1"):
        plotting.plot_attention(torch.eye(2), key_labels=["a"])
    with pytest.raises(ValueError, match=r"query_labels: expected 2 labels, got 3"):
        plotting.plot_attention(torch.eye(2), query_labels=["a", "b", "c"])


# Convergence


def test_convergence_draws_median_and_band() -> None:
    errors = 0.5 ** torch.arange(5.0)[:, None, None] * torch.arange(1.0, 12.0).reshape(11, 1)
    ax = plotting.plot_convergence(errors, label="softmax TD")
    (line,) = ax.lines
    assert line.get_xdata().tolist() == [0, 1, 2, 3, 4]
    assert line.get_ydata().tolist() == [6.0, 3.0, 1.5, 0.75, 0.375]
    assert line.get_label() == "softmax TD"
    band = ax.collections[0].get_paths()[0].vertices
    at_zero = band[band[:, 0] == 0.0][:, 1]
    assert (at_zero.min(), at_zero.max()) == pytest.approx((2.0, 10.0))
    assert ax.get_yscale() == "log"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("depth (layers)", "error")


def test_convergence_curves_on_one_axes_differ_in_colour_and_line_style() -> None:
    ax = plotting.plot_convergence(torch.tensor([1.0, 0.5]))
    assert plotting.plot_convergence(torch.tensor([1.0, 0.2]), ax) is ax
    first, second = ax.lines
    assert first.get_color() != second.get_color()
    assert (first.get_linestyle(), first._dash_pattern) != (
        second.get_linestyle(),
        second._dash_pattern,
    )
    assert len(ax.collections) == 0  # one run has no band
    plotting.plot_convergence(torch.tensor([1.0, 0.2]), ax, color="black", linestyle=":")
    assert ax.lines[-1].get_linestyle() == ":"


def test_convergence_leaves_a_gap_at_an_exact_zero() -> None:
    ax = plotting.plot_convergence(torch.tensor([1.0, 0.0, 0.25]))
    shown = ax.lines[0].get_ydata()
    assert shown[0] == 1.0
    assert shown[1] != shown[1]
    ax.figure.canvas.draw()


def test_convergence_reads_quantiles_and_keeps_its_input() -> None:
    errors = torch.rand(3, 5, generator=torch.Generator().manual_seed(0))
    before = errors.clone()
    ax = plotting.plot_convergence(errors, quantiles=(0.0, 1.0))
    band = ax.collections[0].get_paths()[0].vertices
    at_one = band[band[:, 0] == 1.0][:, 1]
    assert (at_one.min(), at_one.max()) == pytest.approx(
        (errors[1].min().item(), errors[1].max().item())
    )
    assert torch.equal(errors, before)


@pytest.mark.parametrize(
    ("errors", "message"),
    [
        (
            torch.tensor([[1.0, 1.0], [0.5, -0.1]]),
            r"errors: expected entries >= 0, got -0\.1\d* at index \(1, 1\)",
        ),
        (
            torch.tensor([1.0, torch.inf]),
            r"errors: expected finite entries, got inf at index \(1,\)",
        ),
        (
            torch.tensor([torch.nan]),
            r"errors: expected finite entries, got nan at index \(0,\)",
        ),
        (
            torch.zeros(4, 0),
            r"errors: expected shape \[L \+ 1, \*B\], not empty, got \(4, 0\)",
        ),
    ],
)
def test_convergence_refuses_bad_errors(errors: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plotting.plot_convergence(errors)


def test_convergence_refuses_bad_quantiles() -> None:
    with pytest.raises(
        ValueError, match=r"quantiles: expected 0 <= lower <= upper <= 1, got \(0\.9, 0\.1\)"
    ):
        plotting.plot_convergence(torch.ones(3), quantiles=(0.9, 0.1))
