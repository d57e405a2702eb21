"""All cases, in the order in which they run, and their sides. Plain values: nothing here imports torch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from benchmarks.spec import Case, Comparison, Metric, Side

OURS = "fastload"


@dataclass(frozen=True, kw_only=True)
class Peer(Side):
    """A loader in a case. ``package`` is its module in ``loaders/``, ``options`` what that module is told."""

    environment: str = ""
    """The peer whose environment it runs in (see ``install.py``); empty for the environment of fastload itself."""
    packed: str = ""
    """The folder of files that are made for it once; empty if it reads the JPEG files themselves."""


def _case(
    name: str, sides: tuple[Peer, ...], goals: Mapping[str, float], arguments: Mapping[str, object], num_quick: int
) -> Case:
    """Return a case; ``goals``: side -> what fastload's rate divided by this side's has to reach."""
    rate = Metric(name="images/s", more_is_better=True)
    unit = "ms" if arguments["work"] == "images" else "us"
    return Case(
        name=name,
        measure="benchmarks.peers.measuring:epoch",
        first="benchmarks.peers.measuring:check",
        sides=sides,
        metrics=(rate, Metric(name="first batch ms"), Metric(name=f"CPU {unit}/image")),
        compared=tuple(
            Comparison(ours=OURS, theirs=side.name, metric=rate, least_ratio=goals.get(side.name))
            for side in sides
            if side.name != OURS
        ),
        ratios_with_theirs=True,
        arguments=arguments,
        quick={"num_images": num_quick},
    )


def _side(name: str, module: str, *, peer: str = "", packed: str = "", **options: object) -> Peer:
    return Peer(name=name, package=module, options=options, environment=peer, packed=packed)


_IMAGE_SIDES = (
    _side(OURS, "standard", loader="fastload"),
    _side(f"{OURS}, coefficients", "coefficients", packed="coefficients"),
    _side("torch", "standard", loader="torch"),
    _side("torchvision.io", "standard", loader="torch", decoder="torchvision.io"),
    _side("DALI", "dali", peer="dali"),
    _side("FFCV, half raw", "ffcv", peer="ffcv", packed="ffcv-half-raw", file="half raw"),
    _side("FFCV, JPEG", "ffcv", peer="ffcv", packed="ffcv-jpeg", file="jpeg"),
    _side("SPDL", "spdl", peer="spdl", style="threads"),
    _side("SPDL as torch's", "spdl", peer="spdl", style="torch"),
    _side("timm", "timm", peer="timm"),
    _side("webdataset", "webdataset", peer="webdataset", packed="webdataset"),
    _side("LitData", "litdata", peer="litdata", packed="litdata"),
    _side("Streaming", "streaming", peer="streaming", packed="streaming"),
    _side("Grain", "grain", peer="grain", packed="grain"),
)
# The files are repeated until there are so many, in a tree of links.
_IMAGES = {"work": "images", "num_images": 3000, "batch_size": 100, "num_workers": 2}
_ARRAYS = {"work": "arrays", "num_images": 51200, "num_epochs": 4, "batch_size": 512, "num_workers": 2}

ALL = (
    _case(
        "images-float32",
        _IMAGE_SIDES,
        {"torch": 3.0, "DALI": 1.8, "FFCV, half raw": 1.1},
        {**_IMAGES, "values": "float32"},
        600,
    ),
    _case(
        "images-uint8",
        _IMAGE_SIDES,
        {"torch": 2.4, "torchvision.io": 1.7, "DALI": 1.85, "FFCV, half raw": 1.0},
        {**_IMAGES, "values": "uint8"},
        600,
    ),
    _case(
        "cifar",
        (
            _side(OURS, "arrays", loader="fastload"),
            # It takes so much longer that it gets fewer images, and one epoch.
            replace(_side("torch", "arrays", loader="torch"), arguments={"num_images": 10240, "num_epochs": 1}),
            _side("airbench's way", "arrays", loader="airbench"),
            _side("FFCV", "ffcv", peer="ffcv", packed="ffcv-arrays", file="arrays"),
        ),
        {"torch": 40, "airbench's way": 6, "FFCV": 6},
        {**_ARRAYS, "values": "float32"},
        10240,
    ),
)
