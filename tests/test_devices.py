"""Devices: everything on fake CUDA tensors, moves to ``meta``, and a real GPU where there is one.

Under ``FakeTensorMode`` no number exists, but every operation still refuses a mix of devices: a
factory that forgets ``device=`` or a branch on a value fails here, on any machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

import ictd
from fake_cuda import fake_cuda, pick
from strategies import assert_same, random_contexts, refuses

BATCH, TOKENS, DIM, STATES = 2, 7, 3, 4
STEPS: dict[str, Any] = {"num_steps": 2, "step_size": 0.5}

Make = Callable[..., torch.Tensor]


def make_prompt(make: Make, terminal: bool = True) -> ictd.Prompt:
    """A batch of prompts of the given factory's tensors."""
    flags = [make(BATCH, TOKENS) > 0 for _ in range(1 + terminal)]
    return ictd.Prompt(make(BATCH, TOKENS, DIM), make(BATCH, TOKENS), make(BATCH, TOKENS), *flags)


def make_trajectory(make: Make) -> ictd.Trajectory:
    return ictd.Trajectory(
        make(BATCH, TOKENS).long(),
        make(BATCH, TOKENS),
        make(BATCH, TOKENS),
        make(BATCH, TOKENS) > 0,
    )


def make_process(make: Make) -> ictd.MarkovRewardProcess:
    return ictd.MarkovRewardProcess(make(BATCH, STATES, STATES), make(BATCH, STATES), 0.9)


def make_model(make: Make, num_heads: int, parametrization: str) -> ictd.InContextTD:
    like = make(1)
    return ictd.InContextTD(
        DIM,
        2,
        num_heads=num_heads,
        parametrization=parametrization,
        device=like.device,
        dtype=like.dtype,
    )


def make_linear(make: Make, algorithm: str, parametrization: str) -> ictd.LinearInContextTD:
    like = make(1)
    return ictd.LinearInContextTD(
        DIM,
        2,
        algorithm=algorithm,
        trace_decay=0.5,
        parametrization=parametrization,
        device=like.device,
        dtype=like.dtype,
    )


CASES: dict[str, Callable[[Make], Any]] = {
    "Prompt": make_prompt,
    "Prompt.matrix": lambda make: make_prompt(make).matrix(make(BATCH, TOKENS)),
    "Prompt.with_queries": lambda make: make_prompt(make).with_queries(make(2, DIM)),
    "Prompt.stack": lambda make: ictd.Prompt.stack(
        [make_prompt(make), make_prompt(make, terminal=False).with_queries(make(BATCH, 2, DIM))]
    ),
    "Prompt[...]": lambda make: make_prompt(make)[0],
    "Trajectory": make_trajectory,
    "Trajectory.prompt": lambda make: make_trajectory(make).prompt(make(BATCH, STATES, DIM)),
    "MarkovRewardProcess": make_process,
    "MarkovRewardProcess.value": lambda make: make_process(make).value(),
    "MarkovRewardProcess.bellman": lambda make: make_process(make).bellman(make(BATCH, STATES)),
    "BilinearScore": lambda make: ictd.BilinearScore(make(DIM, DIM))(make(5, DIM), make(4, DIM)),
    "GaussianScore": lambda make: ictd.GaussianScore(0.5)(make(5, DIM), make(4, DIM)),
    "GaussianScore, tensor": lambda make: ictd.GaussianScore(make(1).sum())(
        make(5, DIM), make(4, DIM)
    ),
    "LogKernelScore": lambda make: ictd.LogKernelScore(ictd.LinearKernel())(
        make(5, DIM), make(4, DIM)
    ),
    "GaussianKernel": lambda make: ictd.GaussianKernel(0.5)(make(5, DIM), make(4, DIM)),
    "IdentityKernel": lambda make: ictd.IdentityKernel()(make(5, DIM), make(4, DIM)),
    "median_bandwidth": lambda make: ictd.median_bandwidth(make(5, DIM)),
    "attention_weights": lambda make: ictd.attention_weights(
        make_prompt(make), ictd.GaussianScore(0.5)
    ),
    "td_errors": lambda make: ictd.td_errors(make_prompt(make), make(BATCH, TOKENS)),
    "softmax_td": lambda make: ictd.softmax_td(
        make_prompt(make),
        ictd.BilinearScore(make(DIM, DIM)),
        weight=make(BATCH, TOKENS),
        initial_values=make(BATCH, TOKENS),
        return_history=True,
        **STEPS,
    ),
    "kernel_td": lambda make: ictd.kernel_td(
        make_prompt(make), ictd.GaussianKernel(0.5), return_history=True, **STEPS
    ),
    "linear_td": lambda make: ictd.linear_td(make_prompt(make), return_history=True, **STEPS),
    "tabular_td": lambda make: ictd.tabular_td(make_trajectory(make), STATES, **STEPS),
    "online_td": lambda make: ictd.online_td(make_prompt(make), step_size=0.5),
    "online_td, schedule": lambda make: ictd.online_td(
        make_prompt(make), step_size=make(TOKENS), return_history=True
    ),
    "lstd": lambda make: ictd.lstd(make_prompt(make)),
    "empirical_model": lambda make: tuple(ictd.empirical_model(make_trajectory(make), STATES)),
    "certainty_equivalence": lambda make: ictd.certainty_equivalence(make_trajectory(make), STATES),
    "fixed_point": lambda make: ictd.fixed_point(make_prompt(make), ictd.GaussianScore(0.5)),
    "temporal_shift": lambda make: ictd.temporal_shift(
        make(BATCH, TOKENS), make(BATCH, TOKENS), make(BATCH, TOKENS) > 0
    ),
    **{
        f"LinearInContextTD, {algorithm}, {form}": lambda make, a=algorithm, f=form: make_linear(
            make, a, f
        )(make_prompt(make), return_history=True)
        for algorithm in ("td", "residual-gradient", "average-reward")
        for form in ("structured", "full")
    },
    "population_values": lambda make: ictd.population_values(
        make_model(make, 1, "structured"), make_process(make), make(BATCH, STATES, DIM)
    ),
    "squared_norm_of_mean": lambda make: ictd.squared_norm_of_mean(make(BATCH, 4, 3), "halves"),
    "neu_bound": lambda make: ictd.neu_bound(
        make(BATCH), 3, discount=0.9, step_size=1.0, reward_bound=make(BATCH), form="full"
    ),
    "lumped_attention": lambda make: ictd.lumped_attention(
        make(BATCH, STATES), make(STATES, DIM), ictd.GaussianScore(0.5)
    ),
    "population_attention": lambda make: ictd.population_attention(
        make_process(make), make(STATES, DIM), ictd.GaussianScore(0.5)
    ),
    "empirical_attention": lambda make: ictd.empirical_attention(
        make_trajectory(make), make(BATCH, STATES, DIM), ictd.GaussianScore(0.5)
    ),
    "successor_attention": lambda make: ictd.successor_attention(
        make(BATCH, STATES, STATES), make(BATCH)
    ),
    "lumped_td": lambda make: ictd.lumped_td(
        make(BATCH, STATES, STATES),
        make(BATCH, STATES),
        make(BATCH, STATES, STATES),
        0.9,
        initial_values=make(BATCH, STATES),
        return_history=True,
        **STEPS,
    ),
    "kernel_interpolant": lambda make: ictd.kernel_interpolant(
        make(BATCH, STATES, STATES), make(BATCH, STATES), make(BATCH, STATES) > 0
    ),
    "kernel_diagonality": lambda make: ictd.kernel_diagonality(make(BATCH, STATES, STATES)),
    "drift_matrix": lambda make: ictd.drift_matrix(
        make(BATCH, STATES, STATES), make(BATCH, STATES, STATES), make(BATCH)
    ),
    "iteration_matrix": lambda make: ictd.iteration_matrix(
        make(BATCH, STATES, STATES), make(BATCH, STATES, STATES), 0.9, make(BATCH)
    ),
    "contraction_factor": lambda make: ictd.contraction_factor(
        make(BATCH, STATES, STATES), 0.9, make(BATCH), visited=make(BATCH, STATES) > 0
    ),
    "depth_bound": lambda make: ictd.depth_bound(
        make(BATCH, STATES, STATES), 0.9, 1.0, 3, make(BATCH)
    ),
    "spectral_radius": lambda make: ictd.spectral_radius(make(BATCH, STATES, STATES)),
    "step_size_limit": lambda make: ictd.step_size_limit(make(BATCH, STATES, STATES)),
    "target_spread": lambda make: ictd.target_spread(make(BATCH, STATES), 0.9, make(BATCH)),
    "context_bound": lambda make: [
        ictd.context_bound(make(BATCH, STATES), 1.0, 0.9, 0.9, 6),
        ictd.context_bound(
            make(BATCH, STATES),
            make(BATCH),
            make(BATCH),
            0.9,
            6,
            transition=make(BATCH, STATES, STATES),
        ),
    ],
    "componentwise_bound": lambda make: ictd.componentwise_bound(
        make_trajectory(make), STATES, discount=0.9, reward_bound=make(BATCH), confidence=0.9
    ),
    "plug_in_interval": lambda make: ictd.plug_in_interval(
        make_trajectory(make), STATES, confidence=0.9, simultaneous=True
    ),
    "sharp_rate": lambda make: ictd.sharp_rate(make(BATCH), 0.9),
    "asymptotic_rate": lambda make: ictd.asymptotic_rate(make(BATCH), make(BATCH)),
    "power_bound": lambda make: ictd.power_bound(make(BATCH), 0.9, 1.0, make(BATCH)),
    "certified_layers": lambda make: ictd.certified_layers(make(BATCH), 0.9, 1.0, 1e-3),
    "diagonality_needed": lambda make: ictd.diagonality_needed(make(BATCH), "sharp"),
    "diagonality_step_limit": lambda make: ictd.diagonality_step_limit(make(BATCH), 0.9),
    "density_ratio": lambda make: ictd.density_ratio(
        make(BATCH, STATES), make(BATCH, STATES, STATES)
    ),
    "self_adjoint_weights": lambda make: ictd.self_adjoint_weights(
        make(BATCH, STATES), make(BATCH, STATES, STATES)
    ),
    "weighted_norm": lambda make: ictd.weighted_norm(
        make(BATCH, STATES, STATES), make(BATCH, STATES)
    ),
    "numerical_range": lambda make: ictd.numerical_range(
        make(BATCH, STATES, STATES), make(BATCH, STATES)
    ),
    "schur_factor": lambda make: ictd.schur_factor(
        make(BATCH, STATES, STATES), make(BATCH, STATES), num_iterations=2
    ),
    "weighted_norm_factor": lambda make: ictd.weighted_norm_factor(make(BATCH, STATES, STATES)),
    "layers_needed": lambda make: ictd.layers_needed(make(BATCH), 1e-3, make(BATCH)),
    "residual_bound": lambda make: ictd.residual_bound(make(BATCH, STATES), 0.9),
    "stability, process": lambda make: ictd.stability(
        make_process(make), make(STATES, DIM), score=ictd.GaussianScore(0.5)
    ),
    "stability, context": lambda make: ictd.stability(
        make_prompt(make), score=ictd.GaussianScore(0.5), step_size=make(BATCH)
    ),
    "construct": lambda make: [
        layer_type(DIM, parametrization=form, device=make(1).device, dtype=make(1).dtype)
        .construct(make(DIM, DIM), 0.5)
        .get_parameter(name)
        for layer_type in (ictd.SingleHeadLayer, ictd.DualHeadLayer)
        for form, name in (("structured", "value_weights"), ("full", "value_current"))
    ],
}
for heads, form in itertools.product((1, 2), ("structured", "full")):
    CASES[f"InContextTD, {heads} head(s), {form}"] = lambda make, h=heads, f=form: make_model(
        make, h, f
    )(make_prompt(make), return_history=True)

# These differentiate, which torch can do for fake tensors of a device only where that device is.
WITH_BACKWARD: dict[str, Callable[[Make], Any]] = {
    "value_jacobian": lambda make: ictd.value_jacobian(
        make_model(make, 2, "full"), make_process(make), make(STATES, DIM)
    ),
    "expected_update": lambda make: ictd.expected_update(
        make_model(make, 2, "full"), make_process(make), make(STATES, DIM), make_prompt(make)
    ),
    "sampled_update": lambda make: ictd.sampled_update(
        make_model(make, 1, "structured"), make_prompt(make), make_prompt(make)
    ),
    "norm_of_expected_update": lambda make: ictd.norm_of_expected_update(
        make_model(make, 1, "full"), make_process(make), make(STATES, DIM), estimator="u"
    ),
}


@pytest.fixture
def make() -> Iterator[Make]:
    """A factory of tensors that claim to be on a GPU."""
    with fake_cuda():
        yield lambda *shape: torch.rand(*shape, device="cuda")


@pytest.mark.parametrize(
    "index",
    [
        0,
        -1,
        slice(1, None),
        (..., 1),
        (..., slice(None, -1), None),
        (None, 1, slice(0, 2)),
        (slice(None), torch.tensor([2, 0])),
        (..., None, slice(1, 3)),
        torch.tensor([[True, False, True], [False, False, True]]),
    ],
    ids=str,
)
def test_the_substitute_for_indexing_indexes(index: Any) -> None:
    x = torch.arange(24).reshape(2, 3, 4)
    assert torch.equal(pick(x, index), x[index])


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_stays_on_the_device_of_its_inputs(make: Make, name: str, dtype: torch.dtype) -> None:
    result = CASES[name](lambda *shape: make(*shape).to(dtype))
    leaves = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
    if isinstance(result, ictd.MarkovRewardProcess):
        leaves = [result.transition, result.reward]
    assert leaves
    for leaf in leaves:
        assert isinstance(leaf, FakeTensor)
        assert leaf.device.type == "cuda"
        assert leaf.dtype in (dtype, torch.bool, torch.int64)


def test_a_mix_of_devices_is_refused(make: Make) -> None:
    prompt = make_prompt(make)
    on_cpu = torch.zeros(BATCH, TOKENS)
    with refuses(ValueError, r"rewards.*cuda.*cpu"):
        ictd.Prompt(prompt.features, on_cpu, prompt.discounts, prompt.is_transition)
    with refuses(ValueError, r"initial_values.*cuda.*cpu"):
        ictd.softmax_td(prompt, ictd.GaussianScore(0.5), initial_values=on_cpu, **STEPS)
    with refuses(ValueError, r"cuda.*cpu|cpu.*cuda"):
        ictd.InContextTD(DIM, 2)(prompt)
    with pytest.raises((ValueError, RuntimeError), match=r"cuda.*cpu|cpu.*cuda"):
        ictd.softmax_td(prompt, ictd.BilinearScore(torch.eye(DIM)), **STEPS)


MOVES: dict[str, Callable[[], Any]] = {
    "Prompt": lambda: random_contexts(0).prompt(),
    "Trajectory": lambda: random_contexts(0).trajectory(),
    "MarkovRewardProcess": lambda: ictd.boyan_chain(
        5, discount=0.9, generator=torch.Generator().manual_seed(0)
    ),
    "StabilityReport": lambda: ictd.stability(
        ictd.boyan_chain(3, generator=torch.Generator().manual_seed(0)),
        torch.eye(3),
        score=ictd.GaussianScore(0.5),
    ),
    "BilinearScore": lambda: ictd.BilinearScore(torch.eye(3)),
    "GaussianKernel": lambda: ictd.GaussianKernel(torch.tensor(0.5)),
    "LogKernelScore": lambda: ictd.LogKernelScore(ictd.GaussianKernel(torch.tensor(0.5))),
    "InContextTD": lambda: ictd.InContextTD(3, 2, looped=False, num_heads=2),
    "LinearInContextTD": lambda: ictd.LinearInContextTD(3, 2, looped=False),
}


@pytest.mark.parametrize("name", list(MOVES))
def test_to_moves_everything(name: str) -> None:
    moved = MOVES[name]().to("meta")
    if isinstance(moved, torch.nn.Module):
        leaves = [*moved.parameters(), *moved.buffers()]
    else:
        leaves = pytree.tree_leaves(moved)
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    assert tensors
    assert all(x.is_meta for x in tensors)


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith(("InContext", "softmax"))])
def test_runs_forward_and_backward_on_meta(name: str) -> None:
    leaves: list[torch.Tensor] = []

    def make(*shape: int) -> torch.Tensor:
        leaves.append(torch.empty(*shape, device="meta", requires_grad=True))
        return leaves[-1]

    result = CASES[name](make)
    assert result.is_meta
    assert result.shape == (3, BATCH, TOKENS)
    result.sum().backward()
    gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
    assert len(gradients) >= 3
    assert all(g.is_meta for g in gradients)


@pytest.mark.parametrize("name", list(WITH_BACKWARD))
def test_runs_on_meta(name: str) -> None:
    result = WITH_BACKWARD[name](lambda *shape: torch.empty(*shape, device="meta").half())
    assert result.is_meta
    assert result.dtype == torch.float16


def test_construction_follows_its_matrix() -> None:
    model = ictd.InContextTD.from_construction(torch.empty(3, 3, device="meta").half(), 2, 0.5)
    assert {(p.device.type, p.dtype) for p in model.parameters()} == {("meta", torch.float16)}


def test_importing_and_running_leaves_the_precision_of_torch_alone() -> None:
    # C14
    def flags() -> list[Any]:
        return [
            torch.get_float32_matmul_precision(),
            torch.backends.cuda.matmul.allow_tf32,
            torch.backends.cudnn.allow_tf32,
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
        ]

    before = flags()
    prompt = random_contexts(1).prompt()
    ictd.InContextTD.from_construction(torch.eye(3).double(), 2, 0.5)(prompt)
    ictd.fixed_point(prompt, ictd.GaussianScore(0.5))
    assert flags() == before


# On a real GPU ---------------------------------------------------------------------------------

cuda = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


class TestCuda:
    """C14: float32 on the GPU against float64 on the CPU."""

    pytestmark = cuda

    @pytest.mark.parametrize("num_heads", [1, 2])
    @pytest.mark.parametrize("parametrization", ["structured", "full"])
    def test_transformer(self, num_heads: int, parametrization: str) -> None:
        prompt = random_contexts(2, batch_shape=(8,)).prompt()
        matrix = torch.eye(3, dtype=torch.float64)
        values = ictd.softmax_td(prompt, ictd.BilinearScore(matrix), **STEPS)
        there = ictd.InContextTD.from_construction(
            matrix.to("cuda", torch.float32),
            2,
            0.5,
            num_heads=num_heads,
            parametrization=parametrization,
        )(prompt.to("cuda", torch.float32))
        assert (there.device.type, there.dtype) == ("cuda", torch.float32)
        assert_same(there.cpu().double(), values, tolerance=1e-5)

    def test_algorithms(self) -> None:
        prompt = random_contexts(3, batch_shape=(8,), num_tokens=20).prompt()
        there = prompt.to("cuda", torch.float32)
        for algorithm in (
            lambda p: ictd.softmax_td(p, ictd.GaussianScore(0.5), **STEPS),
            lambda p: ictd.kernel_td(p, ictd.GaussianKernel(0.5), **STEPS),
            lambda p: ictd.linear_td(p, **STEPS),
            lambda p: ictd.online_td(p, step_size=0.1),
        ):
            assert_same(algorithm(there).cpu().double(), algorithm(prompt), tolerance=1e-5)

    def test_stability(self) -> None:
        chain = ictd.loop_chain(
            5,
            generator=torch.Generator().manual_seed(0),
            batch_shape=(8,),
            dtype=torch.float64,
        )
        features = torch.eye(5, dtype=torch.float64)
        here = ictd.stability(chain, features, score=ictd.GaussianScore(0.5))
        there = ictd.stability(
            chain.to("cuda", torch.float32),
            features.to("cuda", torch.float32),
            score=ictd.GaussianScore(0.5),
        )
        assert_same(there.spectral_radius.cpu().double(), here.spectral_radius, tolerance=1e-5)
        assert torch.equal(there.holds.cpu(), here.holds)

    def test_same_seed_same_trajectories(self) -> None:
        chain = ictd.boyan_chain(6, discount=0.9, generator=torch.Generator().manual_seed(0))
        chain = chain.to("cuda")
        first, again = (
            chain.sample(50, generator=torch.Generator("cuda").manual_seed(1)) for _ in range(2)
        )
        assert torch.equal(first.states, again.states)
