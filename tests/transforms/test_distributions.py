"""Parameters have torchvision's distributions, and are independent of each other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from references import assert_same_distribution, drawn, keyed, many_params
from torchvision.transforms import v2

from fastload import transforms as T
from fastload.base.nesting import tensors_in
from fastload.transforms.base import BatchShape
from fastload.transforms.erasing import normal_noise

MANY = 20_000
BOX = ("top", "left", "height", "width")


class Case(NamedTuple):
    """A transform, torchvision's, and torchvision's value of each parameter of ours; of images of some size."""

    ours: Any
    theirs: Any
    values: dict[str, Callable[[dict[str, Any]], Any]]
    sides: tuple[int, int] = (20, 30)


def same(*names: str) -> dict[str, Callable[[dict[str, Any]], Any]]:
    return {name: lambda made, name=name: made[name] for name in names}


def resized(sides: tuple[int, int], *arguments: Any) -> Case:
    return Case(T.RandomResizedCrop(8, *arguments), v2.RandomResizedCrop(8, *arguments), same(*BOX), sides)


def erased(sides: tuple[int, int], *arguments: Any) -> Case:
    values = {
        name: lambda made, key=key: made["v"] is not None and made[key] for name, key in zip(BOX, "ijhw", strict=True)
    }
    return Case(T.RandomErasing(1, *arguments), v2.RandomErasing(1, *arguments), values, sides)


JITTER = {"brightness": 0.4, "contrast": (0.5, 3.0), "saturation": 1.5, "hue": (-0.1, 0.3)}
AFFINE = ((-30, 50), (0.1, 0.4), (0.5, 1.5), (-10, 20, 5, 15))
CASES = {
    "RandomCrop": Case(T.RandomCrop((9, 5), (1, 2)), v2.RandomCrop((9, 5), (1, 2)), same("top", "left"), (12, 8)),
    "RandomResizedCrop": resized((37, 50)),
    "RandomResizedCrop of other ratios": resized((20, 60), (0.3, 0.9), (0.5, 3.0)),
    "RandomResizedCrop that hardly ever fits": resized((30, 20), (0.9, 1.0), (3.0, 4.0)),
    "RandomResizedCrop of narrow boxes": resized((20, 30), (0.9, 1.0), (0.1, 0.2)),
    "RandomErasing": erased((32, 32)),
    "RandomErasing of large boxes": erased((20, 40), (0.5, 1.0), (0.2, 5.0)),
    "RandomErasing that hardly ever fits": erased((16, 16), (0.9, 1.0), (3.0, 4.0)),
    "RandomAffine": Case(
        T.RandomAffine(*AFFINE), v2.RandomAffine(*AFFINE), same("angle", "scale", "translate", "shear")
    ),
    **{
        f"RandomAffine of shear {shear}": Case(
            T.RandomAffine(0, shear=shear), v2.RandomAffine(0, shear=shear), same("shear")
        )
        for shear in (None, 20, (5, 10))
    },
    "RandomRotation": Case(T.RandomRotation((10, 20)), v2.RandomRotation((10, 20)), same("angle")),
    "ColorJitter": Case(
        T.ColorJitter(**JITTER),
        v2.ColorJitter(**JITTER),
        {name: lambda made, name=name: made[f"{name}_factor"] for name in JITTER},
    ),
    "ColorJitter of a number": Case(
        T.ColorJitter(hue=0.2), v2.ColorJitter(hue=0.2), {"hue": lambda made: made["hue_factor"]}
    ),
    "GaussianBlur": Case(T.GaussianBlur(3), v2.GaussianBlur(3), {"sigma": lambda made: made["sigma"][0]}),
    **{
        f"MixUp of {alpha}": Case(
            T.MixUp(alpha=alpha), v2.MixUp(alpha=alpha, num_classes=5), {"weight": lambda made: made["lam"]}
        )
        for alpha in (0.2, 1.0, 3.0)
    },
    **{
        f"CutMix of {alpha}": Case(
            T.CutMix(alpha=alpha),
            v2.CutMix(alpha=alpha, num_classes=5),
            {"box": lambda made: made["box"], "label_weight": lambda made: np.float32(made["lam_adjusted"])},
        )
        for alpha in (0.2, 1.0)
    },
}


@pytest.mark.parametrize("name", CASES)
def test_parameters_are_distributed_as_torchvisions(name):
    ours, theirs, values, sides = CASES[name]
    found = drawn(ours, MANY, *sides)
    torch.manual_seed(1)
    image = [torch.zeros(3, *sides)]
    made = [theirs.make_params(image) for _ in range(5_000)]
    step = 2 if ours.mixes else 1  # a pair has one
    for parameter, value in values.items():
        references = np.array([value(one) for one in made])
        for column, reference in zip(columns(found[parameter][::step]), columns(references), strict=True):
            assert_same_distribution(column, reference)


def columns(values: Any) -> Any:
    return np.reshape(values, (len(values), -1)).T


FREE = {name: CASES[name].ours for name in ("RandomCrop", "RandomAffine", "ColorJitter")} | {
    "both flips": T.Compose([T.RandomHorizontalFlip(), T.RandomVerticalFlip()]),
    "RandomResizedCrop": T.RandomResizedCrop(8, (0.1, 0.1), (1, 1)),
}


@pytest.mark.parametrize("name", FREE)
def test_parameters_are_independent_of_each_other(name):
    every = [
        column
        for values in tensors_in(many_params(FREE[name]))
        if values.is_floating_point() or name != "ColorJitter"
        for column in columns(values.double().numpy())
        if np.ptp(column)
    ]
    assert len(every) > 1
    assert np.abs(np.corrcoef(every) - np.eye(len(every))).max() < 0.03


SHARES = [
    *((kind(p), "flip", p) for kind in (T.RandomHorizontalFlip, T.RandomVerticalFlip) for p in (0, 0.1, 1)),
    *((kind(p=0.3), "chosen", 0.3) for kind in (T.RandomGrayscale, T.RandomInvert, T.RandomEqualize)),
    (T.RandomAutocontrast(p=0.3), "chosen", 0.3),
    (T.RandomSolarize(0.4, p=0.3), "chosen", 0.3),
    (T.RandomPosterize(3, p=0.3), "chosen", 0.3),
    (T.RandomAdjustSharpness(1.7, p=0.3), "chosen", 0.3),
    (T.RandomErasing(0.3), "height", 0.3),
    (T.RandomErasing(0), "height", 0),
    (T.Cutout(3, 0.3), "height", 0.3),
    (T.RandomInvert(1), "chosen", 1),
]


def test_samples_are_chosen_with_the_probability_given():
    for transform, parameter, p in SHARES:
        share = (drawn(transform, MANY, 16, 16)[parameter] > 0).mean()
        assert abs(share - p) <= 5 * math.sqrt(p * (1 - p) / MANY), transform


@pytest.mark.parametrize("size", [1, 4, 5, 30])
def test_squares_are_centred_uniformly_and_clipped(size):
    params = drawn(T.Cutout(size), MANY, 9, 12)
    for start, length, side in (("top", "height", 9), ("left", "width", 12)):
        begins = [centre - size // 2 for centre in range(side)]
        possible = Counter((max(begin, 0), min(begin + size, side) - max(begin, 0)) for begin in begins)
        pairs = Counter(zip(params[start].tolist(), params[length].tolist(), strict=True))
        assert pairs.keys() == possible.keys()
        for pair, times in possible.items():
            share = times / side
            assert abs(pairs[pair] / MANY - share) < 5 * math.sqrt(share * (1 - share) / MANY) + 1e-9


@pytest.mark.parametrize(
    ("transform", "others", "possible"),
    [(T.ColorJitter(0.4, 0.4, 0.4, 0.1), ["before_hue"], 24), (T.ColorJitter(0.4, saturation=0.4), [], 2)],
)
def test_all_orders_of_colours_are_as_likely(transform, others, possible):
    params = many_params(transform)
    orders = torch.cat([params["order"], *(params[name][:, None] for name in others)], dim=1).tolist()
    counts = Counter(map(tuple, orders))
    assert len(counts) == possible
    expected = MANY / possible
    # chi-square with 23 degrees of freedom: 49.7 is its 0.1 % point, and the orders are always the same.
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 49.7


def test_a_factor_does_not_depend_on_what_else_is_jittered():
    everything, one = many_params(T.ColorJitter(0.4, 0.4, 0.4, 0.1), 9), many_params(T.ColorJitter(hue=0.1), 9)
    assert torch.equal(everything["hue"], one["hue"])


def test_a_choice_of_both_mixes_is_one_of_them_for_each_pair():
    params = many_params(T.MixUpOrCutMix(mixup_alpha=0.4, cutmix_alpha=1.0, cutmix_p=0.3))
    cut = params["weight"] == 1
    assert abs(cut.double().mean().item() - 0.3) < 0.02
    assert not params["box"][~cut].any()
    assert torch.equal(params["label_weight"][~cut], params["weight"][~cut])
    left, top, right, bottom = params["box"].double().unbind(1)
    kept = 1 - (right - left) * (bottom - top) / 600
    assert torch.allclose(params["label_weight"][cut].double(), kept[cut], atol=1e-6)
    assert_same_distribution(params["weight"][~cut], np.random.default_rng(0).beta(0.4, 0.4, 5000))


def test_noise_is_normal_and_independent_from_pixel_to_pixel_and_sample_to_sample():
    params = T.RandomErasing(1, value="random").draw_for(keyed(40), BatchShape(40, 3, 32, 32))
    places = torch.arange(3 * 32 * 32).view(3, 32, 32)
    noise = normal_noise(params["noise"][:, :, None, None, None], places).double()
    values = noise.flatten().sort().values
    expected = 0.5 * (1 + torch.erf(values / math.sqrt(2)))
    shares = (torch.arange(len(values)) + 0.5) / len(values)
    assert (expected - shares).abs().max() < 2.23 / math.sqrt(len(values))
    assert noise.abs().max() < 5.4
    limit = 5 / math.sqrt(noise.numel())
    for dim in range(4):
        first, second = noise.narrow(dim, 0, noise.shape[dim] - 1), noise.narrow(dim, 1, noise.shape[dim] - 1)
        assert abs((first * second).mean().item()) < limit * 1.2
    assert noise.flatten(1).mean(dim=1).abs().max() < 5 / math.sqrt(3 * 32 * 32)
