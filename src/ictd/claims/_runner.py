"""Run checks in worker processes, one thread of torch each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context

import torch

from ictd.claims import Claim, Outcome, Result, registry

__all__ = ["run_claims"]


def run_claims(
    claims: Sequence[Claim],
    *,
    seed: int = 0,
    jobs: int = 1,
    on_result: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Run the checks of several claims.

    Args:
        claims: The claims, entries of :func:`ictd.claims.registry` where ``jobs > 1``.
        seed: The seed of all of them.
        jobs: How many processes; with 1 the checks run in this one.
        on_result: Called with each result as it comes.

    Returns:
        One result for each claim, in the order of the claims.

    Note:
        A process that dies fails every claim that is not finished by then.
    """
    if jobs == 1 or len(claims) < 2:
        results = []
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for claim in claims:
                results.append(claim.run(seed))
                on_result(results[-1])
        finally:
            torch.set_num_threads(threads)
        return results
    found: dict[str, Result] = {}
    pool = ProcessPoolExecutor(
        min(jobs, len(claims)),
        get_context("spawn"),  # a fork of a process with torch's threads may hang
        initializer=torch.set_num_threads,
        initargs=(1,),
    )
    with pool:
        tasks = {pool.submit(_run, claim.label, seed): claim for claim in claims}
        for task in as_completed(tasks):
            result = _result(tasks[task], task)
            found[result.claim.label] = result
            on_result(result)
    return [found[claim.label] for claim in claims]


def _run(label: str, seed: int) -> tuple[Outcome, str, float]:
    """Run one check in a worker, which has a registry of its own."""
    result = registry()[label].run(seed)
    return result.outcome, result.message, result.seconds


def _result(claim: Claim, task: Future[tuple[Outcome, str, float]]) -> Result:
    try:
        return Result(claim, *task.result())
    except Exception as error:  # the worker died, or could not load the checks
        return Result(claim, Outcome(0, math.nan), f"{type(error).__name__}: {error}", 0.0)
