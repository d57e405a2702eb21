"""Batches for nvJPEG, with a stand-in for it on the CPU: what is given to it, what is left to Pillow, and the order."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from image_files import files

from fastload import ConfigError
from fastload.images import decode_batch, nvjpeg
from fastload.images.nvjpeg import decode_jpegs

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
        return decode_jpegs(data, CPU)


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
    check(nvjpeg._batch([memoryview(one) for one in data], CPU, {}), data)  # as packs give them
    assert nvjpeg._batch([], CPU, {}) == []
    assert len(stand_in.batches) == 2


def test_one_that_it_refuses_is_found_and_decoded_by_pillow(stand_in):
    data, counts = [FILES[name] for name in COMMON], {}
    stand_in.refused = (data[1],)
    check(nvjpeg._batch(data, CPU, counts), data)
    assert counts == {"nvjpeg": 3, "pillow (nvJPEG refused it)": 1}
    assert [len(batch) for batch in stand_in.batches] == [4, 1, 1, 1, 1]


@pytest.mark.parametrize("data", [b"", b"no image", FILES["size7.jpg"][:-300], FILES["size7.png"][:-300]])
def test_what_nobody_can_decode_is_pillows_error_with_its_place(stand_in, data):
    with pytest.raises(OSError) as caught:  # compared with Pillow's
        nvjpeg._batch([FILES["gray.jpg"], data], CPU, {})
    with pytest.raises(OSError) as pillows:
        PIL.Image.open(io.BytesIO(data)).convert("RGB")
    assert type(caught.value) is type(pillows.value)
    assert str(caught.value).split("<")[0] == str(pillows.value).split("<")[0]
    assert caught.value.__notes__ == ["at index 1 of the batch"]


def with_components_named_red_green_and_blue() -> bytes:
    buffer = io.BytesIO()
    PIL.Image.fromarray(np.full((9, 8, 3), (200, 30, 90), dtype=np.uint8)).save(buffer, "JPEG", keep_rgb=True)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (FILES["size7.jpg"] + b"more", "no end"),
        pytest.param(
            with_components_named_red_green_and_blue(),
            "colors",
            marks=pytest.mark.skipif(PIL.__version__.startswith("10.1."), reason="Pillow keeps RGB since 10.2"),
        ),
    ],
)
def test_an_image_with_bytes_after_its_end_or_of_other_colors_is_pillows(stand_in, data, why):
    counts: dict[str, int] = {}
    check(nvjpeg._batch([data], CPU, counts), [data])
    assert counts == {f"pillow ({why})": 1}


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


class Stream:
    """A stream in CUDA's place: says which streams it was told to wait for."""

    def __init__(self) -> None:
        self.waited_for: list[Stream] = []
        self.num_synchronized = 0

    def synchronize(self) -> None:
        self.num_synchronized += 1

    def wait_stream(self, other: Stream) -> None:
        self.waited_for.append(other)


class Cuda:
    """CUDA's streams, and nvJPEG behind torchvision's operator, which allocates on the current stream."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.current = self.reader = Stream()
        self.allocated_on: list[Stream] = []
        self.made: list[Stream] = []
        self.recorded: list[Stream] = []
        self.num_synchronized = 0
        self.refuses = False
        for name in ("Stream", "stream", "current_stream", "synchronize"):
            patch.setattr(torch.cuda, name, getattr(self, f"_{name}"))
        patch.setattr(torch.ops.image, "decode_jpegs_cuda", self._decode)
        patch.setattr(torch.Tensor, "record_stream", lambda image, stream: self.recorded.append(stream))
        nvjpeg._own_stream.cache_clear()

    def _Stream(self, device: torch.device) -> Stream:
        self.made.append(Stream())
        return self.made[-1]

    @contextlib.contextmanager
    def _stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def _current_stream(self, device: torch.device) -> Stream:
        return self.current

    def _synchronize(self, device: torch.device) -> None:
        self.num_synchronized += 1

    def _decode(self, tensors: list[torch.Tensor], mode: int, device: torch.device) -> list[torch.Tensor]:
        self.allocated_on.append(self.current)
        if self.refuses:
            raise RuntimeError("nvjpegDecode failed: 2")
        return [torch.zeros(3, 1, 1, dtype=torch.uint8) for _ in tensors]


@pytest.fixture
def cuda(monkeypatch):
    made = Cuda(monkeypatch)
    yield made
    nvjpeg._own_stream.cache_clear()


def test_images_are_allocated_where_nothing_reads_and_recorded_where_they_are_read(cuda):
    device = torch.device("cuda", 0)
    for _ in range(2):
        assert len(nvjpeg._on_device([b"a", b"b"], device)) == 2
    [own] = cuda.made
    assert cuda.allocated_on == [own, own]
    assert own.num_synchronized == 2  # somebody else may have been given the same stream
    assert cuda.current is cuda.reader
    assert cuda.reader.waited_for == [own, own]
    assert cuda.recorded == [cuda.reader] * 4
    assert cuda.num_synchronized == 0
    nvjpeg._on_device([b"a"], torch.device("cuda", 1))
    assert len(cuda.made) == 2  # each device has its own


def test_after_a_refusal_nothing_is_given_back_that_is_still_written(cuda):
    cuda.refuses = True
    with pytest.raises(RuntimeError, match="nvjpegDecode failed"):
        nvjpeg._on_device([b"a"], torch.device("cuda", 0))
    assert cuda.num_synchronized == 1
    assert cuda.current is cuda.reader
    assert cuda.recorded == []


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

    def full(data: list[bytes], device: torch.device) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(nvjpeg, "_on_device", full)
    with pytest.raises(torch.OutOfMemoryError):
        why_not()
