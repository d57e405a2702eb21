"""Pipelines as people write them, small: each draws from global generators, or keeps generators of its own.

Spawned workers import this module, so what takes long is imported where it is used.
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
import torchvision
from kit.datasets import Made, Sized, Stream
from torch.utils.data import ConcatDataset, IterableDataset, Subset, get_worker_info
from torchvision import transforms as v1

IMAGES = 7
SAMPLES = 23


def write_files(folder: Path) -> None:
    """Write JPEG files in folders of classes, and a memory map."""
    rng = np.random.default_rng(5)
    for place in range(IMAGES):
        noise = PIL.Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8))
        (folder / f"classes/{place % 2}").mkdir(parents=True, exist_ok=True)
        image = noise.resize((44 + place, 40), PIL.Image.Resampling.BICUBIC)
        image.save(folder / f"classes/{place % 2}/{place}.jpg", quality=88)
    rng.integers(0, 1000, 4000, dtype=np.int32).tofile(folder / "tokens.bin")


def _augmented() -> Any:
    steps = [v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.TrivialAugmentWide(), v1.ToTensor()]
    return v1.Compose([*steps, v1.Normalize((0.48, 0.45, 0.4), (0.22, 0.22, 0.22)), v1.RandomErasing(0.5)])


def letterbox_and_hsv(image: Any) -> Any:
    """Resize, pad and shift colours, as YOLO's loaders do; draws from NumPy and Python."""
    import cv2

    image = np.array(image)
    scale = random.uniform(0.5, 1.0)
    image = cv2.resize(image, (int(image.shape[1] * scale), int(image.shape[0] * scale)))
    gains = np.random.uniform(-1, 1, 3) * [0.015, 0.7, 0.4] + 1
    hsv = np.clip(cv2.cvtColor(image, cv2.COLOR_RGB2HSV) * gains, 0, 255).astype(np.uint8)
    image = cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)
    if random.random() < 0.5:
        image = np.fliplr(image)
    padded = np.full((64, 64, 3), 114, np.uint8)
    padded[: image.shape[0], : image.shape[1]] = image
    return torch.from_numpy(padded.transpose(2, 0, 1).copy())


def mixed(batch: Any) -> Any:
    """Mix images of a batch, as MixUp does; draws from all three generators."""
    images = torch.stack([image for image, _ in batch]).float()
    share = np.random.beta(0.3, 0.3)
    order = torch.randperm(len(batch))
    return images * share + images[order] * (1 - share), torch.tensor([label for _, label in batch]), random.random()


def words(index: int) -> Any:
    """Return a text of uneven length."""
    known = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog"]
    return " ".join(random.choices(known, k=index % 9 + 2))


def padded_words(texts: Any) -> Any:
    """Tokenize, mask some tokens, and pad."""
    rows = [torch.tensor([sum(map(ord, word)) for word in text.split()]) for text in texts]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    masked = torch.rand(ids.shape) < 0.3
    return {"ids": ids.masked_fill(masked, 1), "labels": ids, "texts": list(texts)}


class Windows(Sized):
    """Windows of a memory map, at places that it draws."""

    def __init__(self, path: Path) -> None:
        super().__init__(SAMPLES)
        self.tokens = np.memmap(path, np.int32, "r")

    def __getitem__(self, index: int) -> Any:
        start = int(torch.randint(len(self.tokens) - 33, ()))
        window = torch.from_numpy(self.tokens[start : start + 33].astype(np.int64))
        return window[:-1], window[1:]


def with_function(index: int) -> Any:
    """Return a sample that cannot be pickled."""
    return torch.rand(3), lambda: index


def without_functions(samples: Any) -> Any:
    return torch.stack([values for values, _ in samples]), [function() for _, function in samples]


class Monai(Sized):
    """MONAI's transforms of dicts, each with a generator of its own."""

    def __init__(self) -> None:
        from monai import transforms

        super().__init__(SAMPLES)
        image = ["image"]
        noise = transforms.RandGaussianNoised(image, prob=0.5)
        crop = transforms.RandSpatialCropd(image, (8, 8), random_size=False)
        end = transforms.ToTensord(image, track_meta=False)
        self.transform = transforms.Compose([transforms.RandFlipd(image, 0.5), noise, crop, end])
        self.transform.set_random_state(6)

    def __getitem__(self, index: int) -> Any:
        sample = self.transform({"image": torch.full((1, 12, 12), float(index)) + torch.arange(12), "label": index})
        return {"image": sample["image"], "label": index}  # what else MONAI notes there has addresses of objects


def _hugging_face() -> Any:
    import datasets

    return datasets.Dataset.from_dict({"x": list(range(SAMPLES)), "ids": [[i, i + 1] for i in range(SAMPLES)]})


def jittered(rows: Any) -> Any:
    """Add noise to rows, as ``set_transform`` gives them."""
    return {"x": [x + random.random() for x in rows["x"]], "ids": [torch.rand(2) + ids[0] for ids in rows["ids"]]}


def _hugging_face_stream() -> Any:
    dataset = _hugging_face().to_iterable_dataset(num_shards=6).shuffle(seed=3, buffer_size=6)
    return dataset.map(jittered, batched=True, batch_size=2).with_format("torch")


class Counted(Sized):
    """Counts its own accesses, and draws."""

    def __init__(self) -> None:
        super().__init__(SAMPLES)
        self.accesses = 0

    def __getitem__(self, index: int) -> Any:
        self.accesses += 1
        return index, self.accesses, torch.rand(2)


class OwnGenerators(Sized):
    """Keeps generators of its own: of all workers alike, and one from the worker's seed."""

    def __init__(self) -> None:
        super().__init__(SAMPLES)
        self.numpy = np.random.default_rng(1)
        self.python = random.Random(2)
        self.torch: torch.Generator | None = None

    def __getitem__(self, index: int) -> Any:
        if self.torch is None:
            info = get_worker_info()
            self.torch = torch.Generator().manual_seed(3 if info is None else info.seed)
        return index, self.numpy.random(2), self.python.random(), torch.rand(2, generator=self.torch)


class DrawsInBatches(Sized):
    """Has ``__getitems__``, which draws once for a batch."""

    def __getitems__(self, indices: list[int]) -> Any:
        level = random.random()
        return [(index, level, torch.rand(1)) for index in indices]


def noise(index: int) -> Any:
    """Draw from all three generators, and tell the worker."""
    drawn = {"torch": torch.rand(3), "numpy": np.random.rand(2), "python": random.random()}
    return drawn | {"index": index, "worker": getattr(get_worker_info(), "id", -1)}


def uneven_draws(index: int) -> Any:
    """Draw as often as the index says, tensors of another size each time."""
    return torch.rand(index % 3 + 1), [random.random() for _ in range(index % 4)], np.random.rand(index % 2)


def mixed_samples(samples: Any) -> Any:
    """Draw from all three generators for a batch."""
    return [samples[place] for place in torch.randperm(len(samples)).tolist()], np.random.beta(1, 1), random.random()


def failing_sample(index: int) -> Any:
    """Draw, and raise for some indices."""
    drawn = noise(index)
    if index % 9 == 4:
        raise ValueError(f"no sample {index}")
    return drawn


class Shards(IterableDataset[Any]):
    """Its samples are divided over the workers, evenly or not; each draws, and counts those of its own."""

    def __init__(self, length: int, uneven: bool = False) -> None:
        self.length = length
        self.uneven = uneven
        self.count = 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        indices = range(first, self.length * first + 1) if self.uneven else range(first, self.length, step)
        for index in indices:
            self.count += 1
            yield noise(index), self.count


def _shuffled() -> Iterator[Any]:
    buffer: list[int] = []
    for index in range(40):
        buffer.append(index)
        if len(buffer) > 5:
            yield buffer.pop(random.randrange(len(buffer))), np.random.rand()


_OF_FOUR = {"batch_size": 4, "shuffle": True}
_OF_TWO = {"batch_size": 2, "shuffle": True}
PIPELINES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "image_folder": lambda folder: {
        "dataset": torchvision.datasets.ImageFolder(str(folder / "classes"), _augmented()),
        **_OF_TWO,
    },
    "yolo": lambda folder: {
        "dataset": torchvision.datasets.ImageFolder(str(folder / "classes"), letterbox_and_hsv),
        "batch_size": 4,
        "collate_fn": mixed,
    },
    "text": lambda _: {"dataset": Made(SAMPLES, words), **_OF_FOUR, "collate_fn": padded_words},
    "memmap": lambda folder: {"dataset": Windows(folder / "tokens.bin"), "batch_size": 4},
    "unpicklable": lambda _: {
        "dataset": Made(SAMPLES, with_function),
        "batch_size": 4,
        "collate_fn": without_functions,
    },
    "monai": lambda _: {"dataset": Monai(), **_OF_FOUR},
    "hugging_face": lambda _: {"dataset": _hugging_face().with_format("torch"), **_OF_FOUR},
    "hugging_face_transform": lambda _: {"dataset": _hugging_face().with_transform(jittered), **_OF_FOUR},
    "hugging_face_stream": lambda _: {"dataset": _hugging_face_stream(), "batch_size": 2},
    "counted": lambda _: {"dataset": Counted(), **_OF_TWO},
    "own_generators": lambda _: {"dataset": OwnGenerators(), **_OF_TWO},
    "batches_by_dataset": lambda _: {"dataset": DrawsInBatches(SAMPLES), **_OF_FOUR},
    "integers": lambda _: {"dataset": list(range(SAMPLES)), **_OF_FOUR},
    "parts": lambda _: {
        "dataset": ConcatDataset([Subset(Made(40, noise), range(3, 17)), Made(9, noise)]),
        **_OF_FOUR,
    },
    "uneven": lambda _: {"dataset": Made(SAMPLES, uneven_draws), "batch_size": 3, "collate_fn": list},
    "single": lambda _: {"dataset": Made(SAMPLES, noise), "batch_size": None, "shuffle": True},
    "draws_in_collate": lambda _: {"dataset": Made(SAMPLES, noise), "batch_size": 3, "collate_fn": mixed_samples},
    "errors_of_samples": lambda _: {"dataset": Made(SAMPLES, failing_sample), **_OF_TWO},
    "stream": lambda _: {"dataset": Shards(SAMPLES), "batch_size": 2},
    "uneven_stream": lambda _: {"dataset": Shards(20, uneven=True), "batch_size": 1},
    "long_stream": lambda _: {"dataset": Shards(90), "batch_size": 4, "drop_last": True},
    "single_stream": lambda _: {"dataset": Shards(SAMPLES), "batch_size": None},
    "shuffled_stream": lambda _: {"dataset": Stream(_shuffled), "batch_size": 2, "collate_fn": list},
}
"""A loader's arguments, made in a folder of :func:`write_files`."""

NEEDED = {
    "yolo": "cv2",
    "monai": "monai",
    "hugging_face": "datasets",
    "hugging_face_transform": "datasets",
    "hugging_face_stream": "datasets",
}
"""Libraries that are not everywhere, of pipelines by name."""
