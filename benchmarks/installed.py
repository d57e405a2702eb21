"""Checks an installation of fastload from the inside: ``python installed.py COMPILER``; needs nothing but fastload.

Its packages are those that fastload names; ``fastload doctor`` finds native decoding; loaders with workers in processes
and in threads give what Pillow gives. ``COMPILER``: a word of what ``fastload --version`` must print.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from importlib.metadata import distribution, distributions
from pathlib import Path
from unittest.mock import patch

import numpy as np
import PIL
import torch
import torchvision
from PIL import Image
from torchvision import transforms
from torchvision.datasets import ImageFolder

import fastload
from fastload.images import decoder

STEPS = [transforms.RandomResizedCrop(96), transforms.RandomHorizontalFlip(), transforms.ToTensor()]


def check_packages() -> str:
    """Check that every package is one that fastload names, or one that these name; return how many."""
    from pip._vendor.packaging.requirements import Requirement

    def plain(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    named, waiting = set(), [("torch-fastload", frozenset[str]())]
    while waiting:
        name, extras = waiting.pop()
        if (plain(name), extras) in named:
            continue
        named.add((plain(name), extras))
        for words in distribution(name).requires or ():
            one = Requirement(words)
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras or {""}):
                waiting.append((one.name, frozenset(one.extras)))
    expected = {name for name, _ in named}
    # What venv itself installs; setuptools only before Python 3.12.
    there = {plain(one.name) for one in distributions()} - ({"pip", "setuptools"} - expected)
    assert there == expected, there ^ expected
    return f"{len(there)} packages, each of them named"


def fastload_command(*words: str) -> str:
    return subprocess.run([Path(sys.executable).with_name("fastload"), *words], check=True, stdout=-1, text=True).stdout


def check_commands(compiler: str) -> str:
    """Check what the commands say of the native library; return what the version is."""
    version = fastload_command("--version").strip()
    assert f"fastload {fastload.__version__}, native library built by" in version, version
    assert compiler in version, version
    findings = {one["name"]: one for one in json.loads(fastload_command("doctor", "--json"))["findings"]}
    for name in ("C library", "late decoding"):
        assert findings[name]["state"] == "ok", findings[name]
    return version


def check_samples(folder: Path) -> str:
    """Check that batches are the same for every kind of worker, and that the library decodes to Pillow's bits."""
    random = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (folder / label).mkdir()
        for number in range(12):
            noise = Image.fromarray(random.integers(0, 256, (20, 30, 3), dtype=np.uint8)).resize((300, 200))
            noise.save(
                folder / label / f"{number}.jpg", quality=85, subsampling=number % 3, progressive=number % 4 == 3
            )
    dataset = ImageFolder(str(folder), transforms.Compose(STEPS))

    def load(**arguments: object) -> list[torch.Tensor]:
        loader = fastload.DataLoader(dataset, batch_size=8, shuffle=True, seed=1, **arguments)
        return [tensor for batch in loader for tensor in batch]

    plain = load(fuse=False)
    with patch.object(decoder, "why_not_native", lambda: "Pillow is compared with it"):
        fused = load(fuse=True)
    ways: dict[str, dict[str, object]] = {
        "decoded late": {},
        "in processes": {"num_workers": 2},
        "in threads": {"num_workers": 2, "worker_method": "thread"},
        "fused": {"fuse": True},
        "fused in processes": {"fuse": True, "num_workers": 2},
        "fused in threads": {"fuse": True, "num_workers": 2, "worker_method": "thread"},
    }
    for name, arguments in ways.items():
        found, expected = load(**arguments), fused if "fuse" in arguments else plain
        assert len(found) == len(expected) == 6
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True)), name
    return f"the same bits {', '.join(ways)}"


if __name__ == "__main__":
    versions = {one.__name__: one.__version__ for one in (torch, torchvision, np, PIL)}
    print(f"python {sys.version.split()[0]}, {versions}")
    print(check_packages())
    print(check_commands(sys.argv[1]))
    with tempfile.TemporaryDirectory() as name:
        print(check_samples(Path(name)))
