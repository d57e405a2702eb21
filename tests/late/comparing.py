"""What a function does to images that are late, beside what it does to Pillow's own."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image, JpegImagePlugin, PngImagePlugin
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fastload.cache.records import Records
from fastload.late import LateSamples


class Function(TorchFunctionMode):
    """A mode that takes note of what functions of torch are called, and changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.noted.append(getattr(func, "__qualname__", repr(func)))
        return func(*args, **kwargs or {})


class Dispatch(TorchDispatchMode):
    """The same of operators."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.noted.append(str(func))
        return func(*args, **kwargs or {})


def picture(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """Return an image of coarse noise."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (max(1, height // 4), max(1, width // 4), 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height)).convert(mode)
    if mode in ("RGBA", "LA"):
        image.putalpha(Image.linear_gradient("L").resize((width, height)))
    return image


def jpeg(width: int = 64, height: int = 48, mode: str = "RGB", seed: int = 0, **options: Any) -> bytes:
    """Return a JPEG file that is decoded late, unless the options or the mode forbid it."""
    file = io.BytesIO()
    picture(width, height, mode, seed).save(file, "JPEG", **{"quality": 85, **options})
    return file.getvalue()


def png(width: int = 64, height: int = 48, mode: str = "RGB", seed: int = 0, **options: Any) -> bytes:
    """Return a PNG file that is decoded late, unless the options or the mode forbid it."""
    file = io.BytesIO()
    picture(width, height, mode, seed).save(file, "PNG", **options)
    return file.getvalue()


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def as_sample(make: Callable[[], Any], cache: Records | None = None) -> Any:
    """Return what a function makes, as a sample of a loader that decodes late; with a cache, files are kept in it."""
    late = LateSamples(cache)
    with late:
        assert late.is_possible
        sample = make()
        if late.may_be_held:
            late.materialize(sample)
        return sample


def counts_of(make: Callable[[], Any], cache: Records | None = None) -> dict[str, int]:
    late = LateSamples(cache)
    with late:
        late.materialize(make())
    return late.take_counts()


def outcome(
    make: Callable[[], Any], *, late: bool, cache: Records | None = None, lines: bool = True, seed: int = 0
) -> tuple[Any, bytes, list[Any]]:
    """Return all that can be seen of a call.

    What it returned or raised, the state of torch's generator behind it, and warnings: of which line, if ``lines``.
    """
    torch.manual_seed(seed)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            made = as_sample(make, cache) if late else make()
        except Exception as error:
            made = error
        seen = described(made)
    said = [(one.category, str(one.message), *((one.filename, one.lineno) if lines else ())) for one in heard]
    return seen, torch.get_rng_state().numpy().tobytes(), said


def assert_equal(make: Callable[[], Any], *, lines: bool = True, seed: int = 0) -> None:
    found, expected = (outcome(make, late=late, lines=lines, seed=seed) for late in (True, False))
    assert found == expected


def described(made: Any) -> Any:
    if isinstance(made, Image.Image):
        return description(made)
    if isinstance(made, Exception):
        return type(made), without_names(str(made))
    if isinstance(made, torch.Tensor):
        plain = made.detach().as_subclass(torch.Tensor)
        memory = made.shape, made.stride(), plain.storage_offset(), plain.untyped_storage().nbytes()
        if made.is_meta:
            return type(made), made.dtype, made.device, *memory
        bits = plain.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8).numpy().tobytes()
        return type(made), made.dtype, made.device, made.requires_grad, made.is_inference(), *memory, bits
    if isinstance(made, np.ndarray) and not made.dtype.hasobject:
        return made.shape, made.strides, made.dtype, made.flags.writeable, made.flags.owndata, made.tobytes()
    if isinstance(made, dict):
        return {name: described(value) for name, value in made.items()}
    if isinstance(made, (list, tuple)):
        return type(made), [described(one) for one in made]
    return made


def description(image: Image.Image) -> tuple[Any, ...]:
    """Return what can be seen of an image: its exact type, pixels and attributes."""
    kind = type(image)
    seen: list[Any] = [f"{kind.__module__}.{kind.__qualname__}", image.mode, image.size, image.info, image.format]
    if isinstance(image, JpegImagePlugin.JpegImageFile):
        seen += [getattr(image, name, None) for name in ("tile", "layers", "quantization", "app", "decoderconfig")]
        seen.append(getattr(image, "fp", "none") is None)
    if isinstance(image, PngImagePlugin.PngImageFile):
        seen += [getattr(image, name, None) for name in ("tile", "_text", "private_chunks", "is_animated")]
        seen += [getattr(image, name, "none") is None for name in ("fp", "png")]
    try:
        seen += [image.readonly, image.tobytes(), np.asarray(image).shape, dict(image.getexif())]
    except Exception as error:  # one that is closed, say
        seen.append((type(error), without_names(str(error))))
    return tuple(seen)


def without_names(message: str) -> str:
    """Return a message without what differs from run to run."""
    return re.sub(r"0x[0-9a-fA-F]+", "0x", message)
