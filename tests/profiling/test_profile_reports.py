"""Reports of analyses made by hand: nothing hostile gets through, nothing unknown becomes zero, JSON comes back."""

from __future__ import annotations

import dataclasses
import io
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profile_analyses import HOSTILE, all_kinds, analysis, interval, rank

from fastload import cli
from fastload.base.console import as_text, show
from fastload.errors import TraceError
from fastload.profiling.command import write_reports
from fastload.profiling.compare import Comparison, compare, difference, table
from fastload.profiling.formatting import GROUPS, STATES, state_of
from fastload.profiling.page import page
from fastload.profiling.perfetto import trace_json
from fastload.profiling.schema import VERSION, Analysis, Interval, SlowSample
from fastload.profiling.summary import summary

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
    one.ranks[0].slow_samples = [SlowSample(index=7, file=file, ms=4.0, worker=0, stage="PIL.decode")]
    assert f"4.0 ms  index 7  mostly PIL.decode  {file}\n" in as_text(summary(one), width=60)


def test_the_card_is_plain_where_no_terminal_is():
    file = io.StringIO()
    show(summary(analysis("read")), file=file)
    assert "read-bound (severe)" in file.getvalue()
    assert "\x1b" not in file.getvalue()
    ascii_file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    show(*table(compare(analysis("read"), analysis("read"))), file=ascii_file)
    ascii_file.seek(0)
    assert "182 ms" in ascii_file.read()


def test_every_state_has_words_a_colour_and_a_cause():
    for state in (*STATES.keys() - {"other"}, "stage:Crop"):
        found = state_of(state)
        assert found.meaning != state_of("other").meaning
        assert found.group in GROUPS
        assert (found.cause is None) == (state == "queued")


@pytest.mark.parametrize("kind", KINDS)
def test_the_trace_has_what_the_format_asks_for(kind):
    events = json.loads(trace_json(KINDS[kind]))["traceEvents"]
    fields = {
        "X": {"ts", "dur", "name"},
        "M": {"name", "args"},
    }
    for event in events:
        assert fields[event["ph"]] | {"pid", "tid"} <= set(event)
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0


def said(comparison: Comparison, columns: int = 80) -> list[str]:
    """Return the lines of a comparison."""
    return as_text(*table(comparison), width=columns).split("\n")


def test_a_faster_run_is_told_with_its_change_of_verdict():
    found = difference(Interval(value=10, low=7, high=13), Interval(value=20, low=16, high=24))
    assert found == Interval(value=10, low=5, high=15)
    comparison = compare(analysis("read"), analysis("compute", ranks=[rank("compute", step_ms=107)]))
    assert comparison.ranks[0].changed
    assert said(comparison)[0] == "1.70x as fast; read-bound → compute-bound"
    assert json.loads(comparison.to_json())["ranks"][0]["changed"] is True


def test_a_fix_is_shown_with_its_bound_and_what_measures_it() -> None:
    one = analysis("read")
    text = " ".join(as_text(summary(one), width=100).split())
    assert "at most 1.5x; fastload tune measures it" in text
    assert "at most 1.1x; record again to measure it" in text
    assert "step then takes at least 121 ms (its batch 1694 ms / 14 workers)" in text
    assert "step takes at least 175 ms, the largest of: the loop 107 ms; its batch 1400 ms / 8 workers" in text


def test_where_no_fix_is_known_the_reason_is_said() -> None:
    assert "nothing to change: the loader keeps up" in as_text(summary(analysis("compute")), width=100)
    assert "how the batches were made is not known" in as_text(summary(KINDS["unknown costs"]), width=100)
    assert "without a verdict" in as_text(summary(analysis(None)), width=100)
    assert "no known change against this cause" in as_text(summary(analysis("pin", fixes=[])), width=100)


def test_lists_that_workers_copy_are_named() -> None:
    one = analysis("read")
    line = "dataset.samples, a list of 5,000,000, takes about 700 MiB"
    assert line not in as_text(summary(one), width=100)
    one.ranks[0].loader = {**one.ranks[0].loader, "copied": [line]}
    assert line in as_text(summary(one), width=100)


def test_report_and_compare_read_a_folder(tmp_path, capsys):
    write_reports(KINDS["hostile"], str(tmp_path))
    for kind in ("--text", "--html", "--json", "--perfetto"):
        assert cli.main(["report", str(tmp_path), kind]) == 0
        assert capsys.readouterr().out
    assert cli.main(["report", str(tmp_path), "--html", "-o", str(tmp_path / "page")]) == 0
    assert (tmp_path / "page").read_text() == (tmp_path / "profile.html").read_text()
    assert cli.main(["compare", str(tmp_path), str(tmp_path / "profile.json")]) == 0
    assert "no significant difference" in capsys.readouterr().out


def test_less_than_five_percent_is_no_difference_though_the_steps_would_tell() -> None:
    before, after = (analysis("read", ranks=[rank("read", step_ms=step_ms)]) for step_ms in (182.0, 190.0))
    for one in (before, after):
        one.ranks[0].step_ms = interval(one.ranks[0].step_ms.value, 0.001)
    assert compare(before, after).ranks[0].step_delta_ms.low > 0
    assert not compare(before, after).ranks[0].changed
    after.ranks[0].step_ms = interval(192.0, 0.001)
    assert compare(before, after).ranks[0].changed


def test_of_few_steps_no_difference_is_told() -> None:
    comparison = compare(analysis("read"), analysis("read", ranks=[rank("read", num_steps=7, step_ms=50)]))
    assert not comparison.ranks[0].changed
    assert said(comparison)[0] == "too few steps to compare (200 and 7; at least 30 are needed); read-bound"


def test_what_makes_two_runs_unlike_is_noted_and_lines_keep_to_their_columns() -> None:
    one = rank("read", num_workers=14, number=1)
    one.loader = {**one.loader, "dataset": HOSTILE}
    one.blame_ms = {f"stage:{HOSTILE}": 75.0}
    after = analysis(
        "read", cores=8, ranks=[rank("compute", number=0), one], exit_status=3, versions={"torch": "2.6.0"}
    )
    comparison = compare(analysis("read", ranks=[rank("read", number=1)]), after)
    assert comparison.notes[0] == "only the second has rank 0"
    for columns in (72, 80, 100):
        lines = said(comparison, columns)
        wrapped = [line for line in lines if " ms  index " not in line]  # names of files are not
        assert max(map(len, wrapped)) <= columns
        assert all(line.isprintable() for line in lines)
    text = " ".join(said(comparison, 1000))
    assert "the first ran on 16 cores, the second on 8" in text
    assert "the first had 1 rank, the second 2" in text
    assert "num_workers of the loader changed from 8 to 14" in text
    assert "torch changed from 2.13.0 to 2.6.0" in text
    assert "the script of the second ended with status 3" in text


def test_two_recordings_without_a_rank_in_common_are_told_so() -> None:
    comparison = compare(*(analysis("read", ranks=[rank("read", number=number)]) for number in (0, 1)))
    lines = said(comparison, 100)
    assert lines[0] == "the recordings have no rank in common, so there is nothing to compare"
    assert "  only the second has rank 1" in lines


def test_of_two_the_one_that_is_broken_is_named(tmp_path, capsys) -> None:
    write_reports(analysis("read"), str(tmp_path))
    broken = tmp_path / "broken.json"
    broken.write_text((tmp_path / "profile.json").read_text()[:-40])
    for pair in ([str(tmp_path), str(broken)], [str(broken), str(tmp_path)]):
        assert cli.main(["compare", *pair]) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith(f"fastload compare: {broken} cannot be read: ")
        assert captured.err.count("\n") == 1
    assert cli.main(["report", str(broken)]) == 1


# -- JSON --------------------------------------------------------------------------------------------------------------


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


@settings(max_examples=30)
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
        (json.dumps(valid(version=3)), "here cannot be read: it has format version 3, and this fastload reads 4; "),
        (json.dumps(valid(version=5)), "here cannot be read: it has format version 5, and this fastload reads 4; "),
        ("{}", "here cannot be read: 'version'; "),
    ],
)
def test_what_is_no_analysis_is_refused_with_what_to_do(text: str, message: str) -> None:
    with pytest.raises(TraceError) as found:
        Analysis.from_json(text, "here")
    assert message in str(found.value)
    assert str(found.value).endswith(REMEDY)


def test_unknown_fields_are_passed_over_later_ones_have_a_default_and_no_number_is_infinite() -> None:
    whole = valid(new_field=[4])
    whole["ranks"][0]["workers"]["temperature"] = 40
    del whole["costs"], whole["ranks"][0]["pins"]
    found = Analysis.from_json(json.dumps(whole), "here")
    assert (found.costs, found.ranks[0].pins) == (None, [])
    found.ranks[0].stall = Interval(value=0.5, low=float("-inf"), high=0.6)
    with pytest.raises(ValueError, match="not JSON compliant"):
        found.to_json()
