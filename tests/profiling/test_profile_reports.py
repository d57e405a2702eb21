"""Reports of analyses made by hand: nothing hostile gets through, nothing unknown becomes zero, JSON comes back."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profile_analyses import HOSTILE, all_kinds, analysis, interval, rank
from rich.color import ANSI_COLOR_NAMES
from test_blame import ranks, task_of

from fastload.base.console import as_text, show
from fastload.profiling.analyze import analyze
from fastload.profiling.compare import compare, difference
from fastload.profiling.formatting import STATES, printable, state_of
from fastload.profiling.page import page
from fastload.profiling.perfetto import trace_json
from fastload.profiling.schema import VERSION, Analysis, Interval, RankAnalysis, SlowSample
from fastload.profiling.summary import summary
from fastload.profiling.trace import Trace

KINDS = all_kinds()


@pytest.mark.parametrize("kind", KINDS)
def test_the_card_keeps_to_its_columns_and_holds_no_control(kind):
    for columns in (50, 100):
        lines = as_text(summary(KINDS[kind]), width=columns).split("\n")
        wrapped = [line for line in lines if " ms  index " not in line]  # names of files are not
        assert max(map(len, wrapped)) <= columns
        assert all(line.isprintable() for line in lines)


def test_the_names_of_files_can_be_copied_whatever_the_width() -> None:
    one = analysis("read")
    file = f"/data/{'a_folder/' * 30}Italian_greyhound.JPEG"
    one.ranks[0].slow_samples = [SlowSample(index=7, file=file, ms=4.0, stage="PIL.decode")]
    assert f"4.0 ms  index 7  mostly PIL.decode  {file}\n" in as_text(summary(one), width=60)


def test_the_card_is_plain_where_no_terminal_is():
    file = io.StringIO()
    show(summary(analysis("read")), file=file)
    assert "read-bound (severe)" in file.getvalue()
    assert "\x1b" not in file.getvalue()
    ascii_file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    show(*compare(analysis("read"), analysis("read")), file=ascii_file)
    ascii_file.seek(0)
    assert "182 ms" in ascii_file.read()


def test_every_state_has_words_a_colour_and_a_cause():
    for state in (*STATES.keys() - {"other"}, "stage:Crop"):
        found = state_of(state)
        assert found.meaning != state_of("other").meaning
        assert found.colour in ANSI_COLOR_NAMES
        assert (found.cause is None) == (state == "queued")


@given(one=ranks(), other=ranks())
@settings(max_examples=30)
def test_the_trace_has_what_the_format_asks_for(one, other):
    one.steps[0].batch.tasks.append(task_of(one.steps[0].wait.begun, one.steps[0].wait.ended, worker=7))
    found = analyze(Trace([one, other], [HOSTILE], {}, {}, 0))
    events = json.loads(trace_json([one, other], found))["traceEvents"]
    fields = {
        "X": {"ts", "dur", "name"},
        "M": {"name", "args"},
    }
    for event in events:
        assert fields[event["ph"]] | {"pid", "tid"} <= set(event)
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
    assert {event["pid"] for event in events} == {1, 2}
    assert {"main", "worker 7"} <= {event["args"]["name"] for event in events if event["name"] == "thread_name"}


def said(before: Analysis, after: Analysis, columns: int = 80) -> list[str]:
    """Return the lines of a comparison."""
    return as_text(*compare(before, after), width=columns).split("\n")


def test_a_faster_run_is_told_with_its_change_of_verdict():
    found = difference(Interval(value=10, low=7, high=13), Interval(value=20, low=16, high=24))
    assert found == Interval(value=10, low=5, high=15)
    faster = analysis("compute", ranks=[rank("compute", step_ms=107)])
    assert said(analysis("read"), faster)[0] == "1.70x as fast; read-bound → compute-bound"


LIST = "dataset.samples, a list of 5,000,000, takes about 700 MiB"


def with_a_list() -> Analysis:
    """Return an analysis of a loader whose workers copy a list."""
    one = analysis("read")
    one.ranks[0].loader = {**one.ranks[0].loader, "copied": [LIST]}
    return one


def test_a_summary_has_fixes_with_their_bounds_or_the_reason_why_there_are_none() -> None:
    told = {
        "at most 1.5x; fastload tune measures it": analysis("read"),
        "at most 1.1x; record again to measure it": analysis("read"),
        "step then takes at least 121 ms (its batch 1694 ms / 14 workers)": analysis("read"),
        "step takes at least 175 ms, the largest of: the loop 107 ms; its batch 1400 ms / 8": analysis("read"),
        "nothing to change: the loader keeps up": analysis("compute"),
        "how the batches were made is not known": KINDS["unknown costs"],
        "without a verdict": analysis(None),
        "no known change against this cause": analysis("pin", fixes=[]),
        LIST: with_a_list(),
    }
    for words, one in told.items():
        assert words in " ".join(as_text(summary(one), width=100).split())
    assert LIST not in as_text(summary(analysis("read")), width=100)


def test_less_than_five_percent_is_no_difference_though_the_steps_would_tell() -> None:
    before, after = (analysis("read", ranks=[rank("read", step_ms=step_ms)]) for step_ms in (182.0, 190.0))
    for one in (before, after):
        one.ranks[0].step_ms = interval(one.ranks[0].step_ms.value, 0.001)
    assert difference(before.ranks[0].step_ms, after.ranks[0].step_ms).low > 0
    assert said(before, after)[0].startswith("no significant difference")
    after.ranks[0].step_ms = interval(192.0, 0.001)
    assert said(before, after)[0].startswith("0.95x as fast")


def test_of_few_steps_no_difference_is_told() -> None:
    shorter = analysis("read", ranks=[rank("read", num_steps=7, step_ms=50)])
    told = said(analysis("read"), shorter)[0]
    assert told == "too few steps to compare (200 and 7; at least 30 are needed); read-bound"


def test_what_makes_two_runs_unlike_is_noted_and_lines_keep_to_their_columns() -> None:
    one = rank("read", num_workers=14, number=1)
    one.loader = {**one.loader, "dataset": HOSTILE}
    one.blame_ms = {f"stage:{HOSTILE}": 75.0}
    after = analysis("read", cores=8, ranks=[rank("compute", number=0), one], versions={"torch": "2.6.0"})
    before = analysis("read", ranks=[rank("read", number=2)])
    for columns in (72, 80, 100):
        lines = said(before, after, columns)
        wrapped = [line for line in lines if " ms  index " not in line]  # names of files are not
        assert max(map(len, wrapped)) <= columns
        assert all(line.isprintable() for line in lines)
    text = " ".join(said(before, after, 1000))
    assert "the number of cores changed from 16 to 8" in text
    assert "the number of ranks changed from 1 to 2" in text
    assert "the rank that lost most changed from rank 2 to rank 1" in text
    assert "num_workers of the loader changed from 8 to 14" in text
    assert "torch changed from 2.13.0 to 2.6.0" in text


# -- the page ---------------------------------------------------------------------------------------------------------


def test_text_from_outside_is_text() -> None:
    text = page(KINDS["hostile"])
    shown = printable(HOSTILE)
    assert "<script" in shown
    assert shown not in text
    assert text.count("&lt;/script&gt;&lt;script&gt;throw 1&lt;/script&gt;") > 4


def test_the_page_has_the_stages_the_settings_and_each_rank() -> None:
    assert "RandomResizedCrop" in page(KINDS["verdict read"])
    assert "prefetch_factor: 2" in page(KINDS["verdict read"])
    text = page(KINDS["eight ranks"])
    assert text.count("<details>") == 7
    assert "<summary>rank 0: compute-bound</summary>" in text
    assert text.index("delays the others") < text.index("<details>")


# -- whatever is in them -----------------------------------------------------------------------------------------------


TEXTS = st.text(max_size=8) | st.sampled_from(["stage:\udcff", "\x1b[2J", "</script>", "main-thread", "\u202e", ""])
NUMBERS = st.floats(-1e15, 1e15) | st.sampled_from([0.0, -0.0, 1e-320, 1e15, -1e15])
INTEGERS = st.integers(-(1 << 63), 1 << 63) | st.integers(0, 4)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return all values that a field of this type may have."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        parts = {one.name: values_of(hints[one.name]) for one in dataclasses.fields(kind)}
        if kind is Analysis:
            parts["version"] = st.just(VERSION)
            parts["ranks"] = st.lists(values_of(RankAnalysis), min_size=1, max_size=3)
        return st.builds(kind, **parts)  # type: ignore[arg-type] # a class
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(values_of, arguments))
    if origin is list:
        return st.lists(values_of(arguments[0]), max_size=3)
    if origin is Mapping:
        return st.dictionaries(TEXTS, values_of(arguments[1]), max_size=3)
    plain = {int: INTEGERS, float: NUMBERS, str: TEXTS, bool: st.booleans(), type(None): st.none(), Any: PLAIN}
    return plain[kind]


@settings(max_examples=30)
@given(values_of(Analysis))
def test_whatever_the_numbers_and_words_are_every_report_is_made_and_its_page_loads_and_runs_nothing(
    one: Analysis,
) -> None:
    assert json.loads(one.to_json()) == dataclasses.asdict(one)
    as_text(summary(one), width=80)
    as_text(*compare(one, analysis("read")), width=80)
    text = page(one)
    assert "default-src 'none'" in text
    assert not re.search(r"<script|<img|https?://|javascript:", text)
    text.encode("utf-8")


def test_no_number_in_json_is_infinite() -> None:
    one = analysis("read")
    one.ranks[0].stall = Interval(value=0.5, low=float("-inf"), high=0.6)
    with pytest.raises(ValueError, match="not JSON compliant"):
        one.to_json()
