"""MONAI's random transforms and transformers' collators: the same samples and masks, whoever makes them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.comparison import difference
from kit.datasets import Made
from torch.utils.data import ConcatDataset, Dataset, Subset

import fastload

monai = pytest.importorskip("monai")
datasets = pytest.importorskip("datasets")
tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

from monai import transforms as of  # noqa: E402  # not where it is not installed
from monai.data import list_data_collate  # noqa: E402
from monai.data.utils import worker_init_fn  # noqa: E402

WORKERS = {
    "one process": {"num_workers": 1},
    "processes": {"num_workers": 3, "chunk_size": 1, "persistent_workers": True},
    "threads": {"num_workers": 3, "worker_method": "thread", "chunk_size": 1},
    "threads in processes": {"num_workers": 2, "worker_threads": 2},
}

# --- MONAI's transforms ----------------------------------------------------------------------------------------------

IMAGES = [np.random.RandomState(i).rand(1, 8, 8).astype(np.float32) for i in range(12)]


def arrays() -> list[Any]:
    return [
        of.RandFlip(prob=0.5, spatial_axis=0),
        of.RandAffine(prob=0.5, rotate_range=1.0),
        of.OneOf([of.RandGaussianNoise(prob=1.0), of.RandScaleIntensity(0.5, prob=1.0)]),
        of.SomeOf([of.RandShiftIntensity(0.5, prob=1.0), of.RandAdjustContrast(prob=1.0)], num_transforms=1),
        of.RandomOrder([of.RandZoom(prob=1.0), of.RandRotate90(prob=0.5)]),
    ]


def dicts() -> Any:
    keys = ["image", "label"]
    return of.Compose(
        [
            of.RandSpatialCropSamplesd(keys, roi_size=(4, 4), num_samples=2, random_size=False),
            of.RandFlipd(keys, prob=0.5),
            of.Rand2DElasticd(keys, spacing=(2, 2), magnitude_range=(0, 1), prob=0.5),
            of.RandGaussianNoised("image", prob=0.8),
        ]
    )


def pairs() -> list[dict[str, Any]]:
    return [{"image": image, "label": (image > 0.5).astype(np.float32)} for image in IMAGES]


class Shift(of.Randomizable, of.Transform):  # type: ignore[misc]
    """A transform of the user's, which nobody calls set_random_state of."""

    def randomize(self, data: Any = None) -> None:
        self.shift = self.R.uniform(-1, 1)

    def __call__(self, image: Any) -> Any:
        self.randomize()
        return image + self.shift


class Own(Dataset[Any]):
    """An own dataset with transforms in a list, one of the user's, and one in a closure."""

    def __init__(self) -> None:
        flip = arrays()[0]
        self.stages = [*arrays(), lambda image: flip(image), Shift()]

    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, index: int) -> Any:
        image: Any = IMAGES[index]
        for stage in self.stages:
            image = stage(image)
        return image


class RandomDataset(Made, of.Randomizable):  # type: ignore[misc]
    """A dataset that is a Randomizable itself, as in MONAI's documentation."""

    def __init__(self) -> None:
        super().__init__(12, lambda _: self.R.randint(0, 1000, (1,)))


def of_monai(dataset: Any, **arguments: Any) -> Any:
    """Return a loader as MONAI's own class makes it."""
    given = {"batch_size": 4, "collate_fn": list_data_collate, "worker_init_fn": worker_init_fn, "seed": 3}
    return fastload.DataLoader(dataset, **given | arguments)


# --- transformers' collators -----------------------------------------------------------------------------------------

VOCABULARY = {"[PAD]": 0, "[MASK]": 1, **{f"w{number}": number for number in range(2, 500)}}


def collator(seed: int | None = 7, return_tensors: str = "pt") -> Any:
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(VOCABULARY, unk_token="w2"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=model, pad_token="[PAD]", mask_token="[MASK]")
    return transformers.DataCollatorForLanguageModeling(tokenizer, seed=seed, return_tensors=return_tensors)


def tokens() -> Any:
    generator = np.random.default_rng(0)
    rows = [generator.integers(2, 500, length).tolist() for length in generator.integers(5, 40, 64)]
    return datasets.Dataset.from_dict({"input_ids": rows})


def collate_to_both(samples: Any, own: Any) -> dict[str, Any]:
    """Collate twice, in both kinds, of which one is not the collator's own."""
    made = {kind: own(samples, return_tensors=kind)["labels"] for kind in ("np", "pt")}
    return made | {"pt again": own(samples, return_tensors="pt")["labels"]}


def masks(collate_fn: Any, **arguments: Any) -> Any:
    return fastload.DataLoader(tokens(), **{"batch_size": 4, "collate_fn": collate_fn, "seed": 3} | arguments)


# --- Both ------------------------------------------------------------------------------------------------------------

LOADERS: dict[str, Callable[..., Any]] = {
    "Dataset": lambda _, **way: of_monai(monai.data.Dataset(IMAGES, of.Compose(arrays())), **way),
    "CacheDataset": lambda _, **way: of_monai(monai.data.CacheDataset(pairs(), dicts(), progress=False), **way),
    "PersistentDataset": lambda folder, **way: of_monai(
        monai.data.PersistentDataset(pairs(), dicts(), cache_dir=folder), **way
    ),
    "a Randomizable": lambda _, **way: of_monai(RandomDataset(), **way),
    "own": lambda _, **way: of_monai(ConcatDataset([Subset(Own(), range(12))]), **way),
    "torch's masks": lambda _, **way: masks(collator(), **way),
    "NumPy's masks": lambda _, **way: masks(collator(return_tensors="np"), **way),
    "both": lambda _, **way: masks(functools.partial(collate_to_both, own=collator()), **way),
}


def epochs(loader: Any) -> list[Any]:
    """Return the values of two epochs."""
    try:
        return [[values(batch) for batch in loader] for _ in range(2)]
    finally:
        loader.close()


def values(batch: Any) -> Any:
    if hasattr(batch, "items"):
        return {name: values(batch[name]) for name in (("image", "label") if "image" in batch else batch)}
    return [values(one) for one in batch] if isinstance(batch, list | tuple) else np.asarray(batch).tolist()


@pytest.mark.parametrize("name", LOADERS)
def test_batches_are_the_same_whoever_makes_them_and_differ_between_epochs(name, tmp_path: Path, recwarn):
    expected = epochs(LOADERS[name](tmp_path))
    assert expected[0] != expected[1]
    for workers in WORKERS.values():
        assert epochs(LOADERS[name](tmp_path, **workers)) == expected, workers
    assert [str(one.message) for one in recwarn if "does not seed" in str(one.message)] == []


def test_in_this_process_transforms_have_their_own_generators_back():
    own = Own()
    _, _, _, several, _, _, shift = own.stages
    state, words = several.R, several.R.get_state()[1].tolist()
    next(iter(of_monai(own)))
    assert several.R is state
    assert state.get_state()[1].tolist() == words
    assert "R" not in vars(shift)


def test_masks_are_those_of_the_collators_seed_and_the_loaders_and_each_call_has_its_own():
    own = collator(7)
    first, _ = epochs(masks(own))
    assert (own.generator, own._generator_pid) == (None, None)
    assert epochs(masks(collator(8)))[0] != first
    assert epochs(masks(collator(7), seed=4))[0] != first
    both = epochs(LOADERS["both"](None))
    for kind in ("np", "pt"):
        seen = [str(np.array(batch[kind]) != -100) for epoch in both for batch in epoch]
        assert len(set(seen)) == len(seen)
    assert not any(batch["pt"] == batch["pt again"] for batch in both[0])


def test_torchs_seeding_leaves_the_collators_generators_to_them():
    theirs = list(torch.utils.data.DataLoader(tokens(), batch_size=4, collate_fn=collator()))
    assert difference(list(masks(collator(), seed=None, seeding="torch")), theirs) is None


SHARED = collator()


def test_threads_that_share_a_collator_are_warned_of():
    with pytest.warns(RuntimeWarning, match="DataCollatorForLanguageModeling"):
        epochs(masks(lambda samples: SHARED(samples), num_workers=2, worker_method="thread"))
