"""Make the folders of images that the commands name: smooth JPEG files, in a folder for each class."""

from pathlib import Path

import numpy as np
from PIL import Image


def make_images(folder, count):
    draws = np.random.default_rng(0)
    for name in ("cat", "dog"):
        Path(folder, name).mkdir(parents=True)
        for place in range(count):
            small = Image.fromarray(draws.integers(0, 256, (6, 8, 3), dtype=np.uint8))
            small.resize((80, 60), Image.Resampling.BICUBIC).save(Path(folder, name, f"{place}.jpg"), quality=90)


make_images("imagenet/train", 20)
