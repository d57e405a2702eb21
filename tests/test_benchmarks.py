"""The benchmarks: each family's smallest case runs, its rows come back, and documents show what the rows say."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.profiler import ProfilerActivity, profile, record_function

sys.path.insert(0, str(Path(__file__).parents[1]))  # from where the benchmarks can be imported

from benchmarks.figures import __main__ as program
from benchmarks.figures.__main__ import differences, main, typed
from benchmarks.figures.catalogue import FIGURES, TABLES
from benchmarks.figures.markers import typed_figures
from benchmarks.figures.rows import BadRow, Row, Rows, append_rows, read_file, read_rows
from benchmarks.gpu.trace import waits_of
from benchmarks.outcome import Outcome
from benchmarks.peers.loaders import Work
from benchmarks.peers.measuring import NotTheWork, _check_batch, _check_labels
from benchmarks.runner import Measured
from benchmarks.spec import Case, Comparison, Metric

REPOSITORY = Path(__file__).parents[1]

# -- running -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder whose subfolder ``train`` is an ImageFolder tree of 200 JPEGs."""
    folder = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    for number in range(200):
        place = folder / "train" / f"class_{number % 3}"
        place.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 2, size=(6, 8, 3), dtype=np.uint8) * 255  # from black to white
        image = Image.fromarray(pixels).resize((80, 60), Image.Resampling.NEAREST)
        image.save(place / f"{number}.jpeg", quality=95)
    return folder


# Family -> what the command line names; the sides that are measured.
SMALLEST = {
    "engine": (["tiny-tensors-0-workers"], ["torch", "fastload", "fastload seed=1"]),
    "gpu": (["resident", "--device", "cpu"], ["airbench", "fastload"]),
    "peers": (["images-uint8", "torch", "fastload, coefficients", "dali"],
              ["fastload", "fastload, coefficients", "torch"]),
    "pipelines": (["own_v1", "--workers", "0"], ["torch", "fastload"]),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("family", SMALLEST)
def test_the_smallest_case_of_a_family_runs_and_its_rows_come_back_from_their_file(family, images, tmp_path):
    file, rows_file = tmp_path / "results.jsonl", tmp_path / "rows.csv"
    given, sides = SMALLEST[family]
    command = [sys.executable, "-m", f"benchmarks.{family}", *given, "--quick", "--json", str(file)]
    command += ["--rows", str(rows_file), *(["--data", str(images)] if family in ("peers", "pipelines") else [])]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    [found] = [json.loads(one) for one in file.read_text().splitlines()]
    assert (list(found["sides"]), found["failed"], found["n"]) == (sides, {}, 2)
    assert found["case"] in done.stdout
    rows = read_file(rows_file)
    measured = [(side, metric) for side, metrics in found["sides"].items() for metric in metrics]
    assert [(row.side, row.metric) for row in rows] == measured
    for row in rows:
        assert row.value == pytest.approx(found["sides"][row.side][row.metric]["median"], rel=1e-5)
    told = {row.ratio_of for row in rows if row.ratio is not None}
    assert told == {f"{one['ours']} / {one['theirs']}" for one in found["comparisons"]} != set()
    assert list(found["skipped"]) == (["DALI"] if family == "peers" else [])


# Others' program, with a rate that tells which class a loader is of.
PROGRAM = """
import json, os, sys
from pathlib import Path
from torch.utils.data import DataLoader

given = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
loader = DataLoader(range(int(given["num-items"])), num_workers=int(given["workers"]))
rate = len(list(loader)) * (2.0 if "fastload" in type(loader).__module__ else 1.0)
names = os.environ["BENCHMARK_TRANSFORMS_FILTER"].split(",")
found = {name: {"throughputs": [rate], "median_throughput": rate} for name in names}
Path(given["output"]).write_text(json.dumps({"results": found}))
"""


@pytest.mark.slow
def test_others_program_runs_with_each_loader_and_what_is_not_there_is_left_out(images, tmp_path):
    (tmp_path / "benchmark").mkdir()
    (tmp_path / "benchmark" / "pipeline_runner.py").write_text(PROGRAM)
    rows_file = tmp_path / "rows.csv"
    command = [sys.executable, "-m", "benchmarks.stages", "--quick", "--data", str(images), "--rows", str(rows_file)]
    command += ["--repetitions", "1", "--albumentations", str(tmp_path), "albumentations-memory", "imread"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert "skipped imread" in done.stderr
    assert {(row.side, row.value, row.ratio) for row in read_file(rows_file)} == {
        ("torch", 4.0, None), ("fastload run", 8.0, 2.0)
    }  # fmt: skip


@pytest.mark.slow
def test_small_sizes_of_what_the_scale_cases_measure_run():
    code = """if True:
        from benchmarks.cases import scale
        for measure, size in ((scale.workers, 2), (scale.ranks, 2), (scale.indices, 1000)):
            assert measure(scale.FASTLOAD, size=size)["epoch s"] > 0
    """
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, timeout=200, check=True)


@pytest.mark.parametrize(
    ("goal", "met"), [(1.8, "met"), (2.0, "undecided"), (2.3, "not met"), (None, None)], ids=str
)  # fmt: skip
def test_a_goal_within_the_interval_is_undecided(goal, met):
    rate = Metric(name="images/s", more_is_better=True)
    compared = (Comparison(ours="fastload", theirs="torch", metric=rate, least_ratio=goal),)
    values = {"torch": [1.0, 1.0, 1.0, 1.0, 1.0], "fastload": [1.9, 1.95, 2.01, 2.1, 2.2]}
    measurements = {side: [{"images/s": value} for value in found] for side, found in values.items()}
    case = Case(name="case", measure="", metrics=(rate,), compared=compared)
    outcome = Outcome(case=case, measured=Measured(measurements=measurements), cores_used_by_others=0.0)
    assert [one.met for one in outcome.goals] == ([] if met is None else [met])
    assert outcome.is_undecided == (met == "undecided")


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


def test_a_measured_figure_in_prose_is_found_and_versions_sizes_and_code_are_none():
    for text in ("2.4 times as fast", "it is 3x", "82 % of all", "0.7 ms", "8 µs", "1,204 images a second"):
        assert [place for place, _words in typed_figures(f"Words.\n\nHere {text}.\n")] == [3], text
    for text in ("Python 3.11", "in about 30 seconds", "`2.4 times`", "<!-- figure: speed -->2.4 times<!-- end -->"):
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
    file.write_text(text.replace(",2.5,", ",fast,"))
    with pytest.raises(BadRow, match="line 2: value must be a number or empty, but is 'fast'"):
        append_rows(file, [])
    with pytest.raises(BadRow, match=r"engine\.csv has no row of case 'cifar', side 'DALI', metric 'ms'"):
        rows.find("engine", "cifar", "DALI", "ms")


def test_check_shows_what_differs_and_fails_and_rendering_mends_it(tmp_path, monkeypatch, capsys):
    document = tmp_path / "README.md"
    document.write_text("# Title\n\n<!-- figures: streams -->\n<!-- end of figures -->\n")
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
    document.write_text("<!-- figures: headlines -->\n<!-- end of figures -->\n")
    assert main(["--check"]) == 1
    assert "line 1: nothing is called 'headlines'" in capsys.readouterr().err


# -- what guards a family's work ---------------------------------------------------------------------------------------


def test_batches_and_epochs_that_are_less_than_the_work_of_peers_are_refused():
    work = Work(
        images=Path(), packed=Path(), work="arrays", values="float32", num_images=600, batch_size=4, num_workers=2
    )
    images = torch.linspace(-2.1, 2.6, 4 * 3 * 32 * 32).view(4, 3, 32, 32)
    labels = torch.tensor([2, 0, 1, 1])
    _check_batch(images, labels, work, 32)
    for less, named, message in (
        (images[:3], labels, "of shape"),
        (images.clamp(0, 1), labels, "must go from"),
        (images, labels.sort().values, "must be shuffled"),
    ):
        with pytest.raises(NotTheWork, match=message):
            _check_batch(less, named, work, 32)
    with pytest.raises(NotTheWork, match="each of 4 images once"):
        _check_labels(Counter([0, 1, 1]), Counter({0: 2, 1: 2}))


# -- traces of a GPU ---------------------------------------------------------------------------------------------------


def call(
    name: str, start: float, duration: float, category: str = "cuda_runtime", correlation: int | None = None
) -> dict[str, Any]:
    args = {} if correlation is None else {"args": {"correlation": correlation}}
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, "tid": 1, **args}


def launched(at: float, begin: float, duration: float, correlation: int) -> list[dict[str, Any]]:
    launch = call("cudaLaunchKernel", at, 1.0, correlation=correlation)
    return [launch, call("a kernel", begin, duration, "kernel", correlation)]


def test_calls_that_wait_within_the_loop_are_counted_and_no_others():
    events = [
        call("loop", 100.0, 1000.0, "user_annotation"),
        call("loop", 100.0, 5000.0, "gpu_user_annotation"),
        call("cudaStreamSynchronize", 90.0, 30.0),  # 20 of it within
        call("cudaFree", 130.0, 1.0),
        call("cuMemcpyHtoD_v2_ptds", 135.0, 1.0, "cuda_driver"),
        call("cudaHostRegister", 140.0, 1.0),
        call("cudaMallocAsync", 150.0, 9.0),
        call("cudaStreamSynchronize", 160.0, 9.0, "python_function"),  # a name, and no such call
        *launched(200.0, 210.0, 80.0, 1),
        *launched(205.0, 290.0, 100.0, 2),
        call("cudaEventSynchronize", 220.0, 70.0),  # for the first kernel, while the second is queued
        call("cudaEventSynchronize", 300.0, 92.0),  # for the second, behind which there is nothing
        call("cudaMemcpyAsync", 500.0, 5.0, correlation=7),
        call("Memcpy HtoD (Pageable -> Device)", 502.0, 2.0, "gpu_memcpy", correlation=7),
        call("cudaMemcpyAsync", 520.0, 3.0, correlation=8),
        call("Memcpy HtoD (Pinned -> Device)", 522.0, 50.0, "gpu_memcpy", correlation=8),
        call("cudaDeviceSynchronize", 1200.0, 50.0),  # the profiler's own end
        call("after the host's end", 1090.0, 110.0, "kernel", correlation=9),
        {"ph": "M", "name": "process_name", "ts": 0},
    ]
    waits = waits_of({"traceEvents": events}, "loop")
    blocking = {"cudaStreamSynchronize", "cudaFree", "cuMemcpyHtoD_v2_ptds", "cudaHostRegister", "cudaEventSynchronize"}
    assert waits.by_name == dict.fromkeys([*blocking, "cudaMemcpyAsync (pageable)"], 1)
    assert (waits.wall_us, waits.blocked_us, waits.num_launches) == (1000.0, 20.0 + 3.0 + 92.0 + 5.0, 2)
    assert (waits.device_us, waits.busy_us) == (1100.0, 180.0 + 2.0 + 50.0 + 110.0)
    with pytest.raises(ValueError, match="one record_function named 'other', got 0"):
        waits_of({"traceEvents": events}, "other")


def test_the_profiler_of_this_torch_writes_such_a_trace(tmp_path):
    with profile(activities=[ProfilerActivity.CPU]) as profiled, record_function("loop"):
        torch.ones(100).sum()
    file = tmp_path / "trace.json"
    profiled.export_chrome_trace(str(file))
    waits = waits_of(json.loads(file.read_text()), "loop")
    assert waits.wall_us > 0
    assert (waits.blocked_us, waits.num_launches) == (0.0, 0)
