"""``benchmarks.scaling``: a cluster is as fast as its narrowest part."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # from where the benchmarks can be imported

from benchmarks.scaling.model import CLUSTERS, JOBS, Cluster, Costs, Job, capacities, in_tasks, narrowest

COSTS = Costs(
    python_us=300, ray_us=250, stored_us=900, stored_python_us=600, copy_us=200, worker_us=700, stored_worker_us=1500,
    worker_mb_us=800, raylet_us=800, node_us=4000, node_mb_us=1300, scan_us=0.03, call_ms=0.6,
)  # fmt: skip


@pytest.mark.parametrize("workers", [1, 8, 64])
def test_it_is_linear_while_no_part_is_full(workers: int) -> None:
    job = Job(sample_ms=20, sample_kb=150, chunk=64, waits=True)
    assert narrowest(COSTS, Cluster(workers=workers), job) == ("workers", pytest.approx(workers * 1000 / 20, rel=0.05))
    slow = Cluster(workers=4, link_mb_s=0.001, sender_mb_s=0.001)  # small results need neither links nor the store
    assert narrowest(COSTS, slow, Job(sample_ms=1, sample_kb=1))[0] == "workers"


@pytest.mark.parametrize(
    ("part", "costs", "cluster", "rate"),
    [
        ("loader's Python", {"python_us": 1000}, {}, 1000),
        ("loader's Ray thread", {"ray_us": 250, "stored_us": 750}, {}, 1000),
        ("loader's raylet", {"raylet_us": 500}, {}, 2000),
        ("loader's link", {}, {"link_mb_s": 150}, 1000),
        ("senders' links", {}, {"sender_mb_s": 15, "workers_per_node": 100}, 200),
        ("cores", {"worker_us": 1000}, {"cores": 2}, 1000),  # beside the millisecond of the sample
    ],
)
def test_the_part_that_is_full_gives_the_rate(
    part: str, costs: dict[str, float], cluster: dict[str, float], rate: float
) -> None:
    given = Cluster(**{"workers": 200, **cluster})  # type: ignore[arg-type]
    assert narrowest(Costs(**costs), given, Job(sample_ms=1, sample_kb=150)) == (part, pytest.approx(rate))


def test_ranks_on_machines_of_their_own_add_up_and_those_on_one_share_its_link() -> None:
    job = Job(sample_ms=1, sample_kb=150)
    clusters = [Cluster(workers=16 * ranks, ranks=ranks, link_mb_s=150.0) for ranks in (1, 8, 16)]
    assert [narrowest(Costs(), cluster, job)[1] for cluster in clusters] == pytest.approx([1000, 1000, 2000])


def test_chunks_of_remote_workers_are_longer_and_no_cluster_of_the_table_loses_by_that() -> None:
    for job in JOBS.values():
        for cluster in CLUSTERS:
            local, remote = in_tasks(job, cluster)
            assert remote.chunk >= local.chunk
            assert narrowest(COSTS, cluster, remote)[1] >= 0.999 * narrowest(COSTS, cluster, local)[1]
            assert all(capacity > 0 for capacity in capacities(COSTS, cluster, remote).values())
