"""The benchmarks: the smallest cases run, their guards find what is not the work, and documents show what rows say."""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))  # from where the benchmarks can be imported

from benchmarks import pipelines, versions
from benchmarks.figures import __main__ as program
from benchmarks.figures.__main__ import differences, main, typed
from benchmarks.figures.catalogue import FIGURES, PLOTS, TABLES
from benchmarks.figures.layout import digits, line, markdown, rate, ratio_cell, value_cell
from benchmarks.figures.markers import BadMarker, render, typed_figures
from benchmarks.figures.rows import BadRow, Row, Rows, append_rows, read_file, read_rows
from benchmarks.peers.__main__ import _choose
from benchmarks.peers.loaders import Work
from benchmarks.peers.measuring import NotTheWork, _check_batch, _check_labels
from benchmarks.pipelines import measuring
from benchmarks.pipelines.__main__ import loader_args
from benchmarks.pipelines.catalogue import PIPELINES
from benchmarks.spec import Side

REPOSITORY = Path(__file__).parents[1]

# -- figures -----------------------------------------------------------------------------------------------------------


def test_the_documents_show_what_the_rows_say_and_no_measured_figure_is_typed():
    found = differences()
    assert not found, f"run: python -m benchmarks.figures\n{found}"
    found = typed()
    assert not found, f"put a marker around it, or leave it out (benchmarks/README.md):\n{found}"


def test_every_table_and_every_single_figure_can_be_made():
    rows = read_rows()
    for name, make in TABLES.items():
        head, rule, *_lines = make(rows).splitlines()
        assert head.startswith("| "), name
        assert set(rule) <= set("|- "), name
    for name, make in FIGURES.items():
        text = make(rows)
        assert "\n" not in text, name
        assert any(letter.isdigit() for letter in text), name


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


TABLE = {"one": lambda: "| a |\n| --- |\n| 1 |\n", "two": lambda: "second"}
FIGURE = {"speed": lambda: "2.4"}
OTHER = st.lists(st.sampled_from(["Words.", "", "| a table | by hand |", "    indented", "<!-- a remark -->"]))


@given(before=OTHER, stale=OTHER, after=OTHER)
def test_what_stands_between_markers_is_replaced_and_the_rest_stays(before, stale, after):
    def page(table: list[str], speed: str) -> str:
        marked = ["<!-- figures: one -->", *table, "<!-- end of figures -->"]
        code = ["```", "<!-- figures: unknown -->", "```"]
        return "\n".join([*before, *marked, *after, *code, f"It is <!-- figure: speed -->{speed}<!-- end --> times."])

    expected = page(["", TABLE["one"]().strip(), ""], "2.4")
    assert render(page(stale, "7"), TABLE, FIGURE) == render(expected, TABLE, FIGURE) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\n<!-- figures: three -->\n<!-- end of figures -->\n", "line 2: nothing is called 'three'; there are one"),
        ("a\nb <!-- figure: slow -->1<!-- end -->\n", "line 2: nothing is called 'slow'; there are speed"),
        ("<!-- figures: one -->\n| stale |\n", "line 1: <!-- figures: one --> has no partner"),
        ("```\ncode\n```\n<!-- end of figures -->\n", "line 4: <!-- end of figures --> has no partner"),
        ("It is <!-- figure: speed -->2.4\ntimes<!-- end -->.\n", "line 1: .* has no partner"),
    ],
)
def test_a_marker_without_partner_or_of_unknown_name_is_an_error_that_names_the_line(text, words):
    with pytest.raises(BadMarker, match=words):
        render(text, TABLE, FIGURE)


MEASURED = ["2.4 times as fast", "it is 3x", "82 % of all", "0.7 ms", "8 µs", "1,204 images a second"]
NOT_MEASURED = [
    *("Python 3.11 and torch 2.13 or later", "in about 30 seconds", "after 220 steps", "`2.4 times`", "2026-11-22"),
    *("```\n2.4 times\n```", "<!-- figure: speed -->2.4 times<!-- end -->", "an image of 32x32"),
]


def test_a_measured_figure_in_prose_is_found_and_versions_sizes_and_code_are_none():
    for text in MEASURED:
        assert [place for place, _words in typed_figures(f"Words.\n\nHere {text}.\n")] == [3], text
    for text in NOT_MEASURED:
        assert typed_figures(text) == [], text


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


def test_a_file_that_is_not_made_of_rows_and_a_row_that_is_missing_are_named(tmp_path):
    file = tmp_path / "engine.csv"
    append_rows(file, [Row(case="cifar", side="torch", metric="ms", value=2.5, date="2026-11-22")])
    rows, text = Rows({"engine": read_file(file)}), file.read_text()
    for old, new, words in (
        ("case,side", "side,case", "must have the columns case,side"),
        (",2.5,", ",fast,", "line 2: value must be a number or empty, but is 'fast'"),
        ("torch", "torch,", "line 2 must have 20 cells, but has 21"),
    ):
        file.write_text(text.replace(old, new))
        with pytest.raises(BadRow, match=words):
            append_rows(file, [])
    with pytest.raises(BadRow, match=r"engine\.csv has no row of case 'cifar', side 'DALI', metric 'ms'"):
        rows.find("engine", "cifar", "DALI", "ms")
    with pytest.raises(BadRow, match="side 'fastload', metric 'ms' in the run of 2026-11-22"):
        rows.beside("engine", rows.find("engine", "cifar", "torch", "ms"), "fastload")


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
    assert main([]) == 0
    assert main(["--check"]) == 0
    document.write_text(document.read_text() + "It is 2.4 times as fast.\n")
    assert main(["--check"]) == 1
    assert "README.md, line" in capsys.readouterr().err


# -- versions ----------------------------------------------------------------------------------------------------------


def test_tests_are_counted_and_those_that_failed_are_named_for_pytest(tmp_path, monkeypatch):
    uv = tmp_path / "uv"
    uv.write_text(
        """#!/bin/sh
for word; do case $word in --junitxml=*) cat > "${word#--junitxml=}" <<'END'
<testsuites><testsuite>
<testcase file="tests/a.py" name="test_one"/>
<testcase file="tests/a.py" name="test_two[3 4]"><failure message="no"/></testcase>
<testcase file="tests/a.py" name="test_three"><skipped/></testcase>
</testsuite></testsuites>
END
esac; done
exit ${STATUS-1}
"""
    )
    uv.chmod(0o755)
    monkeypatch.setattr(versions, "UV", str(uv))
    assert versions.counted(["run"], ["tests"], 0) == (1, 1, ["tests/a.py::test_two[3 4]"])
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


# -- peers -------------------------------------------------------------------------------------------------------------


def run_peers(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.peers", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.thorough
def test_the_peers_that_need_nothing_are_measured_and_the_others_say_what_is_missing(tmp_path):
    generator = np.random.default_rng(0)
    for label in range(3):
        (tmp_path / "train" / f"class_{label}").mkdir(parents=True)
        for number in range(4):
            pixels = generator.integers(0, 2, size=(6, 8, 3), dtype=np.uint8) * 255  # from black to white
            image = Image.fromarray(pixels).resize((80, 60), Image.Resampling.NEAREST)
            image.save(tmp_path / "train" / f"class_{label}" / f"{number}.jpeg", quality=95)
    file, rows_file = tmp_path / "results.jsonl", tmp_path / "peers.csv"
    arguments = ["--data", str(tmp_path), "--envs", str(tmp_path), "--packed", str(tmp_path / "packed")]
    arguments += ["--num-images", "600", "--repetitions", "1", "--json", str(file), "--rows", str(rows_file)]
    result = run_peers(*arguments, "images-uint8", "fastload, coefficients", "torch", "torchvision.io", "dali")
    assert result.returncode == 0, result.stderr
    [found] = [json.loads(one) for one in file.read_text().splitlines()]
    assert found["failed"] == {}
    assert list(found["sides"]) == ["fastload", "fastload, coefficients", "torch", "torchvision.io"]
    metrics = ["images/s", "first batch ms", "CPU ms/image"]
    assert all(list(side) == metrics for side in found["sides"].values())
    rates = {name: side["images/s"]["median"] for name, side in found["sides"].items()}
    assert all(rates.values())
    for one in found["comparisons"]:
        assert one["value"] == pytest.approx(rates["fastload"] / rates[one["theirs"]])
    assert "benchmarks.peers.install" in found["skipped"]["DALI"]
    rows = read_file(rows_file)
    assert [(row.side, row.metric) for row in rows] == [(side, metric) for side in found["sides"] for metric in metrics]
    assert "not measured: images-uint8: DALI" in result.stdout
    assert "no case, side or peer is called 'nobody'" in run_peers("--data", str(tmp_path), "nobody").stderr


def test_a_name_selects_sides_by_their_own_name_or_by_their_peer():
    found = {case.name: [side.name for side in case.sides] for case in _choose(["ffcv", "torch", "cifar"])}
    assert found == {"cifar": ["fastload", "torch", "FFCV"]}
    assert len(_choose(["spdl"])[0].sides) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda images, labels: (images[:3], labels), "of shape"),
        (lambda images, labels: (images.permute(0, 2, 3, 1), labels), "of shape"),
        (lambda images, labels: (images.double(), labels), "must be torch.float32"),
        (lambda images, labels: (images.clamp(0, 1), labels), "must go from"),
        (lambda images, labels: (images, labels.float()), "labels must be integers"),
        (lambda images, labels: (images, labels.sort().values), "must be shuffled"),
    ],
)
def test_a_batch_that_is_less_than_the_work_is_refused(change, message):
    work = Work(images=Path(), packed=Path(), values="float32", num_images=600, batch_size=4, num_workers=2)
    images = torch.linspace(-2.1, 2.6, 4 * 3 * 32 * 32).view(4, 3, 32, 32)
    labels = torch.tensor([2, 0, 1, 1])
    _check_batch(images, labels, work, 32)
    with pytest.raises(NotTheWork, match=message):
        _check_batch(*change(images, labels), work, 32)


def test_an_epoch_must_be_every_image_once():
    expected = Counter({0: 2, 1: 2})
    _check_labels(Counter([0, 1, 1, 0]), expected)
    for labels in ([0, 1, 1], [0, 1, 1, 1], [0, 1, 1, 0, 2]):
        with pytest.raises(NotTheWork, match="each of 4 images once"):
            _check_labels(Counter(labels), expected)


# -- pipelines ---------------------------------------------------------------------------------------------------------


def test_a_pipeline_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY)  # in the processes that it starts too
    monkeypatch.chdir(REPOSITORY)
    (tmp_path / "class").mkdir()
    for number in range(200):
        Image.effect_noise((12, 9), 64).convert("RGB").save(tmp_path / "class" / f"{number}.jpg")
    arguments: dict[str, Any] = {"images": str(tmp_path), "made": str(tmp_path), "num_workers": 1}
    ours = Side(name="ours", package="fastload", options={"seeding": "torch"})
    measured = measuring.epoch(ours, pipeline="own_v1", **arguments)
    assert all(float(str(measured[name])) > 0 for name in ("samples/s steady", "epoch ms", "CPU us/sample"))


def test_every_pipeline_is_a_function_of_its_family_and_loaders_get_named_literals() -> None:
    for name, pipeline in PIPELINES.items():
        source = Path(pipelines.__path__[0], f"{pipeline.family}.py").read_text()
        assert f"def {name}(source: Source, loader_class: Any, num_workers: int" in source
    for text in ("fuse", "1, fuse=True", "fuse=open('x')", "**{}, fuse=True"):
        with pytest.raises(argparse.ArgumentTypeError, match="named arguments"):
            loader_args(text)
