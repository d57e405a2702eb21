"""Parameters on their way to a device: one copy, and the same values in the same nest."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastload.transforms import Compose, GaussianBlur, RandAugment, RandomCrop, RandomGrayscale, params
from fastload.transforms.params import check_params, offsets_of, params_to, views_of

DTYPES = (torch.bool, torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64)


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 7), max_size=3))
    made = torch.randint(0, 100, shape).to(draw(st.sampled_from(DTYPES)))
    return made.transpose(0, -1) if shape and draw(st.booleans()) else made


@given(st.lists(tensors(), max_size=6))
def test_what_is_packed_is_unpacked(many):
    places = offsets_of(many)
    buffer = torch.full((places[-1],), 255, dtype=torch.uint8)
    for view, one in zip(views_of(buffer, many), many, strict=True):
        view.copy_(one)
    found = views_of(buffer, many)
    assert len(found) == len(many)
    for one, other in zip(found, many, strict=True):
        assert one.dtype == other.dtype
        assert one.is_contiguous()
        assert torch.equal(one, other)
    assert all(place % 16 == 0 for place in places)
    assert all(later - place >= one.nbytes for place, later, one in zip(places, places[1:], many, strict=False))


def test_all_parameters_go_to_a_gpu_in_one_copy(monkeypatch):
    sent = []

    def send(buffer, device):
        sent.append((buffer, device))
        return buffer.clone()

    monkeypatch.setattr(params, "_page_locked", lambda size: torch.empty(size, dtype=torch.uint8))
    monkeypatch.setattr(params, "_sent", send)
    nest = {
        "RandomCrop": {"top": torch.arange(5), "left": torch.arange(5, 10)},
        "RandomHorizontalFlip": {"flip": torch.tensor([True, False, True])},
        "RandAugment": {"steps": [{"magnitude": torch.rand(3, 2)}, {}], "name": "x"},
    }
    device = torch.device("cuda", 0)
    moved = params_to(nest, device)
    assert [one for _, one in sent] == [device]
    assert moved["RandomCrop"]["top"].tolist() == [0, 1, 2, 3, 4]
    assert moved["RandomCrop"]["left"].tolist() == [5, 6, 7, 8, 9]
    assert moved["RandomHorizontalFlip"]["flip"].tolist() == [True, False, True]
    assert torch.equal(moved["RandAugment"]["steps"][0]["magnitude"], nest["RandAugment"]["steps"][0]["magnitude"])
    assert moved["RandAugment"]["steps"][1] == {}
    assert moved["RandAugment"]["name"] == "x"
    assert params_to({}, device) == {}
    assert len(sent) == 1


def test_parameters_that_a_graph_would_read_from_the_host_are_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match=r"a CUDA graph is captured.*params="):
        params_to({"flip": torch.tensor([True])}, torch.device("cuda", 0))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_elsewhere_each_tensor_goes_by_itself(device):
    values = torch.arange(3)
    moved = params_to({"a": (values, [values])}, torch.device(device))
    assert moved["a"][0].device.type == device
    assert (moved["a"][0] is values) == (device == "cpu")
    assert isinstance(moved["a"], tuple)


IMAGES = torch.zeros((4, 3, 10, 10), dtype=torch.uint8)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(bad):
    sigma = torch.tensor([1.0, 1.0, bad, 1.0])
    with pytest.raises(ValueError, match=rf"GaussianBlur got params\['sigma'\] with {bad} in it"):
        GaussianBlur(3)(IMAGES, params={"sigma": sigma})
    # What is on a device is not looked at, since that would wait for it.
    check_params("GaussianBlur got params", {"sigma": sigma.to("meta")}, {"sigma": torch.ones(4)}, 4)


def test_another_dtype_is_refused_but_among_floats():
    places = {"top": torch.ones(4), "left": torch.ones(4)}
    with pytest.raises(TypeError, match=r"params\['top'\] of torch.float32, and takes torch.int64"):
        RandomCrop(8)(IMAGES, params=places)
    with pytest.raises(TypeError, match=r"params\['top'\] of list, and takes a tensor of torch.int64"):
        RandomCrop(8)(IMAGES, params=places | {"top": [1, 1, 1, 1]})
    found = GaussianBlur(3)(IMAGES, params={"sigma": torch.ones(4, dtype=torch.float64)})
    assert torch.equal(found, IMAGES)


@pytest.mark.parametrize("rows", [[0, 4], [-1], [0, 1, 2, 3, 0], [[0]]])
def test_rows_are_of_samples_that_there_are(rows):
    given = {"chosen": torch.ones(4, dtype=torch.bool), "rows": torch.tensor(rows)}
    with pytest.raises(ValueError, match=r"RandomGrayscale got params\['rows'\] of "):
        RandomGrayscale()(IMAGES, params=given)


def test_nests_are_looked_into():
    composed = Compose([RandomCrop(8), RandAugment(2)])
    _, given = composed(IMAGES, return_params=True)
    steps = given["RandAugment"]["steps"]
    steps[1]["matrix"] = steps[1]["matrix"][:, :1]
    with pytest.raises(
        ValueError, match=r"Compose got params\['RandAugment'\]\['steps'\]\[1\]\['matrix'\] of shape \(4, 1, 3\)"
    ):
        composed(IMAGES, params=given)
    given["RandAugment"]["steps"] = steps[:1]
    with pytest.raises(ValueError, match=r"\['steps'\] with 0, and takes a list with 0, 1"):
        composed(IMAGES, params=given)


def test_parameters_are_checked_once_where_they_are_given_and_never_where_they_are_drawn(monkeypatch):
    checked = []
    monkeypatch.setattr("fastload.transforms.base.check_params", lambda *arguments: checked.append(arguments[0]))
    composed = Compose([RandomCrop(8), RandAugment(2)])
    state = torch.get_rng_state()
    _, given = composed(IMAGES, generator=torch.Generator().manual_seed(0), return_params=True)
    assert checked == []
    composed(IMAGES, params=given)
    assert checked == ["Compose got params"]
    assert torch.equal(torch.get_rng_state(), state)
