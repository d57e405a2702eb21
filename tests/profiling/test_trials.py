"""What trials say of settings: ratios of processor time, and clear errors where nothing is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload.errors import ConfigError
from fastload.profiling.trials import Choice, Cost, Round, Trials, chosen, trials_of

TORCH = Choice("torch", None, None)
AUTO = Choice("fastload", "auto", "sample")
FUSED = Choice("fastload", True, "sample")
THREADS = {"engine": "fastload", "fuse": "auto", "seeding": "sample", "num_workers": 2, "worker_method": "thread"}


def note(**times: list[int]) -> dict[str, object]:
    choices = {"torch": TORCH, "auto": AUTO, "fused": FUSED}
    return {"cpu_ns": [(choices[name], found) for name, found in times.items()]}


times = st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 10**9)), min_size=1, max_size=20)


@given(pairs=times)
def test_the_ratio_is_that_of_the_sums_and_lies_in_its_interval(pairs):
    before, after = map(list, zip(*pairs, strict=True))
    found = trials_of(note(torch=before, auto=after)).ratio(TORCH, AUTO)
    assert found.value == (pytest.approx(sum(after) / sum(before)), 0.0, 0.0)
    assert found.low <= found.value <= found.high


def test_equal_rounds_leave_nothing_open():
    assert trials_of(note(torch=[40, 80], auto=[10, 20])).ratio(TORCH, AUTO) == (Cost(0.25),) * 3


rounds = st.builds(Round, *[st.integers(0, 10**9), *[st.integers(1, 10**9)] * 2, *[st.integers(0, 10**9)] * 2])


@given(tried=st.lists(rounds, min_size=1, max_size=12), number=st.integers(1, 16))
def test_the_cost_of_threads_lies_in_its_interval_and_no_thread_waits_for_longer_than_the_others_compute(tried, number):
    threads = AUTO._replace(threads=number)
    found = Trials({AUTO: (1,)}, {threads: tuple(tried)}).ratio(AUTO, threads)
    for low, value, high in zip(found.low, found.value, found.high, strict=True):
        assert 0.0 <= low <= value <= high
    longest = max(max(one.blocked, (number - 1) * one.cpu) / one.process_cpu for one in tried)
    assert found.high.waiting <= longest * (1 + 1e-9)


def in_threads(**times: int) -> Trials:
    """Return trials of two threads, whose samples take 10 in a process."""
    one = Round(**{"inline_blocked": 0, "process_cpu": 10, "cpu": 10, "blocked": 0, "queued": 0, **times})
    return Trials({TORCH: (20,), AUTO: (10,)}, {AUTO._replace(threads=2): (one,) * 3})


@pytest.mark.parametrize(
    ("times", "low", "high"),
    [
        ({}, Cost(), Cost()),
        ({"cpu": 15}, Cost(1.5), Cost(1.5)),
        ({"blocked": 8}, Cost(1.0, 0.8), Cost(1.0, 0.8, 0.8)),
        ({"inline_blocked": 30, "blocked": 33}, Cost(1.0, 0.3), Cost(1.0, 0.3, 0.3)),  # a read is no waiting for Python
        ({"inline_blocked": 30, "blocked": 28}, Cost(), Cost()),
        ({"blocked": 2, "queued": 4}, Cost(1.0, 0.2), Cost(1.0, 0.6, 0.6)),  # nobody knows what the run queue hid
        ({"blocked": 2, "queued": 40}, Cost(1.0, 0.2), Cost(1.0, 1.0, 1.0)),
    ],
    ids=str,
)
def test_threads_wait_for_as_long_as_they_are_blocked_and_perhaps_while_others_have_the_cores(times, low, high):
    found = in_threads(**times).ratio(AUTO, AUTO._replace(threads=2))
    assert found.low == pytest.approx(low)
    assert found.high == pytest.approx(high)


def test_what_threads_cost_is_on_top_of_what_the_loader_does_and_goes_with_them():
    found = in_threads(cpu=12, blocked=5)
    threads = AUTO._replace(threads=2)
    assert found.ratio(TORCH, threads).value == pytest.approx((0.6, 0.25, 0.25))
    assert found.ratio(threads, AUTO).value == pytest.approx((1 / 1.2, -0.5 / 1.2, 0.0))
    assert found.ratio(threads, threads).value == Cost()
    assert found.ratio(threads, AUTO._replace(threads=5)).value == Cost()  # of threads another number: not simulated


def test_a_number_of_threads_that_was_not_tried_is_an_error_that_names_those_that_were():
    with pytest.raises(ConfigError, match="num_workers=5: 2 threads were tried, not 5"):
        in_threads().ratio(TORCH, AUTO._replace(threads=5))
    with pytest.raises(ConfigError, match="what samples cost with other settings was not measured"):
        Trials({AUTO: (1,)}).ratio(AUTO, AUTO._replace(threads=2))


def test_what_was_not_tried_is_an_error_with_the_reason():
    found = trials_of({**note(torch=[4]), "reasons": [(FUSED, "Custom is no known dataset")]})
    with pytest.raises(ConfigError, match="engine=fastload, fuse=True, seeding=sample: Custom is no known dataset"):
        found.ratio(TORCH, FUSED)
    with pytest.raises(ConfigError, match="an IterableDataset cannot be asked again"):
        trials_of({"reason": "an IterableDataset cannot be asked again"}).ratio(TORCH, AUTO)
    with pytest.raises(ConfigError, match="was not measured: fastload profile does so when the script ends"):
        Trials().ratio(TORCH, AUTO)


@pytest.mark.parametrize(
    ("loader", "settings", "after"),
    [
        ({"engine": "torch"}, {}, TORCH),
        ({"engine": "torch"}, {"engine": "fastload"}, AUTO),
        ({"engine": "torch"}, {"engine": "fastload", "fuse": True}, FUSED),
        ({"engine": "fastload", "fuse": False, "seeding": "sample"}, {"fuse": True}, FUSED),
        ({"engine": "fastload", "fuse": False, "seeding": "torch"}, {}, Choice("fastload", False, "torch")),
        ({"engine": "fastload", "fuse": "auto", "seeding": "sample"}, {"engine": "torch"}, TORCH),
        ({"num_workers": 3}, {"engine": "fastload", "worker_method": "thread"}, AUTO._replace(threads=3)),
        ({"num_workers": 0}, {"engine": "fastload", "worker_method": "thread"}, AUTO),
        (
            {"num_workers": 0},
            {"engine": "fastload", "worker_method": "thread", "num_workers": 4},
            AUTO._replace(threads=4),
        ),
        (THREADS, {"num_workers": 4}, AUTO._replace(threads=4)),
        (THREADS, {"worker_method": "multiprocessing"}, AUTO),
        (THREADS, {"engine": "torch"}, TORCH),
    ],
)
def test_settings_change_what_a_loader_was_set_to(loader, settings, after):
    assert chosen(loader, settings)[1] == after


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fuse": True}, "fuse is an argument of fastload's loader; set engine=fastload too"),
        ({"worker_method": "thread"}, "worker_method is an argument of fastload's loader; set engine=fastload"),
        ({"engine": "fastload", "seeding": "torch", "fuse": True}, "fuse=True needs seeding='sample'"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        chosen({"engine": "torch"}, settings)
