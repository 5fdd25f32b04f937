"""Faults planted in a copy of the package, and the claims that must notice.

Each mutation replaces one text in one file of ``src/ictd``; ``ictd verify`` runs on the copy.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import pytest

import ictd
from mutated import verify

SOURCE = Path(ictd.__file__).parent


@dataclass(frozen=True)
class Mutation:
    """Hold a fault: where, what is replaced by what, and which claims must fail."""

    name: str
    file: str
    old: str
    new: str
    claims: tuple[str, ...]


MUTATIONS = [
    Mutation(
        "a sign in the TD error",
        "td.py",
        "error = prompt.rewards + shift(values, prompt.discounts) - values",
        "error = prompt.rewards + shift(values, prompt.discounts) + values",
        ("thm-kernel-td-is-linear", "prop-lumped", "prop-constant-score"),
    ),
    Mutation(
        "the discount dropped from the TD error",
        "td.py",
        "error = prompt.rewards + shift(values, prompt.discounts) - values",
        "error = prompt.rewards + shift(values, prompt.discounts.sign()) - values",
        ("thm-kernel-td-is-linear", "prop-lumped", "prop-consistency"),
    ),
    Mutation(
        "the discount twice in the second head",
        "layers.py",
        "torch.cat([shift(pooled, gamma), pooled], -2)",
        "torch.cat([shift(pooled, gamma * gamma), pooled], -2)",
        ("thm-reparameterization", "prop-defect"),
    ),
    Mutation(
        "the shift off by one",
        "td.py",
        "return discounts * F.pad(values[..., 1:], (0, 1))",
        "return discounts * F.pad(values[..., :-1], (1, 0))",
        ("lem-discount-side", "prop-lumped"),
    ),
    Mutation(
        "normalised over the wrong axis",
        "attention.py",
        "return torch.where(counts, scores.softmax(-1), 0.0)",
        "return torch.where(counts, scores.softmax(-2), 0.0)",
        ("prop-lumped", "prop-nadaraya-watson", "lem-invertible-attention"),
    ),
    Mutation(
        "the mask after the softmax",
        "attention.py",
        "scores = torch.where(counts, scores, -torch.inf)",
        "scores = torch.where(scores != -torch.inf, scores, -torch.inf)",
        ("prop-lumped", "prop-nadaraya-watson", "prop-kernel-softmax"),
    ),
    Mutation(
        "no mask in the layer",
        "layers.py",
        "is_key = is_transition[..., :num_keys]",
        "is_key = torch.ones_like(is_transition[..., :num_keys])",
        ("thm-reparameterization",),
    ),
    Mutation(
        "the temperature of the layer",
        "attention.py",
        "attn_mask=mask, scale=1.0)",
        "attn_mask=mask)",
        ("thm-reparameterization", "cor-full-weights"),
    ),
    Mutation(
        "the step size twice",
        "nonparametric.py",
        "values = pin(prompt, values + step * (weights @ errors).squeeze(-1))",
        "values = pin(prompt, values + step * step * (weights @ errors).squeeze(-1))",
        ("prop-representer", "prop-constant-score", "prop-lumped"),
    ),
    Mutation(
        "terminal states not pinned",
        "prompt.py",
        "return values if prompt.is_terminal is None else "
        "torch.where(prompt.is_terminal, 0.0, values)",
        "return values",
        ("thm-kernel-td-is-linear", "prop-representer"),
    ),
    Mutation(
        "terminal columns updated by the layer",
        "layers.py",
        "return torch.where(is_terminal.unsqueeze(-2), 0.0, pooled)",
        "return pooled",
        ("thm-reparameterization", "cor-full-weights"),
    ),
    Mutation(
        "closure not looked at when trimming",
        "_closure.py",
        "return torch.where(needed < ends, ends, 0).amax(-1)",
        "return torch.where(needed <= length, ends, 0).amax(-1)",
        ("prop-consistency",),
    ),
    Mutation(
        "the semi-gradient made a full one",
        "td.py",
        "weights = weights + step * (errors.unsqueeze(-2) @ prompt.features).squeeze(-2)",
        "later = shift(prompt.features.mT, prompt.discounts.unsqueeze(-2)).mT\n"
        "        weights = weights + step * (errors.unsqueeze(-2) @ (prompt.features - later))"
        ".squeeze(-2)",
        ("thm-kernel-td-is-linear", "thm-certainty-equivalence", "cor-batch-linear"),
    ),
    Mutation(
        "the semi-gradient of online TD made a full one",
        "td.py",
        "steps[j] * error.unsqueeze(-1) * prompt.features[..., j, :]",
        "steps[j] * error.unsqueeze(-1) * (prompt.features[..., j, :]"
        " - prompt.discounts[..., j, None] * prompt.features[..., j + 1, :])",
        ("prop-semi-gradient",),
    ),
    Mutation(
        "one transition too many in the mean",
        "td.py",
        "return prompt.is_transition.sum(-1, keepdim=True).clamp(min=1).to(prompt.dtype)",
        "return 1 + prompt.is_transition.sum(-1, keepdim=True).to(prompt.dtype)",
        ("prop-representer", "thm-kernel-td-is-linear"),
    ),
    Mutation(
        "a Gaussian without its factor 1/2",
        "scores.py",
        "return (_squared_distance(query, key, self.bandwidth) / -2).exp()",
        "return (-_squared_distance(query, key, self.bandwidth)).exp()",
        ("cor-kernel-interpolant", "prop-nadaraya-watson"),
    ),
    Mutation(
        "the score transposed",
        "scores.py",
        "return (query @ self.matrix.mT) @ key.mT",
        "return (query @ self.matrix) @ key.mT",
        ("prop-lumped",),
    ),
    Mutation(
        "rewards averaged over the record instead of the state",
        "limits.py",
        "(reward * per_visit).to(dtype)",
        "(reward / counts.sum(-1, keepdim=True).clamp(min=1)).to(dtype)",
        ("thm-certainty-equivalence", "prop-lstd"),
    ),
    Mutation(
        "LSTD without bootstrapping",
        "limits.py",
        "matrix = (source.mT @ (source - _discounted_successors(prompt)))",
        "matrix = (source.mT @ source)",
        ("prop-lstd", "cor-batch-linear"),
    ),
    Mutation(
        "the wrong constant between opposite heads",
        "mirrored.py",
        "weights = difference / (2 * scale)",
        "weights = difference / scale",
        ("prop-opposite-heads",),
    ),
    Mutation(
        "the Bellman operator without discount",
        "mrp.py",
        "result = self.expected_reward() + self.discount.unsqueeze(-1) * expected",
        "result = self.expected_reward() + expected",
        ("thm-bellman-contraction", "thm-linear-td"),
    ),
    Mutation(
        "the wrong constant in the contraction factor",
        "convergence.py",
        "below = 1 - step * (2 * diagonal.amin(-1) - 1 - gamma)",
        "below = 1 - step * (2 * diagonal.amin(-1) - gamma)",
        ("thm-depth", "prop-depth-tight"),
    ),
    Mutation(
        "the wrong exponent in the depth bound",
        "convergence.py",
        "return factor**num_layers * per_item(initial_error, factor, 0)",
        "return factor**(num_layers + 1) * per_item(initial_error, factor, 0)",
        ("thm-depth",),
    ),
    Mutation(
        "the discount doubled in the iteration matrix",
        "convergence.py",
        "return attention - attention @ (per_item(discount, attention, 2) * transition)",
        "return attention - attention @ (per_item(discount, attention, 2) ** 2 * transition)",
        ("thm-depth", "prop-row-dominance", "prop-floor"),
    ),
    Mutation(
        "half the range of step sizes",
        "spectrum.py",
        "torch.where(positive, 2 * (found.real / size) / size, 0.0)",
        "torch.where(positive, (found.real / size) / size, 0.0)",
        ("prop-exact-step",),
    ),
    Mutation(
        "visits that weigh the reader",
        "state_attention.py",
        "return masked_softmax(scores + bias.unsqueeze(-2), positive.unsqueeze(-2))",
        "return masked_softmax(scores + bias.unsqueeze(-1), positive.unsqueeze(-2))",
        ("thm-successor-attention",),
    ),
    Mutation(
        "the successor attention not normalised",
        "state_attention.py",
        "return (1 - gamma) * inverse.to(transition.dtype)",
        "return inverse.to(transition.dtype)",
        ("thm-successor-attention",),
    ),
    Mutation(
        "a sign in softmax TD on states",
        "lumped.py",
        "errors = reward + (onward @ values.unsqueeze(-1)).squeeze(-1) - values",
        "errors = reward - (onward @ values.unsqueeze(-1)).squeeze(-1) - values",
        ("thm-depth", "thm-successor-attention"),
    ),
    Mutation(
        "the bound of the pretraining loss twice as deep",
        "neu_bounds.py",
        "jacobian * r**num_layers) ** 2",
        "jacobian * r ** (2 * num_layers)) ** 2",
        ("thm-neu",),
    ),
    Mutation(
        "an estimator that counts a task with itself",
        "neu.py",
        "return both / (tasks * (tasks - 1))",
        "return both / (tasks * tasks)",
        ("prop-neu-estimators",),
    ),
    Mutation(
        "the noise of rewards counted once in the spread",
        "finite_sample.py",
        "return 2 * per_item(noise, values, 0) + per_item(discount, values, 0) * span",
        "return per_item(noise, values, 0) + per_item(discount, values, 0) * span",
        ("thm-certainty-error",),
    ),
    Mutation(
        "the horizon missing from the finite-sample bound",
        "finite_sample.py",
        "return width.amax(-1) / (1 - gamma)",
        "return width.amax(-1) + 0 * gamma",
        ("thm-certainty-error",),
    ),
    Mutation(
        "the wrong exponent in the rate from diagonality",
        "diagonality.py",
        "rate: Tensor = (g**2 + q * (1 + g**2 * (1 - m))).sqrt()",
        "rate: Tensor = g**2 + q * (1 + g**2 * (1 - m))",
        ("cor-sharp-rate",),
    ),
    Mutation(
        "the wrong constant in the region of eigenvalues",
        "_eigenvalue_region.py",
        "return (g + q + ((g - q) ** 2 + 4 * g * q * e).sqrt()) / 2",
        "return (g + q + ((g - q) ** 2 + 2 * g * q * e).sqrt()) / 2",
        ("cor-sharp-rate",),
    ),
    Mutation(
        "the square root of the density ratio",
        "conditions.py",
        "return (top - torch.where(positive, mass, torch.inf).amin(-1)).exp()",
        "return ((top - torch.where(positive, mass, torch.inf).amin(-1)) / 2).exp()",
        ("cor-density-ratio",),
    ),
    Mutation(
        "a residual that is not carried on",
        "stopping.py",
        "return size / (1 - gamma)",
        "return size / (1 + 0 * gamma)",
        ("prop-residual",),
    ),
    Mutation(
        "a layer too few in the certificate",
        "stopping.py",
        "count = (needed / -torch.where(factor < 1, factor, 0.5).log()).ceil()",
        "count = (needed / -torch.where(factor < 1, factor, 0.5).log()).floor()",
        ("prop-layers",),
    ),
    Mutation(
        "the step limit of diagonality in the report",
        "_certify.py",
        'self.add("diagonality", 2 * m > 1 + g, 2 / (1 + g), one_step)',
        'self.add("diagonality", 2 * m > 1 + g, torch.full_like(g, 2), one_step)',
        ("thm-depth",),
    ),
    Mutation(
        "the step limit of weaker diagonality by its sum, not its squares",
        "_certify.py",
        "small = (1 + g**2) * (1 + q**2) < 2",
        "small = (1 + g) * (1 + q) < 2",
        ("cor-weaker-diagonality",),
    ),
    Mutation(
        "half the step limit of row dominance",
        "_certify.py",
        "torch.where(visited, 2 / size, torch.inf)",
        "torch.where(visited, 1 / size, torch.inf)",
        ("prop-row-dominance",),
    ),
    Mutation(
        "the step limit of weighted row sums",
        "_certify.py",
        "factor < 1, 2 / (1 + factor), rate)",
        "factor < 1, 2 / factor, rate)",
        ("prop-weighted-norm",),
    ),
    Mutation(
        "the factor of long steps in the master theorem",
        "_certify.py",
        "a * (1 + norm) * (2 - a * (1 + norm)))",
        "a * (1 + norm) * (2 - a * norm))",
        ("thm-master", "cor-density-ratio"),
    ),
    Mutation(
        "the step limit of the numerical range",
        "_certify.py",
        "self.add(name, sound, 2 * (1 - abscissa) / square,",
        "self.add(name, sound, 4 * (1 - abscissa) / square,",
        ("prop-numerical-range", "cor-kantorovich"),
    ),
    Mutation(
        "every symmetric kernel taken for a definite one",
        "_certify.py",
        "definite = symmetric & (least > rounding)",
        "definite = symmetric",
        ("thm-master", "prop-numerical-range"),
    ),
    Mutation(
        "every kernel taken for a symmetric one",
        "_certify.py",
        "symmetric = (close | ~inside).all((-2, -1)) &",
        "symmetric =",
        ("thm-master",),
    ),
    Mutation(
        "kernel TD with kernels that are not semidefinite",
        "_certify.py",
        "semidefinite = symmetric & (least > -rounding)",
        "semidefinite = symmetric",
        ("cor-kernel-td-stable",),
    ),
    Mutation(
        "eigenvalues of states that are not there",
        "_certify.py",
        "counts = place >= (~visited).sum(-1, keepdim=True)",
        "counts = place > (~visited).sum(-1, keepdim=True)",
        ("prop-exact-step",),
    ),
    Mutation(
        "a layer too few certified",
        "diagonality.py",
        "count.clamp(min=0).ceil(), 1.0)",
        "count.clamp(min=0).floor(), 1.0)",
        ("thm-power-bound",),
    ),
    Mutation(
        "the discount not squared in the bound of the pretraining loss",
        "neu_bounds.py",
        "(1 + gamma**2) * values**2",
        "(1 + gamma) * values**2",
        ("cor-neu-untied",),
    ),
    Mutation(
        "the wrong constant in the bound of full layers",
        "neu_bounds.py",
        "errors, both = R + 2 * (1 + gamma) * V,",
        "errors, both = R + (1 + gamma) * V,",
        ("thm-neu-full",),
    ),
    Mutation(
        "a block of the gradient left out of the bound of full layers",
        "neu_bounds.py",
        "return torch.hypot(by_query_key, by_value)",
        "return by_value",
        ("thm-neu-full",),
    ),
    Mutation(
        "an update divided by tokens, not by transitions",
        "neu.py",
        "td_errors(test, v) / num_transitions(test)",
        "td_errors(test, v) / len(test)",
        ("prop-neu-estimators",),
    ),
    Mutation(
        "attention to terminal states",
        "state_attention.py",
        "mrp.stationary_distribution().masked_fill(mrp.terminal, 0.0)",
        "mrp.stationary_distribution()",
        ("thm-depth",),
    ),
    Mutation(
        "first values left out of the interpolant",
        "lumped.py",
        "extended = start + (seen",
        "extended = (seen",
        ("thm-fixed-point",),
    ),
    Mutation(
        "the first step size at every token of online TD",
        "td.py",
        "weights = weights + steps[j] * error",
        "weights = weights + steps[0] * error",
        ("prop-semi-gradient",),
    ),
    Mutation(
        "a transition too few kept when trimming",
        "_closure.py",
        "after = before & (token < prefix.unsqueeze(-1))",
        "after = before & (token < prefix.unsqueeze(-1) - 1)",
        ("prop-open-context",),
    ),
]


def mutate(mutation: Mutation, folder: Path) -> None:
    """Copy the package into a folder and plant the fault."""
    shutil.copytree(SOURCE, folder / "ictd", ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "ictd" / mutation.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutation.old) != 1:
        raise LookupError(
            f"{mutation.file}: expected {mutation.old!r} once, found it {text.count(mutation.old)} "
            "times; change the mutation with the code"
        )
    path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")


def messages(mutation: Mutation, folder: Path, pool: ProcessPoolExecutor) -> dict[str, str]:
    """Why each claim fails on the mutated package, or nothing."""
    mutate(mutation, folder)
    code, output = pool.submit(verify, str(folder), mutation.claims).result()
    assert code in (0, 1)
    found = {entry["label"]: entry["message"] for entry in json.loads(output)["claims"]}
    assert code == int(any(found.values()))
    return found


NONE = Mutation(
    "none",
    "td.py",
    "def shift(",
    "def shift(",
    tuple(sorted({label for mutation in MUTATIONS for label in mutation.claims})),
)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    """A process for each run, which starts with torch imported and the package not."""
    context = get_context("forkserver")
    # torch.vmap imports torch._dynamo when it is first used, which takes seconds
    context.set_forkserver_preload(["torch", "torch._dynamo", "tyro", "rich"])
    with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as pool:
        yield pool


def test_the_copy_without_a_fault_passes(tmp_path: Path, pool: ProcessPoolExecutor) -> None:
    assert set(messages(NONE, tmp_path, pool).values()) == {""}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_claims_notice(mutation: Mutation, tmp_path: Path, pool: ProcessPoolExecutor) -> None:
    found = messages(mutation, tmp_path, pool)
    assert [label for label in mutation.claims if not found[label]] == []
    assert any("deviation" in message for message in found.values()) or (
        mutation.file == "_closure.py"  # certainty equivalence refuses the record
    )


def test_a_text_that_is_gone_is_an_error(tmp_path: Path) -> None:
    gone = Mutation("gone", "td.py", "no such text", "", ())
    with pytest.raises(LookupError, match=r"td.py: expected 'no such text' once, found it 0 times"):
        mutate(gone, tmp_path)


def test_there_are_enough_of_them() -> None:
    assert len(MUTATIONS) >= 10
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
