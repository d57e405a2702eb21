"""Parameters on their way to a device, and the check of those that a caller gives."""

from __future__ import annotations

import pytest
import torch

from fastload.transforms import Compose, GaussianBlur, RandomCrop, RandomGrayscale
from fastload.transforms.params import check_params, params_to


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
    check_params("GaussianBlur got params", {"sigma": sigma.to("meta")}, {"sigma": torch.ones(4)})


def test_another_dtype_is_refused_but_among_floats():
    places = {"top": torch.ones(4), "left": torch.ones(4)}
    with pytest.raises(TypeError, match=r"params\['top'\] of torch.float32, and takes torch.int64"):
        RandomCrop(8)(IMAGES, params=places)
    with pytest.raises(TypeError, match=r"params\['top'\] of list, and takes a tensor of torch.int64"):
        RandomCrop(8)(IMAGES, params=places | {"top": [1, 1, 1, 1]})
    found = GaussianBlur(3)(IMAGES, params={"sigma": torch.ones(4, dtype=torch.float64)})
    assert torch.equal(found, IMAGES)


def test_nests_are_looked_into():
    composed = Compose([RandomCrop(8), RandomGrayscale()])
    _, given = composed(IMAGES, return_params=True)
    given["RandomGrayscale"]["chosen"] = given["RandomGrayscale"]["chosen"][:3]
    with pytest.raises(ValueError, match=r"Compose got params\['RandomGrayscale'\]\['chosen'\] of shape \(3,\)"):
        composed(IMAGES, params=given)
    given["RandomGrayscale"] = 3
    with pytest.raises(TypeError, match=r"\['RandomGrayscale'\] of int, and takes a dict with 'chosen'"):
        composed(IMAGES, params=given)


def test_parameters_are_checked_once_where_they_are_given_and_never_where_they_are_drawn(monkeypatch):
    checked = []
    monkeypatch.setattr("fastload.transforms.base.check_params", lambda *arguments: checked.append(arguments[0]))
    composed = Compose([RandomCrop(8), RandomGrayscale()])
    state = torch.get_rng_state()
    _, given = composed(IMAGES, generator=torch.Generator().manual_seed(0), return_params=True)
    assert checked == []
    composed(IMAGES, params=given)
    assert checked == ["Compose got params"]
    assert torch.equal(torch.get_rng_state(), state)
