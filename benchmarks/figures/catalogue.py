"""What documents may name in their markers, and which documents are rendered."""

from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.figures import parts, plots, tables
from benchmarks.figures.layout import digits
from benchmarks.figures.rows import Rows

TRAINING = "cifar10-proxy, 5 epochs, CIFAR-10 as JPEG"
REPOSITORY = Path(__file__).parents[2]

TABLES: Mapping[str, Callable[[Rows], str]] = {
    "streams": tables.streams,
    "pipelines": tables.pipelines,
    "cached": tables.cached,
    "peers": tables.peers,
    "peers-cifar": tables.peers_cifar,
    "work": parts.work,
    "stages": parts.stages,
    "training": parts.training,
    "gpu": parts.gpu,
    "versions": parts.versions,
    "conformance": parts.conformance,
}
"""``<!-- figures: NAME -->``"""


def _value(suite: str, case: str, side: str, metric: str, text: str) -> Callable[[Rows], str]:
    """Return what writes a row's value: ``text`` as for :meth:`str.format`."""
    return lambda rows: text.format(rows.find(suite, case, side, metric).value)


def _ratio(suite: str, case: str, side: str, metric: str) -> Callable[[Rows], str]:
    return lambda rows: digits(rows.find(suite, case, side, metric).ratio or 0)


def _coefficients_beside(side: str, case: str) -> Callable[[Rows], str]:
    """Return what divides the rate of a pack of coefficients by that of another side."""

    def text(rows: Rows) -> str:
        ours, theirs = (rows.find("peers", case, one, "images/s") for one in ("fastload, coefficients", side))
        return digits((ours.value or 0) / (theirs.value or 1))

    return text


def _cache(rows: Rows) -> str:
    """Return how many times as fast an ImageFolder's later epochs are with a cache."""
    with_it = rows.find("pipelines", "imagefolder, 2 workers", tables.CACHED, tables.STEADY)
    return digits((with_it.value or 0) / (rows.beside("pipelines", with_it, "fastload").value or 1))


def _pipeline(name: str) -> Callable[[Rows], str]:
    return lambda rows: digits(tables.pipeline(rows, name).ratio or 0)


FIGURES: Mapping[str, Callable[[Rows], str]] = {
    "imagefolder": _pipeline("imagefolder"),
    "timm": _pipeline("timm"),
    "lerobot": _pipeline("lerobot_actions"),
    "cache": _cache,
    "all-pipelines": lambda rows: tables.all_pipelines(rows).text.partition(" ")[0],
    "fuse": _ratio("engine", "fuse-imagefolder-float32", tables.FUSED, tables.STEADY),
    "coefficients-files": _coefficients_beside("fastload", "images-float32"),
    "coefficients-ffcv": _coefficients_beside("FFCV, half raw", "images-float32"),
    "coefficients-ffcv-uint8": _coefficients_beside("FFCV, half raw", "images-uint8"),
    "dali": _ratio("peers", "images-float32", "DALI", "images/s"),
    "dali-uint8": _ratio("peers", "images-uint8", "DALI", "images/s"),
    "ffcv": _ratio("peers", "images-float32", "FFCV, half raw", "images/s"),
    "ffcv-uint8": _ratio("peers", "images-uint8", "FFCV, half raw", "images/s"),
    "webdataset": _pipeline("webdataset_pipeline"),
    "first-batch": lambda rows: digits(tables.pipeline(rows, "imagefolder", tables.FIRST).ratio or 0),
    "first-batch-before-late": _ratio("engine", "imagefolder-first-batch", "fastload", "first batch ms"),
    "heavy-tail": _value("engine", "heavy_tail-rare-4-workers", "fastload seed=1", "x of bound as slept", "{:.2f}"),
    "heavy-tail-torch": _value("engine", "heavy_tail-rare-4-workers", "torch", "x of bound as slept", "{:.2f}"),
    "imagefolder-before-late": _ratio("engine", "imagefolder-v1", "fastload", "samples/s steady"),
    "startup": _ratio("engine", "startup-forkserver-8-workers", "fastload", "first loader ms"),
    "waiting": _ratio("engine", "waiting-server-32-workers", "fastload, 16 threads", tables.STEADY),
    "tensors32": _ratio("engine", "tensors32-ready", "fastload", "samples/s steady"),
    "tensors32-collated": _ratio("engine", "tensors32-collated", "fastload", "samples/s steady"),
    "tensordataset": _ratio("engine", "tiny-tensors-2-workers", "fastload", "samples/s steady"),
    "cifar": _ratio("engine", "fuse-cifar", tables.FUSED, tables.STEADY),
    "integers": _ratio("engine", "tiny-integers-0-workers", "fastload", "samples/s steady"),
    "integers-seed": _ratio("engine", "tiny-integers-0-workers", "fastload seed=1", "samples/s steady"),
    "verdicts": _value("profile", "zoo", "fastload", "verdicts right, %", "{:.0f} %"),
    "training-accuracy": _value("training", TRAINING, "fastload", "test accuracy %", "{:.1f} %"),
}
"""``<!-- figure: NAME -->``"""

PLOTS: Mapping[str, Callable[[Rows], str]] = {
    "docs/assets/pipelines.svg": plots.pipelines,
    "docs/assets/peers.svg": plots.peers,
    "docs/assets/scale.svg": plots.scale,
}
"""Files that are made of rows alone."""

PROSE_WITHOUT_FIGURES = ("README.md", "docs/index.md", "docs/figures.md")
"""Here a measured figure stands between markers, or not at all."""


def documents() -> list[Path]:
    return [
        REPOSITORY / "README.md",
        *sorted(REPOSITORY.glob("docs/**/*.md")),
        *sorted(REPOSITORY.glob("benchmarks/**/*.md")),
    ]
