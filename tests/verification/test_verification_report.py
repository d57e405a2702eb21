"""The report: its table, on wide and narrow terminals, and its verdict."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fastload.verification.report import Check, Culprit, Difference, NotDeterministic, Verdict, VerifyReport

_PLACE = Difference(what="the values differ", epoch=0, batch=2, row=3, position=19, index="7", leaf="['image']")
_STAGE = Culprit(
    stage="Noise(std=1)", place="dataset.transform, stage 2 of 4", certain=True, causes=["a cause; a remedy"]
)


def report(*verdicts: Verdict) -> VerifyReport:
    made = VerifyReport(subject="Pictures, in batches of 8", seed=3, batches=4, notes=["a note"])
    for number, verdict in enumerate(verdicts):
        check = Check(name="workers", setting=f"{number} fork, prefetch 1", verdict=verdict)
        if verdict == "different":
            check.difference, check.culprit = _PLACE, _STAGE
        elif verdict != "equal":
            check.reason = "cannot be pickled" if verdict == "skipped" else f"WorkerDied: worker {number}"
        made.checks.append(check)
    return made


@pytest.mark.parametrize(
    ("verdicts", "ok", "words"),
    [
        (["equal", "equal"], True, "deterministic: 2 equal"),
        (["equal", "skipped"], True, "deterministic: 1 equal, 1 skipped"),
        (["equal", "different"], False, "NOT deterministic: 1 equal, 1 different"),
        (["equal", "error"], False, "could not be verified: 1 equal, 1 error"),
        (["skipped"], False, "nothing was checked: 1 skipped"),
        ([], False, "nothing was checked"),
    ],
)
def test_all_is_well_where_something_was_checked_and_all_of_it_was_equal(verdicts: Any, ok: bool, words: str):
    made = report(*verdicts)
    assert made.ok is ok
    assert made.summary().startswith(words)
    assert json.loads(made.to_json())["ok"] is ok
    if ok:
        made.raise_for_difference()
    else:
        with pytest.raises(NotDeterministic, match=words):
            made.raise_for_difference()


def test_a_notebook_shows_the_table():
    element = report("equal", "different")._repr_html_()
    assert element.startswith("<pre")
    assert "NOT deterministic: 1 equal, 1 different" in element


def test_the_table_names_place_stage_and_cause_once_for_all_checks_it_explains():
    text = report("equal", "different", "different", "skipped", "error", "error").to_text(200)
    place = "epoch 0, batch 2, sample 3 in it, position 19, dataset index 7, leaf ['image']"
    assert text.count(f"the values differ: {place}") == 1
    assert text.count("first stage that differs: Noise(std=1) (dataset.transform, stage 2 of 4)") == 1
    assert "the same stage: workers: 2 fork, prefetch 1" in text
    assert "skipped: cannot be pickled" in text
    assert text.count("error: WorkerDied") == 1


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_the_table_fits_the_terminal(width: int):
    lines = report("equal", "different", "skipped", "error").to_text(width).splitlines()
    assert max(map(len, lines)) <= width
    assert any("different" in line for line in lines)
