"""The analysis as JSON: it comes back the same, and what is not one is refused by a line that says what to do."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profile_analyses import analysis, rank

from fastload.base.console import as_text
from fastload.errors import TraceError
from fastload.profiling.compare import compare, table
from fastload.profiling.page import page
from fastload.profiling.perfetto import trace_json
from fastload.profiling.schema import VERSION, Analysis, Interval
from fastload.profiling.summary import summary

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


def rendered(one: Analysis) -> None:
    """Make every report of it."""
    as_text(summary(one), width=80)
    page(one).encode("utf-8")
    json.loads(trace_json(one))
    comparison = compare(one, analysis("read"))
    as_text(*table(comparison), width=80)
    json.loads(comparison.to_json())


@given(values_of(Analysis))
def test_what_is_written_is_read_as_the_same_and_has_every_report(one: Analysis) -> None:
    assert Analysis.from_json(one.to_json(), "here") == one
    rendered(one)


def valid(**changes: Any) -> dict[str, Any]:
    """Return the JSON of a small analysis, with fields of the whole changed."""
    small = analysis("read", ranks=[rank("read", num_steps=2)])
    return json.loads(small.to_json()) | changes


REMEDY = "name a file that fastload profile wrote, or delete it: it is made again from its recording"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "here cannot be read: Expecting value: line 1 column 1 (char 0); "),
        ("[" * 100_000, "here cannot be read: maximum recursion depth exceeded"),
        (json.dumps(valid(ranks=5)), "here cannot be read: 'int' object is not iterable; "),
        (json.dumps(valid(ranks=[{}])), "required keyword-only arguments: 'rank', "),
        (json.dumps(valid(version=1)), "here cannot be read: it has format version 1, and this fastload reads 2; "),
        (json.dumps(valid(version=3)), "here cannot be read: it has format version 3, and this fastload reads 2; "),
        ("{}", "here cannot be read: 'version'; "),
    ],
)
def test_what_is_no_analysis_is_refused_with_what_to_do(text: str, message: str) -> None:
    with pytest.raises(TraceError) as found:
        Analysis.from_json(text, "here")
    assert message in str(found.value)
    assert str(found.value).endswith(REMEDY)


def test_unknown_fields_are_passed_over_and_those_that_were_added_later_have_a_default() -> None:
    whole = valid(new_field=[4])
    whole["ranks"][0]["workers"]["temperature"] = 40
    del whole["grid"], whole["ranks"][0]["pins"]
    found = Analysis.from_json(json.dumps(whole), "here")
    assert (found.grid, found.ranks[0].pins) == (None, [])


def test_a_number_that_json_cannot_say_is_refused_when_it_is_written() -> None:
    one = analysis("read")
    one.ranks[0].stall = Interval(value=0.5, low=float("-inf"), high=0.6)
    with pytest.raises(ValueError, match="not JSON compliant"):
        one.to_json()
