"""The pipelines by name, with what they do and the ratio that each should reach."""

from collections.abc import Mapping
from dataclasses import dataclass

LEAST_RATIO = 0.97
"""Goal of a pipeline that has none of its own."""


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A pipeline, which is the function of its name in the module of its family."""

    family: str
    """Module of this package that holds the function."""
    what: str
    """What it does, in a few words."""
    goal: float = LEAST_RATIO
    """The steady rate divided by torch's that it should reach with two workers, with only the import changed."""


def _family(family: str, *pipelines: tuple[str, str] | tuple[str, str, float]) -> dict[str, Pipeline]:
    return {
        name: Pipeline(family=family, what=what, goal=goal[0] if goal else LEAST_RATIO)
        for name, what, *goal in pipelines
    }


PIPELINES: Mapping[str, Pipeline] = {
    **_family(
        "images",
        (
            "own_v1",
            'own Dataset class, `Image.open().convert("RGB")`; v1: RandomResizedCrop, flip, ToTensor, Normalize',
            2.5,
        ),
        ("own_v2", "the same with v2", 2.3),
        ("own_v2_tensors", "the same with v2, ToImage first"),
        ("own_resize", "own Dataset class, Resize 256, CenterCrop 224", 1.9),
        ("two_views", "own Dataset class, two views of each image", 2.2),
        ("imagefolder", "ImageFolder: RandomResizedCrop, flip, ToTensor, Normalize", 2.8),
        ("imagefolder_png", "ImageFolder of PNG files: RandomResizedCrop, flip, ToTensor, Normalize", 2.5),
        ("imagefolder_resize", "ImageFolder: Resize, CenterCrop", 1.9),
        ("imagefolder_trivial", "ImageFolder: crop, flip, TrivialAugmentWide, RandomErasing"),
        ("simclr", "ImageFolder, two views with jitter, grey, blur"),
        ("mnist", "torchvision's MNIST, batches of 64"),
    ),
    **_family(
        "annotated",
        ("albumentations", "`cv2.imread`, albumentations"),
        ("segmentation", "segmentation: PIL image and tv_tensors mask, v2", 1.35),
        ("segmentation_tensors", "segmentation: tv_tensors image and mask, v2"),
        ("detection", "detection: v2, boxes and masks", 2.2),
        ("yolo", "YOLO: cv2 letterbox, HSV jitter, own collate_fn"),
    ),
    **_family(
        "libraries",
        ("timm", "timm's `create_loader`, crops and flips", 2.0),
        ("hf_images", "Hugging Face datasets, an Image column, `with_transform`", 2.0),
        ("webdataset_pipeline", 'webdataset, `decode("pil")`, batched in the pipeline', 1.8),
        ("webdataset_loader", 'webdataset, `decode("pil")`, batched by the loader', 1.8),
    ),
    **_family(
        "clients",
        ("ultralytics_yolo", "Ultralytics' own loader of YOLO, mosaics of 640 x 640"),
        ("rf_detr", "RF-DETR's own loader"),
    ),
    **_family(
        "text",
        ("hf_tokens", "Hugging Face tokens, DataCollatorWithPadding"),
        ("hf_masked_tokens", "Hugging Face tokens, DataCollatorForLanguageModeling"),
        ("tokenizer_collate", "tokenizer in `collate_fn`"),
        ("tokenizer_getitem", "tokenizer in `__getitem__`"),
        ("memmap", "windows of tokens of an `np.memmap`"),
    ),
    **_family(
        "arrays",
        ("audio", "audio: soundfile, a random second, STFT"),
        ("tensordataset", "TensorDataset from pandas, batches of 256"),
        ("pandas_iloc", "pandas `df.iloc[i]`"),
        ("windows", "windows `data[:, a:b]` of 64 MB"),
    ),
    **_family(
        "robots",
        ("lerobot_actions", "LeRobot: a frame in uint8, 50 actions, batches of 8", 1.9),
        ("lerobot_cameras", "LeRobot: frames of three cameras in uint8, 50 actions, batches of 8", 1.35),
        ("lerobot_history", "LeRobot: two frames in float32, 16 actions"),
        ("lerobot_frames", "LeRobot: a frame in float32, no actions"),
    ),
}
