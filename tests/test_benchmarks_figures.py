"""``python -m benchmarks.figures``: rows, markers, tables, and that the documents show what the rows say."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))  # from where the benchmarks can be imported

from benchmarks import versions
from benchmarks.figures import __main__ as program
from benchmarks.figures import parts
from benchmarks.figures.__main__ import differences, main, typed
from benchmarks.figures.catalogue import FIGURES, PLOTS, TABLES
from benchmarks.figures.layout import digits, line, markdown, rate, ratio_cell, value_cell
from benchmarks.figures.markers import BadMarker, render, typed_figures
from benchmarks.figures.rows import BadRow, Row, Rows, append_rows, read_file, read_rows

TABLE = {"one": lambda: "| a |\n| --- |\n| 1 |\n", "two": lambda: "second"}
FIGURE = {"speed": lambda: "2.4"}
OTHER = st.sampled_from(["Words.", "", "| a table | by hand |", "- 1,234 images", "    indented", "<!-- a remark -->"])


def test_the_documents_show_what_the_rows_say():
    found = differences()
    assert not found, f"run: python -m benchmarks.figures\n{found}"


def test_no_measured_figure_is_typed_where_figures_are_rendered():
    found = typed()
    assert not found, f"put a marker around it, or leave it out (benchmarks/README.md):\n{found}"


@pytest.mark.parametrize("name", TABLES)
def test_every_table_can_be_made(name):
    text = TABLES[name](read_rows())
    head, rule, *_lines = text.splitlines()
    assert head.startswith("| ")
    assert set(rule) <= set("|- ")


@pytest.mark.parametrize("name", PLOTS)
def test_every_drawing_is_xml_whose_bars_and_words_lie_within_it(name):
    drawing = ElementTree.fromstring(PLOTS[name](read_rows()))
    width, height = float(drawing.attrib["width"]), float(drawing.attrib["height"])
    bars = [one for one in drawing.iter("{http://www.w3.org/2000/svg}rect") if one.attrib["class"] != "card"]
    assert len(bars) >= 5
    for bar in bars:
        assert 0 < float(bar.attrib["x"]) + float(bar.attrib["width"]) < width
        assert 0 < float(bar.attrib["y"]) + float(bar.attrib["height"]) < height
    for text in drawing.iter("{http://www.w3.org/2000/svg}text"):
        at, room = float(text.attrib["x"]), 7.8 * len(text.text or "")  # in the widest font of the drawing's
        kind = text.attrib["class"]
        assert at >= room if kind == "label" else kind == "title" or at + 0.9 * room <= width, text.text


@pytest.mark.parametrize("name", FIGURES)
def test_every_single_figure_is_one_line_with_a_digit(name):
    text = FIGURES[name](read_rows())
    assert "\n" not in text
    assert any(letter.isdigit() for letter in text)


@given(before=st.lists(OTHER), stale=st.lists(OTHER), after=st.lists(OTHER))
def test_what_stands_between_markers_is_replaced_and_the_rest_stays(before, stale, after):
    start, end = "<!-- figures: one -->", "<!-- end of figures -->"
    text = "\n".join([*before, start, *stale, end, *after])
    expected = "\n".join([*before, start, "", TABLE["one"]().strip(), "", end, *after])
    assert render(text, TABLE, FIGURE) == expected
    assert render(expected, TABLE, FIGURE) == expected


@given(stale=st.text("0123456789.x %", max_size=8))
def test_a_single_figure_is_replaced_within_its_sentence(stale):
    text = f"It is <!-- figure: speed -->{stale}<!-- end --> times as fast, <!-- figure: speed --><!-- end --> times."
    mark = "<!-- figure: speed -->2.4<!-- end -->"
    assert render(text, TABLE, FIGURE) == f"It is {mark} times as fast, {mark} times."


def test_markers_in_blocks_of_code_mean_nothing():
    text = "```\n<!-- figures: unknown -->\n```\n\n~~~~md\n<!-- figure: no --><!-- end -->\n~~~~\n"
    assert render(text, TABLE, FIGURE) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "\n<!-- figures: three -->\n<!-- end of figures -->\n",
            "line 2: nothing is called 'three'; there are one, two",
        ),
        ("a\nb <!-- figure: slow -->1<!-- end -->\n", "line 2: nothing is called 'slow'; there are speed"),
        ("<!-- figures: one -->\n| stale |\n", "line 1: <!-- figures: one --> has no partner"),
        ("```\ncode\n```\n<!-- end of figures -->\n", "line 4: <!-- end of figures --> has no partner"),
        ("<!-- figures: one -->\n<!-- figures: two -->\n<!-- end of figures -->\n", "line 1: .* has no partner"),
        ("It is <!-- figure: speed -->2.4\ntimes<!-- end -->.\n", "line 1: .* has no partner"),
    ],
)
def test_a_marker_without_partner_or_of_unknown_name_is_an_error_that_names_the_line(text, words):
    with pytest.raises(BadMarker, match=words):
        render(text, TABLE, FIGURE)


@pytest.mark.parametrize(
    "text",
    ["2.4 times as fast", "it is 3x", "82 % of all", "0.7 ms", "8 µs", "1,204 images a second", "0.55 of the time"],
)
def test_a_measured_figure_in_prose_is_found(text):
    assert [place for place, _words in typed_figures(f"Words.\n\nHere {text}.\n")] == [3]


@pytest.mark.parametrize(
    "text",
    [
        "Python 3.11 and torch 2.13 or later",
        "in about 30 seconds",
        "after 220 steps",
        "`2.4 times`",
        "```\n2.4 times\n```",
        "<!-- figure: speed -->2.4 times<!-- end -->",
        "<!-- figures: one -->\n2.4 times\n<!-- end of figures -->",
        "2026-11-22",
        "an image of 32x32",
    ],
)
def test_versions_sizes_code_and_rendered_figures_are_no_measured_figures_in_prose(text):
    assert typed_figures(text) == []


NUMBER = st.none() | st.floats(0, 1e12).map(lambda number: float(f"{number:.6g}"))
WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)
ROW = st.builds(
    Row, case=WORDS, side=WORDS, metric=WORDS, value=NUMBER, low=NUMBER, high=NUMBER, spread=WORDS,
    n=st.none() | st.integers(1, 99), ratio=NUMBER, ratio_of=WORDS, date=st.just("2026-11-22"), machine=WORDS,
)  # fmt: skip


@given(rows=st.lists(ROW), more=st.lists(ROW))
def test_rows_come_back_from_their_file_as_they_were(rows, more, tmp_path_factory):
    file = tmp_path_factory.mktemp("rows") / "engine.csv"
    append_rows(file, rows)
    append_rows(file, more)
    assert read_file(file) == rows + more
    newest = {row.key: row for row in rows + more}
    assert {row.key: row for row in Rows({"engine": rows + more}).suite("engine")} == newest


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace("case,side", "side,case"), "must have the columns case,side"),
        (lambda text: text.replace(",2.5,", ",fast,"), "line 2: value must be a number or empty, but is 'fast'"),
        (lambda text: text.replace("torch", "torch,"), "line 2 must have 20 cells, but has 21"),
    ],
)
def test_a_file_that_is_not_made_of_rows_is_an_error_that_names_it(change, words, tmp_path):
    file = tmp_path / "engine.csv"
    append_rows(file, [Row(case="cifar", side="torch", metric="ms", value=2.5)])
    file.write_text(change(file.read_text()))
    with pytest.raises(BadRow, match=words):
        append_rows(file, [])


def test_a_row_that_a_table_needs_and_is_not_there_is_named():
    rows = Rows({"peers": [Row(case="images", side="torch", metric="images/s", value=1.0, date="2026-11-22")]})
    with pytest.raises(BadRow, match=r"peers\.csv has no row of case 'images', side 'DALI', metric 'images/s'"):
        rows.find("peers", "images", "DALI", "images/s")
    with pytest.raises(BadRow, match="side 'fastload', metric 'images/s' in the run of 2026-11-22"):
        rows.beside("peers", rows.find("peers", "images", "torch", "images/s"), "fastload")


def test_a_table_numbers_its_runs_where_there_are_several_and_says_where_each_took_place():
    quiet = Row(case="a", side="torch", metric="ms", value=2, n=3, date="2026-11-21", machine="EPYC", others="0.0")
    busy = dataclasses.replace(quiet, case="b", value=1.5, ratio=2.25, n=5, date="2026-11-22", others="1.8")
    lines = [line("first", value_cell(quiet)), line("second|half", ratio_cell(busy))]
    assert markdown(("work", "ms"), lines).splitlines() == [
        "| work | ms | run |",
        "| --- | --- | --- |",
        "| first | 2 | 1 |",
        "| second\\|half | 2.3 | 2 |",
        "",
        "All: EPYC. Run 1: 2026-11-21; otherwise idle; n=3. Run 2: 2026-11-22; other work took 1.8 cores; n=5.",
    ]


@given(value=st.floats(0.01, 1e6))
def test_written_numbers_are_close_to_the_values(value):
    assert float(digits(value).replace(",", "")) == pytest.approx(value, rel=0.06, abs=0.005)
    assert float(rate(value).replace(",", "")) == pytest.approx(value, rel=0.006, abs=0.0005)


def test_check_shows_what_differs_and_fails_and_rendering_mends_it(tmp_path, monkeypatch, capsys):
    document = tmp_path / "README.md"
    document.write_text("# Title\n\n<!-- figures: headline -->\n<!-- end of figures -->\n")
    monkeypatch.setattr(program, "REPOSITORY", tmp_path)
    monkeypatch.setattr(program, "documents", lambda: [document])
    monkeypatch.setattr(program, "PLOTS", {"bars.svg": lambda rows: "<svg/>\n"})
    assert main(["--check"]) == 1
    said = capsys.readouterr().out
    assert "+++ README.md, rendered" in said
    assert "+<svg/>" in said
    assert "python -m benchmarks.figures" in said
    assert main([]) == 0
    assert main(["--check"]) == 0
    document.write_text(document.read_text() + "It is 2.4 times as fast.\n")
    assert main(["--check"]) == 1
    assert "README.md, line" in capsys.readouterr().err


# -- versions ----------------------------------------------------------------------------------------------------------


NAMES = "Python 3.12.1, torch 2.6.0, torchvision 0.21.0, NumPy 1.26.4, Pillow 13.0.0"


def test_the_table_has_the_last_run_of_each_pair_and_what_is_missing():
    def run(pair, passed, failed, date):
        common = {"case": pair, "side": "fastload", "date": date, "versions": NAMES, "n": passed + failed + 3}
        counts = {"passed": passed, "failed": failed, "skipped": 3}
        return [Row(metric=metric, value=value, **common) for metric, value in counts.items()]

    missing = Row(case="3.14:2.6.0:newest", side="fastload", metric="not run", note="no Python 3.14 here")
    table = parts.versions(
        Rows(
            {
                "versions": [
                    *run("3.12:2.6.0:1.26", 5, 2, "2026-01-01"),
                    missing,
                    *run("3.12:2.6.0:1.26", 1007, 0, "2026-01-02"),
                ]
            }
        )
    )
    assert "| 3.12.1 | 2.6.0 | 0.21.0 | 1.26.4 | 13.0.0 | 1,007 | 0 | 3 |" in table
    assert "| 3.14 | 2.6.0 | | newest | | not run: no Python 3.14 here | | |" in table
    assert "2026-01-02" in table
    assert "2026-01-01" not in table


def test_tests_are_counted_and_those_that_failed_are_named_for_pytest(tmp_path, monkeypatch):
    uv = tmp_path / "uv"
    uv.write_text(
        """#!/bin/sh
for word; do case $word in --junitxml=*) cat > "${word#--junitxml=}" <<'END'
<testsuites><testsuite>
<testcase file="tests/a.py" name="test_one"/>
<testcase file="tests/a.py" name="test_two[3 4]"><failure message="no"/></testcase>
<testcase file="tests/a.py" name="test_three"><skipped/></testcase>
<testcase file="tests/a.py" name="test_four"/>
<testcase file="tests/a.py" name="test_four"><error message="left behind"/></testcase>
</testsuite></testsuites>
END
esac; done
exit ${STATUS-1}
"""
    )
    uv.chmod(0o755)
    monkeypatch.setattr(versions, "UV", str(uv))
    assert versions.counted(["run"], ["tests"], 0) == (1, 1, ["tests/a.py::test_four", "tests/a.py::test_two[3 4]"])
    monkeypatch.setenv("STATUS", "4")
    with pytest.raises(RuntimeError, match="status 4"):
        versions.counted(["run"], ["tests"], 0)


def test_what_cannot_be_had_is_a_row_that_says_so(monkeypatch):
    def missing(*words):
        raise versions.NotHereError("error: No solution found when resolving dependencies")

    monkeypatch.setattr(versions, "uv", missing)
    [row], failed = versions.tried("3.14:2.6.0:newest", ["tests"], 0)
    assert (row.metric, row.value, row.note, failed) == ("not run", None, "no Python 3.14 here", [])
    monkeypatch.setattr(versions, "uv", lambda *words: "" if words[0] == "python" else missing())
    [row], _ = versions.tried("3.14:2.6.0:newest", ["tests"], 0)
    assert row.note == "no wheels of torch==2.6.0 and torchvision and numpy for this Python"
