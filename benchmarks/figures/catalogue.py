"""What documents may name in their markers, and which documents are rendered."""

from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.figures import tables
from benchmarks.figures.layout import digits
from benchmarks.figures.rows import Rows

LOADING = "loading, CPU ms/image"
TRAINING = "cifar10-proxy, 5 epochs, CIFAR-10 as JPEG"
REPOSITORY = Path(__file__).parents[2]

TABLES: Mapping[str, Callable[[Rows], str]] = {
    "headline": tables.headline,
    "pipelines": tables.pipelines,
    "peers": tables.peers,
    "peers-cifar": tables.peers_cifar,
}
"""``<!-- figures: NAME -->``"""


def _value(suite: str, case: str, side: str, metric: str, text: str) -> Callable[[Rows], str]:
    """Return what writes a row's value: ``text`` as for :meth:`str.format`."""
    return lambda rows: text.format(rows.find(suite, case, side, metric).value)


def _pipeline(name: str) -> Callable[[Rows], str]:
    return lambda rows: digits(tables.pipeline(rows, name).ratio or 0)


FIGURES: Mapping[str, Callable[[Rows], str]] = {
    "own-dataset": _pipeline("own_v1"),
    "imagefolder": _pipeline("imagefolder"),
    "hf-images": _pipeline("hf_images"),
    "timm": _pipeline("timm"),
    "all-pipelines": lambda rows: tables.all_pipelines(rows).text.partition(" ")[0],
    "fuse": lambda rows: digits(rows.find("peers", "images-float32", "torch", "images/s").ratio or 0),
    "coefficients-load": lambda rows: digits(rows.find("pack", "pack", "coefficients", LOADING).ratio or 0) + " times",
    "coefficients-bytes": _value("pack", "pack", "coefficients", "size, of the files", "{:.1f} times"),
    "training-accuracy": _value("training", TRAINING, "fastload", "test accuracy %", "{:.1f} %"),
}
"""``<!-- figure: NAME -->``"""

PROSE_WITHOUT_FIGURES = ("README.md", "docs/index.md", "docs/figures.md")
"""Here a measured figure stands between markers, or not at all."""


def documents() -> list[Path]:
    """Return all documents that may have markers."""
    return [
        REPOSITORY / "README.md",
        *sorted(REPOSITORY.glob("docs/**/*.md")),
        *sorted(REPOSITORY.glob("benchmarks/**/*.md")),
    ]
