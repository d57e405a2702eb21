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
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset, get_worker_info
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

IMAGES = 7
SAMPLES = 23
Pipeline = tuple[Any, dict[str, Any]]


def write_files(folder: Path) -> None:
    """Write JPEG and PNG files, masks, a memory map and a CSV file."""
    rng = np.random.default_rng(5)
    for place in range(IMAGES):
        noise = PIL.Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8))
        image = noise.resize((44 + place, 40), PIL.Image.Resampling.BICUBIC)
        (folder / f"classes/{place % 2}").mkdir(parents=True, exist_ok=True)
        image.save(folder / f"classes/{place % 2}/{place}.jpg", quality=88)
        image.save(folder / f"{place}.jpg", quality=88)
        image.save(folder / f"{place}.png")
        image.convert("L").point(lambda level: level // 90).save(folder / f"mask{place}.png")
    rng.integers(0, 1000, 4000, dtype=np.int32).tofile(folder / "tokens.bin")
    rows = [",".join(map(str, row)) for row in rng.normal(size=(SAMPLES, 3)).round(4).tolist()]
    (folder / "table.csv").write_text("\n".join(["a,b,c", *rows]))


class Files(Dataset[Any]):
    """Opens file ``index % IMAGES`` by a function, and transforms it."""

    def __init__(self, folder: Path, name: str, load: Callable[[str], Any], transform: Callable[..., Any]) -> None:
        self.paths = [str(folder / name.format(place)) for place in range(IMAGES)]
        self.load = load
        self.transform = transform

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.load(self.paths[index % IMAGES])), index


def by_pillow(path: str) -> Any:
    return PIL.Image.open(path).convert("RGB")


def by_cv2(path: str) -> Any:
    import cv2

    return cv2.cvtColor(cv2.imread(path), cv2.COLOR_BGR2RGB)


def by_torchvision(path: str) -> Any:
    return torchvision.io.decode_image(path)


def by_pillow_with_boxes(path: str) -> Any:
    image = PIL.Image.open(path).convert("RGB")
    boxes = tv_tensors.BoundingBoxes([[2, 3, 30, 30], [10, 5, 40, 38]], format="XYXY", canvas_size=(40, image.width))
    return image, {"boxes": boxes, "labels": torch.tensor([1, 2])}


def by_pillow_with_mask(path: str) -> Any:
    mask = PIL.Image.open(path.replace("image", "mask").rsplit("/", 1)[0] + "/mask" + path.rsplit("/", 1)[1])
    return PIL.Image.open(path).convert("RGB"), tv_tensors.Mask(np.array(mask))


def _v1(*more: Any) -> Any:
    normalize = v1.Normalize((0.48, 0.45, 0.4), (0.22, 0.22, 0.22))
    return v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), *more, v1.ToTensor(), normalize])


def _v2(*before: Any) -> Any:
    end = v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.48, 0.45, 0.4), (0.22, 0.22, 0.22))
    return v2.Compose([*before, v2.RandomResizedCrop(24, antialias=True), v2.RandomHorizontalFlip(), *end])


def _erased() -> Any:
    return v1.Compose([*_v1(v1.TrivialAugmentWide()).transforms, v1.RandomErasing(0.5)])


def _with_boxes() -> Any:
    steps = [v2.ToImage(), v2.RandomPhotometricDistort(p=1), v2.RandomZoomOut(), v2.RandomIoUCrop()]
    end = v2.ToDtype(torch.float32, scale=True), v2.SanitizeBoundingBoxes()
    return v2.Compose([*steps, v2.RandomHorizontalFlip(), *end])


def _with_mask() -> Any:
    return v2.Compose([v2.ToImage(), v2.RandomCrop(24), v2.RandomRotation(20), v2.ColorJitter(0.3, 0.3)])


class TwoViews:
    """Transforms an image twice."""

    def __init__(self) -> None:
        self.transform = _v1(v1.RandomGrayscale(0.3), v1.RandomApply([v1.GaussianBlur(3)], 0.5))

    def __call__(self, image: Any) -> Any:
        return [self.transform(image), self.transform(image)]


class Albumented:
    """Transforms by albumentations, which keeps generators of its own."""

    def __init__(self) -> None:
        import albumentations

        crop = albumentations.RandomResizedCrop(size=(24, 24))
        steps = [crop, albumentations.HorizontalFlip(), albumentations.ColorJitter()]
        self.transform = albumentations.Compose(steps, seed=4)

    def __call__(self, image: Any) -> Any:
        return torch.from_numpy(self.transform(image=image)["image"].transpose(2, 0, 1))


def letterbox_and_hsv(image: Any) -> Any:
    """Resize, pad and shift colours, as YOLO's loaders do; draws from NumPy and Python."""
    import cv2

    scale = random.uniform(0.5, 1.0)
    image = cv2.resize(image, (int(image.shape[1] * scale), int(image.shape[0] * scale)))
    gains = np.random.uniform(-1, 1, 3) * [0.015, 0.7, 0.4] + 1
    hue, saturation, value = cv2.split(cv2.cvtColor(image, cv2.COLOR_RGB2HSV))
    levels = np.arange(256)
    tables = (levels * gains[0] % 180, np.clip(levels * gains[1], 0, 255), np.clip(levels * gains[2], 0, 255))
    channels = [
        cv2.LUT(one, table.astype(np.uint8)) for one, table in zip((hue, saturation, value), tables, strict=True)
    ]
    image = cv2.cvtColor(cv2.merge(channels), cv2.COLOR_HSV2RGB)
    if random.random() < 0.5:
        image = np.fliplr(image)
    padded = np.full((64, 64, 3), 114, np.uint8)
    padded[: image.shape[0], : image.shape[1]] = image
    return torch.from_numpy(padded.transpose(2, 0, 1).copy())


def _timm() -> Any:
    from timm.data import create_transform

    return create_transform(24, is_training=True, auto_augment="rand-m9-mstd0.5", re_prob=0.5)


def transposed(batch: Any) -> Any:
    """Collate to a tuple of tuples."""
    return tuple(zip(*batch, strict=True))


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


class Rows(Sized):
    """Rows of a table of pandas, with noise."""

    def __init__(self, path: Path) -> None:
        import pandas

        super().__init__(SAMPLES)
        self.table = pandas.read_csv(path)

    def __getitem__(self, index: int) -> Any:
        row = self.table.iloc[index]
        return {"x": row.to_numpy() + np.random.normal(size=3), "a": row["a"], "name": f"row {index}"}


def tokens(index: int) -> Any:
    """Return lists of tokens, some of them dropped."""
    ids = [token for token in range(index, index + 12) if random.random() > 0.2]
    return {"ids": ids, "mask": [1] * len(ids)}


def padded_tokens(samples: Any) -> Any:
    """Pad lists of tokens on a side that it draws."""
    longest = max(len(sample["ids"]) for sample in samples)
    left = random.random() < 0.5

    def padded(ids: Any) -> Any:
        zeros = [0] * (longest - len(ids))
        return zeros + ids if left else ids + zeros

    return {name: torch.tensor([padded(sample[name]) for sample in samples]) for name in samples[0]}


def graph(index: int) -> Any:
    """Return a graph of some nodes, with edges that it draws."""
    nodes = index % 4 + 2
    edges = torch.randint(nodes, (2, int(torch.randint(1, 8, ()))))
    return {"x": torch.randn(nodes, 3), "edges": edges, "y": index % 2}


def joined_graphs(graphs: Any) -> Any:
    """Join graphs to one, as torch_geometric does."""
    starts = np.cumsum([0, *(len(one["x"]) for one in graphs)])
    edges = [one["edges"] + int(start) for one, start in zip(graphs, starts, strict=False)]
    return {"x": torch.cat([one["x"] for one in graphs]), "edges": torch.cat(edges, 1), "ptr": torch.tensor(starts)}


def waveform(index: int) -> Any:
    """Return a tone with noise, gain, shift and a mask over its spectrogram."""
    time = torch.arange(2000) / 8000
    wave = torch.sin(2 * torch.pi * (200 + 10 * index) * time) * random.uniform(0.5, 1) + 0.1 * torch.randn(2000)
    wave = torch.roll(wave, int(np.random.randint(100)))
    spectrogram = torch.stft(wave, 128, window=torch.hann_window(128), return_complex=True).abs()
    start = int(torch.randint(40, ()))
    spectrogram[start : start + 8] = 0
    return spectrogram, index


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


class CountedWithoutDraws(Counted):
    """Counts its own accesses, and draws nothing."""

    def __getitem__(self, index: int) -> Any:
        self.accesses += 1
        return index, self.accesses


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


def failing_collate(samples: Any) -> Any:
    """Draw, and raise for some batches."""
    drawn = torch.rand(2)
    if samples[0]["index"] % 5 == 2:
        raise KeyError("no batch")
    return samples, drawn


class Shards(IterableDataset[Any]):
    """Its samples are divided over the workers; each draws, and counts those of its own."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.count = 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, self.length, step):
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
PIPELINES: dict[str, Callable[[Path], Pipeline]] = {
    "pillow_v1": lambda folder: (Files(folder, "{}.jpg", by_pillow, _v1()), _OF_FOUR),
    "pillow_png_jitter": lambda folder: (
        Files(folder, "{}.png", by_pillow, _v1(v1.ColorJitter(0.4, 0.4, 0.4, 0.1))),
        {"batch_size": 2},
    ),
    "pillow_v2": lambda folder: (Files(folder, "{}.jpg", by_pillow, _v2(v2.ToImage())), _OF_FOUR),
    "image_folder": lambda folder: (torchvision.datasets.ImageFolder(str(folder / "classes"), _erased()), _OF_TWO),
    "two_views": lambda folder: (
        Files(folder, "{}.jpg", by_pillow, TwoViews()),
        {"batch_size": 3, "drop_last": True},
    ),
    "detection": lambda folder: (
        Files(folder, "{}.jpg", by_pillow_with_boxes, _with_boxes()),
        {"batch_size": 2, "collate_fn": transposed},
    ),
    "segmentation": lambda folder: (
        Files(folder, "{}.png", by_pillow_with_mask, _with_mask()),
        {"batch_size": 2},
    ),
    "decode_image": lambda folder: (Files(folder, "{}.jpg", by_torchvision, _v2()), _OF_FOUR),
    "albumentations": lambda folder: (Files(folder, "{}.jpg", by_cv2, Albumented()), {"batch_size": 4}),
    "yolo": lambda folder: (
        Files(folder, "{}.jpg", by_cv2, letterbox_and_hsv),
        {"batch_size": 4, "collate_fn": mixed},
    ),
    "timm": lambda folder: (Files(folder, "{}.jpg", by_pillow, _timm()), {"batch_size": 3, "shuffle": True}),
    "text": lambda _: (Made(SAMPLES, words), {**_OF_FOUR, "collate_fn": padded_words}),
    "memmap": lambda folder: (Windows(folder / "tokens.bin"), {"batch_size": 4}),
    "pandas": lambda folder: (Rows(folder / "table.csv"), _OF_FOUR),
    "token_lists": lambda _: (Made(SAMPLES, tokens), {"batch_size": 3, "collate_fn": padded_tokens}),
    "graphs": lambda _: (Made(SAMPLES, graph), {**_OF_FOUR, "collate_fn": joined_graphs}),
    "ragged_graphs": lambda _: (Made(SAMPLES, graph), {"batch_size": 1}),
    "audio": lambda _: (Made(SAMPLES, waveform), _OF_FOUR),
    "unpicklable": lambda _: (Made(SAMPLES, with_function), {"batch_size": 4, "collate_fn": without_functions}),
    "monai": lambda _: (Monai(), _OF_FOUR),
    "hugging_face": lambda _: (_hugging_face().with_format("torch"), _OF_FOUR),
    "hugging_face_transform": lambda _: (_hugging_face().with_transform(jittered), _OF_FOUR),
    "hugging_face_stream": lambda _: (_hugging_face_stream(), {"batch_size": 2}),
    "counted": lambda _: (Counted(), _OF_TWO),
    "counted_without_draws": lambda _: (CountedWithoutDraws(), {"batch_size": 3}),
    "own_generators": lambda _: (OwnGenerators(), _OF_TWO),
    "batches_by_dataset": lambda _: (DrawsInBatches(SAMPLES), _OF_FOUR),
    "integers": lambda _: (list(range(SAMPLES)), _OF_FOUR),
    "tensors": lambda _: (
        TensorDataset(torch.arange(SAMPLES * 3.0).reshape(SAMPLES, 3), torch.arange(SAMPLES)),
        {**_OF_FOUR, "drop_last": True},
    ),
    "parts": lambda _: (ConcatDataset([Subset(Made(40, noise), range(3, 17)), Made(9, noise)]), _OF_FOUR),
    "uneven": lambda _: (Made(SAMPLES, uneven_draws), {"batch_size": 3, "collate_fn": list}),
    "single": lambda _: (Made(SAMPLES, noise), {"batch_size": None, "shuffle": True}),
    "draws_in_collate": lambda _: (Made(SAMPLES, noise), {"batch_size": 3, "collate_fn": mixed_samples}),
    "errors_of_samples": lambda _: (Made(SAMPLES, failing_sample), _OF_TWO),
    "errors_of_collate": lambda _: (Made(SAMPLES, noise), {"batch_size": 2, "collate_fn": failing_collate}),
    "stream": lambda _: (Shards(SAMPLES), {"batch_size": 2}),
    "long_stream": lambda _: (Shards(90), {"batch_size": 4, "drop_last": True}),
    "single_stream": lambda _: (Shards(SAMPLES), {"batch_size": None}),
    "shuffled_stream": lambda _: (Stream(_shuffled), {"batch_size": 2, "collate_fn": list}),
}
"""A dataset and a loader's arguments, made in a folder of :func:`write_files`."""

NEEDED = {
    "albumentations": "albumentations",
    "yolo": "cv2",
    "timm": "timm",
    "pandas": "pandas",
    "monai": "monai",
    "hugging_face": "datasets",
    "hugging_face_transform": "datasets",
    "hugging_face_stream": "datasets",
}
"""Libraries that are not everywhere, of pipelines by name."""
