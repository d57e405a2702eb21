"""Chains of calls on images, made at random: what Pillow offers, and what programs do to its images besides."""

from __future__ import annotations

import copy
import functools
import io
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from comparing import described, jpeg, opened, picture, png, without_names
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps, JpegImagePlugin
from torchvision.transforms import _functional_pil

from fastload.late import LateSamples

Step = Callable[[Image.Image], Any]


def _exif(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()


@functools.cache
def files() -> tuple[bytes, ...]:
    files = [
        jpeg(width, height, mode, seed=place, subsampling=place % 3 if mode == "RGB" else 0, icc_profile=b"profile")
        for place, (width, height) in enumerate([(64, 48), (37, 51), (1, 40), (40, 1), (200, 133)])
        for mode in ("RGB", "L")
    ]
    files += [jpeg(40, 31, exif=_exif(orientation), dpi=(72, 72)) for orientation in (2, 5, 6, 8)]
    files += [
        png(width, height, mode, seed=9, exif=_exif(5), dpi=(72, 72))
        for width, height in [(64, 48), (37, 51), (1, 40), (40, 1), (90, 133)]
        for mode in ("RGB", "L", "RGBA", "LA", "P")
    ]
    return tuple(files)


_whole = st.integers(-5, 60)
_numbers = st.one_of(_whole, st.floats(-3, 60), st.sampled_from([0, 0.5, 1.5, 2.5, float("nan")]))
_boxes = st.one_of(
    st.none(),
    st.tuples(*[st.integers(0, 20)] * 2, *[st.integers(20, 45)] * 2),
    st.tuples(*[st.floats(0, 20)] * 2, *[st.floats(20, 45)] * 2),
    st.lists(_numbers, min_size=4, max_size=4),
)
_filters = st.one_of(st.none(), st.integers(-1, 9))


@st.composite
def _resize(draw: st.DrawFn) -> Step:
    size = draw(st.tuples(*[st.integers(-1, 60)] * 2))
    gap = draw(st.sampled_from([None, None, None, 1.0, 2.0, 0.5]))
    resample, box = draw(_filters), draw(_boxes)
    return lambda image: image.resize(size, resample, box, gap)


def _in_place(change: Callable[[Image.Image], Any]) -> Step:
    def changed(image: Image.Image) -> Image.Image:
        change(image)
        return image

    return changed


def _thumbnail(image: Image.Image, gap: float | None) -> Image.Image:
    made = image.copy()
    made.thumbnail((20, 20), reducing_gap=gap)
    return made


def _saved(image: Image.Image, quality: Any) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(file)


def _merged(image: Image.Image) -> Image.Image:
    return Image.merge(image.mode, image.split()[::-1]) if len(image.getbands()) > 1 else image


class Own(Image.Image):
    """Of a library that derives images of its own."""


class OwnFile(JpegImagePlugin.JpegImageFile):
    """Files of its own."""


def _with_attributes_of(new: Any, image: Any) -> Any:
    new.__dict__.update(image.__dict__)
    return new


def _with_copied_attributes(image: Any) -> Any:
    new = image.__class__.__new__(image.__class__)
    new.__dict__.update(copy.copy(image.__dict__))
    return new


def _exchanged(image: Any) -> Any:
    image.load()
    new = Own()
    new.__dict__, image.__dict__ = image.__dict__, {**image.copy().__dict__}
    return new


def _held(image: Any) -> Any:
    attributes = image.__dict__
    image.load()
    new = Own()
    new.__dict__.update(attributes)
    return new


def _derived(kind: Any) -> Any:
    # Pillow's own, where it was derived before.
    kind = kind if kind.__module__.startswith(("PIL", "fastload")) else Image.Image
    return type("Derived", (kind,), {"crop": lambda self, box=None: kind.crop(self, box).rotate(90)})


def _note_palette(image: Any) -> None:
    image.info.update(palette=(image.palette and image.palette.palette, image.getpalette()))


_CHANGES: dict[str, Callable[[Any], Any]] = {
    "then read": lambda image: None,
    "closed": lambda image: image.close(),
    "shrunk": lambda image: image.thumbnail((10, 10)),
    "written": lambda image: image.putpixel((3, 4), 1 if image.mode == "L" else (1, 2, 3)),
    "turned, then closed": lambda image: (image.rotate(3), image.close()),
    "turned in place": lambda image: ImageOps.exif_transpose(image, in_place=True),
}


def _access(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def use(image: Any) -> None:
        pixels = image.load()
        change(image)
        seen = [pixels[3, 4]]
        pixels[3, 4] = 9 if image.mode == "L" else (9, 8, 7)
        image.info.update(seen=[*seen, pixels[3, 4], pixels[5, 6]])

    return use


_OVERRIDDEN: dict[str, tuple[Any, ...]] = {
    "copy": (),
    "load": (),
    "tobytes": (),
    "crop": ((1, 2, 9, 9),),
    "convert": ("L",),
    "resize": ((9, 8), 2),
    "transpose": (1,),
    "__repr__": (),
    "putpalette": (bytes(768),),
    "__eq__": (3,),
    "__reduce_ex__": (2,),
}


def _overridden(name: str, given: tuple[Any, ...]) -> Step:
    def use(image: Any) -> Any:
        kind, calls = type(image), []

        def override(self: Any, *arguments: Any) -> Any:
            calls.append(name)
            return getattr(kind, name)(self, *arguments)

        new = _with_attributes_of(Image.Image.__new__(type("Derived", (kind,), {name: override})), image)
        made = getattr(new, name)(*given)
        new.info.update(calls=[*calls], made=made if isinstance(made, bytes) else type(made) is tuple)
        return made if isinstance(made, Image.Image) else new

    return use


FIXED: dict[str, Step] = {
    "to RGB": lambda image: image.convert("RGB"),
    "to L": lambda image: image.convert("L"),
    "to its own mode": lambda image: image.convert(),
    "to a palette": lambda image: image.convert("P"),
    "to HSV": lambda image: image.convert("HSV"),
    "to no mode": lambda image: image.convert("none such"),
    "copy": lambda image: image.copy(),
    "copy.copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda image: pickle.loads(pickle.dumps(image)),
    "load": _in_place(lambda image: image.load()[0, 0]),
    "load, then write": _in_place(
        lambda image: image.load().__setitem__((0, 0), 7 if image.mode == "L" else (7, 8, 9))
    ),
    "array": lambda image: Image.fromarray(np.array(image)),
    "array twice": _in_place(lambda image: np.testing.assert_array_equal(np.asarray(image), np.asarray(image))),
    "bytes": lambda image: Image.frombytes(image.mode, image.size, image.tobytes()),
    "other bytes": _in_place(lambda image: image.tobytes("raw", image.mode, 0, -1)),
    "putpixel": _in_place(lambda image: image.putpixel((0, 0), 1 if image.mode == "L" else (1, 2, 3))),
    "paste": _in_place(lambda image: image.paste(3, (1, 1, 9, 9))),
    "paste over what was cut before": lambda image: (image.crop((0, 0, 9, 8)), image.paste(3, (1, 1, 9, 9)))[0],
    "paste itself": _in_place(lambda image: image.paste(image.crop((0, 0, 2, 1)), (1, 0))),
    "draw": _in_place(lambda image: ImageDraw.Draw(image).rectangle((0, 0, 5, 5), fill=7)),
    "alpha": _in_place(lambda image: image.putalpha(9)),
    "palette": _in_place(lambda image: (image.putpalette(bytes(range(255, -1, -1)) * 3), _note_palette(image))),
    "palette in another order": _in_place(
        lambda image: (image.putpalette(bytes(range(255, -1, -1)) * 3, "BGR"), _note_palette(image))
    ),
    "a note": _in_place(lambda image: image.info.update(note=1)),
    "compare": lambda image: image if image == image.copy() and image != picture(3, 3) else None,
    "exif_transpose": ImageOps.exif_transpose,
    "exif_transpose in place": _in_place(lambda image: ImageOps.exif_transpose(image, in_place=True)),
    "exif": _in_place(lambda image: image.getexif().get(0x0112)),
    "autocontrast": ImageOps.autocontrast,
    "equalize": ImageOps.equalize,
    "invert": ImageOps.invert,
    "posterize": lambda image: ImageOps.posterize(image, 3),
    "grayscale": ImageOps.grayscale,
    "expand": lambda image: ImageOps.expand(image, 3),
    "pad": lambda image: ImageOps.pad(image, (33, 20)),
    "blur": lambda image: image.filter(ImageFilter.GaussianBlur(1)),
    "brightness": lambda image: ImageEnhance.Brightness(image).enhance(0.5),
    "sharpness": lambda image: ImageEnhance.Sharpness(image).enhance(1.7),
    "color": lambda image: ImageEnhance.Color(image).enhance(0.3),
    "split and merge": _merged,
    "channel": lambda image: image.getchannel(0),
    "point": lambda image: image.point(lambda level: level // 2),
    "blend": lambda image: Image.blend(image, image.transpose(3), 0.3),
    "solarize": lambda image: ImageOps.solarize(image, 100),
    "table of levels": lambda image: image.point([*range(255, -1, -1)] * len(image.getbands())),
    "table of other numbers": lambda image: image.point([level * 1.5 for level in range(256)] * len(image.getbands())),
    "contrast, and what it is mixed with": lambda image: ImageEnhance.Contrast(image).degenerate,
    "grey by torchvision": lambda image: _functional_pil.to_grayscale(image, 3),
    "affine with a color": lambda image: image.transform(
        (31, 30), Image.Transform.AFFINE, (1.1, 0.1, -2, 0.2, 1, 1), fillcolor=(1, 2, 3)[: len(image.getbands())]
    ),
    "scaled": lambda image: image.transform((31, 30), Image.Transform.AFFINE, (0.7, 0, -2.5, 0, 1.3, 4)),
    "rotated, bicubic": lambda image: image.rotate(
        13, Image.Resampling.BICUBIC, fillcolor=(4, 5, 6)[: len(image.getbands())]
    ),
    "sheared, bilinear": lambda image: image.transform(
        image.size, Image.Transform.AFFINE, (1, 0.2, -3, 0, 1, 0), Image.Resampling.BILINEAR
    ),
    "affine": lambda image: image.transform((30, 30), Image.Transform.AFFINE, (1, 0.1, 2, 0, 1, 1)),
    "thumbnail": lambda image: _thumbnail(image, 2.0),
    "thumbnail without a gap": lambda image: _thumbnail(image, None),
    "draft": _in_place(lambda image: image.draft("L", (10, 10))),
    "save": lambda image: _saved(image, 50),
    "save as it was": lambda image: _saved(image, "keep"),
    "close": _in_place(lambda image: image.close()),
    "close behind a copy": lambda image: (image.copy(), image.close())[0],
    "numbers": _in_place(lambda image: (image.histogram(), image.getextrema(), image.getbbox(), image.getcolors())),
    "in a with": lambda image: image.__enter__().__exit__() or image,
    "seek": _in_place(lambda image: (image.tell(), image.seek(0))),
    "seek too far": _in_place(lambda image: image.seek(1)),
    "verify": _in_place(lambda image: image.verify()),
    "attributes of another class": lambda image: _with_attributes_of(Own(), image),
    "attributes of Pillow's class": lambda image: _with_attributes_of(Image.Image(), image),
    "attributes of its class": lambda image: _with_attributes_of(type(image).__new__(type(image)), image),
    "attributes, and both are used": lambda image: Image.blend(_with_attributes_of(Own(), image), image, 0.5),
    "attributes into one without": lambda image: _with_attributes_of(Own.__new__(Own), image),
    "attributes into a file": lambda image: _with_attributes_of(OwnFile.__new__(OwnFile), image),
    "attributes into another late one": lambda image: _with_attributes_of(opened(files()[2]).copy(), image),
    "attributes copied": lambda image: _with_copied_attributes(image),
    "attributes exchanged": _exchanged,
    "attributes held": _held,
    "attributes listed": _in_place(lambda image: image.info.update(names=(sorted(dir(image)), hasattr(image, "_im")))),
    "class derived": lambda image: _with_attributes_of(Image.Image.__new__(_derived(type(image))), image),
    "class exchanged": _in_place(lambda image: setattr(image, "__class__", Own)),
    "class of a file": _in_place(lambda image: setattr(image, "__class__", OwnFile)),
    "state": _in_place(lambda image: image.__setstate__(image.__getstate__())),
    "state of another": _in_place(lambda image: image.__setstate__(opened(files()[2]).copy().__getstate__()[:5])),
    "pixel memory": _in_place(lambda image: setattr(image, "im", image.crop((0, 0, *image.size)).im)),
    "no pixel memory": _in_place(lambda image: setattr(image, "im", None)),
    "pickled by the old protocol": lambda image: pickle.loads(pickle.dumps(image, 2)),
    "Pillow's methods by name": lambda image: Image.Image.transpose(Image.Image.copy(image), 1),
    "remap_palette": lambda image: image.convert("L").remap_palette([*range(255, -1, -1)]).convert("RGB"),
    "draft of a mode": _in_place(lambda image: image.draft("L", None)),
    "draft of a size": _in_place(lambda image: image.draft(None, (8, 8))),
    "draft of YCbCr": _in_place(lambda image: image.draft("YCbCr", (64, 48))),
    **{f"what load returned, {name}": _in_place(_access(change)) for name, change in _CHANGES.items()},
    **{f"{name}, by the class that it overrides": _overridden(name, given) for name, given in _OVERRIDDEN.items()},
    "class pickled and shown": _in_place(
        lambda image: image.info.update(
            names=[pickle.loads(pickle.dumps(type(image))) is type(image), without_names(repr(image))]
        )
    ),
    "a filter that is a float": lambda image: image.resize((10, 10), 2.0),
    "a filter in a list": lambda image: image.resize((10, 10), [2]),
    "a filter by name": lambda image: image.resize((10, 10), "bilinear"),
    "a size that is an iterator": lambda image: image.resize(iter((10, 11)), 2),
    "a size that is an array": lambda image: image.resize(np.array([10, 11]), 2),
    "a size of floats": lambda image: image.resize((10.0, 11), 2),
    "a box that is an iterator": lambda image: image.resize((10, 11), 2, iter((1, 2, 30, 31))),
    "a box that is an array": lambda image: image.resize((10, 11), 2, np.array([1, 2, 30, 31])),
    "a box of strings": lambda image: image.resize((10, 11), 2, ("1", "2", "30", "31")),
    "a box that is empty in single precision": lambda image: image.resize((10, 11), 2, (1.0, 1.0, 1.0 + 1e-12, 20.0)),
    "a box that reaches beyond in single precision": lambda image: image.resize((9, 9), 2, (0, 0, 64 + 1e-9, 48)),
    "a box of three": lambda image: image.resize((10, 11), 2, (1, 2, 30)),
    "the same size, and all of it": lambda image: image.resize(image.size, 2, [0, 0, *image.size]),
    "a crop by an iterator": lambda image: image.crop(iter((1, 2, 30, 31))),
    "a crop by an array": lambda image: image.crop(np.array([1, 2, 30, 31])),
    "a crop of strings": lambda image: image.crop(("1", "2", "30", "31")),
    "a crop from right to left": lambda image: image.crop((10.4, 0, 10.3, 5)),
    "a crop of nothing": lambda image: image.crop((10, 10, 10, 20)),
    "a crop with halves": lambda image: image.crop((0.5, 1.5, 20.5, 21.5)),
    "a crop by infinity": lambda image: image.crop((0, 0, float("inf"), 5)),
    "a transposition by name": lambda image: image.transpose("left"),
    "a transposition by a float": lambda image: image.transpose(1.0),
    "a transposition by truth": lambda image: image.transpose(True),
    "convert by a keyword": lambda image: image.convert(mode="RGB"),
    "convert by a matrix": lambda image: image.convert("L", (0.3, 0.5, 0.2, 0)),
    "crop by a keyword": lambda image: image.crop(box=(1, 2, 3, 4)),
    "resize by keywords": lambda image: image.resize(size=(9, 8), resample=3, box=(0, 0, 20, 20), reducing_gap=None),
    "resize without a size": lambda image: image.resize(),
    "an unknown keyword": lambda image: image.resize((9, 8), filter=2),
    "transpose by a keyword": lambda image: image.transpose(method=1),
    "an unknown attribute": lambda image: image.none_such,
    "the hash": hash,
    "the length": len,
    "a sum": lambda image: image + 1,
}


def _enhanced(kind: str, factor: float) -> Step:
    return lambda image: getattr(ImageEnhance, kind)(image).enhance(factor)


def _transformed(matrix: Any, resample: int, fill: Any) -> Step:
    return lambda image: image.transform((40, 33), Image.Transform.AFFINE, matrix, resample, fillcolor=fill)


_factors = st.one_of(st.floats(0, 2), st.sampled_from([0, 1, -1.5, 300.0, float("nan"), np.float32(0.5), "half"]))
_small = st.floats(-1.5, 1.5) | st.sampled_from([0, 1, 1e6])
_matrices = st.tuples(_small, _small, st.floats(-40, 40), _small, _small, st.floats(-40, 40)) | st.just((1, 0, 0))
_FILLS = [None, 0, 7, (1, 2, 3), (1,), "red", (1.5, 2, 3), (300, -1, 0)]

_moves: st.SearchStrategy[tuple[str, Step]] = st.one_of(
    st.tuples(st.just("crop"), _boxes.map(lambda box: lambda image: image.crop(box))),
    st.tuples(st.just("resize"), _resize()),
    st.tuples(st.just("transpose"), st.integers(-1, 7).map(lambda method: lambda image: image.transpose(method))),
)
_steps: st.SearchStrategy[tuple[str, Step]] = st.one_of(
    _moves,
    st.tuples(st.just("rotate"), st.sampled_from([0, 90, 180, 270, 17]).map(lambda a: lambda image: image.rotate(a))),
    st.tuples(st.just("enhance"), st.builds(_enhanced, st.sampled_from(["Brightness", "Color", "Contrast"]), _factors)),
    st.tuples(st.just("hue"), st.floats(-0.6, 0.6).map(lambda by: lambda image: _functional_pil.adjust_hue(image, by))),
    st.tuples(st.just("transform"), st.builds(_transformed, _matrices, st.integers(-1, 3), st.sampled_from(_FILLS))),
    st.tuples(st.just("reduce"), st.integers(0, 4).map(lambda factor: lambda image: image.reduce(factor))),
    st.sampled_from(sorted(FIXED.items())),
    st.sampled_from(sorted(FIXED.items())),
)

Steps = list[tuple[tuple[str, Step], bool]]
"""Steps by name, and whether the image before each is kept."""


def steps(most: int) -> st.SearchStrategy[Steps]:
    """Make up to this many steps of all kinds, or crops, resizes, flips and turns alone."""
    return st.one_of(*(st.lists(st.tuples(kind, st.booleans()), max_size=most) for kind in (_steps, _moves)))


def outcomes_of(image: Any, steps: Steps) -> tuple[list[Any], Any, list[Any]]:
    """Return what each step raised or made; the last image; and all images that were kept on the way."""
    seen: list[Any] = []
    kept = []
    for (name, step), keeps in steps:
        try:
            made = step(image)
        except Exception as error:
            seen.append((name, *described(error)))
            continue
        seen.append((name, made.mode, made.size, made.format, dict(made.info), isinstance(made, Image.Image)))
        if keeps:
            kept.append(image)
        image = made
    return seen, image, kept


class Holder:
    """What holds an image as an attribute, a slot, or an object that a method is bound to."""

    __slots__ = ("image",)

    def __init__(self, image: Any) -> None:
        self.image = image

    def give(self) -> Any:
        return self.image


def _suspended(image: Any) -> Any:
    yield 0
    yield image


def _started(image: Any) -> Any:
    made = _suspended(image)
    next(made)
    return made


HOLDERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "itself": (lambda image: image, lambda held: held),
    "a dict": (lambda image: {"a": [image]}, lambda held: held["a"][0]),
    "a slot": (Holder, lambda held: held.image),
    "a method": (lambda image: Holder(image).give, lambda held: held()),
    "a closure": (lambda image: lambda: image, lambda held: held()),
    "a default": (lambda image: lambda found=image: found, lambda held: held()),
    "a partial": (lambda image: functools.partial(Holder, image), lambda held: held().image),
    "a generator": (_started, next),
    "an iterator": (lambda image: map(Holder, [image]), lambda held: next(held).image),
}
"""How a sample returns an image, and how it is taken out again."""


class Sample(NamedTuple):
    """One of a series of samples that share a cache of images."""

    place: int
    """Of a file; those behind them: of an image in the cache."""
    steps: Steps
    holder: str
    fails: bool
    """Whether it raises an error once its images were kept."""
    thread: int
    """That makes it: 0, the main one, or 1."""


def samples() -> st.SearchStrategy[list[Sample]]:
    return st.lists(
        st.builds(
            Sample,
            place=st.integers(0, len(files()) + 3),
            steps=steps(4),
            holder=st.sampled_from(sorted(HOLDERS)),
            fails=st.sampled_from([False, False, True]),
            thread=st.sampled_from([0, 0, 0, 1]),
        ),
        min_size=1,
        max_size=4,
    )


def _made(sample: Sample, cache: list[Any], seen: list[Any]) -> Any:
    if sample.place >= len(files()) and cache:
        image = cache[sample.place % len(cache)]
    else:
        image = opened(files()[sample.place % len(files())])
    outcomes, image, kept = outcomes_of(image, sample.steps)
    seen += outcomes
    cache += kept
    if sample.fails:
        raise KeyError("a label is missing")
    return HOLDERS[sample.holder][0](image)


def outcomes_of_series(series: list[Sample], *, late: bool) -> list[Any]:
    """Return what the samples of a series return and raise, and the images that they leave in their cache."""
    cache: list[Any] = []
    seen: list[Any] = []
    by_thread = [LateSamples(), LateSamples()]

    def make(sample: Sample) -> Any:
        if not late:
            return _made(sample, cache, seen)
        scope = by_thread[sample.thread]
        with scope:
            made = _made(sample, cache, seen)
            if scope.may_be_held:
                scope.materialize(made)
        return made

    for sample in series:
        try:
            if sample.thread:
                with ThreadPoolExecutor(1) as pool:
                    made = pool.submit(make, sample).result()
            else:
                made = make(sample)
            seen.append(described(HOLDERS[sample.holder][1](made)))
        except KeyError as error:
            seen.append(described(error))
    for image in cache:  # in a cache they may be late, until they are used
        with suppress(Exception):
            image.load()
    return [*seen, *map(described, cache)]
