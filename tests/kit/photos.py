"""A dataset of image files that are opened by Pillow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
from torch.utils.data import Dataset


class Photos(Dataset[Any]):
    """Sample i is the sum of all levels of file i of a folder, as RGB."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.iterdir())

    def __getitem__(self, index: int) -> int:
        with PIL.Image.open(self.paths[index]) as image:
            return int(np.asarray(image.convert("RGB")).sum())

    def __len__(self) -> int:
        return len(self.paths)
