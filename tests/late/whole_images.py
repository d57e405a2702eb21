"""What functions that return whole images give: called in all ways, here and in workers."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.io
from comparing import described
from kit.datasets import Made

import fastload
from fastload.late import arrays

cv2 = pytest.importorskip("cv2")

FLAGS = [1, 1 | 128, 256, 256 | 128, -1, 0, 128, 2, 4, 6, 6 | 128, 2 | 1, 4 | 1, 7, 257, 16, 17, 32, 33, True]
needs_library = pytest.mark.skipif(
    arrays.unavailable_reason() is not None, reason="whole images are decoded by others here"
)
IS_OLD = not hasattr(cv2, "IMREAD_COLOR_RGB")
"""OpenCV before 4.11: has not the flag 256, and leaves memory as it was where a JPEG file is cut."""
FLAGS = [flags for flags in FLAGS if not (IS_OLD and flags & 256)]
MODES = list(torchvision.io.ImageReadMode)


def of_any_kind(kind: str, mode: int) -> bool:
    """Take files of all kinds in all modes."""
    return True


def samples_of(sample: Callable[[int], Any], number: int = 2, **options: Any) -> tuple[list[Any], dict[str, int]]:
    """Return the samples that a loader with a worker makes, as they are, and how their images were decoded."""
    options = {"num_workers": 1, **options}
    dataset = sample if isinstance(sample, Made) else Made(number, sample)
    loader = fastload.DataLoader(dataset, None, collate_fn=same, **options)
    return list(loader), loader.statistics().decoded


def same(sample: Any) -> Any:
    return sample


def seen(make: Callable[[], Any]) -> Any:
    try:
        made = make()
    except Exception as error:
        made = error
    return described(made)


def folder_of(folder: Path, files: Iterable[tuple[str, bytes]], ending: str) -> Path:
    for name, data in files:
        (folder / f"{name}.{ending}").write_bytes(data)
    return folder


def memory(path: Path) -> Any:
    return np.fromfile(path, dtype=np.uint8)


def tensor(path: Path) -> torch.Tensor:
    return torch.from_numpy(memory(path)) if path.stat().st_size else torch.empty(0, dtype=torch.uint8)


def read_by_opencv(path: Path) -> list[Any]:
    data = memory(path)
    given = [
        *(lambda flags=flags: cv2.imread(str(path), flags) for flags in FLAGS[::3]),
        *(lambda flags=flags: cv2.imdecode(data, flags) for flags in FLAGS),
        lambda: cv2.imread(str(path)),
        lambda: cv2.imread(filename=str(path), flags=1),
        lambda: cv2.imread(path, 1),
        lambda: cv2.imread(str(path) + "x"),
        lambda: cv2.imread(str(path), 1, 2, 3, 4),
        lambda: cv2.imread(),
        lambda: cv2.imread("/proc/self/fd"),
        lambda: cv2.imdecode(data[None], 1),
        lambda: cv2.imdecode(data[:, None], 1),
        lambda: cv2.imdecode(np.repeat(data, 2)[::2], 1),
        lambda: cv2.imdecode(data.astype(np.int16), 1),
        lambda: cv2.imdecode(data.tobytes(), 1),
        lambda: cv2.imdecode(np.frombuffer(data.tobytes(), dtype=np.uint8), 1),
        lambda: cv2.imdecode(data),
        lambda: cv2.imdecode(buf=data, flags=cv2.IMREAD_COLOR),
    ]
    return [seen(make) for make in given]


def read_by_torchvision(path: Path) -> list[Any]:
    data, io_ = tensor(path), torchvision.io
    given = [
        *(lambda mode=mode: io_.read_image(str(path), mode) for mode in MODES),
        *(lambda mode=mode: io_.decode_image(data, mode, apply_exif_orientation=True) for mode in MODES),
        *(lambda mode=mode: io_.decode_jpeg(data, mode, apply_exif_orientation=True) for mode in MODES),
        *(lambda mode=mode: io_.decode_png(data, mode) for mode in MODES),
        *(lambda mode=mode: io_.decode_png(data, mode, apply_exif_orientation=True) for mode in MODES),
        lambda: torch.ops.image.decode_png(data=data, mode=3),
        lambda: torch.ops.image.decode_png(data, 7),
        lambda: io_.decode_image(str(path), "RGB"),
        lambda: io_.decode_jpeg(data),
        lambda: io_.decode_jpeg([data, data]),
        lambda: io_.decode_jpeg(data[None]),
        lambda: io_.decode_jpeg(data.repeat_interleave(2)[::2]),
        lambda: io_.decode_jpeg(data.float()),
        lambda: torch.ops.image.decode_jpeg(data),
        lambda: torch.ops.image.decode_jpeg(data, 3, True, 5),
        lambda: torch.ops.image.decode_jpeg(data=data, mode=3),
        lambda: torch.ops.image.decode_jpeg(data, True),
    ]
    return [seen(make) for make in given]


def read_by_torchcodec(path: Path) -> list[Any]:
    from torchcodec.decoders import decode_image, decode_jpeg, decode_png

    modes = "UNCHANGED", "GRAY", "GRAY_ALPHA", "RGB", "RGB_ALPHA"
    given = [
        *(lambda mode=mode: decode_jpeg(path, mode=mode) for mode in modes),
        *(lambda mode=mode: decode_png(path, mode=mode) for mode in modes),
        *(lambda dtype=dtype: decode_png(path, output_dtype=dtype) for dtype in ("auto", torch.uint16)),
        lambda: decode_image(str(path)),
        lambda: decode_image(path.read_bytes(), output_dtype=torch.uint16),
        lambda: decode_jpeg([tensor(path), path])[1],
        lambda: decode_jpeg(tensor(path)[None]),
    ]
    return [seen(make) for make in given]


LIBRARIES = {"cv2": read_by_opencv, "torchvision.io": read_by_torchvision, "torchcodec.decoders": read_by_torchcodec}


def assert_workers_read_the_same(
    folder: Path, library: str, without: Collection[str] = (), cache: str | None = None
) -> Any:
    """Read files of a folder here and in workers, without those named; return the loader's statistics.

    With a cache they are read in two epochs.
    """
    if library == "torchcodec.decoders":
        pytest.importorskip("torchcodec", reason="needs TorchCodec", exc_type=Exception)
        importlib.import_module(library)
    read = LIBRARIES[library]
    paths = sorted(path for path in folder.iterdir() if path.stem not in without)
    expected = [read(path) for path in paths]
    dataset = Made(len(paths), lambda index: read(paths[index]))
    loader = fastload.DataLoader(dataset, None, collate_fn=same, num_workers=2, cache=cache)
    for _ in range(1 if cache is None else 2):
        for path, found, before in zip(paths, loader, expected, strict=True):
            assert found == before, path.name
    assert [read(path) for path in paths[:3]] == expected[:3]  # nothing is replaced here
    return loader.statistics()


def num_taken(data: np.ndarray, form: str, flags: Collection[int] = FLAGS) -> int:
    """Decode a damaged file in all modes; return how many images were made, which are the functions' own."""
    file, taken = torch.from_numpy(data.copy()), 0
    of_torch = functools.partial(getattr(torch.ops.image, f"decode_{form}"), file)
    cases: list[tuple[Any, Callable[[], Any]]] = [
        (arrays._imdecode(of_any_kind, data, one), functools.partial(cv2.imdecode, data, one)) for one in flags
    ]
    cases += [
        (arrays._tensor(of_any_kind, file, mode, True), functools.partial(of_torch, mode, True)) for mode in range(5)
    ]
    for made, original in cases:
        if made is not None:
            taken += 1
            assert seen(lambda made=made: made) == seen(original)
    return taken
