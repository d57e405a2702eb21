"""What is said of a search."""

from __future__ import annotations

import json

import pytest
from present_setting import PRESENT

from fastload.base import console
from fastload.tune.report import TuneReport
from fastload.tune.search import Outcome, Slice, Trial, median_interval


def trial(rate: float, speedup: float = 1.0, differs: str = "", number: int = 2, **changes: object) -> Trial:
    slices = [
        Slice(rate=rate * (1 + 0.1 * one), first_s=0.012, cpu_s=25e-6, memory=5 << 20, differs=differs)
        for one in range(number)
    ]
    return Trial(PRESENT.having(**changes), slices, differs=differs, speedup=speedup)


def report(outcome: Outcome, **arguments: object) -> TuneReport:
    return TuneReport(
        **{
            "subject": "train_loader, images, train.py:3",
            "outcome": outcome,
            "unit": "samples",
            "processors": 2,
            "seconds": 30.4,
            "command": "train.py --epochs 3",
            **arguments,  # type: ignore[arg-type]
        }
    )


@pytest.fixture
def found() -> Outcome:
    best = trial(2345.6, 2.3, worker_method="thread")
    best.gain = median_interval([2.2, 2.3, 2.4])
    others = trial(9000, 9.0, differs="the values differ: batch 0", seeding="torch", number=1)
    failed = Trial(PRESENT.having(resident="host"), failed="the dataset is random")
    return Outcome(trial(1000), [others, best, failed], best=best)


def said(made: TuneReport, capsys: pytest.CaptureFixture[str]) -> list[str]:
    console.show(made.table())
    return capsys.readouterr().out.splitlines()


def test_the_table_has_a_row_for_each_setting_the_recommended_one_first_and_others_last(found, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    lines = said(report(found), capsys)
    rows = [" ".join(line.split()) for line in lines]
    at = rows.index("▶ 2 threads 2,463 [2,346 - 2,580] 2.30 12 ms 25 µs 5 MiB same")
    assert rows[at + 1] == "2 processes (present) 1,050 [1,000 - 1,100] 1.00 12 ms 25 µs 5 MiB same"
    assert rows[at + 2].startswith('2 processes, seeding="torch" 9,000 9.00 12 ms')
    assert rows[at + 2].endswith("differ")
    assert "2.30 times [2.20 - 2.40] as fast as now, with the same batches" in rows
    assert '    DataLoader(..., worker_method="thread")' in lines
    assert "    fastload run --worker-method=thread train.py --epochs 3" in lines
    assert '  2 processes, resident="host": the dataset is random' in lines
    assert any('2 processes, seeding="torch" is faster still, but gives other batches' in row for row in rows)


def test_on_a_narrow_terminal_no_number_is_cut_off(found, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = " ".join(said(report(found), capsys))
    for number in ("[2,346 - 2,580]", "2.30", "25 µs", "5 MiB", "9,000"):
        assert number in text
    assert "…" not in text


def test_the_json_says_the_same(found):
    read = json.loads(report(found).to_json())
    assert read["recommended"] == {"worker_method": "thread"}
    assert read["line"] == 'DataLoader(..., worker_method="thread")'
    assert read["command"] == "fastload run --worker-method=thread train.py --epochs 3"
    assert read["best"]["gain"] == {"value": 2.3, "low": 2.2, "high": 2.4}
    assert [one["rate"] for one in read["present"]["slices"]] == [1000, 1100]
    assert [one["differs"] for one in read["trials"]] == ["the values differ: batch 0", "", ""]
    assert read["trials"][2]["slices"] == []


def test_what_fastload_run_has_no_option_for_is_to_be_pasted(found):
    found.best = trial(3000, 3.0, num_workers=4)
    found.best.gain = median_interval([3.0])
    made = report(found)
    assert made.without_an_edit() is None
    assert json.loads(made.to_json())["line"] == "DataLoader(..., num_workers=4)"


@pytest.mark.parametrize(
    ("runner_up", "message"),
    [
        (None, "no setting with the same batches was faster in every round"),
        ("noise", "4 processes was 1.10 times [0.90 - 1.20] as fast, which may be noise"),
        ("differs", "in the last comparison, 4 processes gives other batches (batch 3)"),
    ],
)
def test_where_nothing_is_recommended_the_reason_is_said(runner_up, message):
    outcome = Outcome(trial(1000), [])
    if runner_up is not None:
        outcome.runner_up = trial(1100, 1.1, num_workers=4, differs="batch 3" if runner_up == "differs" else "")
        outcome.runner_up.gain = median_interval([0.9, 1.1, 1.2])
    made = report(outcome)
    assert made.verdict() == f"nothing is recommended: {message}"
    assert made.recommended() == {}
    assert ("more time may help: --seconds 100" in made.all_notes()) == (runner_up == "noise")


def test_a_loader_that_does_not_repeat_itself_is_told_so():
    made = report(Outcome(trial(1000, differs="the values differ: batch 0"), []))
    assert "gives other batches each time, even with one seed (the values differ: batch 0)" in made.verdict()
    assert "fastload verify" in made.verdict()
