"""The analysis as JSON: it comes back the same, and what is not one is refused by a line that says what to do."""

from __future__ import annotations

import copy
import dataclasses
import json
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profile_analyses import analysis, bare, fixes, grid, hostile, rank

from fastload import cli
from fastload.base.console import as_text
from fastload.errors import TraceError
from fastload.profiling.compare import compare, table
from fastload.profiling.page import page
from fastload.profiling.perfetto import trace_json
from fastload.profiling.schema import LARGEST, VERSION, Analysis, Interval
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


def changed(*path: Any, to: Any) -> str:
    """Return the JSON of a small analysis with a value changed."""
    whole = valid()
    inner = whole
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = to
    return json.dumps(whole)


REMEDY = "name a file that fastload profile wrote, or delete it and name its recording, from which it is made again"
DEEP: Any = []
for _ in range(30):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "here cannot be read: Expecting value: line 1 column 1 (char 0); "),
        ("[" * 100_000, "here cannot be read: maximum recursion depth exceeded"),
        ('{"a":' * 100_000, "here cannot be read: maximum recursion depth exceeded"),
        ("1" * 5_000, "here cannot be read: Exceeds the limit"),
        (
            changed("ranks", 0, "stall", "value", to=float("nan")),
            "here cannot be read: NaN is not a finite number; ",
        ),
        (changed("overhead", to=1e19), ": analysis.overhead must be a number of at most 9.22e+18 in size, got 1e+19; "),
        (changed("cores", to=1 << 70), ": analysis.cores must be an integer of at most 9.22e+18 in size, got 118059"),
        (changed("cores", to=2.5), ": analysis.cores must be an integer, got 2.5; "),
        (changed("cores", to=True), ": analysis.cores must be an integer, got True; "),
        (changed("cores", to=None), ": analysis.cores must be an integer, got None; "),
        (changed("command", to="train.py"), ": analysis.command must be a list, got 'train.py'; "),
        (changed("versions", to=[["a", 1]]), ": analysis.versions must be a mapping, got [['a', 1]]; "),
        (changed("versions", "torch", to=2), ": analysis.versions.'torch' must be a string, got 2; "),
        (changed("simulation", "trusted", to=1), ": analysis.simulation.trusted must be true or false, got 1; "),
        (changed("ranks", 0, "clock", to="wall"), ": analysis.ranks[0].clock must be 'host' or 'device', got 'wall'; "),
        (changed("fixes", 1, to=None), ": analysis.fixes[1] must be a mapping, got None; "),
        (
            changed("ranks", 0, "steps", 1, to=DEEP),
            ": analysis.ranks[0].steps[1] must be a mapping, got [[[[[[[...]]]]]]]",
        ),
        (changed("ranks", 0, "loader", to={"timeout": float("inf")}), ": Infinity is not a finite number; "),
    ],
)
def test_what_is_no_analysis_is_refused_with_its_place_and_what_to_do(text: str, message: str) -> None:
    with pytest.raises(TraceError) as found:
        Analysis.from_json(text, "here")
    assert message in str(found.value)
    assert str(found.value).endswith(REMEDY)
    assert len(str(found.value)) < 400


def test_the_first_key_that_is_missing_is_named_and_unknown_ones_are_passed_over() -> None:
    whole = valid()
    del whole["ranks"][0]["workers"]["busy"], whole["ranks"][0]["workers"]["blocked"]
    with pytest.raises(
        TraceError,
        match=r"^here cannot be read: analysis\.ranks\[0\]\.workers lacks busy, blocked; name a file",
    ):
        Analysis.from_json(json.dumps(whole), "here")
    whole = valid(new_field=[4])
    whole["ranks"][0]["workers"]["temperature"] = 40
    assert Analysis.from_json(json.dumps(whole), "here") == Analysis.from_json(json.dumps(valid()), "here")


def test_fields_that_were_added_later_have_a_default() -> None:
    whole = valid()
    del whole["grid"], whole["ranks"][0]["pins"]
    found = Analysis.from_json(json.dumps(whole), "here")
    assert (found.grid, found.ranks[0].pins) == (None, [])


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (
            1,
            "here cannot be read: it has format version 1, and this fastload reads 2; name a file that",
        ),
        (3, "here cannot be read: it has format version 3, and this fastload reads 2; use a newer fastload"),
        ("2", "here cannot be read: its version must be an integer, got '2'; "),
        (2.0, "here cannot be read: its version must be an integer, got 2.0; "),
        (True, "here cannot be read: its version must be an integer, got True; "),
        (None, "here cannot be read: its version must be an integer, got None; "),
    ],
)
def test_other_versions_are_told_apart(version: object, message: str) -> None:
    with pytest.raises(TraceError) as found:
        Analysis.from_json(json.dumps(valid(version=version)), "here")
    assert str(found.value).startswith(message)


def test_more_than_any_recording_has_is_not_read(tmp_path, capsys) -> None:
    with pytest.raises(
        TraceError, match=r"^here cannot be read: it is larger than 256 MiB, which no profile\.json is; name a"
    ):
        Analysis.from_json(" " * (LARGEST + 1), "here")
    path = tmp_path / "holes.json"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    assert cli.main(["report", str(path)]) == 1
    assert (
        capsys.readouterr().err
        == f"fastload report: {path} cannot be read: it is larger than 256 MiB, which no profile.json is; {REMEDY}\n"
    )


def test_a_number_that_json_cannot_say_is_refused_when_it_is_written() -> None:
    one = analysis("read")
    one.ranks[0].stall = Interval(value=0.5, low=float("-inf"), high=0.6)
    with pytest.raises(ValueError, match="not JSON compliant"):
        one.to_json()


# -- what chance makes of it ------------------------------------------------------------------------------------------

_SMALL = {
    "fixed": analysis("cpu", ranks=[rank("cpu", num_steps=2)], fixes=fixes(), grid=grid()),
    "hostile": dataclasses.replace(hostile(), ranks=[rank("gil", num_steps=2, files=("\udcff",))]),
    "bare": bare(),
    "two": analysis(None, ranks=[rank("read", number=0, num_steps=1), rank(None, number=1, num_steps=1)], culprit=1),
}
VALID = {name: json.loads(one.to_json()) for name, one in _SMALL.items()}
ANYTHING = PLAIN | st.sampled_from([float("nan"), float("inf"), 1e308, -1, 1 << 64, [], {}, "2", DEEP])


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every place in it: what holds it, and its key there."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((value, key), *places(value[key]))]


def put(held: Any, key: Any, value: Any) -> None:
    held[key] = value


def drop(held: Any, key: Any, value: Any) -> None:
    del held[key]


def add(held: Any, key: Any, value: Any) -> None:
    if isinstance(held, list):
        held.insert(key, value)
    else:
        held[f"{key}_"] = value


def twice(held: Any, key: Any, value: Any) -> None:
    if isinstance(held, list):
        held.append(copy.deepcopy(held[key]))


@st.composite
def mutated(draw: Callable[..., Any]) -> str:
    """Return JSON in which up to four values are others, or gone, or twice; or whose text was cut or changed."""
    whole = copy.deepcopy(VALID[draw(st.sampled_from(sorted(VALID)))])
    for _ in range(draw(st.integers(1, 4))):
        found = places(whole)
        if not found:
            break
        held, key = draw(st.sampled_from(found))
        draw(st.sampled_from([put, put, put, drop, add, twice]))(held, key, copy.deepcopy(draw(ANYTHING)))
    text = json.dumps(whole)
    if draw(st.integers(0, 9)) == 0:
        cut = draw(st.integers(0, len(text)))
        text = text[:cut] + draw(st.text(max_size=2)) + text[cut + draw(st.integers(0, 2)) :]
    return text


@given(mutated())
def test_mutated_json_is_refused_or_has_every_report(text: str) -> None:
    try:
        found = Analysis.from_json(text, "here")
    except TraceError as error:
        assert str(error).startswith("here")
        assert "\n" not in str(error)
        return
    rendered(found)
    assert Analysis.from_json(found.to_json(), "here") == found
