"""torchvision's containers of transforms: conversion, scaling and ``Normalize`` in the pass that decodes.

What a ``Compose`` or ``nn.Sequential`` returns has the same bits, strides and type. Random resized crops and flips make
the same draws with fewer calls (:mod:`fastload.late.draws`); other transforms up to ``ToTensor`` (``ToImage``, ...) are
called. From there on the image is a :class:`~fastload.late.deferred.DeferredTensor`: transforms that look at one value
at a time become a table of 256 levels for each channel, which the transforms themselves make once, of an image that has
all levels; version 2's crops, resizes and flips are recorded. The first transform that is neither gets the tensor
itself. An image that is a tensor of uint8 already is recorded from the first crop, resize or flip of version 2 on.

``__call__`` of v1's ``Compose`` and ``forward`` of v2's are replaced, and pass every call outside of samples on.
``forward`` of ``nn.Sequential`` is replaced in worker processes alone: models are made of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision import tv_tensors

from ..base import overrides
from ..base.nesting import leaves_of, map_leaves
from ..base.overrides import in_place_of, is_imported
from ..native.rows import DTYPES
from . import draws
from .deferred import DeferredTensor, Table, can_defer, materialized
from .image import is_late
from .patch_guard import PatchGuard, SampleOverride
from .scope import is_tracing, is_watched, run_outside_sample, thread
from .transform_lists import CONTAINERS, METHODS, V1, V2, V2_FUNCTIONAL, instance_override, items_of

_tables: dict[tuple[Any, ...], Table | None] = {}
"""Tables, by default dtype and signatures of transforms."""
_MOST_TABLES = 64

# All levels in all channels.
_LEVELS = np.repeat(np.arange(256, dtype=np.uint8).reshape(16, 16, 1), 3, axis=2)


def prepare(in_worker_process: bool) -> None:
    """Find the transforms of the modules that are imported, and replace the methods of their containers.

    Those that somebody else has replaced stay as they are.
    """
    found = [name for name in _MODULES if name not in _known.modules and is_imported(name)]
    if not found and in_worker_process <= _known.in_worker_process:
        return
    _known.find(found)
    _known.in_worker_process = in_worker_process
    for one in OVERRIDES:
        if is_imported(one.library) and (in_worker_process or one.where != overrides.WORKERS):
            one.install()


class _Container(SampleOverride):
    """A container's method that calls its transforms."""

    def is_original(self, found: Any) -> bool:
        """Return whether it is the container's own: behind one that was deleted there is its base's."""
        return self.name in vars(self.place()[0]) and super().is_original(found)

    def stand_in(self, original: Any) -> Any:
        takes_trees = self.library.startswith(V2)

        @in_place_of(original)
        def run(container: Any, *inputs: Any, **named: Any) -> Any:
            # Asked first, so that torch.compile and torch.jit.trace see nothing but the method.
            if torch.compiler.is_compiling() or thread.scope is None or named or not inputs or is_tracing():
                return original(container, *inputs, **named)
            is_tree = not (len(inputs) == 1 and _is_image(inputs[0], is_tree=False))
            if is_tree and not (takes_trees and any(_is_image(one, is_tree=True) for one in _leaves(inputs))):
                return original(container, *inputs)
            items = items_of(container)
            # A list itself: a transform may change it meanwhile, and the loop that this stands in for sees that.
            transforms = items if type(items) is list else [*items] if isinstance(items, (tuple, nn.Sequential)) else []
            return _run(transforms, inputs, is_tree) if transforms else original(container, *inputs)

        return run


def _is_image(found: Any, *, is_tree: bool) -> bool:
    """Return whether an object is a lazy image, or a tensor that can be deferred."""
    return is_late(found) or _can_defer(found, is_tree)


_PURPOSE = "conversion, scaling and Normalize are made in the pass that decodes"
OVERRIDES = tuple(
    _Container(library, f"{library}:{name}", method, _PURPOSE, where=where)
    for library, name, method, where in (
        *((*one, overrides.PROCESS) for one in CONTAINERS),
        ("torch.nn.modules.container", "Sequential", "forward", overrides.WORKERS),
    )
)


def _run(transforms: Sequence[Any], inputs: tuple[Any, ...], is_tree: bool) -> Any:
    """Return what the transforms make of the inputs, as their container calls them."""
    outputs: Any = None
    is_single = len(inputs) == 1
    holds_deferred = False
    is_intact: bool | None = None  # None: to be asked
    for transform in transforms:
        outputs = None
        role = _known.roles.get(type(transform))
        if role is not None and instance_override(transform) is None:
            is_intact = _known.is_intact() if is_intact is None else is_intact
            outputs = _recorded(role, transform, inputs, is_tree) if is_intact else None
        if outputs is not None:
            holds_deferred = True
        else:
            if holds_deferred:
                inputs = _with_leaves(materialized, inputs)
                holds_deferred = False
            outputs = transform(*inputs)
            is_intact = None  # it may be the user's, and may have replaced something
        inputs = (outputs,) if is_single else outputs
    return _with_leaves(materialized, outputs) if holds_deferred else outputs


def _recorded(role: _Role, transform: Any, inputs: tuple[Any, ...], is_tree: bool) -> Any:
    """Record what a transform makes of its inputs, and return it; None: the transform is to be called.

    ``is_tree``: whether they are more than one image: boxes, masks and the like, which version 2 takes.
    """
    draws_alone = role.draws and not is_tree
    if draws_alone and is_late(inputs[0]):
        return _drawn(transform, inputs[0])
    # Of a tree's PIL images, only ToImage makes images again.
    makes_tensor = role.makes_tensor and (role.changes_values or not is_tree)
    parts = _leaves(inputs) if is_tree else inputs
    table = _table_of(transform) if makes_tensor and any(map(is_late, parts)) else None
    is_geometric = role.is_geometric_for(transform)
    if table is not None or is_geometric:
        parts = [_deferred(one, table, is_tree) for one in parts]
    if not any(type(one) is DeferredTensor for one in parts):
        return None
    following = iter(parts)
    inputs = _with_leaves(lambda _: next(following), inputs) if is_tree else tuple(parts)
    if table is not None:
        return transform(*inputs) if is_tree else inputs[0]
    if is_geometric:
        made = _drawn(transform, inputs[0]) if draws_alone else None
        return transform(*inputs) if made is None else made
    return _mapped(transform, inputs, parts, is_tree) if role.changes_values else None


def _drawn(transform: Any, image: Any) -> Any:
    draw = draws.draw_of(type(transform))
    return None if draw is None else draw(vars(transform), image)


def _deferred(found: Any, table: Table | None, is_tree: bool) -> Any:
    """Return a lazy tensor in place of a tensor and, with the table of what makes one, of a lazy image."""
    made = None
    if table is not None and is_late(found):
        made = DeferredTensor.of_image(found, table)
    elif _can_defer(found, is_tree):
        made = DeferredTensor.of_tensor(found)
    return found if made is None else made


def _can_defer(found: Any, is_tree: bool) -> bool:
    """Return whether an image tensor can be deferred; a plain tensor is an image if it is alone."""
    return (type(found) is tv_tensors.Image or (type(found) is Tensor and not is_tree)) and can_defer(found)


def _mapped(transform: Any, inputs: tuple[Any, ...], parts: Sequence[Any], is_tree: bool) -> Any:
    """Return what a transform that looks at one value at a time makes of its inputs; None if it is to be called."""
    is_v1 = type(transform).__module__ == V1
    if is_tree and (is_v1 or type(transform).__name__ == "ToPureTensor"):
        return None
    tables = [_table_of(transform, one.table) if type(one) is DeferredTensor else None for one in parts]
    for one, table in zip(parts, tables, strict=True):
        # Version 1 makes a plain tensor of an image of version 2, or not: the user may choose.
        if type(one) is DeferredTensor and (table is None or (is_v1 and one.table.kind is not Tensor)):
            return None
    outputs = inputs[0]
    if is_tree:  # it may change other leaves: it gets them, beside small images in place of the lazy tensors
        small = _with_leaves(lambda one: one.table.example() if type(one) is DeferredTensor else one, inputs)
        outputs = transform(*small)
    pairs = zip(parts, tables, strict=True)

    def changed(output: Any) -> Any:
        one, table = next(pairs)
        if table is None:
            return output
        made = one.mapped(table)
        return transform(one.materialize()) if made is None else made

    return _with_leaves(changed, outputs)


def _is_leaf(node: Any) -> bool:
    """Return whether a node is no dict, list or tuple: other nodes, which run code of their own, are leaves."""
    return type(node) not in (dict, list, tuple)


def _leaves(tree: Any) -> list[Any]:
    return [leaf for _, leaf in leaves_of(tree, _is_leaf)]


def _with_leaves(change: Callable[[Any], Any], tree: Any) -> Any:
    """Return a tree with changed leaves. torch's way takes twice the time."""
    return map_leaves(tree, change, is_leaf=_is_leaf)


def _table_of(transform: Any, before: Table | None = None) -> Table | None:
    """Return what a transform makes of each level, after the transforms of another table.

    None if it has arguments of an unusual type, or does not look at one value at a time.
    """
    signature = _signature(transform, None if before is None else before.kind)
    if signature is None:
        return None
    signatures = (*(() if before is None else before.signatures), signature)
    key = (torch.get_default_dtype(), *signatures)
    try:
        return _tables[key]  # in one step, since another thread may clear it
    except KeyError:
        if len(_tables) >= _MOST_TABLES:
            _tables.clear()
        # Where a transform fails, the user's own call raises the same, at its place.
        table = _tables[key] = run_outside_sample(lambda: _made_table(transform, before, signatures))
        return table


def _made_table(transform: Any, before: Table | None, signatures: tuple[Any, ...]) -> Table | None:
    """Return the table by which transforms make a tensor of an image that has all levels; None if there is none."""
    image: Any = Image.fromarray(_LEVELS) if before is None else before.example()
    made = transform(image)
    if tuple(made.shape) != (3, 16, 16) or made.dtype not in DTYPES:
        return None
    channels_last = made.stride() == (1, 48, 3)
    if not channels_last and not made.is_contiguous():
        return None
    levels = made.as_subclass(Tensor).reshape(3, 256).contiguous()
    is_identity = levels.dtype == torch.uint8 and bool((levels == torch.arange(256, dtype=torch.uint8)).all())
    shares_memory = before is not None and made.untyped_storage().data_ptr() == image.untyped_storage().data_ptr()
    return Table(signatures, levels, channels_last, type(made), is_identity, shares_memory)


def _signature(transform: Any, image: type | None) -> tuple[Any, ...] | None:
    """Return a transform's class and arguments; None if an argument is of an unusual type.

    ``image``: the class of the image, by which arguments are looked up; None: it is no tensor yet.
    """
    arguments: list[Any] = [type(transform)]
    for name in _known.roles[type(transform)].arguments:
        value = vars(transform).get(name)
        if type(value) is Tensor and value.device.type == "cpu" and value.numel() <= 3 and not value.requires_grad:
            value = value.dtype, value.shape, *value.flatten().tolist()
        elif isinstance(value, (list, tuple)) and all(isinstance(one, (int, float, np.number)) for one in value):
            value = tuple(value)
        else:
            value = value.get(image) if type(value) is dict else value
            if not isinstance(value, (bool, torch.dtype)):
                return None
        arguments.append(value)
    return tuple(arguments)


class _Role(NamedTuple):
    """The facts about a class of transforms."""

    arguments: tuple[str, ...] = ()
    """The attributes that hold the arguments of a transform that looks at one value at a time."""
    makes_tensor: bool = False
    """True if it makes a tensor of a PIL image."""
    changes_values: bool = False
    """True if it changes each value of such a tensor by itself."""
    draws: bool = False
    """True if its draws can be made with fewer calls."""
    is_geometric: bool = False
    """True if it is one of version 2 that crops, resizes or flips, also beside boxes and masks."""

    def is_geometric_for(self, transform: Any) -> bool:
        """Return whether a transform crops, resizes or flips a lazy tensor as an image.

        It does not where it looks up what to fill by the exact class.
        """
        return self.is_geometric and not isinstance(vars(transform).get("fill"), dict)


_FIRST = _Role(makes_tensor=True)
_DTYPE = _Role(("dtype",), changes_values=True)
_NORMALIZE = _Role(("mean", "std", "inplace"), changes_values=True)
_SIZES = ("CenterCrop", "RandomCrop", "RandomIoUCrop", "RandomResize", "RandomShortestSize", "Resize", "ScaleJitter")

_ROLES: dict[str, dict[str, _Role]] = {
    V1: {
        **dict.fromkeys(draws.NAMES, _Role(draws=True)),
        "ToTensor": _FIRST,
        "PILToTensor": _FIRST,
        "ConvertImageDtype": _DTYPE,
        "Normalize": _NORMALIZE,
    },
    V2: {
        **dict.fromkeys(_SIZES, _Role(is_geometric=True)),
        **dict.fromkeys(draws.NAMES, _Role(draws=True, is_geometric=True)),
        "PILToTensor": _FIRST,
        "ToImage": _Role(makes_tensor=True, changes_values=True),
        "ToDtype": _Role(("dtype", "scale"), changes_values=True),
        "ConvertImageDtype": _DTYPE,
        "ToPureTensor": _Role(changes_values=True),
        "Normalize": _NORMALIZE,
    },
    "timm.data.transforms": {"MaybeToTensor": _FIRST, "MaybePILToTensor": _FIRST},
}
"""The known classes of transforms, by module."""

_FUNCTIONS = {
    "torchvision.transforms.functional": (
        *("to_tensor", "pil_to_tensor", "convert_image_dtype", "normalize"),
        *("get_dimensions", "resized_crop", "crop", "resize", "hflip", "vflip"),
    ),
    V2_FUNCTIONAL: (
        *("pil_to_tensor", "to_image", "to_dtype", "normalize"),
        *("center_crop", "crop", "horizontal_flip", "pad", "resize", "resized_crop", "vertical_flip"),
        *("get_size", "resize_bounding_boxes"),
    ),
}
"""Public functions that they call. Where one of these was replaced, all transforms are called."""

_MODULES = (*_FUNCTIONS, *_ROLES)


class _Known:
    """The known transforms, as far as their modules are imported, and the code that they run."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        """Transforms that were found."""
        self.in_worker_process = False
        self.roles: dict[type, _Role] = {}
        self._patch_guard = PatchGuard("torch", "torchvision", "timm")

    def find(self, modules: Sequence[str]) -> None:
        """Find the transforms and functions of these modules."""
        for module in map(sys.modules.__getitem__, modules):
            functions = _FUNCTIONS.get(module.__name__, ())
            self._patch_guard.add(module, [name for name in functions if hasattr(module, name)])
            for name, role in _ROLES.get(module.__name__, {}).items():
                kind = getattr(module, name, None)
                if isinstance(kind, type) and kind.__name__ == name:  # else a user's, or another version's
                    # Its code calls no other methods. Other threads may look it up: first what is asked about it.
                    self._patch_guard.add(kind, [name for name in METHODS if hasattr(kind, name)])
                    self.roles[kind] = role
        if V2 in modules:
            from . import kernels  # noqa: F401  # registers them for torchvision's functions
        self.modules.update(modules)

    def is_intact(self) -> bool:
        """Return whether the known classes run the code that they were written with, and nothing else looks on.

        That would be hooks of all modules, or a mode of torch, such as a default device.
        """
        hooks = nn.modules.module
        has_hooks = hooks._global_forward_hooks or hooks._global_forward_pre_hooks
        return not has_hooks and not is_watched() and self._patch_guard.replaced() is None


_known = _Known()
