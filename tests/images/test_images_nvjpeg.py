"""Batches for nvJPEG, with a stand-in for it on the CPU: what is given to it, what is left to Pillow, and the order."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from image_files import files
from torchvision.io import ImageReadMode, decode_jpeg

from fastload import ConfigError
from fastload.images import decode_batch, nvjpeg

FILES = files()
CPU = torch.device("cpu")
COMMON = ["size5.jpg", "gray.jpg", "progressive.jpg", "exif.jpg"]


class StandIn:
    """Decodes on the CPU in nvJPEG's place; refuses, as a whole, a batch with certain files."""

    def __init__(self, refused: tuple[bytes, ...] = ()) -> None:
        self.refused = refused
        self.batches: list[list[bytes]] = []

    def __call__(self, data: list[bytes], device: torch.device) -> Any:
        self.batches.append(data)
        if any(one in self.refused for one in data):
            raise RuntimeError("nvjpegDecode failed: 2")
        tensors = [torch.from_numpy(np.frombuffer(bytearray(one), dtype=np.uint8)) for one in data]
        return [decode_jpeg(one, mode=ImageReadMode.RGB) for one in tensors]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn()
    monkeypatch.setattr(nvjpeg, "_on_device", made)
    return made


def check(images: list[torch.Tensor], data: list[bytes]) -> None:
    assert len(images) == len(data)
    for image, one in zip(images, data, strict=True):
        expected = np.asarray(PIL.Image.open(io.BytesIO(one)).convert("RGB"))
        assert image.dtype == torch.uint8
        np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), expected)


def test_files_of_all_kinds_come_back_in_order_and_only_common_ones_are_given_to_it(stand_in):
    data, counts = list(FILES.values()), {}
    check(nvjpeg._batch(data, CPU, counts), data)
    [batch] = stand_in.batches
    jpegs = [one for name, one in FILES.items() if name.endswith("jpg") and name != "cmyk.jpg"]
    assert batch == jpegs
    assert counts == {
        "nvjpeg": len(jpegs),
        "pillow (colors)": 1,
        "pillow (no JPEG file)": len(data) - len(jpegs) - 1,
    }


def test_one_that_it_refuses_is_found_and_decoded_by_pillow(stand_in):
    data, counts = [FILES[name] for name in COMMON], {}
    stand_in.refused = (data[1],)
    check(nvjpeg._batch(data, CPU, counts), data)
    assert counts == {"nvjpeg": 3, "pillow (nvJPEG refused it)": 1}
    assert [len(batch) for batch in stand_in.batches] == [4, 1, 1, 1, 1]


def test_components_named_red_green_and_blue_are_left_to_pillow(stand_in):
    buffer = io.BytesIO()
    PIL.Image.fromarray(np.full((9, 8, 3), (200, 30, 90), dtype=np.uint8)).save(buffer, "JPEG", keep_rgb=True)
    counts: dict[str, int] = {}
    check(nvjpeg._batch([buffer.getvalue()], CPU, counts), [buffer.getvalue()])
    assert counts == {"pillow (colors)": 1}
    assert stand_in.batches == []


@pytest.mark.parametrize("data", [b"", b"no image", FILES["size7.jpg"][:-300], FILES["size7.png"][:-300]])
def test_what_nobody_can_decode_is_pillows_error_with_its_place(stand_in, data):
    with pytest.raises(OSError) as caught:  # compared with Pillow's
        nvjpeg._batch([FILES["gray.jpg"], data], CPU, {})
    with pytest.raises(OSError) as pillows:
        PIL.Image.open(io.BytesIO(data)).convert("RGB")
    assert type(caught.value) is type(pillows.value)
    assert str(caught.value).split("<")[0] == str(pillows.value).split("<")[0]
    assert caught.value.__notes__ == ["at index 1 of the batch"]


def test_an_image_with_bytes_after_its_end_is_pillows(stand_in):
    data, counts = [FILES["size7.jpg"] + b"more"], {}
    check(nvjpeg._batch(data, CPU, counts), data)
    assert counts == {"pillow (no end)": 1}


def test_files_may_be_views_as_packs_give_them(stand_in):
    data, counts = [memoryview(FILES[name]) for name in (*COMMON, "cmyk.jpg")], {}
    check(nvjpeg._batch(data, CPU, counts), data)
    assert counts == {"nvjpeg": 4, "pillow (colors)": 1}


@pytest.mark.parametrize("turn", [0, 1])
def test_errors_of_the_device_are_not_taken_for_errors_of_a_file(stand_in, monkeypatch, turn):
    calls: list[int] = []

    def full(data: list[bytes], device: torch.device) -> Any:
        calls.append(len(data))
        if len(calls) <= turn:
            raise RuntimeError("nvjpegDecode failed: 2")
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(nvjpeg, "_on_device", full)
    with pytest.raises(torch.OutOfMemoryError):
        nvjpeg._batch([FILES[name] for name in COMMON], CPU, {})
    assert calls == [4, 1][: turn + 1]


def test_no_files_are_no_images(stand_in):
    assert nvjpeg._batch([], CPU, {}) == []
    assert stand_in.batches == []


def test_a_device_that_is_none_for_it_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match=r"decodes on CUDA devices, got device='cpu'; .*decode\(\) decodes"):
        decode_batch([], "cpu")
    monkeypatch.setattr(nvjpeg, "why_not", lambda: "torch sees no CUDA device")
    with pytest.raises(ConfigError, match="nvJPEG is not available: torch sees no CUDA device; decode on the CPU"):
        decode_batch([], "cuda")


def test_a_torchvision_without_it_is_told_from_a_machine_without_a_gpu(monkeypatch):
    why_not = nvjpeg.why_not.__wrapped__
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert why_not() == "torch sees no CUDA device"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)

    def without(data: list[bytes], device: torch.device) -> Any:
        raise RuntimeError("torchvision not compiled with nvJPEG support")

    monkeypatch.setattr(nvjpeg, "_on_device", without)
    assert "not compiled with nvJPEG support" in (why_not() or "")
    monkeypatch.setattr(nvjpeg, "_on_device", StandIn())
    assert why_not() is None
