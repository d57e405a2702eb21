"""The runs with other versions: what is counted, what cannot be had, and the table of them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # from where the benchmarks can be imported

from benchmarks.figures import parts
from benchmarks.figures.rows import Row, Rows

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
