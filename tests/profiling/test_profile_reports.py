"""Reports of analyses made by hand: nothing hostile gets through, nothing unknown becomes zero, JSON comes back."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_verdicts import stalled, trace_of

from fastload.base.console import as_text, show
from fastload.profiling.analyze import analyze
from fastload.profiling.compare import compare, difference
from fastload.profiling.formatting import printable
from fastload.profiling.page import page
from fastload.profiling.schema import VERSION, Analysis, Cause, Interval, RankAnalysis, SlowSample
from fastload.profiling.summary import summary

HOSTILE = "/data/</script><script>throw 1</script>/\x1b[2J\u202egpj.\udcff<img src=x onerror=alert(1)>&amp;\n.jpg"
FOUND = analyze(trace_of(stalled(cpu_ns=0), warmup=8))
"""A step takes 42 ms, of which two workers read for 40."""


def interval(value: float, share: float = 0.04) -> Interval:
    return Interval(value=value, low=value * (1 - share), high=value * (1 + share))


def rank(cause: Cause | None = "read", *, step_ms: float = 182.0, **changes: Any) -> RankAnalysis:
    """Return the only rank of a recording; ``changes`` are fields of it."""
    (one,) = FOUND.ranks
    fields: dict[str, Any] = {
        "step_ms": interval(step_ms),
        "stall": interval(0.012 if cause == "compute" else 0.41),
        "verdict": replace(one.verdict, cause=cause),
    }
    return replace(one, **(fields | changes))


def analysis(cause: Cause | None = "read", **changes: Any) -> Analysis:
    """Return a recording's analysis; ``changes`` are fields of it."""
    fields = {"ranks": [rank(cause)], "fixes": [] if cause in (None, "compute") else FOUND.fixes}
    return replace(FOUND, **(fields | changes))


EIGHT_RANKS = analysis(
    "head-of-line",
    ranks=[rank("head-of-line" if number == 5 else "compute", rank=number) for number in range(8)],
    culprit=5,
)
OF_HOSTILE_NAMES = analysis(
    ranks=[
        rank(
            blame_ms={f"stage:{HOSTILE}": 75.0},
            workers=replace(FOUND.ranks[0].workers, stages_ms={HOSTILE: 3.0}),
            verdict=replace(FOUND.ranks[0].verdict, sentence=HOSTILE, evidence=[HOSTILE]),
            slow_samples=[SlowSample(index=1, file=HOSTILE, ms=4.0, stage=HOSTILE)],
        )
    ],
    command=[HOSTILE],
    fixes=[replace(FOUND.fixes[0], title=HOSTILE, change=f"- {HOSTILE}\n+ {HOSTILE}", limit=HOSTILE)],
    missing={HOSTILE: HOSTILE},
    versions={HOSTILE: HOSTILE},
)


def keeps_to(columns: int, lines: list[str]) -> bool:
    """Return whether lines have no more columns, but for names of files, and none has a control character."""
    return all(line.isprintable() and (len(line) <= columns or " ms  index " in line) for line in lines)


@pytest.mark.parametrize("columns", [50, 100])
def test_the_card_keeps_to_its_columns_and_holds_no_control(columns):
    for one in (analysis(), EIGHT_RANKS, OF_HOSTILE_NAMES):
        assert keeps_to(columns, as_text(summary(one), width=columns).split("\n"))


def test_the_names_of_files_can_be_copied_whatever_the_width() -> None:
    file = f"/data/{'a_folder/' * 30}Italian_greyhound.JPEG"
    one = analysis(ranks=[rank(slow_samples=[SlowSample(index=7, file=file, ms=4.0, stage="PIL.decode")])])
    assert f"4.0 ms  index 7  mostly PIL.decode  {file}\n" in as_text(summary(one), width=60)


def test_the_card_is_plain_where_no_terminal_is():
    file = io.StringIO()
    show(summary(analysis()), file=file)
    assert "read-bound (severe)" in file.getvalue()
    assert "\x1b" not in file.getvalue()
    ascii_file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    show(*compare(analysis(), analysis()), file=ascii_file)
    ascii_file.seek(0)
    assert "182 ms" in ascii_file.read()


def said(before: Analysis, after: Analysis, columns: int = 80) -> list[str]:
    """Return the lines of a comparison."""
    return as_text(*compare(before, after), width=columns).split("\n")


LIST = "dataset.samples, a list of 5,000,000, takes about 700 MiB"


def test_a_summary_has_fixes_with_their_bounds_or_the_reason_why_there_are_none() -> None:
    told = {
        "at most 72.8x; fastload tune measures it": analysis(),
        "at most 91.0x; record again to measure it": analysis(),
        "step then takes at least 2.5 ms (its batch 40.0 ms / 16 workers)": analysis(),
        "step takes at least 20.0 ms, the largest of: the loop 2.0 ms; its batch 40.0 ms / 2": analysis(),
        "nothing to change: the loader keeps up": analysis("compute"),
        "how the batches were made is not known": analysis("cpu", fixes=[], costs=None),
        "without a verdict": analysis(None),
        "no known change against this cause": analysis("pin", fixes=[]),
        LIST: analysis(ranks=[rank(loader={"copied": [LIST]})]),
        "head-of-line-bound (severe) rank 5 delays the others": EIGHT_RANKS,
    }
    for words, one in told.items():
        assert words in " ".join(as_text(summary(one), width=100).split())
    of_one_rank = as_text(summary(analysis()), width=100)
    assert LIST not in of_one_rank
    assert "rank 0" not in of_one_rank


def precise(step_ms: float) -> Analysis:
    """Return an analysis whose steps tell their mean to a thousandth."""
    one = analysis()
    one.ranks[0].step_ms = interval(step_ms, 0.001)
    return one


# Two runs, and how their comparison begins. Less than five percent is no difference, though the steps would tell.
COMPARED = [
    (analysis(), analysis("compute", ranks=[rank("compute", step_ms=107)]), "1.70x as fast; read-bound → compute"),
    (precise(182.0), precise(190.0), "no significant difference"),
    (precise(182.0), precise(192.0), "0.95x as fast"),
    (analysis(), analysis(ranks=[rank(step_ms=190)]), "no significant difference"),
    (analysis(), analysis(ranks=[rank(num_steps=7, step_ms=50)]), "too few steps to compare (52 and 7; at least 30"),
]


@pytest.mark.parametrize(("before", "after", "words"), COMPARED)
def test_a_comparison_begins_with_what_has_become_of_a_step(before: Analysis, after: Analysis, words: str) -> None:
    assert said(before, after)[0].startswith(words)


def test_states_that_changed_by_half_a_percent_of_a_step_have_lines_the_largest_change_first() -> None:
    before = analysis(ranks=[rank(blame_ms={"read": 40.0, "cpu": 5.0, "pin": 1.0})])
    after = analysis(ranks=[rank(blame_ms={"read": 10.0, "cpu": 7.0, "pin": 1.5})])
    changes = [line.split()[-2] for line in said(before, after) if line.endswith(" ms") and "%" not in line]
    assert changes == ["-30.0", "+2.0"]


def test_the_interval_of_a_difference_combines_those_of_both() -> None:
    found = difference(Interval(value=10, low=7, high=13), Interval(value=20, low=16, high=24))
    assert found == Interval(value=10, low=5, high=15)


def test_what_makes_two_runs_unlike_is_noted_and_lines_keep_to_their_columns() -> None:
    other = rank(rank=1, loader={"num_workers": 14, "dataset": HOSTILE}, blame_ms={f"stage:{HOSTILE}": 75.0})
    after = analysis(cores=4, ranks=[rank("compute", rank=0), other], versions={"python": "3.11.2"})
    before = analysis(ranks=[rank(rank=2)])
    for columns in (72, 100):
        assert keeps_to(columns, said(before, after, columns))
    text = " ".join(said(before, after, 1000))
    for words in (
        "the number of cores changed from 8 to 4",
        "the number of ranks changed from 1 to 2",
        "the rank that lost most changed from rank 2 to rank 1",
        "num_workers of the loader changed from 2 to 14",
        "python changed from 3.13.0 to 3.11.2",
    ):
        assert words in text


# -- the page ---------------------------------------------------------------------------------------------------------


def test_text_from_outside_is_text() -> None:
    text = page(OF_HOSTILE_NAMES)
    shown = printable(HOSTILE)
    assert "<script" in shown
    assert shown not in text
    assert text.count("&lt;/script&gt;&lt;script&gt;throw 1&lt;/script&gt;") > 4


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


@settings(max_examples=15)
@given(values_of(Analysis))
def test_whatever_the_numbers_and_words_are_every_report_is_made_and_its_page_loads_and_runs_nothing(one):
    assert json.loads(one.to_json()) == dataclasses.asdict(one)
    for report in ([summary(one)], compare(one, analysis())):
        assert "\x1b" not in as_text(*report, width=80)
    text = page(one)
    assert "default-src 'none'" in text
    assert not re.search(r"<script|<img|https?://|javascript:", text)
    text.encode("utf-8")


def test_no_number_in_json_is_infinite() -> None:
    one = analysis()
    one.ranks[0].stall = Interval(value=0.5, low=float("-inf"), high=0.6)
    with pytest.raises(ValueError, match="not JSON compliant"):
        one.to_json()
