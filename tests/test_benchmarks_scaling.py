"""``benchmarks.scaling``: the simulation never beats what a part can bear, and is linear where no part is full."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))  # from where the benchmarks can be imported

from benchmarks.scaling.model import Cluster, Costs, Job, Simulation, capacities

COSTS = Costs(
    python_us=300, ray_us=250, stored_us=900, stored_python_us=600, copy_us=200, worker_us=700, stored_worker_us=1500,
    worker_mb_us=800, raylet_us=800, node_us=4000, node_mb_us=1300, scan_us=0.03, call_ms=0.6,
)  # fmt: skip
JOBS = st.builds(
    Job,
    sample_ms=st.floats(0.01, 30),
    sample_kb=st.floats(1, 300),
    batch_size=st.integers(1, 64),
    chunk=st.integers(1, 16),
    waits=st.booleans(),
    window=st.integers(0, 8),
).map(lambda job: dataclasses.replace(job, chunk=min(job.chunk, job.batch_size)))
RANKS = st.sampled_from([1, 2, 8, 16])
CLUSTERS = st.builds(
    lambda ranks, each, **rest: Cluster(ranks=ranks, workers=ranks * each, **rest),
    ranks=RANKS,
    each=st.integers(1, 6),
    workers_per_node=st.integers(1, 8),
    link_mb_s=st.floats(10, 3000),
    sender_mb_s=st.floats(10, 3000),
    cores=st.integers(0, 3),
)


@settings(deadline=None, max_examples=60)
@given(cluster=CLUSTERS, job=JOBS)
def test_no_run_is_faster_than_its_narrowest_part(cluster: Cluster, job: Job) -> None:
    outcome = Simulation(COSTS, cluster, job, tasks_per_worker=8).run()
    bounds = capacities(COSTS, cluster, job)
    if cluster.ranks > cluster.ranks_per_node:
        bounds.pop("cores", None)  # of one machine, and there are more
    assert 0 < outcome.samples_per_s <= min(bounds.values()) * 1.000001
    assert all(0 <= busy <= 1.000001 for busy in outcome.busy.values())


@pytest.mark.parametrize("workers", [1, 8, 64])
def test_it_is_linear_while_no_part_is_full(workers: int) -> None:
    job = Job(sample_ms=20, sample_kb=150, chunk=64, waits=True)
    outcome = Simulation(COSTS, Cluster(workers=workers), job).run()
    assert outcome.limit == "workers"
    assert outcome.samples_per_s == pytest.approx(workers * 1000 / 20, rel=0.05)


@pytest.mark.parametrize(
    ("limit", "costs", "cluster", "rate"),
    [
        ("loader's Python", {"python_us": 1000}, {}, 1000),
        ("loader's Ray thread", {"ray_us": 250, "stored_us": 750}, {}, 1000),
        ("loader's raylet", {"raylet_us": 500}, {}, 2000),
        ("loader's link", {}, {"link_mb_s": 150}, 1000),
        ("senders' links", {}, {"sender_mb_s": 15, "workers_per_node": 100}, 200),
    ],
)
def test_the_part_that_is_full_gives_the_rate(
    limit: str, costs: dict[str, float], cluster: dict[str, float], rate: float
) -> None:
    simulation = Simulation(Costs(**costs), Cluster(**{"workers": 200, **cluster}), Job(sample_ms=1, sample_kb=150))  # type: ignore[arg-type]
    outcome = simulation.run()
    assert outcome.limit == limit
    assert outcome.samples_per_s == pytest.approx(rate, rel=0.05)
