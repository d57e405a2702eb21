"""Analyses made by hand: one for each kind of verdict, and those that strain a report."""

from __future__ import annotations

import functools
from typing import Any

from fastload.profiling.schema import (
    Analysis,
    Cause,
    Fix,
    Interval,
    RankAnalysis,
    SlowSample,
    StepCosts,
    Verdict,
    Workers,
)

HOSTILE = "/data/</script><script>throw 1</script>/\x1b[2J\u202egpj.\udcff<img src=x onerror=alert(1)>&amp;\n.jpg"

BLAMES: dict[Cause | None, dict[str, float]] = {
    "compute": {"collate": 0.6, "transport": 0.4},
    "read": {"read": 0.71, "stage:Decode": 0.12, "stage:RandomResizedCrop": 0.06, "collate": 0.05, "transport": 0.06},
    "cpu": {"stage:RandAugment": 0.44, "stage:Decode": 0.31, "sample": 0.08, "collate": 0.06, "run-queue": 0.11},
    "head-of-line": {"queued": 0.22, "stage:Decode": 0.49, "read": 0.2, "transport": 0.09},
    "pin": {"pin": 0.68, "main-thread": 0.2, "sampler": 0.12},
    "startup": {"startup": 0.79, "gil": 0.21},
    None: {"sample": 0.5, "other": 0.5},
}
"""Of the other causes as of the last one."""

COSTS = StepCosts(
    step_ms=182.0,
    loop_ms=107.0,
    loop_cpu_ms=60.0,
    batch_ms=1400.0,
    batch_cpu_ms=260.0,
    start_ms=4.0,
    copy_ms=0.0,
    workers=8,
    cores=16,
    takes_turns=False,
)


def interval(value: float, share: float = 0.04) -> Interval:
    return Interval(value=value, low=value * (1 - share), high=value * (1 + share))


def rank(
    cause: Cause | None = "read",
    *,
    number: int | None = None,
    num_steps: int = 200,
    num_workers: int = 8,
    step_ms: float = 182.0,
    stall: float | None = None,
    files: tuple[str | None, ...] = ("/data/train/n01440764/n01440764_10026.JPEG",),
) -> RankAnalysis:
    """A rank that could have been."""
    share = stall if stall is not None else 0.012 if cause == "compute" else 0.41
    stalled = step_ms * share
    blame = {state: part * stalled for state, part in BLAMES.get(cause, BLAMES[None]).items()}
    severity = "none" if share < 0.05 else "severe" if share >= 0.2 else "moderate"
    words = f"the loop waits {share:.0%} of its time for data"
    slow = [
        SlowSample(
            index=4711 + place * 97,
            file=files[place % len(files)],
            ms=612.5 / (place + 1),
            stage="Decode" if place % 2 else None,
        )
        for place in range(8)
    ]
    return RankAnalysis(
        rank=number,
        process=31337 + (number or 0),
        loader={"class": "torch.utils.data.DataLoader", "num_workers": num_workers, "prefetch_factor": 2},
        num_steps=num_steps,
        num_warmup=20,
        clock="host",
        step_ms=interval(step_ms),
        compute_ms=step_ms - stalled,
        stall=interval(share, 0.08),
        blame_ms=blame,
        first_batch_ms=2310.0,
        epoch_gap_ms=412.0,
        workers=Workers(
            number=num_workers,
            method="fork" if num_workers else "inline",
            busy=0.97,
            task_p50_ms=611.0,
            task_p99_ms=1480.0,
            on_cpu=0.19,
            run_queue=0.06,
            blocked=0.75,
            slowest_over_median=1.08,
            slowest=3,
            stages_ms={"Decode": 6.1, "RandomResizedCrop": 1.9, "ToTensor": 0.42, "collate": 0.31},
        ),
        verdict=Verdict(
            cause=cause,
            severity=severity,
            sentence=words,
            evidence=[] if cause is None else ["12 % of bytes came from the page cache", "143 MB/s from storage"],
        ),
        slow_samples=slow,
    )


def fixes() -> list[Fix]:
    return [
        Fix(
            title="num_workers 8 -> 14",
            change="- loader = DataLoader(train, batch_size=64, num_workers=8)\n"
            "+ loader = DataLoader(train, batch_size=64, num_workers=14)",
            least_ms=121.0,
            limit="its batch 1694 ms / 14 workers",
            tuned=True,
        ),
        Fix(
            title="let samples, not batches, go to free workers (fastload)",
            change="- python train.py\n+ fastload run train.py",
            least_ms=168.0,
            limit="the loop 168 ms",
            tuned=False,
        ),
    ]


def analysis(cause: Cause | None = "read", **changes: Any) -> Analysis:
    """A recording's analysis; ``changes`` are fields of it."""
    values: dict[str, Any] = {
        "command": ["train.py", "--epochs", "3"],
        "recorded": "2026-03-05T14:30:00+01:00",
        "versions": {"python": "3.11.7", "torch": "2.13.0", "fastload": "0.1.0"},
        "cores": 16,
        "ranks": [rank(cause)],
        "culprit": None,
        "fixes": [] if cause in (None, "compute") else fixes(),
        "costs": COSTS,
        "overhead": 0.004,
        "missing": {"device idle time": "no CUDA device is in use, so waits of the host are counted"},
    }
    return Analysis(**(values | changes))


def bare() -> Analysis:
    """Nothing known that may be unknown, nothing in any list."""
    one = rank(None, num_steps=0)
    one.num_steps, one.slow_samples, one.blame_ms = 0, [], {}
    one.loader, one.first_batch_ms, one.epoch_gap_ms = {}, None, None
    one.stall, one.step_ms, one.compute_ms = interval(0.0), interval(0.0), 0.0
    one.workers = Workers(
        number=0,
        method="inline",
        busy=None,
        task_p50_ms=None,
        task_p99_ms=None,
        on_cpu=None,
        run_queue=None,
        blocked=None,
        slowest_over_median=None,
        slowest=None,
        stages_ms={},
    )
    return analysis(
        None,
        command=[],
        versions={},
        ranks=[one],
        costs=None,
        overhead=None,
        missing={},
    )


def eight_ranks() -> Analysis:
    ranks = [
        rank("head-of-line" if number == 5 else "compute", number=number, stall=0.38 if number == 5 else 0.02)
        for number in range(8)
    ]
    return analysis("head-of-line", ranks=ranks, culprit=5)


def hostile() -> Analysis:
    one = rank("cpu", files=(HOSTILE, None))
    one.blame_ms = {f"stage:{HOSTILE}": one.step_ms.value * one.stall.value}
    one.workers.stages_ms = {HOSTILE: 3.0}
    one.verdict.sentence = HOSTILE
    one.verdict.evidence = [HOSTILE]
    worst = fixes()[:1]
    worst[0].title, worst[0].change, worst[0].limit = HOSTILE, f"- {HOSTILE}\n+ {HOSTILE}", HOSTILE
    return analysis(
        "cpu",
        ranks=[one],
        command=[HOSTILE],
        fixes=worst,
        missing={HOSTILE: HOSTILE},
        versions={HOSTILE: HOSTILE},
    )


@functools.cache
def all_kinds() -> dict[str, Analysis]:
    """Return analyses of all kinds."""
    kinds = {f"verdict {cause}": analysis(cause) for cause in BLAMES}
    kinds |= {"bare": bare(), "eight ranks": eight_ranks(), "hostile": hostile()}
    kinds["unknown costs"] = analysis("cpu", fixes=[], costs=None)
    return kinds
