"""Random crops that keep boxes are drawn with fewer calls: the same parameters and the same state of the generator."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from comparing import Calls, as_sample
from hypothesis import given, settings
from hypothesis import strategies as st
from replacing import put_back
from test_late_containers import seen
from torch.overrides import TorchFunctionMode
from torchvision import tv_tensors
from torchvision.transforms import v2

from fastload.base import overrides
from fastload.late import draws as box_crops
from fastload.late.scope import thread

ORIGINAL = v2.RandomIoUCrop.make_params


@pytest.fixture(autouse=True)
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Replace the method, as a worker process does, and put it back.

    Returns the list that gets whether parameters were drawn with fewer calls, each time that this was possible.
    """
    found: list[bool] = []
    draw = box_crops._drawn

    def noted(*arguments: Any) -> Any:
        made = draw(*arguments)
        if thread.scope is not None:
            found.append(made is not None)
        return made

    monkeypatch.setattr(box_crops, "_drawn", noted)
    put_back()
    overrides.install()
    yield found
    put_back()


def boxes_of(edges: Any, form: Any = "XYXY", dtype: torch.dtype = torch.float32) -> Any:
    found = torch.tensor(edges, dtype=dtype).reshape(-1, len(edges[0]) if edges else 4)
    return tv_tensors.BoundingBoxes(found, format=form, canvas_size=(60, 80))


BOXES = boxes_of([[2, 3, 30, 40], [40, 20, 70, 50], [10, 10, 75, 58]])


def outcome(transform: Any, boxes: Any, seed: int = 0) -> Any:
    """Return what a transform makes of an image and boxes, or raises, and the generator's state behind it."""
    image = tv_tensors.Image(torch.arange(3 * 60 * 80).reshape(3, 60, 80).to(torch.uint8))
    torch.manual_seed(seed)
    try:
        made = seen(transform({"image": image, "boxes": boxes}))
    except Exception as error:
        made = seen(error)
    return made, torch.get_rng_state().tolist()


def assert_equal(transform: Any, boxes: Any, seed: int = 0) -> None:
    """Assert that a transform does the same within a sample as outside of one."""
    assert as_sample(lambda: outcome(transform, boxes, seed)) == outcome(transform, boxes, seed)


corner = st.tuples(*[st.floats(0, 60, width=32)] * 4).map(
    lambda edges: [min(edges[:2]), min(edges[2:]), max(edges[:2]), max(edges[2:])]
)
scale = st.tuples(st.floats(0.05, 1), st.floats(0.05, 1.2)).map(sorted)
aspect = st.tuples(st.floats(0.1, 1), st.floats(0.8, 8))
options = st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0, -1]), max_size=4).map(lambda found: [*found, 1.0])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(corner, max_size=5), st.sampled_from(["XYXY", "XYWH", "CXCYWH"]),
    st.sampled_from([torch.float32, torch.int64]), scale, aspect, options, st.integers(0, 50), st.integers(0, 2**62),
)  # fmt: skip
def test_any_boxes_and_arguments_draw_the_same(
    edges: Any, form: str, dtype: Any, scale: Any, aspect: Any, options: Any, trials: int, seed: int
) -> None:
    transform = v2.RandomIoUCrop(*scale, *aspect, sampler_options=options, trials=trials)
    assert_equal(transform, boxes_of(edges, form, dtype), seed)


def test_the_usual_boxes_are_drawn_with_fewer_calls(drawn: list[bool]) -> None:
    transform = v2.RandomIoUCrop()
    expected = [outcome(transform, BOXES, seed) for seed in range(20)]
    as_sample(lambda: outcome(transform, BOXES))  # compares both ways
    drawn.clear()
    with Calls(torch.rand) as calls:
        assert [as_sample(lambda seed=seed: outcome(transform, BOXES, seed)) for seed in range(20)] == expected
    assert calls.count == 0
    assert drawn == [True] * 20


class OwnBoxes(tv_tensors.BoundingBoxes):  # type: ignore[misc]  # torchvision has no types
    pass


LEFT: list[tuple[Any, dict[str, Any]]] = [
    # Other boxes.
    (boxes_of([[2, 3, 30, 40]], dtype=torch.float64), {}),
    (boxes_of([[2, 3, 30, 40]], dtype=torch.float16), {}),
    (boxes_of([[2, 3, 30, math.nan]]), {}),
    (boxes_of([[2, 3, 30, 1e9]]), {}),
    (BOXES.as_subclass(OwnBoxes), {}),
    *([(boxes_of([[2, 3, 30, 40, 15]], "CXCYWHR"), {})] if hasattr(tv_tensors.BoundingBoxFormat, "CXCYWHR") else []),
    # Other arguments.
    *((BOXES, changes) for changes in ({"min_scale": "a"}, {"max_scale": math.inf})),
    (BOXES, {"min_scale": 1e9, "max_scale": 2e9}),
    *((BOXES, {"options": options}) for options in ([], [math.nan, 1.0], ["a"])),
    *((BOXES, {"trials": trials}) for trials in (3.0, None)),
]


@pytest.mark.parametrize(("boxes", "changes"), LEFT)
def test_other_boxes_and_arguments_are_left_to_torchvision(boxes: Any, changes: Any, drawn: list[bool]) -> None:
    transform = v2.RandomIoUCrop(trials=5)
    vars(transform).update(changes)
    for seed in range(5):
        assert_equal(transform, boxes, seed)
    assert True not in drawn


def test_errors_come_where_they_came() -> None:
    assert_equal(v2.RandomIoUCrop(0.0, 0.0), BOXES)  # a crop without rows: a division by zero
    assert_equal(v2.RandomIoUCrop(), boxes_of([]))
    assert_equal(v2.RandomIoUCrop(), torch.zeros(1, 4))
    other_size = tv_tensors.BoundingBoxes([[1, 2, 3, 4]], format="XYXY", canvas_size=(9, 9))
    assert_equal(v2.RandomIoUCrop(), other_size)


class Own(v2.RandomIoUCrop):  # type: ignore[misc]
    def make_params(self, flat_inputs: Any) -> Any:
        return {**super().make_params(flat_inputs)}


class Seeing(TorchFunctionMode):
    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_classes_of_ones_own_and_modes_are_left_to_torchvision(drawn: list[bool]) -> None:
    def within(*inputs: Any) -> Any:
        with Seeing():
            return v2.RandomIoUCrop()(*inputs)

    def in_double_precision(*inputs: Any) -> Any:
        torch.set_default_dtype(torch.float64)
        try:
            return v2.RandomIoUCrop()(*inputs)
        finally:
            torch.set_default_dtype(torch.float32)

    for transform in (Own(), within, in_double_precision):
        assert_equal(transform, BOXES)
    assert not drawn


def test_where_both_ways_differ_the_original_draws(drawn: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overrides, "results", {})
    monkeypatch.setattr(box_crops, "_most_overlap", lambda *edges: 0.95)
    state = torch.get_rng_state()
    as_sample(lambda: outcome(v2.RandomIoUCrop(), BOXES))
    torch.set_rng_state(state)
    assert not box_crops.OVERRIDES[0].agrees()
    assert torch.equal(torch.get_rng_state(), state)
    for seed in range(5):
        assert_equal(v2.RandomIoUCrop(), BOXES, seed)
    assert not drawn
