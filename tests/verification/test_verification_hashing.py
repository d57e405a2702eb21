"""Hashes of samples and batches: equal exactly where types, dtypes, shapes and bytes are."""

from __future__ import annotations

import json
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors

from fastload.verification.hashing import PICKLED, Hashes, digest_of, hashed
from fastload.verification.record import first_difference
from fastload.verification.report import Check, Culprit, Difference, Verdict, VerifyReport


@dataclass
class Boxes:
    boxes: Any
    label: str


Pair = namedtuple("Pair", "first second")


class Odd:
    def __init__(self, value: Any) -> None:
        self.value = value


PLAIN = [None, 0, False, 0.0, -0.0, "", "0", b"0", 1 + 2j, np.float32(0), Odd(1), Odd(2)]
SEQUENCES = [[], (), [0], (0,), [[0], 1], [0, [1]], (0, 1), Pair(0, 1)]
OTHERS = [{}, {1, 2}, {1, 3}, Boxes([0], "x"), Boxes([0], "y")]
MAPPINGS = [{"a": 0}, {"b": 0}, {"a": 0, "b": 1}, {"b": 1, "a": 0}]
ARRAYS = [torch.tensor([True]), np.zeros(2, np.float32), np.zeros(2, np.float64)]
ARRAYS += [torch.zeros(2, dtype=dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16)]
ARRAYS += [torch.zeros(shape) for shape in ((1, 2), (0,), (0, 2))]
IMAGES = [tv_tensors.Image(torch.zeros(1, 2, 2))]
IMAGES += [tv_tensors.BoundingBoxes([[0, 0, 1, 1]], format=one, canvas_size=(4, 4)) for one in ("XYXY", "XYWH")]
IMAGES += [Image.new(mode, size) for mode, size in (("RGB", (2, 3)), ("RGB", (3, 2)), ("L", (2, 3)))]
DIFFERENT: list[Any] = [*PLAIN, *SEQUENCES, *OTHERS, *MAPPINGS, *ARRAYS, *IMAGES]


def test_values_that_differ_in_anything_have_different_hashes():
    assert len({digest_of(value) for value in DIFFERENT}) == len(DIFFERENT)


def test_equal_values_have_equal_hashes():
    for value in DIFFERENT:
        assert digest_of(value) == digest_of(value)
    assert digest_of(float("nan")) == digest_of(float("nan"))
    assert digest_of(torch.arange(6).reshape(2, 3).T) == digest_of(torch.arange(6).reshape(2, 3).T.contiguous())
    assert digest_of({"a", "b", "c"}) == digest_of({"c", "b", "a"})


def test_leaves_have_paths_as_python_writes_them():
    sample = {"x": [torch.zeros(1), Pair("a", Boxes(None, "b"))]}
    paths = [leaf.path for leaf in hashed(sample) if not leaf.path.endswith(" type")]
    assert paths == ["['x'][0]", "['x'][1].first", "['x'][1].second.boxes", "['x'][1].second.label"]


@pytest.mark.filterwarnings("ignore")
def test_what_is_hashed_by_its_pickle_says_so():
    assert [leaf.kind for leaf in hashed(Odd(1))] == [PICKLED + "Odd"]
    assert "pickling failed" in hashed(Odd(lambda: 0))[0].kind
    for value in (torch.eye(2).to_sparse(), torch.nested.nested_tensor([torch.zeros(2)])):  # without plain memory
        assert all(leaf.kind.startswith(PICKLED) for leaf in hashed(value))


def test_a_list_inside_of_itself_ends():
    loop: list[Any] = [1]
    loop.append(loop)
    assert digest_of(loop) == digest_of(loop)


def prints(*values: Any) -> list[Hashes]:
    return [hashed(value) for value in values]


@pytest.mark.parametrize(
    ("actual", "what", "number", "leaf"),
    [
        ([[1, 2], [3, 9], [0, 6]], "the values differ", 1, "[1]"),
        ([[1, 2], [3, 4], [5, 6.0]], "the types differ, float instead of int", 2, "[1]"),
        ([[1, 2], [3], [5, 6]], "a part is missing", 1, "[1]"),
        ([[1, 2, 7], [3, 4], [5, 6]], "a part was added", 0, "[2]"),
        ([[1, 2], [3, 4]], "the number of {} differs, 2 instead of 3", 2, ""),
    ],
)
def test_the_first_difference_of_two_records_is_named(actual: Any, what: str, number: int, leaf: str):
    expected = [prints(0), prints([1, 2], [3, 4], [5, 6])]
    assert first_difference(expected, expected) is None
    found = first_difference(expected, [prints(0), prints(*actual)])
    assert found == Difference(what.format("batches"), 1, batch=number, leaf=leaf)
    found = first_difference(expected, [prints(0), prints(*actual)], "samples")
    assert found == Difference(what.format("samples"), 1, sample=number, leaf=leaf)


def test_of_samples_that_are_cut_into_other_batches_there_may_be_more():
    expected = prints([1], [2], [3])
    assert first_difference([expected], [prints([1], [2], [3], [4])], "samples", regrouped=True) is None
    found = first_difference([expected], [prints([1], [2], [0], [4])], "samples", regrouped=True)
    assert found == Difference("the values differ", 0, sample=2, leaf="[0]")


# -- reports -----------------------------------------------------------------------------------------------------------


_PLACE = Difference(what="the values differ", epoch=0, sample=19, index="7", leaf="['image']")
_STAGE = Culprit(stage="Noise(std=1)", place="dataset.transform, stage 2 of 4")


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


def test_the_table_names_place_and_stage_once_for_all_checks_they_explain():
    text = report("equal", "different", "different", "skipped", "error", "error").to_text(200)
    place = "epoch 0, sample 19, dataset index 7, part ['image']"
    assert text.count(f"the values differ: {place}") == 1
    assert text.count("first stage that differs: Noise(std=1) (dataset.transform, stage 2 of 4)") == 1
    assert "\n  workers: 1 fork, prefetch 1\n  workers: 2 fork, prefetch 1\n" in text
    assert "skipped: cannot be pickled" in text
    assert text.count("error: WorkerDied") == 2
    made = report("different")
    made.checks[0].culprit = None
    assert "\n≠ different, by the same stage or another\n  the values differ: epoch 0" in made.to_text(), (
        "none is known"
    )


@pytest.mark.parametrize("width", [40, 200])
def test_the_table_fits_the_terminal(width: int):
    lines = report("equal", "different", "skipped", "error").to_text(width).splitlines()
    assert max(map(len, lines)) <= width
    assert any("different" in line for line in lines)
