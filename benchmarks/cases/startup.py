"""Starting: from ``iter()`` to the first batch under each start method, and the gap between two epochs.

Claim: never slower than torch's loader to start (ratio at least 0.97). Eight workers that are spawned or forkserved:
the first batch comes in 0.4 times torch's time; of the second loader under forkserver, in 0.1 times.

The dataset carries 100 MB, as strings or as arrays: spawn and forkserver must send it to each worker. Each measurement
has a process of its own, so it includes what happens only once in a process, such as starting the fork server.

Meaningless if: torch is not in the file cache (spawned workers import it; the disk is measured), or other work runs on
the cores.
"""

import time

from benchmarks.loops import describe, make_loader
from benchmarks.made_data import CarryingDataset, Integers
from benchmarks.spec import WITH_SEED, Case, Measurement, Metric, Side


def first_batch(side: Side, *, start_method: str, payload: str, payload_mb: int) -> Measurement:
    """Time from before ``iter()`` until it returned, the first sample was made, and the first batch came."""
    dataset = CarryingDataset(payload, payload_mb * 1_000_000, num_samples=256)
    loader = make_loader(side, dataset, batch_size=32, num_workers=2, multiprocessing_context=start_method)
    start = time.perf_counter()
    iterator = iter(loader)
    returned = time.perf_counter()
    _indices, made_at = next(iterator)
    arrived = time.perf_counter()
    return {
        "iter ms": (returned - start) * 1e3,
        # On Linux all processes share this clock.
        "first sample ms": (float(made_at.min()) - start) * 1e3,
        "first batch ms": (arrived - start) * 1e3,
        "statistics": describe(loader),
    }


def two_loaders(side: Side, *, start_method: str, num_workers: int) -> Measurement:
    """Time to the first batch of a loader with torchvision's transforms, and of one that is made after its end."""
    from benchmarks.cases.fuse import CifarSizedImages

    found: dict[str, float] = {}
    for name in ("first", "second"):
        loader = make_loader(
            side,
            CifarSizedImages(32 * num_workers),
            batch_size=32,
            num_workers=num_workers,
            multiprocessing_context=start_method,
        )
        start = time.perf_counter()
        iterator = iter(loader)
        next(iterator)
        found[f"{name} loader ms"] = (time.perf_counter() - start) * 1e3
        for _batch in iterator:
            pass
    return found


def epoch_gap(side: Side, *, persistent_workers: bool, num_epochs: int) -> Measurement:
    """Time from the last batch of an epoch to the first batch of the next; the median over the epochs."""
    loader = make_loader(side, Integers(320), batch_size=32, num_workers=2, persistent_workers=persistent_workers)
    gaps = []
    previous_last: float | None = None
    for _epoch in range(num_epochs):
        latest = 0.0
        for number, _batch in enumerate(loader):
            latest = time.perf_counter()
            if number == 0 and previous_last is not None:
                gaps.append(latest - previous_last)
        previous_last = latest
    return {"gap ms": sorted(gaps)[len(gaps) // 2] * 1e3, "statistics": describe(loader)}


CASES = (
    *(
        Case(
            name=f"startup-{start_method}-{payload}",
            measure="benchmarks.cases.startup:first_batch",
            metrics=(
                Metric(name="first batch ms"),
                Metric(name="first sample ms", least_ratio=None),
                Metric(name="iter ms", least_ratio=None),
            ),
            arguments={"start_method": start_method, "payload": payload, "payload_mb": 100},
            quick={"payload_mb": 10},
            fresh_process=True,
        )
        for start_method, payload in (
            ("fork", "objects"),
            ("spawn", "objects"),
            ("spawn", "arrays"),
            ("forkserver", "objects"),
        )
    ),
    *(
        Case(
            name=f"startup-{start_method}-8-workers",
            measure="benchmarks.cases.startup:two_loaders",
            metrics=(
                Metric(name="first loader ms", least_ratio=2.5),
                Metric(name="second loader ms", least_ratio=2.5 if start_method == "spawn" else 10.0),
            ),
            arguments={"start_method": start_method, "num_workers": 8},
            fresh_process=True,
            repetitions=5,
        )
        for start_method in ("spawn", "forkserver")
    ),
    *(
        Case(
            name=f"startup-epoch-gap-{'persistent' if persistent_workers else 'new'}-workers",
            measure="benchmarks.cases.startup:epoch_gap",
            metrics=(Metric(name="gap ms"),),
            arguments={"persistent_workers": persistent_workers, "num_epochs": 30},
            quick={"num_epochs": 10},
            sides=WITH_SEED,
            repetitions=9,
        )
        for persistent_workers in (True, False)
    ),
)
