"""The library decodes in one process with torchvision, Pillow and OpenCV, each with a libjpeg of its own."""

from __future__ import annotations

import io
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.slow

# Each order in a process of its own, forked where none of the four is loaded: to import torch in each takes minutes.
_SCRIPT = """
import glob, importlib.util, itertools, os, sys
import numpy as np
import torch

files = [open(name, "rb").read() for name in sys.argv[1:3]]
expected = list(np.load(sys.argv[3]))

def by_fastload(data):
    from fastload.native.jpeg import pixels_of_jpeg
    from fastload.native.rows import Cut, Order
    height, width, _ = expected[0].shape
    cut = Cut((0, 0, height, width), (height, width), "nearest", (0, 0, height, width), (False, False))
    return pixels_of_jpeg(data, cut, order=Order.COLUMNS_FIRST)

def by_torchvision(data):
    # As torchvision.io does it; all that torchvision imports besides would take a second.
    (folder,) = importlib.util.find_spec("torchvision").submodule_search_locations
    torch.ops.load_library(glob.glob(f"{folder}/image*.so")[0])
    pixels = torch.ops.image.decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), 0, False)
    return pixels.permute(1, 2, 0).numpy()

def by_pillow(data):
    import io
    from PIL import Image
    return np.asarray(Image.open(io.BytesIO(data)))

def by_opencv(data):
    import cv2
    return cv2.imdecode(np.frombuffer(data, dtype=np.uint8), cv2.IMREAD_COLOR)[:, :, ::-1]

maps = open("/proc/self/maps").read()
assert not any(name in maps for name in ("jpeg", "_fastload", "PIL", "cv2")), "something is loaded already"
for order in itertools.permutations((by_fastload, by_torchvision, by_pillow, by_opencv)):
    child = os.fork()
    if not child:
        # The first round imports in this order; in the second all are there.
        for one in (*order, *order):
            for data, pixels in zip(files, expected):
                if not np.array_equal(one(data), pixels):
                    print(f"{one.__name__} gives other pixels in the order {[each.__name__ for each in order]}")
                    sys.stdout.flush()
                    os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print(f"failed: {[each.__name__ for each in order]}")
    else:
        print("right")
"""


def test_all_decode_right_in_whatever_order_they_are_imported(tmp_path: Path):
    pytest.importorskip("cv2")
    pytest.importorskip("torchvision")
    random = np.random.default_rng(0)
    coarse = Image.fromarray(random.integers(0, 256, (9, 12, 3), dtype=np.uint8))
    image = coarse.resize((120, 90), Image.Resampling.BICUBIC)
    names, pixels = [], []
    for progressive in (False, True):
        file = io.BytesIO()
        image.save(file, "JPEG", quality=90, subsampling=0, progressive=progressive)
        names.append(tmp_path / f"{progressive}.jpg")
        names[-1].write_bytes(file.getvalue())
        pixels.append(np.asarray(Image.open(file)))
    np.save(tmp_path / "expected.npy", pixels)
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *names, tmp_path / "expected.npy"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    orders = len(list(itertools.permutations(range(4))))
    assert done.stdout.splitlines() == ["right"] * orders, done.stdout + done.stderr
