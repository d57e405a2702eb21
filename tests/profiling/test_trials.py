"""What trials say of settings: ratios of processor time, and clear errors where nothing is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload.errors import ConfigError, TraceError
from fastload.profiling.trials import Choice, Trials, chosen, trials_of

TORCH = Choice("torch", None, None)
AUTO = Choice("fastload", "auto", "sample")
FUSED = Choice("fastload", True, "sample")


def note(**times: list[int]) -> dict[str, object]:
    choices = {"torch": TORCH, "auto": AUTO, "fused": FUSED}
    return {"found": [{**choices[name]._asdict(), "cpu_ns": found} for name, found in times.items()]}


times = st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 10**9)), min_size=1, max_size=20)


@given(pairs=times)
def test_the_ratio_is_that_of_the_sums_and_lies_in_its_interval(pairs):
    before, after = map(list, zip(*pairs, strict=True))
    found = trials_of(note(torch=before, auto=after)).ratio(TORCH, AUTO)
    assert found.value == pytest.approx(sum(after) / sum(before))
    assert found.low <= found.value <= found.high


def test_equal_rounds_leave_nothing_open():
    assert trials_of(note(torch=[40, 80], auto=[10, 20])).ratio(TORCH, AUTO) == (0.25, 0.25, 0.25)


def test_what_was_not_tried_is_an_error_with_the_reason():
    found = trials_of({**note(torch=[4]), "reasons": [{**FUSED._asdict(), "reason": "Custom is no known dataset"}]})
    with pytest.raises(ConfigError, match="engine=fastload, fuse=True, seeding=sample: Custom is no known dataset"):
        found.ratio(TORCH, FUSED)
    with pytest.raises(ConfigError, match="an IterableDataset cannot be asked again"):
        trials_of({"reason": "an IterableDataset cannot be asked again"}).ratio(TORCH, AUTO)
    with pytest.raises(ConfigError, match="was not tried: fastload profile does so as it ends a script"):
        Trials().ratio(TORCH, AUTO)


@pytest.mark.parametrize(
    "damaged",
    [
        {"found": 3},
        {"found": [{"engine": "torch"}]},
        {"found": [{**TORCH._asdict(), "cpu_ns": ["many"]}]},
        {"found": [{**TORCH._asdict(), "cpu_ns": [[]]}]},
        {"found": [{**TORCH._asdict(), "fuse": [], "cpu_ns": [1]}]},
        {"reasons": [None]},
        note(torch=[1, 2], auto=[1]),
        note(torch=[]),
    ],
    ids=str,
)
def test_a_damaged_note_is_told(damaged):
    with pytest.raises(TraceError, match="the recording is damaged: its trials"):
        trials_of(damaged)


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
        ({"fuse": True}, "fuse is an argument of fastload's loader; set the engine to fastload too"),
        ({"engine": "fastload", "fuse": "all"}, "fuse must be 'auto', True or False, got 'all'"),
        ({"engine": "fastload", "fuse": 1}, "fuse must be 'auto', True or False, got 1"),
        ({"engine": "fastload", "seeding": "mine"}, "seeding must be sample or torch, got 'mine'"),
        ({"engine": "fastload", "seeding": "torch", "fuse": True}, "fuse=True draws parameters from each sample's key"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        chosen({"engine": "torch"}, settings)
