"""Samples of very unequal cost: how far from the bound the loader stays when it keeps the order.

Claim: an epoch within 1.1 times the work-conserving bound, where torch's loader takes about twice the bound.

The bound is what a scheduler reaches that never lets a worker idle while a sample is left: the samples are taken one by
one, in order, by whichever worker is free first; no hand-over, no collation, no limit on the work ahead. The last
samples of the epoch included, it is never below total cost / workers.

A sleep takes longer than asked: some 60 us on an idle Linux, more on a busy one. So the bound is computed twice, from
the costs as asked ("x of bound") and from those that the samples report ("x of bound as slept"); the second leaves out
what the machine adds, but also what a loader adds by getting in the samples' way.

Meaningless if: the two differ by more than a few percent. Starting the workers is left out: they are persistent, and a
short epoch of free samples goes before the measured one.
"""

import heapq
import time
from collections.abc import Sequence

from benchmarks.loops import describe, make_loader
from benchmarks.made_data import UnequalSamples, heavy_tailed_costs_s
from benchmarks.spec import FASTLOAD_SEED, TORCH, Case, Measurement, Metric, Side


def work_conserving_bound_s(costs_s: Sequence[float], num_workers: int) -> float:
    """Return when the last sample is done if each is taken, in order, by the first worker that is free."""
    free_at = [0.0] * num_workers
    for cost in costs_s:
        heapq.heapreplace(free_at, free_at[0] + cost)
    return max(free_at)


def epoch(side: Side, *, shape: str, num_samples: int, mean_cost_ms: float, num_workers: int) -> Measurement:
    """Time an epoch in batches of 16, after a short one of samples that cost nothing."""
    costs_s = heavy_tailed_costs_s(shape, num_samples, mean_cost_ms / 1e3)
    free_samples = range(num_samples, num_samples + 16 * 2 * num_workers)
    dataset = UnequalSamples([*costs_s, *(0.0 for _ in free_samples)])
    order = list(free_samples)
    loader = make_loader(side, dataset, batch_size=16, sampler=order, num_workers=num_workers, persistent_workers=True)
    for _batch in loader:
        pass
    order[:] = range(num_samples)
    slept_s = [0.0] * num_samples
    start = time.perf_counter()
    for indices, durations in loader:
        for index, duration in zip(indices.tolist(), durations.tolist(), strict=True):
            slept_s[index] = duration
    total_s = time.perf_counter() - start
    return {
        "epoch s": total_s,
        "x of bound": total_s / work_conserving_bound_s(costs_s, num_workers),
        "x of bound as slept": total_s / work_conserving_bound_s(slept_s, num_workers),
        "statistics": describe(loader),
    }


_METRICS = (
    Metric(name="x of bound", most_value=1.1),
    Metric(name="x of bound as slept", most_value=1.1),
    Metric(name="epoch s"),
)
_UNORDERED = (
    Side(name="torch in_order=False", package="torch", options={"in_order": False}),
    Side(
        name="fastload in_order=False",
        package="fastload",
        options={"in_order": False},
        compared_with="torch in_order=False",
    ),
)

CASES = tuple(
    Case(
        name=f"heavy_tail-{shape}-{num_workers}-workers",
        measure="benchmarks.cases.heavy_tail:epoch",
        metrics=_METRICS,
        arguments={"shape": shape, "num_samples": 1600, "mean_cost_ms": 3.0, "num_workers": num_workers},
        quick={"num_samples": 640},
        sides=(TORCH, FASTLOAD_SEED, *(_UNORDERED if num_workers == 4 else ())),
    )
    for shape in ("lognormal", "rare")
    for num_workers in (4, 2)
)
