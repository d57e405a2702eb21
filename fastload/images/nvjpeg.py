"""Many JPEG files at once, decoded on a CUDA device by nvJPEG; what it cannot do is decoded by Pillow and copied there.

In: files. Out: uint8 tensors on the device, in the same order. nvJPEG's pixels are its own: close to Pillow's, and not
the same.

NOTE [nvJPEG and streams]
torchvision allocates the images on the current stream, and lets nvJPEG write them on a stream of its own that waits for
nobody; nvJPEG's hardware engine does not even wait for the stream that it is given (pytorch/vision 9606,
meta-pytorch/torchcodec 1634). Memory that kernels on the current stream are still to read would be overwritten. So the
current stream is one that does nothing else while torchvision allocates: what the allocator has for that stream, nobody
reads any more, for each image is recorded on the stream of its reader (``record_stream``), and given back when that has
passed. The reader's stream waits for ours, which waits for nvJPEG.
"""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import PIL.Image
import torch
import torchvision  # noqa: F401  # registers its operators
from torch import Tensor

from ..errors import ConfigError
from ..pack.records import file_of
from .base import NO_JPEG, Data, opened

# Sizes beyond this are Pillow's to judge.
_MOST_PIXELS = 1 << 26
_RGB = 3  # what ImageReadMode.RGB stands for

_END = b"\xff\xd9"


def decode_batch(
    files: Sequence[Data], device: torch.device | str = "cuda", *, counts: dict[str, int] | None = None
) -> list[Tensor]:
    """Decode files on a CUDA device with nvJPEG; Pillow decodes those that nvJPEG cannot.

    The work is queued on the current stream. The EXIF orientation is not applied.

    Args:
        files: the bytes of each file: JPEG, PNG, or another format that Pillow knows.
        device: a CUDA device.
        counts: a dict to which the numbers of decoded files are added: ``"nvjpeg"``, ``"pillow (REASON)"``.

    Returns:
        For each file [3, H, W], uint8, RGB, on the device.

    Raises:
        ConfigError: the device is not a CUDA device, or nvJPEG is not available.
        Exception: what Pillow raises for a file that neither can decode, with a note of its index in ``files``.
    """
    device = torch.device(device)
    if device.type != "cuda":
        raise ConfigError(
            f"nvJPEG decodes on CUDA devices, got device={str(device)!r}; fastload.images.decode() decodes on the CPU"
        )
    reason = why_not()
    if reason is not None:
        raise ConfigError(f"nvJPEG is not available: {reason}; decode on the CPU, with fastload.images.decode()")
    index: Any = device.index  # None where it was not given
    if index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return _batch(files, device, {} if counts is None else counts)


def _batch(files: Sequence[Data], device: torch.device, counts: dict[str, int]) -> list[Tensor]:
    reasons = []
    files = list(files)
    for index, data in enumerate(files):
        with _named(index):
            files[index] = file_of(data)
            reasons.append(_why_left_to_pillow(files[index]))
    common = [index for index, reason in enumerate(reasons) if reason is None]
    found = dict(zip(common, _decoded([files[index] for index in common], device), strict=True))
    images = []
    for index, data in enumerate(files):
        image, by = found.get(index), "nvjpeg"
        if image is None:
            by = f"pillow ({reasons[index] or 'nvJPEG refused it'})"
            with _named(index):
                image = torch.from_numpy(np.array(opened(data))).permute(2, 0, 1).contiguous()
            if device.type != "cpu":
                image = image.pin_memory().to(device, non_blocking=True)  # the host does not wait for the copy
        counts[by] = counts.get(by, 0) + 1
        images.append(image)
    return images


@contextlib.contextmanager
def _named(index: int) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"at index {index} of the batch")
        raise


def _why_left_to_pillow(data: Data) -> str | None:
    """Return why a file is not given to nvJPEG; None if it is.

    Raises:
        Exception: Pillow's, if the file is no image.
    """
    with PIL.Image.open(io.BytesIO(data)) as header:
        reason = None
        if header.format != "JPEG":
            reason = NO_JPEG
        elif header.mode not in ("RGB", "L"):
            reason = "colors"
        elif header.width * header.height > _MOST_PIXELS:
            reason = "too large"
        # libjpeg goes by the names of the components where they are R, G and B.
        names = bytes(component[0] for component in getattr(header, "layer", ()))
        if reason is None and (header.info.get("adobe_transform") == 0 or names == b"RGB"):
            return "colors"
    if reason is None and bytes(data[-2:]) != _END:
        # nvJPEG may give an image of what is there, and Pillow is to say whether that is all.
        return "no end"
    return reason


def _decoded(files: list[Data], device: torch.device) -> list[Tensor | None]:
    """Return the images of files; None for each that nvJPEG refuses."""
    try:
        return [*_on_device(files, device)] if files else []
    except RuntimeError as error:
        if type(error) is not RuntimeError:  # such as out of memory: another decoder would not help
            raise
    if len(files) == 1:
        return [None]
    # The error does not say which file it was.
    return [image for data in files for image in _decoded([data], device)]


def decode_jpegs(files: Sequence[Data], device: torch.device) -> list[Tensor]:
    """Return files as [3, H, W], uint8, RGB: on the CPU decoded one by one, on a CUDA device together, with nvJPEG.

    The operators are called, not torchvision's functions, which warn with each call, from 0.29 on, that they will go.

    Raises:
        RuntimeError: a file is damaged, or this torchvision has no such decoder.
    """
    operators: Any = torch.ops.image
    name = "decode_jpeg" if device.type == "cpu" else "decode_jpegs_cuda"
    if not hasattr(operators, name):
        raise RuntimeError(f"it has no operator image::{name}")
    tensors = [torch.from_numpy(np.frombuffer(bytearray(data), dtype=np.uint8)) for data in files]
    images: list[Tensor]
    if device.type == "cpu":
        images = [operators.decode_jpeg(tensor, _RGB, False) for tensor in tensors]
    else:
        images = operators.decode_jpegs_cuda(tensors, _RGB, device)
    return images


def _on_device(files: list[Data], device: torch.device) -> list[Tensor]:
    """Return the images of files, for the current stream. See NOTE [nvJPEG and streams]."""
    reader = torch.cuda.current_stream(device)
    own = _own_stream(device)
    own.synchronize()  # torch hands out 32 streams in turn: others may use this one too
    try:
        with torch.cuda.stream(own):
            images = decode_jpegs(files, device)
    except BaseException:
        torch.cuda.synchronize(device)  # what has begun writes to memory that has been given back
        raise
    reader.wait_stream(own)
    for image in images:
        image.record_stream(reader)
    return images


@functools.cache
def _own_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which images are allocated."""
    return torch.cuda.Stream(device)


@functools.cache
def why_not() -> str | None:
    """Return why nvJPEG cannot be used, found by decoding a small file; None where it can."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    buffer = io.BytesIO()
    PIL.Image.new("RGB", (16, 16)).save(buffer, "JPEG")
    try:
        _on_device([buffer.getvalue()], torch.device("cuda", torch.cuda.current_device()))
    except RuntimeError as error:
        if type(error) is not RuntimeError:
            raise  # such as out of memory, which may pass
        return f"torchvision does not decode with it: {error}"
    return None
