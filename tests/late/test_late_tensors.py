"""What is done with a tensor before it is decoded gives what torch gives: bits, dtype, type, strides, draws, errors."""

from __future__ import annotations

import functools
import importlib.machinery
import itertools
import operator
import sys
import types
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from comparing import counts_of, jpeg, opened
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL.JpegImagePlugin import JpegImageFile
from replacing import forget
from test_late_containers import assert_equal, norm, result
from torch import nn
from torch.utils._pytree import register_pytree_node, tree_leaves
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

from fastload import native
from fastload.late import containers, deferred, source
from fastload.late.deferred import tensor_filters
from fastload.late.image import LateImage, LateJpeg
from fastload.native.rows import TENSOR_FILTERS, Cut, pixels_of_image, row_of_image

pytestmark = pytest.mark.usefixtures("as_in_a_worker")
MODES = v2.InterpolationMode

Make = Callable[[], Any]
to_float = functools.partial(v2.ToDtype, torch.float32, scale=True)


def target(width: int, height: int) -> dict[str, Any]:
    boxes = [[0, 0, width // 2 + 1, height // 2 + 1], [width // 3, height // 3, width, height]]
    return {
        "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(height, width)),
        "mask": tv_tensors.Mask(torch.arange(width * height, dtype=torch.int32).reshape(1, height, width)),
        "labels": torch.tensor([3, 4]),
        "name": "a file",
    }


def pair(run: Any) -> Callable[[Any], Any]:
    return lambda image: run(image, target(*image.size))


def in_a_dict(run: Any) -> Callable[[Any], Any]:
    return lambda image: run({"image": image, **target(*image.size)})


def beside(run: Any) -> Callable[[Any], Any]:
    return lambda image: run(image, target(image.shape[-1], image.shape[-2]), torch.zeros(3, 70, 60, dtype=torch.uint8))


side = st.one_of(st.integers(1, 3), st.integers(4, 70))
sides = st.one_of(side, st.tuples(side, side))
edge = st.one_of(side, st.tuples(side), st.tuples(side, side).map(list))
MODE = st.sampled_from((MODES.BILINEAR, MODES.BICUBIC, MODES.NEAREST, MODES.NEAREST_EXACT, 2, 3, "bilinear", "bicubic"))
CHANCE = st.sampled_from((0.0, 0.5, 1.0))
ANTIALIAS = st.sampled_from((True, True, True, False, None))
PADDING = st.sampled_from(("constant", "edge", "reflect"))
FILL = st.sampled_from((0, (9, 8, 7), {tv_tensors.Image: (9, 8, 7), "others": 0}))
SCALE = st.sampled_from(((0.08, 1.0), (0.01, 0.1), (0.9, 1.0), (0.5, 2.0)))
RATIO = st.sampled_from(((3 / 4, 4 / 3), (0.2, 5.0), (0.001, 0.001)))
DTYPES_BY_CLASS = st.sampled_from(
    (
        {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None},
        {tv_tensors.Image: None, "others": torch.float32},
        {tv_tensors.Mask: torch.int64},
    )
)
DTYPE = st.sampled_from((torch.float32, torch.uint8, torch.float16, torch.bfloat16, torch.float64, torch.int64))


def of_both(module: Any, **more: Any) -> list[Any]:
    return [
        st.builds(module.RandomResizedCrop, sides, interpolation=st.sampled_from((MODES.BILINEAR, MODES.BICUBIC))),
        st.builds(module.RandomHorizontalFlip, CHANCE),
        st.builds(module.RandomVerticalFlip, CHANCE),
        st.builds(module.RandomCrop, sides, pad_if_needed=st.booleans(), **more),
        st.builds(module.CenterCrop, sides),
        st.builds(module.Resize, edge),
        st.builds(module.ConvertImageDtype, DTYPE),
        st.builds(norm, st.just(module), inplace=st.booleans()),
        st.builds(module.RandomErasing, CHANCE),
        st.just(module.ColorJitter(0.4, 0.4, 0.4, 0.2)),
        st.builds(module.RandomGrayscale, CHANCE),
    ]


VERSION_1 = st.one_of(*of_both(v1))
VERSION_2 = st.one_of(
    *of_both(v2, fill=FILL, padding_mode=PADDING),
    st.builds(v2.RandomResizedCrop, sides, scale=SCALE, ratio=RATIO, interpolation=MODE, antialias=ANTIALIAS),
    st.builds(v2.RandomResizedCrop, st.tuples(side, side), scale=SCALE),
    st.builds(v2.Resize, edge, interpolation=MODE, antialias=ANTIALIAS),
    st.builds(v2.Resize, side | st.none(), max_size=side),
    st.just(v2.RandomResize(9, 40)),
    st.just(v2.RandomShortestSize([10, 20], max_size=25)),
    st.just(v2.ScaleJitter((20, 30))),
    st.builds(v2.RandomIoUCrop),  # without boxes an error
    st.builds(v2.ToDtype, st.one_of(DTYPE, DTYPES_BY_CLASS), scale=st.booleans()),
    st.builds(v2.ToPureTensor),
    st.builds(v2.ToImage),
    st.builds(v2.Grayscale, st.just(3)),
    st.builds(v2.RandomPhotometricDistort, p=CHANCE),
    st.builds(v1.RandomHorizontalFlip, CHANCE),
    st.builds(v1.RandomResizedCrop, st.tuples(side, side)),
    st.builds(norm),
)


def policies(module: Any) -> list[Any]:
    return [
        module.ColorJitter(0.4, 0.4), module.RandomGrayscale(0.3), module.Grayscale(3), module.RandomPosterize(3),
        module.RandomSolarize(100, 0.5), module.RandomEqualize(), module.RandomAutocontrast(), module.AutoAugment(),
        module.RandAugment(3, fill=9), module.TrivialAugmentWide(), module.AugMix(),
    ]  # fmt: skip


BEFORE = {
    version: st.one_of(
        st.builds(module.RandomResizedCrop, sides, SCALE, RATIO, st.sampled_from(list(MODES))),
        st.builds(module.RandomHorizontalFlip, CHANCE),
        st.builds(module.Resize, side),
        st.builds(module.CenterCrop, side),
        st.builds(module.RandomApply, st.just([module.ColorJitter(0.4, 0.4, 0.2, 0.1)]), CHANCE),
        st.sampled_from(policies(module)),
    )
    for version, module in ((1, v1), (2, v2))
}
FIRST = {1: (v1.ToTensor, v1.PILToTensor), 2: (v2.ToImage, v2.ToImage, v2.PILToTensor, v1.ToTensor)}


@st.composite
def pipelines(draw: Any, *, of_tensors: bool = False) -> Any:
    version = draw(st.sampled_from((1, 2, 2, 2)))
    before = [] if of_tensors else draw(st.lists(BEFORE[version], max_size=2))
    first = [] if of_tensors else [draw(st.sampled_from(FIRST[version]))()]
    least = int(of_tensors)
    transforms = [*before, *first, *draw(st.lists((VERSION_1, VERSION_2)[version - 1], min_size=least, max_size=6))]
    if version == 2 and draw(st.booleans()):
        return draw(st.sampled_from((pair, in_a_dict) if not of_tensors else (beside,)))(v2.Compose(transforms))
    if draw(st.booleans()):
        return (v1.Compose, v2.Compose)[version - 1](transforms)
    return nn.Sequential(*(one if isinstance(one, nn.Module) else Called(one) for one in transforms))


class Called(nn.Module):
    """A module that calls one of version 1's transforms that are none."""

    def __init__(self, transform: Any) -> None:
        super().__init__()
        self.transform = transform

    def forward(self, image: Any) -> Any:
        return self.transform(image)


@settings(max_examples=200)
@given(
    pipelines(),
    st.sampled_from(((40, 31), (16, 16), (9, 50), (1, 7), (6, 1), (1, 1))),
    st.sampled_from(("RGB", "RGB", "L", "L in RGB")),
    st.integers(0, 2**63),
)
def test_any_transforms_give_the_same_and_draw_the_same(run, size, mode, seed):
    def seeded(image: Any) -> Any:
        torch.manual_seed(seed)
        return run(image.convert("RGB") if mode == "L in RGB" else image)

    assert_equal(seeded, jpeg(*size, mode[:1] if mode[0] == "L" else mode))


def of_tensor(run: Any, made: Callable[[Any], torch.Tensor]) -> Callable[[Any], Any]:
    """Return what a pipeline makes of a tensor that the sample has made of the image, and of the tensor's memory."""

    def run_on(image: Any) -> Any:
        tensor = made(image)
        outputs = run(tensor)
        before = tensor.as_subclass(torch.Tensor).untyped_storage().data_ptr()
        parts = [one for one in tree_leaves(outputs) if isinstance(one, torch.Tensor)]
        shared = [one.as_subclass(torch.Tensor).untyped_storage().data_ptr() == before for one in parts]
        return outputs, shared, [one is tensor for one in parts], tensor

    return run_on


PLAIN: Callable[[Any], torch.Tensor] = v2.PILToTensor()
MADE = {
    "image": tv_tensors.Image,
    "plain": PLAIN,
    "planes": lambda image: PLAIN(image).contiguous(),
    "part": lambda image: tv_tensors.Image(PLAIN(image)[:, 1:]),
    "narrow": lambda image: PLAIN(image)[:, :, 1:],
    "video": lambda image: tv_tensors.Video(PLAIN(image)[None]),
    "mask": tv_tensors.Mask,
    "floats": lambda image: tv_tensors.Image(PLAIN(image).float()),
}


@settings(max_examples=100)
@given(pipelines(of_tensors=True), st.sampled_from(sorted(MADE)), st.sampled_from(((70, 60), (61, 90), (9, 50))))
def test_any_transforms_of_a_tensor_give_the_same_in_the_same_memory(run, kind, size):
    assert_equal(of_tensor(run, MADE[kind]), jpeg(*size))


RARE: dict[str, Make] = {
    "resized to no row": lambda: [v2.Resize(1, max_size=3), v2.Resize(1, max_size=2)],
    "a size of 0": lambda: [v2.Resize((0, 5))],
    "a negative size": lambda: [v2.Resize(-5)],
    "a crop to nothing": lambda: [v2.CenterCrop(0)],
    "a resized crop to nothing": lambda: [v2.RandomResizedCrop((0, 16))],
    "a size of a float": lambda: [v2.Resize([16.0])],
    "a size of an array's number": lambda: [v2.Resize([np.int64(16)]), v2.CenterCrop((np.int64(9), 8))],
    "a crop to floats": lambda: [v2.CenterCrop((10.0, 10.0))],
    "a resized crop to floats": lambda: [v2.RandomResizedCrop((16, 20)), v2.RandomResizedCrop((16.0, 20))],
    "an interpolation of a float": lambda: [v2.Resize(16, interpolation=2.0)],
    "an interpolation of a list": lambda: [v2.Resize(16, interpolation=[2])],
    "an interpolation in words": lambda: [v2.Resize(16, interpolation="bilinear")],
    "an interpolation in capitals": lambda: [v2.Resize(16, interpolation="BILINEAR")],
    "a size too large": lambda: [v2.Resize((3, 33000))],
    "no other": list,
    "other types": lambda: [_with(v2.Resize(10), _transformed_types=(tv_tensors.Image,)), to_float()],
    "other types of values": lambda: [_with(to_float(), _transformed_types=()), v2.CenterCrop(9)],
    "another method": lambda: [_with(v2.CenterCrop(40), transform=lambda image, params: image), v2.Resize(20)],
    "boxes": lambda: [v2.RandomIoUCrop(), v2.RandomVerticalFlip(), v2.SanitizeBoundingBoxes()],
    "the user's own": lambda: [v2.CenterCrop(12), _with_what_it_saw, v2.CenterCrop(9)],
    "no __dict__": lambda: [v2.CenterCrop(12), operator.itemgetter(0), v2.CenterCrop(10)],
    "mixed": lambda: [v2.RandomApply([v2.Resize(9)], 1.0), v2.RandomZoomOut(p=1.0)],
    "an error": lambda: [v2.Resize(16, max_size=12)],
}


def _with_what_it_saw(*inputs: Any) -> Any:
    return inputs, [type(one).__qualname__ for one in tree_leaves(inputs)]


def _with(changed: Any, **attributes: Any) -> Any:
    vars(changed).update(attributes)
    return changed


@pytest.mark.parametrize("name", RARE)
def test_rare_pipelines_give_the_same_of_images_beside_boxes_and_of_tensors(name):
    rare, to_values = RARE[name](), [to_float(), norm(v2), v2.ToPureTensor()]
    for first, last in itertools.product((v2.ToImage(), v2.PILToTensor()), ([], to_values)):
        run = v2.Compose([first, *rare, *last])
        for size, form in itertools.product(((80, 60), (24, 50), (400, 2)), (run, pair(run), in_a_dict(run))):
            assert_equal(form, jpeg(*size))
    for last in ([], [v2.RandomHorizontalFlip(0.0)], [v2.ToImage(), *to_values]):
        if not rare and not last:
            continue  # torchvision refuses no transforms
        run = v2.Compose([*rare, *last])
        for form, kind in itertools.product((run, beside(run)), ("image", "plain", "part")):
            assert_equal(of_tensor(form, MADE[kind]), jpeg(80, 60))


@pytest.mark.skipif("tensor bilinear" not in tensor_filters(), reason="torchvision resizes in floats here")
def test_all_that_is_known_of_a_tensors_transforms_is_done_in_one_pass(monkeypatch):
    calls: list[Cut] = []

    def counted(pixels: Any, cut: Cut, *others: Any) -> Any:
        calls.append(cut)
        return row_of_image(pixels, cut, *others)

    monkeypatch.setattr(source, "row_of_image", counted)
    by_class = v2.ToDtype({tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}, scale=True)
    flip = v2.RandomHorizontalFlip(1.0)
    run = v2.Compose([v2.RandomResizedCrop(20), flip, v2.ToImage(), by_class, norm(v2), v2.RandomCrop(9)])
    for form in (of_tensor(run, tv_tensors.Image), of_tensor(run, PLAIN), of_tensor(beside(run), tv_tensors.Image)):
        calls.clear()
        result(form, jpeg(80, 60), late=True)
        assert [(cut.size, cut.window[2:], cut.flips) for cut in calls] == [((20, 20), (9, 9), (True, False))]
        assert_equal(form, jpeg(80, 60))


def decoded(run: Any, data: bytes) -> str:
    (how,) = counts_of(lambda: run(opened(data)))
    return how


@pytest.mark.parametrize(
    "placed",
    [
        lambda: v2.RandomResizedCrop(16, scale=(0.1, 0.2)),
        lambda: v2.RandomCrop(20),
        lambda: v2.RandomResizedCrop((16, 20), scale=(0.1, 0.2)),
        lambda: v2.CenterCrop(16),
        lambda: v2.Compose([v2.CenterCrop(30), v2.Resize(20), v2.CenterCrop(10)]).transforms,
        lambda: v2.RandomResizedCrop(16, scale=(0.1, 0.2), interpolation=MODES.NEAREST),
        lambda: v2.RandomResizedCrop(16, scale=(0.1, 0.2), antialias=False),
    ],
)
def test_of_the_file_only_what_is_kept_is_decoded(placed):
    found = placed()
    last = [v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True), norm(v2)]
    transforms = [v2.ToImage(), *(found if isinstance(found, list) else [found]), *last]
    compose = v2.Compose(transforms)
    for run in (compose, nn.Sequential(*transforms), pair(compose), in_a_dict(compose)):
        assert decoded(run, jpeg(80, 60)) == "only what crops keep"
        assert_equal(run, jpeg(80, 60))


def test_a_module_that_another_thread_is_importing_is_not_used(monkeypatch):
    forget(monkeypatch)
    half = types.ModuleType("torchvision.transforms.v2")
    half.__spec__ = importlib.machinery.ModuleSpec(half.__name__, None)
    half.__spec__._initializing = True
    half.ToImage = v2.ToImage
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, half.__name__, half)
        assert_equal(v1.Compose([v1.ToTensor()]), jpeg(80, 60))
        assert v2.ToImage not in containers._known.roles
    assert_equal(pair(v2.Compose([v2.ToImage(), v2.Resize(20)])), jpeg(80, 60))
    assert containers._known.roles[v2.ToImage].makes_tensor


def test_memory_beside_a_crop_holds_nothing():
    sums: list[tuple[int, int]] = []

    def run(image: Any) -> None:
        part = v2.Compose([v2.ToImage(), v2.CenterCrop(10)])(image).as_subclass(torch.Tensor)
        sums.append((int(part.sum()), int(part.as_strided((3, 60, 80), (1, 240, 3), 0).sum())))

    for _ in range(5):
        torch.full((3, 60, 80), 7, dtype=torch.uint8)  # freed: the next tensor may get its memory
        result(run, jpeg(80, 60), late=True)
    assert len(sums) == 5
    assert all(part == whole for part, whole in sums)


class Holder:
    """A node of trees, as users register them."""

    seen: ClassVar[list[type]] = []

    def __init__(self, image: Any, other: Any) -> None:
        self.image, self.other = image, other


class Named(NamedTuple):
    image: Any
    other: Any


def _unflatten(children: Any, context: Any) -> Holder:
    Holder.seen.extend(map(type, children))
    return Holder(*children)


register_pytree_node(Holder, lambda node: ([node.image, node.other], None), _unflatten)


@pytest.mark.parametrize("node", [Holder, Named, lambda *children: {"a": [Named(*children)]}])
def test_the_users_own_nodes_of_trees_see_torchvisions_images_alone(node):
    Holder.seen.clear()
    run = v2.Compose([v2.ToImage(), v2.CenterCrop(20)])
    assert_equal(lambda image: tree_leaves(run(node(image, target(*image.size)["boxes"]))), jpeg(80, 60))
    assert set(Holder.seen) <= {tv_tensors.Image, tv_tensors.BoundingBoxes, LateImage, LateJpeg, JpegImageFile}
    assert decoded(lambda image: run(node(image, 3)), jpeg(80, 60)) == "whole"


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.*:DeprecationWarning")
def test_transforms_are_traced_as_they_are():
    run = v2.Compose([v2.CenterCrop(50), v2.Resize(20), to_float(), norm(v2)])

    def traced(image: Any) -> Any:
        tensor = PLAIN(image)
        return torch.jit.trace(run, tensor, check_trace=False)(255 - tensor)

    assert_equal(traced, jpeg(80, 60))


def test_where_the_kernel_differs_torchs_operator_resizes(monkeypatch):
    monkeypatch.setattr(deferred, "tensor_filters", frozenset)
    run = v2.Compose([v2.ToImage(), v2.CenterCrop(40), v2.Resize(20), v2.CenterCrop(10)])
    said = "resized by torchvision itself: its bilinear values differ here"
    assert counts_of(lambda: run(opened(jpeg(80, 60)))) == {"only what crops keep": 1, said: 1}
    assert_equal(run, jpeg(80, 60))


@given(
    st.integers(1, 90), st.integers(1, 90), st.integers(1, 70), st.integers(1, 70), st.integers(0, 2**32 - 1), st.data()
)
def test_the_kernel_resizes_tensors_as_torchvision_does(height, width, rows, columns, seed, data):
    levels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    pixels = levels if data.draw(st.booleans()) else np.where(levels < 128, 0, 255).astype(np.uint8)
    name = data.draw(st.sampled_from(TENSOR_FILTERS))
    if name not in tensor_filters():
        pytest.skip(f"this processor's torch resizes tensors of uint8 in another way: {name}")
    mode = MODES(name.removeprefix("tensor "))
    made = v2.functional.resize(torch.from_numpy(pixels).permute(2, 0, 1), [rows, columns], mode, antialias=True)
    top, left = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    window = top, left, rows - top, columns - left
    cut = Cut((0, 0, height, width), (rows, columns), name, window, (False, False))
    for level in range(len(native.LEVELS)):
        native.library.limit_level(level)
        found = pixels_of_image(pixels, cut)
        assert np.array_equal(found, made.permute(1, 2, 0).numpy()[top:, left:]), level
