"""torchvision's containers of transforms: conversion, scaling and ``Normalize`` in the pass that decodes.

What a ``Compose`` or ``nn.Sequential`` returns has the same bits, strides and type. Random resized crops and flips make
the same draws with fewer calls (:mod:`fastload.late.draws`); other transforms up to ``ToTensor`` (``ToImage``, ...) are
called. From there on the image is an :class:`~fastload.late.undecoded.Undecoded`: transforms that look at one value at
a time become a table of 256 levels for each channel, which the transforms themselves make once, of an image that has
all levels; version 2's crops, resizes and flips are recorded. The first transform that is neither gets the decoded
tensor. An image that is a tensor of uint8 already is recorded from the first crop, resize or flip of version 2 on.

``__call__`` of v1's ``Compose`` and ``forward`` of v2's are replaced, and pass every call outside of samples on.
``forward`` of ``nn.Sequential`` is replaced in worker processes alone: models are made of it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from operator import is_not, itemgetter
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils._pytree import SUPPORTED_NODES

from ..base import overrides
from ..native.rows import DTYPES
from . import draws, modes
from .image import is_late, undecoded_of
from .originals import METHODS, Originals, SampleOverride, change_of, in_place_of, is_imported, is_written_in
from .scope import thread, tried
from .undecoded import V2_FUNCTIONAL, Table, Undecoded, can_stand_for, registry

_tables: dict[tuple[Any, ...], Table | None] = {}
"""By default dtype and signatures of transforms."""
_MOST_TABLES = 64

# All levels in all channels.
_LEVELS = np.repeat(np.arange(256, dtype=np.uint8).reshape(16, 16, 1), 3, axis=2)


def prepare(in_worker_process: bool) -> None:
    """Replace the methods of the containers that are imported, unless somebody else has."""
    seen = [in_worker_process, *map(sys.modules.get, _MODULES)]
    if seen == _known.seen:
        return
    imported = tuple(name for name in _MODULES if is_imported(name))
    wanted = imported, in_worker_process
    with _preparing:
        if wanted != _known.prepared:
            _replace_methods(in_worker_process)
            _known.find(imported)
            _known.prepared = wanted
        is_settled = len(imported) == len(seen) - seen.count(None) - 1  # no module is just being imported
        _known.seen = seen if is_settled else None


def _replace_methods(in_worker_process: bool) -> None:
    for one in OVERRIDES:
        if is_imported(one.library) and (in_worker_process or one.where != overrides.WORKERS):
            one.install()


class _Container(SampleOverride):
    """A container's method that calls its transforms."""

    def stand_in(self, original: Any) -> Any:
        """Return what runs them."""
        return _around(original)


_COMPOSE_2 = "torchvision.transforms.v2._container"
_PURPOSE = "conversion, scaling and Normalize are made in the pass that decodes"
OVERRIDES = tuple(
    _Container(library, f"{library}:{name}", method, _PURPOSE, where=where)
    for library, name, method, where in (
        ("torchvision.transforms.transforms", "Compose", "__call__", overrides.PROCESS),
        (_COMPOSE_2, "Compose", "forward", overrides.PROCESS),
        ("torch.nn.modules.container", "Sequential", "forward", overrides.WORKERS),
    )
)


def _around(method: Callable[..., Any]) -> Callable[..., Any]:
    @in_place_of(method)
    def run(self: Any, *inputs: Any, **named: Any) -> Any:
        # Asked first, so that torch.compile and torch.jit.trace see nothing but the method.
        if torch.compiler.is_compiling() or thread.scope is None or named or not inputs or modes.is_tracing():
            return method(self, *inputs, **named)
        is_image = len(inputs) == 1 and (is_late(inputs[0]) or _is_tensor(inputs[0]))
        if not is_image and not (method.__module__ == _COMPOSE_2 and _has(_is_image, inputs)):
            return method(self, *inputs, **named)
        transforms = self if isinstance(self, nn.Sequential) else self.transforms
        # A list itself: a transform may change it meanwhile, and the loop that this stands in for sees that.
        transforms = transforms if type(transforms) is list else list(transforms)
        if not transforms:
            return method(self, *inputs, **named)
        return _run(transforms, inputs[0]) if is_image else _run_tree(transforms, inputs)

    return run


def _run(transforms: Sequence[Any], image: Any) -> Any:
    """Return what the transforms make of an image, as their container calls them."""
    is_intact: bool | None = None  # None: to be asked
    for transform in transforms:
        made = None
        if is_late(image) or type(image) is Undecoded or _is_tensor(image):
            if is_intact is None:
                is_intact = _known.is_intact()
            if is_intact:
                made = _made_late(transform, image)
        if made is None:
            made = transform(_decoded(image))
            is_intact = None  # it may be the user's, and may have replaced something
        image = made
    return _decoded(image)


def _decoded(image: Any) -> Any:
    return image.tensor() if type(image) is Undecoded else image


def _made_late(transform: Any, image: Any) -> Any:
    """Return what a transform makes of a late or undecoded image; None if the transform is to be called."""
    kind = type(transform)
    if isinstance(image, Tensor):
        if not _is_geometric(transform):
            return None
        image = Undecoded.of_tensor(image)
    if type(image) is not Undecoded:
        if kind in _known.random:
            return None if change_of(transform) else _drawn(transform, image)
        table = _table_of(transform) if kind in _known.first else None
        return None if table is None else undecoded_of(image, table)
    if _is_geometric(transform):
        made = _drawn(transform, image) if kind in _known.random else None
        return _made_by_kernels(transform, image) if made is None else made
    # Version 1 makes a plain tensor of an image of version 2, or not: the user may choose.
    if kind is not _known.to_image and kind not in _known.later:
        return None
    if image.table.kind is not Tensor and kind.__module__ == _V1:
        return None
    table = _table_of(transform, image.table)
    return None if table is None else image.mapped(table)


def _drawn(transform: Any, image: Any) -> Any:
    draw = draws.draw_of(type(transform))
    return None if draw is None else draw(vars(transform), image)


def _is_geometric(transform: Any) -> bool:
    """Whether a transform of version 2 crops, resizes or flips :class:`~fastload.late.tensors.LateTensor` as an image.

    It does not where it looks up what to fill by the exact class.
    """
    if type(transform) not in _known.geometric or change_of(transform):
        return False
    return not isinstance(vars(transform).get("fill"), dict)


def _made_by_kernels(transform: Any, image: Undecoded) -> Any:
    made = transform(_known.tensors.LateTensor.of(image))
    return made.undecoded if type(made) is _known.tensors.LateTensor else made


def _is_image(found: Any) -> bool:
    return is_late(found) or _is_image_tensor(found)


def _is_image_tensor(found: Any) -> bool:
    """Whether an object is an image of version 2, and an :class:`Undecoded` can stand for it."""
    return isinstance(found, Tensor) and type(found) is _known.image and can_stand_for(found)


def _is_tensor(found: Any) -> bool:
    """The same, also of a tensor of no class: where it is alone it is an image."""
    return (type(found) is Tensor and can_stand_for(found)) or _is_image_tensor(found)


def _run_tree(transforms: Sequence[Any], inputs: Any) -> Any:
    """Return what version 2's transforms make of images with boxes, masks and the like, as their container does."""
    outputs: Any = None
    is_single = len(inputs) == 1
    holds_tensors = False  # whether the inputs hold late tensors
    is_intact: bool | None = None  # None: to be asked
    for transform in transforms:
        is_to_image = type(transform) is _known.to_image and not change_of(transform)
        is_geometric = _is_geometric(transform)
        is_of_values = holds_tensors and _is_of_values(transform)
        wanted = is_late if is_to_image else _is_image_tensor
        begins = (is_to_image or (is_geometric and not holds_tensors)) and _has(wanted, inputs)
        is_known = begins or is_of_values or (holds_tensors and (is_geometric or is_to_image))
        if is_known and is_intact is None:
            is_intact = _known.is_intact()
        is_known = is_known and bool(is_intact)
        if is_known and begins:
            inputs = _with_late_tensors(_table_of(transform) if is_to_image else None, inputs)
            holds_tensors = True
        outputs = _mapped(transform, inputs) if is_known and is_of_values else None
        if outputs is None:
            if is_of_values or not is_known:
                inputs = _with_decoded(inputs) if holds_tensors else inputs
                holds_tensors = False
                is_intact = None  # it may be the user's, and may replace something
            outputs = transform(*inputs)
        inputs = (outputs,) if is_single else outputs
    return _with_decoded(outputs) if holds_tensors else outputs


def _is_of_values(transform: Any) -> bool:
    """Whether a transform of version 2 changes each value of an image by itself, and leaves it an image."""
    kind = type(transform)
    return (
        kind in _known.later and kind.__module__ != _V1 and kind.__name__ != "ToPureTensor" and not change_of(transform)
    )


def _mapped(transform: Any, inputs: Any) -> Any:
    """Return what a transform that looks at one value at a time makes of a tree; None if it is to be called."""
    LateTensor = _known.tensors.LateTensor  # noqa: N806  # a class
    leaves = list(_leaves(inputs))
    tables: list[Table] = []
    for leaf in leaves:
        if type(leaf) is LateTensor:
            table = _table_of(transform, leaf.undecoded.table)
            if table is None:
                return None
            tables.append(table)
    outputs = inputs if len(inputs) > 1 else inputs[0]
    if not _leaves_others(transform, leaves):
        # It is given small images of their classes in place of late tensors.
        outputs = transform(
            *_with_leaves(lambda one: one.undecoded.table.example() if type(one) is LateTensor else one, inputs)
        )
    before, table_of_next = iter(leaves), iter(tables)

    def changed(output: Any) -> Any:
        one = next(before)
        if type(one) is not LateTensor:
            return output
        made = one.undecoded.mapped(next(table_of_next))
        return transform(one.undecoded.tensor()) if made is None else LateTensor.of(made)

    return _with_leaves(changed, outputs)


def _leaves_others(transform: Any, leaves: Sequence[Any]) -> bool:
    """Whether a transform that looks at one value at a time changes no other leaf than late tensors."""
    name = type(transform).__name__
    if name != "Normalize" and (name != "ToDtype" or type(vars(transform).get("dtype")) is not torch.dtype):
        return False
    return all(type(one) in _known.unchanged for one in leaves if isinstance(one, (Tensor, Image.Image)))


def _has(is_wanted: Callable[[Any], bool], inputs: Any) -> bool:
    """Whether a tree holds such a leaf, and has no nodes but dicts, lists and tuples: others run code of their own."""
    leaves = list(_leaves(inputs))
    is_plain = not any(isinstance(leaf, tuple) or type(leaf) in SUPPORTED_NODES for leaf in leaves)
    return is_plain and any(map(is_wanted, leaves))


def _leaves(node: Any) -> Iterator[Any]:
    if type(node) in (dict, list, tuple):
        for one in node.values() if type(node) is dict else node:
            yield from _leaves(one)
    else:
        yield node


def _with_late_tensors(table: Table | None, inputs: Any) -> Any:
    """Return a tree with late tensors in place of image tensors and, with ``ToImage``'s table, of late images."""

    def late_tensor(found: Any) -> Any:
        made = None
        if table is not None and is_late(found):
            made = undecoded_of(found, table)
        elif _is_image_tensor(found):
            made = Undecoded.of_tensor(found)
        return found if made is None else _known.tensors.LateTensor.of(made)

    return _with_leaves(late_tensor, inputs)


def _with_decoded(made: Any) -> Any:
    return _with_leaves(_known.tensors.decoded, made)


def _with_leaves(change: Callable[[Any], Any], node: Any) -> Any:
    """Return a tree with changed leaves. It has dicts, lists and tuples alone: torch's way takes twice the time."""
    kind = type(node)
    if kind is dict:
        return {name: _with_leaves(change, one) for name, one in node.items()}
    if kind is list or kind is tuple:
        return kind([_with_leaves(change, one) for one in node])
    return change(node)


def _table_of(transform: Any, before: Table | None = None) -> Table | None:
    """Return what a transform makes of each level, after the transforms of another table.

    None if it was changed, or has arguments of an unusual type, or does not look at one value at a time.
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
        table = _tables[key] = tried(lambda: _made_table(transform, before, signatures))
        return table


def _made_table(transform: Any, before: Table | None, signatures: tuple[Any, ...]) -> Table | None:
    image: Any = Image.fromarray(_LEVELS) if before is None else before.example()
    return _table_from(transform(image), None if before is None else image, signatures)


def _table_from(made: Any, before: Tensor | None, signatures: tuple[Any, ...]) -> Table | None:
    """Return the table by which transforms make a tensor of an image that has all levels; None if there is none.

    ``before``: the tensor that the last of them was given, if it was one.
    """
    if tuple(made.shape) != (3, 16, 16) or made.dtype not in DTYPES:
        return None
    channels_last = made.stride() == (1, 48, 3)
    if not channels_last and not made.is_contiguous():
        return None
    levels = made.as_subclass(Tensor).reshape(3, 256).contiguous()
    is_identity = levels.dtype == torch.uint8 and bool((levels == torch.arange(256, dtype=torch.uint8)).all())
    shares_memory = before is not None and made.untyped_storage().data_ptr() == before.untyped_storage().data_ptr()
    return Table(signatures, levels, channels_last, type(made), is_identity, shares_memory, made is before)


def _signature(transform: Any, image: type | None) -> tuple[Any, ...] | None:
    """Return a transform's class and arguments; None if it was changed, or an argument is of an unusual type.

    ``image``: the class of the image, by which arguments are looked up; None: it is no tensor yet.
    """
    if change_of(transform):
        return None
    arguments: list[Any] = [type(transform)]
    for name in _known.arguments[type(transform)]:
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


_FIRST = ("ToTensor", "PILToTensor", "ToImage", "MaybeToTensor", "MaybePILToTensor")
"""Names of the classes that make a tensor of a PIL image."""

_V1, _V2 = "torchvision.transforms.transforms", "torchvision.transforms.v2"
_CLASSES: dict[str, dict[str, tuple[str, ...]]] = {
    _V1: {"ToTensor": (), "PILToTensor": (), "ConvertImageDtype": ("dtype",), "Normalize": ("mean", "std", "inplace")},
    _V2: {
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

_GEOMETRIC = (
    *("CenterCrop", "RandomCrop", "RandomHorizontalFlip", "RandomIoUCrop", "RandomResize", "RandomResizedCrop"),
    *("RandomShortestSize", "RandomVerticalFlip", "Resize", "ScaleJitter"),
)
"""Names of version 2's classes that crop, resize or flip."""

_FUNCTIONS = {
    "torchvision.transforms.functional": (
        *("to_tensor", "pil_to_tensor", "convert_image_dtype", "normalize"),
        *("get_dimensions", "resized_crop", "crop", "resize", "hflip", "vflip"),
    ),
    "torchvision.transforms._functional_pil": ("get_dimensions", "crop", "resize", "hflip", "vflip"),
    "torchvision.transforms._functional_tensor": ("convert_image_dtype", "normalize", "_max_value"),
    V2_FUNCTIONAL: (
        *("pil_to_tensor", "to_image", "to_dtype", "normalize"),
        *("center_crop", "crop", "horizontal_flip", "pad", "resize", "resized_crop", "vertical_flip"),
        *("get_size", "resize_bounding_boxes"),
    ),
    f"{V2_FUNCTIONAL}._geometry": (
        *("center_crop", "crop", "horizontal_flip", "pad", "resize", "resized_crop", "vertical_flip"),
        *("center_crop_image", "crop_image", "horizontal_flip_image", "resize_image", "resized_crop_image"),
        *("vertical_flip_image", "interpolate", "_do_native_uint8_resize_on_cpu", "_check_interpolation"),
        *("_center_crop_parse_output_size", "_center_crop_compute_crop_anchor", "_compute_resized_output_size"),
        *("_center_crop_image_pil", "_crop_image_pil", "_horizontal_flip_image_pil", "_resize_image_pil"),
        *("_resized_crop_image_pil", "_vertical_flip_image_pil", "_get_size_image_pil", "_get_kernel"),
    ),
    f"{V2_FUNCTIONAL}._misc": ("normalize_image", "to_dtype_image", "_max_value", "_num_value_bits", "_get_kernel"),
    f"{V2_FUNCTIONAL}._type_conversion": ("pil_to_tensor",),
    "torchvision.transforms.v2._transform": ("_get_kernel", "check_type", "has_any", "tree_flatten", "tree_unflatten"),
    "torchvision.transforms.v2._utils": ("check_type", "has_any"),
    "torchvision.tv_tensors": ("wrap",),
}
"""What they call. Where one of these was replaced, they are called one by one."""

_CALLED: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (torch, ("as_tensor", "exp", "from_numpy", "log", "rand", "randint", "tensor")),
    (np, ("array",)),
    (nn.Module, ("_call_impl",)),
)
"""The same, of torch and NumPy."""

_MODULES = (*_FUNCTIONS, *_CLASSES)


class _Known:
    """The known transforms, as far as their modules are imported, and the code that they run."""

    def __init__(self) -> None:
        self.prepared: tuple[tuple[str, ...], bool] | None = None
        """The modules that were imported, and whether it was in a worker process."""
        self.seen: list[Any] | None = None
        """The same as objects, and None for others: compared sooner."""
        self.first: set[type] = set()
        """Classes that make a tensor of a PIL image."""
        self.later: set[type] = set()
        """Classes that change each value of such a tensor by itself."""
        self.arguments: dict[type, tuple[str, ...]] = {}
        """By class: the attributes that hold a transform's arguments."""
        self.random: set[type] = set()
        """Classes whose draws can be made with fewer calls."""
        self.to_image: type | None = None
        self.image: type | None = None
        """Version 2's class of images that are tensors."""
        self.unchanged: set[type] = set()
        """Classes of tensors that transforms of an image's values leave as they are; and that of late tensors."""
        self.tensors: Any = None
        """The module with the class of late tensors; None: there are none of the next."""
        self.geometric: set[type] = set()
        """Classes of version 2 that crop, resize or flip, also beside boxes and masks."""
        self._originals = Originals("torch", "torchvision", "timm", "numpy")
        for owner, names in _CALLED:
            self._originals.add(owner, names)
        self._registry: Any = None
        """Where version 2's kernels are."""
        self._kernels: list[tuple[Any, Any, tuple[Any, ...]]] = []
        """Those of images, as they were written: see :func:`_kernels`."""

    def find(self, modules: tuple[str, ...]) -> None:
        """Find the transforms and functions of these modules."""
        # Other threads may be using it: a class is found once all that is asked about it is known.
        for module in modules:
            functions = _FUNCTIONS.get(module, ())
            self._originals.add(sys.modules[module], [name for name in functions if hasattr(sys.modules[module], name)])
        for module in modules:
            for name, arguments in _CLASSES.get(module, {}).items():
                kind = getattr(sys.modules[module], name, None)
                if not isinstance(kind, type):  # a user's, or another version's
                    continue
                self._originals.add(kind, _methods(kind))
                self.arguments[kind] = arguments
                (self.first if name in _FIRST else self.later).add(kind)
        for kind in draws.classes():
            self._originals.add(kind, _methods(kind))
            self.random.add(kind)
        if _V2 in modules and V2_FUNCTIONAL in modules:
            self._find_geometric(sys.modules[_V2])

    def _find_geometric(self, version_2: Any) -> None:
        to_image: Any = getattr(version_2, "ToImage", None)
        found = (getattr(version_2, name, None) for name in _GEOMETRIC)
        kinds = [kind for kind in found if isinstance(kind, type)]
        for kind in kinds:
            self._originals.add(kind, _methods(kind))
        from torchvision import tv_tensors

        if self._registry is None:
            self._kernels = list(_kernels(tv_tensors.Image))
            self._registry = registry()
        if self._originals.replaced() is None and to_image in self.first:
            from . import tensors  # registers kernels for torchvision's functions

            self.to_image = to_image
            self.image = tv_tensors.Image
            self.tensors = tensors
            self.unchanged = {Tensor, tensors.LateTensor, tv_tensors.Mask, tv_tensors.BoundingBoxes}
            self.geometric.update(kinds)

    def is_intact(self) -> bool:
        """Whether the known classes run the code that they were written with, and nothing else looks on.

        That would be hooks of all modules, or a mode of torch, such as a default device.
        """
        hooks = nn.modules.module
        has_hooks = hooks._global_forward_hooks or hooks._global_forward_pre_hooks
        if has_hooks or modes.are_watching() or self._originals.replaced() is not None:
            return False
        return self._registry is None or self._are_kernels_intact(self._registry)

    def _are_kernels_intact(self, known: Any) -> bool:
        if registry() is not known:
            return False
        try:
            for function, read, kernels in self._kernels:
                if any(map(is_not, read(known[function]), kernels)):
                    return False
        except KeyError:  # somebody has deleted one
            return False
        return True


def _kernels(image: type[Tensor]) -> Iterator[tuple[Any, Any, tuple[Any, ...]]]:
    """Find the kernels of images: version 2's function, what reads its kernels, and these."""
    for function, registered in list(registry().items()):
        if getattr(function, "__name__", None) not in _FUNCTIONS[V2_FUNCTIONAL]:
            continue
        kinds = [kind for kind in (Tensor, image, Image.Image) if kind in registered]
        if kinds:
            # What a user has put there before is never what is looked for.
            known = [one if is_written_in(one, "torchvision") else object() for one in map(registered.get, kinds)]
            # With one class alone it would return no tuple.
            yield function, itemgetter(*kinds, kinds[0]), (*known, known[0])


def _methods(kind: type) -> list[str]:
    """Return which of the methods a class has: its code calls no others, and to ask for one takes 0.2 µs."""
    return [name for name in METHODS if hasattr(kind, name)]


_known = _Known()
_preparing = threading.Lock()


def _forget() -> None:
    global _preparing
    _preparing = threading.Lock()


if hasattr(os, "register_at_fork"):
    # The thread that holds it is not in the child.
    os.register_at_fork(after_in_child=_forget)
