"""The ImageNet pipeline in worker threads of fastload, beside torch's worker processes.

Claim: none yet; the row shows what ``worker_method="thread"`` is worth where decoding releases the GIL and the
transforms do not.

Meaningless if: what holds for ``imagefolder.py``; and the consumer here needs no GIL between batches, as a training
loop does.
"""

from benchmarks.spec import TORCH, Benchmark, Side, rates

_THREADS = Side(name="fastload threads", package="fastload", options={"worker_method": "thread"}, compared_with="torch")

BENCHMARKS = (
    Benchmark(
        name="thread",
        measure="benchmarks.cases.imagefolder:epoch",
        metrics=rates(None, None),
        arguments={"version": "v2", "num_images": 4000, "batch_size": 100},
        quick_arguments={"num_images": 2000},
        sides=(TORCH, _THREADS),
        needs_images=True,
    ),
)
