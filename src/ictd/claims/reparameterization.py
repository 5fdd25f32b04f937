"""The results of chapter 4: two tied heads are one head and a temporal shift."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

import ictd
from ictd.claims._contexts import context
from ictd.claims._draw import gap, normal, worst
from ictd.claims._registry import Outcome, claim
from ictd.layers import Layer, Parametrization
from ictd.prompt import Prompt

PAGE = "04-reparameterization"
TARGET, CURRENT, ROWS = 4, 5, 6  # rows of Z with three features


class _Start(NamedTuple):
    """Hold contexts, Π Γ as a matrix, and first matrices with random consistent memory."""

    prompt: Prompt
    shift: Tensor
    Z: Tensor


def _start(generator: torch.Generator) -> _Start:
    prompt, values, _ = context(generator)
    shift = torch.diag(torch.ones(15, dtype=torch.float64), -1) @ torch.diag_embed(prompt.discounts)
    target = torch.einsum("bn,bnm->bm", values, shift)
    rows = torch.stack([prompt.rewards, target, values], 1)
    return _Start(prompt, shift, torch.cat([prompt.features.mT, rows], 1))


def _run(layers: Sequence[Layer], Z: Tensor, prompt: Prompt) -> Tensor:
    """Z before the first and after every layer, ``[B, L + 1, d + 3, N]``."""
    history = [Z]
    for layer in layers:
        flags = (prompt.discounts, prompt.is_transition, prompt.is_terminal)
        history.append(layer(history[-1], *flags))
    return torch.stack(history, 1)


@torch.no_grad()
def _pair(generator: torch.Generator, form: Parametrization) -> tuple[Layer, Layer]:
    """Both layers with the same random weights; full matrices as the corollary wants them."""
    dual = ictd.DualHeadLayer(3, parametrization=form, dtype=torch.float64)
    single = ictd.SingleHeadLayer(3, parametrization=form, dtype=torch.float64)
    for parameter in dual.parameters():
        parameter.copy_(0.4 * normal(generator, *parameter.shape))
    single.load_state_dict(dual.state_dict(), strict=False)
    if form == "full":
        dual.value_current[TARGET] = 0.0  # the single head keeps its row: it is never seen
        dual.value_target.zero_()
        dual.value_target[TARGET] = dual.value_current[CURRENT]
    return dual, single


def _pairs(generator: torch.Generator, form: Parametrization) -> tuple[list[Layer], list[Layer]]:
    """Four layers of each kind, of weights of their own."""
    duals, singles = zip(*(_pair(generator, form) for _ in range(4)), strict=True)
    return list(duals), list(singles)


def _shifted(row: Tensor, shift: Tensor) -> Tensor:
    return torch.einsum("bn,bnm->bm", row, shift)


@claim(
    "lem-discount-side",
    page=PAGE,
    statement="Shifting and then discounting is discounting one place further and then shifting.",
    functions=("temporal_shift", "TemporalShift"),
    tolerance=1e-15,
)
def discount_side(generator: torch.Generator) -> Outcome:
    """The function and the module against both products of dense matrices."""
    prompt, shift, Z = _start(generator)
    values = normal(generator, 1000, 16)
    arriving = torch.nn.functional.pad(prompt.discounts[:, :-1], (1, 0))
    move = torch.diag(torch.ones(15, dtype=torch.float64), -1)
    other = torch.diag_embed(arriving) @ move
    found = ictd.temporal_shift(values, prompt.discounts, prompt.is_transition)
    Z = torch.cat([Z[:, :CURRENT], values.unsqueeze(1)], 1)
    module = ictd.TemporalShift()(Z, prompt.discounts, prompt.is_transition)
    return Outcome(
        1000,
        worst(
            gap(shift, other),
            gap(found, _shifted(values, other)),
            gap(module[:, TARGET], _shifted(values, shift)),
            gap(module[:, :TARGET], Z[:, :TARGET]),
        ),
    )


NONLINEARITIES: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda X: X.softmax(-2),
    lambda X: X.sigmoid() / 16,
    lambda X: X.relu() / 16,
    lambda X: X / 16,
    lambda X: (X.amax(-2, keepdim=True) == X).double(),
    lambda X: X.sin() / 16,
)


@claim(
    "thm-reparameterization",
    page=PAGE,
    statement="Two tied heads on consistent memory are one head and a shift, for any attention.",
    functions=("DualHeadLayer", "SingleHeadLayer", "TemporalShift"),
    tolerance=1e-10,
)
def reparameterization(generator: torch.Generator) -> Outcome:
    """The layers, their formula with dense matrices, and six other nonlinearities."""
    prompt, shift, Z = _start(generator)
    duals, singles = _pairs(generator, "structured")
    with torch.no_grad():
        two, one = _run(duals, Z, prompt), _run(singles, Z, prompt)
    memory = _shifted(one[:, -1, CURRENT], shift)
    deviation = worst(gap(one, two), gap(one[:, -1, TARGET], memory))
    pinned = prompt.is_terminal
    assert pinned is not None
    written = Z
    for layer in duals:
        scores = Z[:, :3].mT @ layer.attention.detach() @ Z[:, :3]
        H = scores.where(prompt.is_transition.unsqueeze(-1), -torch.inf).softmax(-2)
        H = H.nan_to_num(0.0).masked_fill(pinned.unsqueeze(-2), 0.0)
        u = torch.einsum("r,brn,bnm->bm", layer.value_weights.detach(), written[:, 3:], H)
        added = torch.stack([_shifted(u, shift), u], 1)
        written = torch.cat([written[:, :TARGET], written[:, TARGET:] + added], 1)
    deviation = worst(deviation, gap(two[:, -1], written))
    for function in NONLINEARITIES:
        dual = single = Z
        for _ in range(3):
            w, Q, mix = (0.3 * normal(generator, ROWS, ROWS) for _ in range(3))
            mix[TARGET:] = 0.0
            u_two, u_one = (
                torch.einsum("r,brn,bnm->bm", w[0], M, function(M.mT @ Q @ M))
                for M in (dual, single)
            )
            dual_added = torch.stack([_shifted(u_two, shift), u_two], 1)
            dual = dual + mix @ dual.tanh() + torch.nn.functional.pad(dual_added, (0, 0, TARGET, 0))
            rows = single + mix @ single.tanh()
            current = single[:, CURRENT] + u_one
            memory = torch.stack([_shifted(current, shift), current], 1)
            single = torch.cat([rows[:, :TARGET], memory], 1)
        deviation = worst(deviation, gap(dual, single))
    return Outcome(7000, deviation)


@claim(
    "cor-full-weights",
    page=PAGE,
    statement="Full matrices: the dual head equals the single one if its rows are tied so.",
    functions=("DualHeadLayer", "SingleHeadLayer"),
    tolerance=1e-10,
)
@torch.no_grad()
def full_weights(generator: torch.Generator) -> Outcome:
    """Random full matrices in four layers, and the formula of one layer, dense."""
    prompt, shift, Z = _start(generator)
    duals, singles = _pairs(generator, "full")
    two, one = _run(duals, Z, prompt), _run(singles, Z, prompt)
    dual = duals[0]
    X = (Z.mT @ dual.query_key @ Z).where(prompt.is_transition.unsqueeze(-1), -torch.inf)
    assert prompt.is_terminal is not None
    H = X.softmax(-2).nan_to_num(0.0).masked_fill(prompt.is_terminal.unsqueeze(-2), 0.0)
    first = Z + dual.value_current @ Z @ H + dual.value_target @ Z @ H @ shift
    return Outcome(1000, worst(gap(one, two), gap(two[:, 1], first)))


@claim(
    "prop-scaled-tie",
    page=PAGE,
    statement="A factor between the heads is a factor on the discount.",
    functions=("DualHeadLayer", "SingleHeadLayer", "softmax_td"),
    tolerance=1e-10,
)
@torch.no_grad()
def scaled_tie(generator: torch.Generator) -> Outcome:
    """Factors up to 1 in the package, and any number, negative ones too, with dense matrices."""
    prompt, shift, Z = _start(generator)
    matrix, deviation = normal(generator, 3, 3), -torch.inf
    dual = ictd.DualHeadLayer(3, parametrization="full", dtype=torch.float64)
    for factor in (0.0, 0.3, 0.9, 1.0):
        dual.construct(matrix, 0.5).value_target.mul_(factor)
        first = Z.clone()
        first[:, TARGET] *= factor
        scaled = Prompt(
            prompt.features,
            prompt.rewards,
            factor * prompt.discounts,
            prompt.is_transition,
            prompt.is_terminal,
        )
        steps = ictd.softmax_td(
            scaled,
            ictd.BilinearScore(matrix),
            num_steps=4,
            step_size=0.5,
            initial_values=Z[:, CURRENT],
            return_history=True,
        )
        two = _run([dual] * 4, first, prompt)[:, :, CURRENT]
        deviation = worst(deviation, gap(two, steps.transpose(0, 1)))
    for factor in (-0.8, 1.7, 2.5):
        dual_Z = Z.clone()
        dual_Z[:, TARGET] *= factor
        single = dual_Z
        for _ in range(4):
            w, Q = 0.4 * normal(generator, ROWS), 0.3 * normal(generator, ROWS, ROWS)
            u_two, u_one = (
                torch.einsum("r,brn,bnm->bm", w, M, (M.mT @ Q @ M).softmax(-2))
                for M in (dual_Z, single)
            )
            added = torch.stack([factor * _shifted(u_two, shift), u_two], 1)
            dual_Z = torch.cat([dual_Z[:, :TARGET], dual_Z[:, TARGET:] + added], 1)
            current = single[:, CURRENT] + u_one
            memory = torch.stack([_shifted(current, factor * shift), current], 1)
            single = torch.cat([single[:, :TARGET], memory], 1)
        deviation = worst(deviation, gap(dual_Z, single))
    return Outcome(7000, deviation)


@claim(
    "prop-defect",
    page=PAGE,
    statement="Two heads keep the memory's defect for ever, as a reward; one head drops it.",
    functions=("DualHeadLayer", "SingleHeadLayer", "softmax_td"),
    tolerance=1e-10,
)
@torch.no_grad()
def defect(generator: torch.Generator) -> Outcome:
    """Random memory at every transition; with the construction it is paid as a reward."""
    prompt, shift, Z = _start(generator)
    noise = normal(generator, 1000, 16) * prompt.is_transition
    broken = Z.clone()
    broken[:, TARGET] += noise
    duals, singles = _pairs(generator, "structured")
    two, one = _run(duals, broken, prompt), _run(singles, broken, prompt)
    kept = two[:, :, TARGET] - torch.einsum("bln,bnm->blm", two[:, :, CURRENT], shift)
    gone = one[:, 1:, TARGET] - torch.einsum("bln,bnm->blm", one[:, 1:, CURRENT], shift)
    same = noise.unsqueeze(1).expand_as(kept)
    deviations = [gap(kept, same), gap(gone, torch.zeros_like(gone))]
    deviations.append(gap(one[:, 1, CURRENT], two[:, 1, CURRENT]))
    matrix = normal(generator, 3, 3)
    score = ictd.BilinearScore(matrix)
    rest = (prompt.discounts, prompt.is_transition, prompt.is_terminal)
    richer = Prompt(prompt.features, prompt.rewards + noise, *rest)
    start = Z[:, CURRENT]
    for kind in (ictd.DualHeadLayer, ictd.SingleHeadLayer):
        layer = kind(3, dtype=torch.float64).construct(matrix, 0.5)
        found = _run([layer] * 4, broken, prompt)[:, -1, CURRENT]
        paid = 4 if kind is ictd.DualHeadLayer else 1
        values = ictd.softmax_td(richer, score, num_steps=paid, step_size=0.5, initial_values=start)
        values = ictd.softmax_td(
            prompt, score, num_steps=4 - paid, step_size=0.5, initial_values=values
        )
        deviations.append(gap(found, values))
    return Outcome(1000, worst(*deviations))


@claim(
    "cor-shared-gradients",
    page=PAGE,
    statement="Shared weights have the same gradient in both forms; the two heads' sum to one's.",
    functions=("DualHeadLayer", "SingleHeadLayer"),
    tolerance=1e-10,
)
def shared_gradients(generator: torch.Generator) -> Outcome:
    """Gradients with respect to weights, attention and first values; contexts are summed over."""
    prompt, shift, Z = _start(generator)
    direction = normal(generator, 1000, ROWS, 16)
    features, values = Z[:, :TARGET], Z[:, CURRENT].clone().requires_grad_()
    start = torch.cat([features, torch.stack([_shifted(values, shift), values], 1)], 1)

    def slopes(layers: Sequence[Layer], wanted: Sequence[Tensor]) -> list[Tensor]:
        last = _run(layers, start, prompt)[:, -1]
        smooth = (direction * last + last.square()).mean()
        return list(torch.autograd.grad(smooth, wanted, retain_graph=True))

    deviations = []
    duals, singles = _pairs(generator, "structured")
    two, one = (
        slopes(layers, [values, *(p for layer in layers for p in layer.parameters())])
        for layers in (duals, singles)
    )
    for ours, theirs in zip(two, one, strict=True):
        size = theirs.abs().max()
        deviations.append(gap((ours / size).reshape(1, -1), (theirs / size).reshape(1, -1)))
    dual, single = _pair(generator, "full")
    Q, current, target = slopes([dual] * 3, [dual.query_key, dual.value_current, dual.value_target])
    Q_one, current_one = slopes([single] * 3, [single.query_key, single.value_current])
    size = current_one.abs().max()
    for ours, theirs in (
        (Q, Q_one),
        (current[CURRENT] + target[TARGET], current_one[CURRENT]),
        (current[:TARGET], current_one[:TARGET]),
        (0 * target[TARGET], current_one[TARGET]),  # the row that is never seen
    ):
        deviations.append(gap((ours / size).reshape(1, -1), (theirs / size).reshape(1, -1)))
    return Outcome(1000, worst(*deviations))
