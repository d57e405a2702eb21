"""``python -m benchmarks.conformance``: tests of others run with torch's class and with fastload, and are compared."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # from where the benchmarks can be imported

from benchmarks import conformance
from benchmarks.conformance import Suite, main
from benchmarks.figures.parts import conformance as table
from benchmarks.figures.rows import Rows, read_file

pytestmark = pytest.mark.slow

MADE_UP = """
import pytest
from other import DataLoader

class TestLoader:
    def test_batches(self):
        assert [batch.tolist() for batch in DataLoader(range(4), 2)] == [[0, 1], [2, 3]]

    def test_class(self):
        assert type(DataLoader([1])).__module__.startswith("torch.")

def test_scope():
    from fastload.late.scope import thread
    if thread.scope is None:
        pytest.skip("runs as no sample")
"""


def test_results_of_both_sides_are_rows_and_a_difference_that_nothing_explains_fails(tmp_path, monkeypatch, capsys):
    folder, file = tmp_path / "sources-1234567", tmp_path / "rows.csv"
    (folder / "tests").mkdir(parents=True)
    (folder / "tests" / "test_made_up.py").write_text(MADE_UP)
    suite = Suite(
        package="torch", copied=("tests",), tests=("tests/test_made_up.py",), as_samples=True,
        swapped={"tests/test_made_up.py": ("from other", "from torch.utils.data")},
    )  # fmt: skip
    monkeypatch.setattr(conformance, "SUITES", {"--torch-tests": suite})
    monkeypatch.setattr(conformance, "DIFFERENCES", {"::test_scope": "only samples have a scope"})
    assert main(["--torch-tests", str(folder), "--rows", str(file)]) == 1
    note = "sources-1234567"
    class_, scope = (f"tests/test_made_up.py::{name}" for name in ("TestLoader::test_class", "test_scope"))
    assert [(row.side, row.metric, row.value, row.note) for row in read_file(file)] == [
        ("torch", "passed", 2.0, note),
        ("torch", "failed", 0.0, note),
        ("torch", "skipped", 1.0, note),
        ("fastload", "passed", 2.0, note),
        ("fastload", "failed", 1.0, note),
        ("fastload", "skipped", 0.0, note),
        ("fastload", f"differs: {class_}, passed -> failed", None, ""),
        ("fastload", f"differs: {scope}, skipped -> passed", None, "only samples have a scope"),
    ]
    assert f"failed with fastload: {class_}\n" in capsys.readouterr().out
    assert "| 2 / 0 / 1 | 2 / 1 / 0 |" in table(Rows({"conformance": read_file(file)}))
    monkeypatch.setattr(conformance, "DIFFERENCES", {"::test_scope": "a scope", "::test_class": "another class"})
    assert main(["--torch-tests", str(folder), "-k", "not batches"]) == 0
    (folder / "tests" / "test_made_up.py").write_text("")
    with pytest.raises(ValueError, match="must contain 'from other'"):
        main(["--torch-tests", str(folder)])
