"""nvJPEG on a real GPU: Pillow's images but for some levels, in order; the rest is Pillow's to the bit."""

from __future__ import annotations

import io

import numpy as np
import PIL.Image
import pytest
import torch
from image_files import files

from fastload.images import decode_batch, nvjpeg

CYCLES = 20_000_000  # of torch.cuda._sleep: some 10 ms
FILES = files()


@pytest.fixture(scope="module", autouse=True)
def _nvjpeg_has_begun() -> None:
    """Let nvJPEG open what it keeps open to the end, so that no test seems to leave it behind."""
    if torch.cuda.is_available() and nvjpeg.why_not() is None:
        for progressive in (False, True):  # by its hardware, and without
            decode_batch([smooth(256, 256, subsampling=2, progressive=progressive)] * 4, "cuda")


@pytest.fixture(autouse=True)
def _nvjpeg() -> None:
    reason = nvjpeg.why_not()
    if reason is not None:
        pytest.fail(f"there is a GPU, and no nvJPEG: {reason}")


def by_pillow(data: bytes) -> np.ndarray:
    return np.asarray(PIL.Image.open(io.BytesIO(data)).convert("RGB"))


def smooth(height: int, width: int, **options: object) -> bytes:
    y, x = np.mgrid[:height, :width]
    image = np.stack([127 + 100 * np.sin(x / 31), 127 + 100 * np.cos(y / 23), (x + y) % 256 * 0 + 90], axis=-1)
    buffer = io.BytesIO()
    PIL.Image.fromarray(image.astype(np.uint8)).save(buffer, "JPEG", quality=92, **options)
    return buffer.getvalue()


def test_files_of_all_kinds_come_back_in_order():
    data, counts = list(FILES.values()), {}
    images = decode_batch(data, "cuda", counts=counts)
    assert counts["nvjpeg"] >= 5
    for (name, one), image in zip(FILES.items(), images, strict=True):
        expected = by_pillow(one)
        assert image.is_cuda
        assert image.dtype == torch.uint8
        assert tuple(image.shape) == (3, *expected.shape[:2])
        if not name.endswith("jpg") or name == "cmyk.jpg":
            np.testing.assert_array_equal(image.permute(1, 2, 0).cpu().numpy(), expected, name)


# Where colours are stored at half the size, nvJPEG's way to enlarge them is its own.
@pytest.mark.parametrize(
    ("options", "mean", "most"),
    [
        ({"subsampling": 0}, 1.5, 12),
        ({"subsampling": 2}, 4, 48),
        ({"subsampling": 2, "progressive": True}, 4, 48),
    ],
    ids=["4:4:4", "4:2:0", "4:2:0, progressive"],
)
def test_smooth_images_are_pillows_within_some_levels(options, mean, most):
    data = [smooth(120 + 7 * place, 200 - 9 * place, **options) for place in range(8)]
    counts: dict[str, int] = {}
    for one, image in zip(data, decode_batch(data, "cuda", counts=counts), strict=True):
        apart = np.abs(image.permute(1, 2, 0).cpu().numpy().astype(int) - by_pillow(one))
        assert apart.mean() < mean
        assert apart.max() <= most
    assert counts == {"nvjpeg": 8}


def test_memory_that_queued_kernels_still_read_is_not_written():
    data = [smooth(256, 256, subsampling=2, progressive=place % 2 == 0) for place in range(16)]
    decode_batch(data, "cuda")  # what is done once
    for _ in range(5):
        blocks = [torch.full((3, 256, 256), level, dtype=torch.uint8, device="cuda") for level in range(1, 33)]
        torch.cuda.synchronize()
        torch.cuda._sleep(10 * CYCLES)
        sums = [block.sum(dtype=torch.int64) for block in blocks]
        del blocks  # what the allocator now gives to whoever asks on this stream
        images = decode_batch(data, "cuda")
        torch.cuda.synchronize()
        assert [value.item() for value in sums] == [3 * 256 * 256 * level for level in range(1, 33)]
        del images


def test_images_are_right_though_they_are_read_late_and_on_another_stream():
    data = [smooth(200 + place, 150, subsampling=0) for place in range(8)]
    expected = [image.cpu() for image in decode_batch(data, "cuda")]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        found = []
        for _ in range(10):
            images = decode_batch(data, "cuda")
            torch.cuda._sleep(CYCLES)
            found.append([image.clone() for image in images])
            del images
        stream.synchronize()
        for images in found:
            for image, other in zip(images, expected, strict=True):
                assert torch.equal(image.cpu(), other)


def test_a_truncated_file_is_pillows_error():
    with pytest.raises(OSError, match="truncated"):
        decode_batch([FILES["gray.jpg"], FILES["size7.jpg"][:-300]], "cuda")
