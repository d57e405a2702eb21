"""Reports of analyses made by hand: nothing hostile gets through, nothing unknown becomes zero, JSON comes back."""

from __future__ import annotations

import io
import json

import pytest
from profile_analyses import all_kinds, analysis, rank

from fastload import cli
from fastload.errors import TraceError
from fastload.profiling.analysis import Analysis, Interval
from fastload.profiling.card import card, print_card
from fastload.profiling.comparing import compare, difference, in_words
from fastload.profiling.page import page
from fastload.profiling.perfetto import trace_json
from fastload.profiling.report_command import write_reports

KINDS = all_kinds()


@pytest.mark.parametrize("kind", KINDS)
def test_json_makes_the_same_analysis_again(kind):
    assert Analysis.from_json(KINDS[kind].to_json(), "here") == KINDS[kind]


@pytest.mark.parametrize("columns", [50, 80, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_the_card_keeps_to_its_columns_but_for_code_and_holds_no_control(kind, columns):
    lines = ["".join(text for text, _ in line) for line in card(KINDS[kind], columns)]
    code = {f"{'':10}{part}" for fix in KINDS[kind].fixes for part in fix.change.split("\n")}
    assert [
        line for line in lines if len(line) > columns and line not in code and line[10:12] not in ("- ", "+ ")
    ] == []
    assert all(line.isprintable() for line in lines)


def test_the_card_is_plain_where_no_terminal_is():
    file = io.StringIO()
    print_card(analysis("read"), file)
    assert "read-bound (severe)" in file.getvalue()
    assert "\x1b" not in file.getvalue()


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_loads_nothing_and_runs_no_script_of_others(kind):
    text = page(KINDS[kind])
    assert text.count("<script") == 2
    assert text.count("</script>") == 2
    assert "<img" not in text
    assert "default-src 'none'" in text
    assert "http://" not in text
    assert "https://" not in text
    text.encode("utf-8")


@pytest.mark.parametrize("kind", KINDS)
def test_the_trace_has_what_the_format_asks_for(kind):
    events = json.loads(trace_json(KINDS[kind]))["traceEvents"]
    fields = {
        "X": {"ts", "dur", "name"},
        "M": {"name", "args"},
        "C": {"ts", "args"},
        "s": {"ts", "id"},
        "f": {"ts", "id", "bp"},
    }
    for event in events:
        assert fields[event["ph"]] | {"pid", "tid"} <= set(event)
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
    begun, ended = ({event["id"] for event in events if event["ph"] == phase} for phase in "sf")
    assert begun == ended
    assert all(value >= 0 for event in events if event["ph"] == "C" for value in event["args"].values())


def test_arrows_lead_from_every_task_to_the_step_that_took_its_batch():
    one = analysis("read", ranks=[rank("read", num_steps=20)])
    arrows = [event for event in json.loads(trace_json(one))["traceEvents"] if event["ph"] == "s"]
    assert len(arrows) == 20


def test_a_difference_has_the_interval_of_both():
    found = difference(Interval(value=10, low=7, high=13), Interval(value=20, low=16, high=24))
    assert found == Interval(value=10, low=5, high=15)


def test_a_faster_run_is_told_with_its_change_of_verdict():
    comparison = compare(analysis("read"), analysis("compute", ranks=[rank("compute", step_ms=107)]))
    assert comparison.ranks[0].changed
    assert next(in_words(comparison)) == "1.70x as fast; read-bound → compute-bound"
    assert json.loads(comparison.to_json())["ranks"][0]["changed"] is True


def test_equal_runs_are_no_difference():
    comparison = compare(analysis("read"), analysis("read"))
    assert not comparison.ranks[0].changed
    assert "no difference" in next(in_words(comparison))


def test_report_and_compare_read_a_folder(tmp_path, capsys):
    write_reports(KINDS["hostile"], str(tmp_path))
    for kind in ("--text", "--html", "--json", "--perfetto"):
        assert cli.main(["report", str(tmp_path), kind]) == 0
        assert capsys.readouterr().out
    assert cli.main(["report", str(tmp_path), "--html", "-o", str(tmp_path / "page")]) == 0
    assert (tmp_path / "page").read_text() == (tmp_path / "profile.html").read_text()
    assert cli.main(["compare", str(tmp_path), str(tmp_path / "profile.json")]) == 0
    assert "no difference" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 99}', '{"version": 1}', "\0\1"])
def test_what_is_no_analysis_is_told_in_one_line(text, tmp_path, capsys):
    (tmp_path / "profile.json").write_text(text)
    with pytest.raises(TraceError, match=r"profile\.json"):
        Analysis.from_json(text, str(tmp_path / "profile.json"))
    assert cli.main(["report", str(tmp_path)]) == 1
    assert capsys.readouterr().err.count("\n") == 1
