"""Parameters on their way to a device: one copy, and the same values in the same nest."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastload.transforms import params
from fastload.transforms.params import pack, params_to, places_of, unpack

DTYPES = (torch.bool, torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64)


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 7), max_size=3))
    made = torch.randint(0, 100, shape).to(draw(st.sampled_from(DTYPES)))
    return made.transpose(0, -1) if shape and draw(st.booleans()) else made


@given(st.lists(tensors(), max_size=6))
def test_what_is_packed_is_unpacked(many):
    places = places_of(many)
    buffer = torch.full((places[-1],), 255, dtype=torch.uint8)
    pack(many, buffer)
    found = unpack(buffer, many)
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


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_elsewhere_each_tensor_goes_by_itself(device):
    values = torch.arange(3)
    moved = params_to({"a": (values, [values])}, torch.device(device))
    assert moved["a"][0].device.type == device
    assert (moved["a"][0] is values) == (device == "cpu")
    assert isinstance(moved["a"], tuple)
