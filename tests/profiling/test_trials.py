"""What trials say of settings: ratios of processor time, and clear errors where nothing is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload.errors import ConfigError
from fastload.profiling.trials import Choice, Trials, chosen, trials_of

TORCH = Choice("torch", None, None)
AUTO = Choice("fastload", "auto", "sample")
FUSED = Choice("fastload", True, "sample")


def note(**times: list[int]) -> dict[str, object]:
    choices = {"torch": TORCH, "auto": AUTO, "fused": FUSED}
    return {"cpu_ns": [(choices[name], found) for name, found in times.items()]}


times = st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 10**9)), min_size=1, max_size=20)


@given(pairs=times)
def test_the_ratio_is_that_of_the_sums_and_lies_in_its_interval(pairs):
    before, after = map(list, zip(*pairs, strict=True))
    found = trials_of(note(torch=before, auto=after)).ratio(TORCH, AUTO)
    assert found.value == pytest.approx(sum(after) / sum(before))
    assert found.low <= found.value <= found.high


def test_equal_rounds_leave_nothing_open():
    assert trials_of(note(torch=[40, 80], auto=[10, 20])).ratio(TORCH, AUTO) == (0.25,) * 3


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
    ],
)
def test_settings_change_what_a_loader_was_set_to(loader, settings, after):
    assert chosen(loader, settings)[1] == after


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fuse": True}, "fuse is an argument of fastload's loader; set engine=fastload too"),
        ({"engine": "fastload", "seeding": "torch", "fuse": True}, "fuse=True needs seeding='sample'"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        chosen({"engine": "torch"}, settings)


def test_what_processes_would_cost_is_not_known_of_threads():
    threads = {"engine": "fastload", "fuse": "auto", "seeding": "sample", "num_workers": 2, "worker_method": "thread"}
    assert chosen(threads, {"num_workers": 4, "fuse": True}) == (AUTO, FUSED)
    with pytest.raises(ConfigError, match="engine=torch cannot be predicted from a recording with worker threads"):
        chosen(threads, {"engine": "torch"})
