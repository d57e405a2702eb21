"""torchvision's containers of transforms: conversion, scaling and ``Normalize`` in the pass that decodes.

In: the transforms of a ``Compose`` or ``nn.Sequential``, and a late image. Out: what calling one transform after the
other returns, bit for bit, with the same strides and type. Random resized crops and flips make the same draws with
fewer calls (:mod:`fastload.late.draws`); other transforms up to ``ToTensor`` (``ToImage``, ...) are called. Those from
there on that look at one value at a time become a table of 256 levels for each channel, which the transforms
themselves make once, of an image that has all levels.

``__call__`` of v1's ``Compose`` and ``forward`` of v2's are replaced, and pass every call outside of samples on.
``forward`` of ``nn.Sequential`` is replaced in worker processes alone: models are made of it.
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ..native.rows import DTYPES
from . import draws
from .image import is_late, undecoded_of
from .originals import METHODS, Originals, change_of, is_written_in
from .scope import thread, tried
from .undecoded import Table, Undecoded

_tables: dict[tuple[Any, ...], Table | None] = {}
"""By default dtype and signatures of transforms."""
_MOST_TABLES = 64

# All levels in all channels.
_LEVELS = np.repeat(np.arange(256, dtype=np.uint8).reshape(16, 16, 1), 3, axis=2)


def prepare(in_worker_process: bool) -> None:
    """Replace the methods of the containers that are imported, unless somebody else has."""
    imported = tuple(name for name in (*_FUNCTIONS, *_CLASSES) if _is_imported(name))
    wanted = imported, in_worker_process
    if wanted == _known.prepared:
        return
    with _preparing:
        if wanted != _known.prepared:
            _replace_methods(in_worker_process)
            _known.find(imported)
            _known.prepared = wanted


def _is_imported(name: str) -> bool:
    """Return whether a module is imported, and not just being imported by another thread."""
    module = sys.modules.get(name)
    return module is not None and not getattr(module.__spec__, "_initializing", False)


def _replace_methods(in_worker_process: bool) -> None:
    for module, name, method in _CONTAINERS:
        owner = getattr(sys.modules.get(module), name, None)
        if owner is None or (owner is nn.Sequential and not in_worker_process):
            continue
        known = getattr(owner, method)
        if not hasattr(known, "runs_late") and is_written_in(known, "torch", "torchvision"):
            setattr(owner, method, _around(known))


_COMPOSE_2 = "torchvision.transforms.v2._container"
_CONTAINERS = (
    ("torchvision.transforms.transforms", "Compose", "__call__"),
    (_COMPOSE_2, "Compose", "forward"),
    ("torch.nn.modules.container", "Sequential", "forward"),
)


def _around(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(self: Any, *inputs: Any, **named: Any) -> Any:
        # Asked first, so that torch.compile sees nothing but the method.
        if torch.compiler.is_compiling() or thread.scope is None or named or not inputs:
            return method(self, *inputs, **named)
        is_image = len(inputs) == 1 and is_late(inputs[0])
        is_tree = not is_image and self.__class__.__module__ == _COMPOSE_2 and _has_late(inputs)
        if not (is_image or is_tree):
            return method(self, *inputs, **named)
        transforms = self if isinstance(self, nn.Sequential) else self.transforms
        # A list itself: a transform may change it meanwhile, and the loop that this stands in for sees that.
        transforms = transforms if type(transforms) is list else list(transforms)
        return _run(transforms, inputs[0]) if is_image else _run_tree(transforms, inputs)

    run.runs_late = True  # type: ignore[attr-defined]
    return run


def _run(transforms: Sequence[Any], image: Any) -> Any:
    """Return what the transforms make of an image, as their container calls them."""
    place = 0
    is_intact: bool | None = None
    while place < len(transforms):
        length, made = 0, None
        if is_late(image) or type(image) is Undecoded:
            if is_intact is None:
                is_intact = not _known.is_patched()
            if is_intact:
                length, made = _made_by_known(transforms, place, image)
        if length:
            image = made
            place += length
        else:
            image = transforms[place](_real(image))
            place += 1
            is_intact = None  # it may be the user's, and may have replaced something
    return _real(image)


def _has_late(inputs: tuple[Any, ...]) -> bool:
    return any(is_late(one) for one in tree_leaves(inputs))


def _run_tree(transforms: Sequence[Any], inputs: tuple[Any, ...]) -> Any:
    """Return what version 2's transforms make of images with boxes, masks and the like, as their container does."""
    from .tensors import real

    single = len(inputs) == 1
    outputs: Any = inputs
    has_late = False
    for transform in transforms:
        is_known = not change_of(transform) and not _known.is_patched()
        if is_known and type(transform) is _known.to_image:
            inputs = tree_map(functools.partial(_late_tensor, transform), inputs)
            has_late = True
        elif has_late and not (is_known and _is_placing(transform)):
            inputs = tree_map(real, inputs)
            has_late = False
        outputs = transform(*inputs)
        inputs = (outputs,) if single else outputs
    return tree_map(real, outputs) if has_late else outputs


def _late_tensor(to_image: Any, found: Any) -> Any:
    """Return what ``ToImage`` makes of a late image, late; anything else as it is."""
    from .tensors import LateTensor

    run = (to_image,)
    table = _table_of(run) if is_late(found) else None
    made = None if table is None else undecoded_of(found, run, table)
    return found if made is None else LateTensor.of(made)


def _real(image: Any) -> Any:
    return image.real() if type(image) is Undecoded else image


def _made_by_known(transforms: Sequence[Any], place: int, image: Any) -> tuple[int, Any]:
    """Return how many of the transforms from a place on are known here, and what these make of an image."""
    transform = transforms[place]
    is_first = type(image) is not Undecoded
    if type(transform) in _known.drawing:
        draw = None if change_of(transform) else draws.draw_of(type(transform))
        if not is_first:
            image.functional = sys.modules[_FUNCTIONAL_2 if ".v2." in type(transform).__module__ else _FUNCTIONAL_1]
        made = None if draw is None else draw(vars(transform), image)
        if made is not None:
            return 1, made
    if not is_first and _is_placing(transform) and not change_of(transform):
        return 1, _placed(transform, image)
    if type(transform) not in (_known.first if is_first else _known.later):
        return 0, None
    run = (transform, *itertools.takewhile(lambda one: type(one) in _known.later, transforms[place + 1 :]))
    if is_first:
        table = _table_of(run)
        made = None if table is None else undecoded_of(image, run, table)
    else:
        whole = (*image.run, *run)
        made = image.valued(whole, _table_of(whole), _table_of(whole[:1]))
    return 0 if made is None else len(run), made


def _is_placing(transform: Any) -> bool:
    """Whether a transform crops, resizes or flips, as it does for a class that is not exactly torchvision's."""
    return type(transform) in _known.placing and not isinstance(getattr(transform, "fill", None), dict)


def _placed(transform: Any, image: Undecoded) -> Any:
    """Return what a transform of version 2 makes of an image that is not decoded."""
    from .tensors import LateTensor

    made = transform(LateTensor.of(image))
    if type(made) is LateTensor:
        return made.undecoded if made.is_late else made.real()
    return made


def _table_of(run: Sequence[Any]) -> Table | None:
    """Return what a run of transforms makes of each level; None if one of them was changed, or has odd arguments."""
    signature = tuple(map(_signature, run))
    if None in signature:
        return None
    key = (torch.get_default_dtype(), *signature)
    try:
        return _tables[key]  # in one step, since another thread may clear it
    except KeyError:
        if len(_tables) >= _MOST_TABLES:
            _tables.clear()
        table = _tables[key] = _made_table(run)
        return table


def _made_table(run: Sequence[Any]) -> Table | None:
    # Where a transform fails, the user's own call raises the same, at its place.
    image: Any = Image.fromarray(_LEVELS)
    made = tried(lambda: functools.reduce(lambda made, transform: transform(made), run, image))
    if made is None:
        return None
    if tuple(made.shape) != (3, 16, 16) or made.dtype not in DTYPES:
        return None
    channels_last = made.stride() == (1, 48, 3)
    if not channels_last and not made.is_contiguous():
        return None
    levels = made.as_subclass(Tensor).reshape(3, 256).contiguous()
    is_identity = levels.dtype == torch.uint8 and bool((levels == torch.arange(256, dtype=torch.uint8)).all())
    return Table(levels, channels_last, type(made), is_identity)


def _signature(transform: Any) -> tuple[Any, ...] | None:
    """Return a transform's class and arguments; None if it was changed, or an argument is of an unusual type."""
    if change_of(transform):
        return None
    arguments: list[Any] = [type(transform)]
    for name in _known.arguments[type(transform)]:
        value = vars(transform).get(name)
        if type(value) is Tensor and value.device.type == "cpu" and value.numel() <= 3 and not value.requires_grad:
            value = value.dtype, value.shape, *value.flatten().tolist()
        elif isinstance(value, (list, tuple)) and all(isinstance(one, (int, float, np.number)) for one in value):
            value = tuple(value)
        elif not isinstance(value, (bool, torch.dtype)):
            return None
        arguments.append(value)
    return tuple(arguments)


_FUNCTIONAL_1 = "torchvision.transforms.functional"
_FUNCTIONAL_2 = "torchvision.transforms.v2.functional"
_FIRST = ("ToTensor", "PILToTensor", "ToImage", "MaybeToTensor", "MaybePILToTensor")
"""Names of the classes that make a tensor of a PIL image."""

_V1 = "torchvision.transforms.transforms"
_CLASSES: dict[str, dict[str, tuple[str, ...]]] = {
    _V1: {"ToTensor": (), "PILToTensor": (), "ConvertImageDtype": ("dtype",), "Normalize": ("mean", "std", "inplace")},
    "torchvision.transforms.v2": {
        "PILToTensor": (),
        "ToImage": (),
        "ToDtype": ("dtype", "scale"),
        "ConvertImageDtype": ("dtype",),
        "ToPureTensor": (),
        "Normalize": ("mean", "std", "inplace"),
    },
    "timm.data.transforms": {"MaybeToTensor": (), "MaybePILToTensor": ()},
}
"""The transforms that look at one value at a time, by module, and the attributes that hold their arguments."""

_PLACING = (
    *("CenterCrop", "RandomCrop", "RandomHorizontalFlip", "RandomIoUCrop", "RandomResize", "RandomResizedCrop"),
    *("RandomShortestSize", "RandomVerticalFlip", "Resize", "ScaleJitter"),
)
"""Of version 2."""

_FUNCTIONS = {
    "torchvision.transforms.functional": (
        *("to_tensor", "pil_to_tensor", "convert_image_dtype", "normalize"),
        *("get_dimensions", "resized_crop", "crop", "resize", "hflip", "vflip"),
    ),
    "torchvision.transforms._functional_pil": ("get_dimensions", "crop", "resize", "hflip", "vflip"),
    "torchvision.transforms._functional_tensor": ("convert_image_dtype", "normalize"),
    "torchvision.transforms.v2.functional": (
        *("pil_to_tensor", "to_image", "to_dtype", "normalize"),
        *("center_crop", "crop", "horizontal_flip", "resize", "resized_crop", "vertical_flip"),
    ),
}
"""What they call. Where one of these was replaced, they are called one by one."""


class _Known:
    """The known transforms, as far as their modules are imported, and the code that they run."""

    def __init__(self) -> None:
        self.prepared: tuple[tuple[str, ...], bool] | None = None
        """The modules that were imported, and whether it was in a worker process."""
        self.first: set[type] = set()
        """Classes that make a tensor of a PIL image."""
        self.later: set[type] = set()
        """Classes that change each value of such a tensor by itself."""
        self.arguments: dict[type, tuple[str, ...]] = {}
        """By class: the attributes that hold a transform's arguments."""
        self.drawing: set[type] = set()
        """Classes whose draws can be made with fewer calls."""
        self.to_image: type | None = None
        self.placing: set[type] = set()
        """Classes that crop, resize or flip images of version 2, beside boxes and masks."""
        self._originals = Originals("torch", "torchvision", "timm")

    def find(self, modules: tuple[str, ...]) -> None:
        """Find the transforms and functions of these modules."""
        # Other threads may be using it: a class is found once all that is asked about it is known.
        for module in modules:
            self._originals.add(sys.modules[module], _FUNCTIONS.get(module, ()))
        for module in modules:
            for name, arguments in _CLASSES.get(module, {}).items():
                kind = getattr(sys.modules[module], name)
                self._originals.add(kind, METHODS)
                self.arguments[kind] = arguments
                (self.first if name in _FIRST else self.later).add(kind)
        version_2 = sys.modules.get("torchvision.transforms.v2")
        self.to_image = getattr(version_2, "ToImage", None)
        for name in _PLACING if version_2 else ():
            kind = getattr(version_2, name)
            self._originals.add(kind, METHODS)
            self.placing.add(kind)
        for kind in draws.classes():
            self._originals.add(kind, METHODS)
            self.drawing.add(kind)

    def is_patched(self) -> bool:
        """Whether code that the known classes run was replaced, or all modules have a hook."""
        hooks = nn.modules.module
        has_hooks = hooks._global_forward_hooks or hooks._global_forward_pre_hooks
        return bool(has_hooks) or self._originals.replaced() is not None


_known = _Known()
_preparing = threading.Lock()
