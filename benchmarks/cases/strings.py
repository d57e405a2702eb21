"""A dataset of ten million short strings: what the workers' copies of it cost.

Claim: no more memory over an epoch than with torch's loader; and with ``fastload.share``, what eight workers add in two
epochs is at most a tenth.

Forked workers share the strings with the parent until they read them: reading writes a reference count, and the kernel
copies the page. A million strings, drawn at random, touch nearly every page in both workers, so they cost what a whole
epoch costs, in a tenth of the time.

"MiB" counts anonymous and shared pages of the process and its workers, shared ones once (see ``process_memory.py``).

Meaningless if: the machine swaps (about 3 GB are needed for ten million strings).
"""

import random
import time

from benchmarks.loops import describe, make_loader
from benchmarks.made_data import ShortStrings
from benchmarks.process_memory import read_tree_memory
from benchmarks.spec import Benchmark, Measurement, Metric, Side


def epoch(side: Side, *, num_strings: int, num_read: int) -> Measurement:
    """Read the memory before, during and after an epoch over ``num_read`` of the strings, in batches of 1,000."""
    dataset = ShortStrings(num_strings)
    indices = random.Random(0).sample(range(num_strings), num_read)
    loader = make_loader(side, dataset, batch_size=1000, sampler=indices, num_workers=2)
    before = read_tree_memory()
    num_batches = len(loader)
    every = max(1, num_batches // 10)
    peak = before
    for number, _batch in enumerate(loader, start=1):
        # The last batch is here before the workers are told to stop, so the peak is not missed.
        if number % every == 0 or number == num_batches:
            peak = max(peak, read_tree_memory(), key=lambda memory: memory.own_mib)
    after = read_tree_memory()
    return {
        "MiB before": before.own_mib,
        "MiB at peak": peak.own_mib,
        "MiB added": peak.own_mib - before.own_mib,
        "RSS MiB at peak": peak.rss_mib,
        "MiB after": after.own_mib,
        "statistics": describe(loader),
    }


def two_epochs(side: Side, *, num_strings: int, num_workers: int) -> Measurement:
    """Read by how much the memory grows between the first batch and the end of the second epoch, over all strings.

    Torch's side has the list, fastload's has it shared. "grown MiB" counts proportional sizes (PSS) of all processes.
    """
    dataset = ShortStrings(num_strings)
    begin = time.perf_counter()
    if side.package != "torch":
        from fastload import share

        dataset.strings = share(dataset.strings)  # type: ignore[assignment] # it is a sequence of strings too
    share_s = time.perf_counter() - begin
    arguments = {"batch_size": 1000, "shuffle": True, "num_workers": num_workers, "persistent_workers": True}
    loader = make_loader(side, dataset, **arguments)
    first = last = read_tree_memory()
    num_batches = len(loader)
    for epoch_number in range(2):
        for number, _batch in enumerate(loader):
            if epoch_number == number == 0:
                first = read_tree_memory()
            if epoch_number == 1 and number == num_batches - 1:
                last = read_tree_memory()
    return {
        "grown MiB": last.pss_mib - first.pss_mib,
        "PSS MiB": last.pss_mib,
        "share s": share_s,
        "statistics": describe(loader),
    }


BENCHMARKS = (
    Benchmark(
        name="strings",
        measure="benchmarks.cases.strings:epoch",
        metrics=(
            Metric(name="MiB before", least_ratio=None),
            Metric(name="MiB at peak"),
            Metric(name="MiB added"),
            Metric(name="RSS MiB at peak", least_ratio=None),
            Metric(name="MiB after", least_ratio=None),
        ),
        arguments={"num_strings": 10_000_000, "num_read": 1_000_000},
        quick_arguments={"num_strings": 1_000_000, "num_read": 100_000},
        fresh_process=True,
    ),
    Benchmark(
        name="strings-shared",
        measure="benchmarks.cases.strings:two_epochs",
        metrics=(
            # What fastload's workers grow by is near zero or below it. The bound is a tenth of torch's growth.
            Metric(name="grown MiB", has_ratio=False, most_value=445.0),
            Metric(name="PSS MiB", least_ratio=5.0),
            Metric(name="share s", has_ratio=False, most_value=10.0),
        ),
        arguments={"num_strings": 10_000_000, "num_workers": 8},
        quick_arguments={"num_strings": 1_000_000, "num_workers": 8},
        fresh_process=True,
    ),
)
