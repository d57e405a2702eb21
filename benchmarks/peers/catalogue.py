"""All cases, in the order in which they run, and their sides. Plain values: nothing here imports torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.spec import Comparison, Metric, Side

OURS = "fastload"


@dataclass(frozen=True, kw_only=True)
class Beside(Side):
    """A loader in a case. ``package`` is its module in ``loaders/``, ``options`` what that module is told."""

    environment: str | None = None
    """The peer whose environment it runs in (see ``install.py``); None for the environment of fastload itself."""
    packed: str | None = None
    """The folder of files that are made for it once; None if it reads the JPEG files themselves."""
    arguments: Mapping[str, object] = field(default_factory=dict)
    """What replaces the case's arguments for this side."""
    least_ratio: float | None = None
    """What fastload's rate divided by this side's has to reach; None: just to know."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """The same work, done by several sides in turn."""

    name: str
    """``subject-variant``."""
    sides: tuple[Beside, ...]
    """fastload is one of them."""
    metrics: tuple[Metric, ...]
    """The first one is compared."""
    arguments: Mapping[str, object] = field(default_factory=dict)
    """For the functions in ``measuring.py``; must survive JSON."""
    quick: Mapping[str, object] = field(default_factory=dict)
    """What replaces them under ``--quick``."""
    share: float
    """Part of the time limit that may be over when this case ends."""

    @property
    def comparisons(self) -> list[Comparison]:
        return [
            Comparison(ours=OURS, theirs=side.name, least_ratio=side.least_ratio)
            for side in self.sides
            if side.name != OURS
        ]


def _metrics(cpu_unit: str) -> tuple[Metric, ...]:
    return (
        Metric(name="images/s", more_is_better=True),
        Metric(name="first batch ms"),
        Metric(name=f"CPU {cpu_unit}/image"),
    )


def _image_sides(goals: Mapping[str, float]) -> tuple[Beside, ...]:
    def side(
        name: str, module: str, *, peer: str | None = None, packed: str | None = None, **options: object
    ) -> Beside:
        return Beside(
            name=name,
            package=module,
            options=options,
            environment=peer,
            packed=packed,
            least_ratio=goals.get(name),
        )

    return (
        side(OURS, "standard", loader="fastload"),
        side(f"{OURS}, coefficients", "coefficients", packed="coefficients"),
        side("torch", "standard", loader="torch"),
        side("torchvision.io", "standard", loader="torch", decoder="torchvision.io"),
        side("DALI", "dali", peer="dali"),
        side("FFCV, half raw", "ffcv", peer="ffcv", packed="ffcv-half-raw", file="half raw"),
        side("FFCV, JPEG", "ffcv", peer="ffcv", packed="ffcv-jpeg", file="jpeg"),
        side("SPDL", "spdl", peer="spdl", style="threads"),
        side("SPDL as torch's", "spdl", peer="spdl", style="torch"),
        side("timm", "timm", peer="timm"),
        side("webdataset", "webdataset", peer="webdataset", packed="webdataset"),
        side("LitData", "litdata", peer="litdata", packed="litdata"),
        side("Streaming", "streaming", peer="streaming", packed="streaming"),
        side("Grain", "grain", peer="grain", packed="grain"),
    )


# The files are repeated until there are so many, in a tree of links.
_IMAGES = {"work": "images", "num_images": 3000, "batch_size": 100, "num_workers": 2}
_FEW_IMAGES = {"num_images": 1000}

ALL = (
    Case(
        name="images-float32",
        sides=_image_sides({"torch": 3.0, "DALI": 1.8, "FFCV, half raw": 1.1}),
        metrics=_metrics("ms"),
        arguments={**_IMAGES, "values": "float32"},
        quick=_FEW_IMAGES,
        share=0.45,
    ),
    Case(
        name="images-uint8",
        sides=_image_sides({"torch": 2.4, "torchvision.io": 1.7, "DALI": 1.85, "FFCV, half raw": 1.0}),
        metrics=_metrics("ms"),
        arguments={**_IMAGES, "values": "uint8"},
        quick=_FEW_IMAGES,
        share=0.85,
    ),
    Case(
        name="cifar",
        sides=(
            Beside(name=OURS, package="arrays", options={"loader": "fastload"}),
            # It takes so much longer that it gets fewer images, and one epoch.
            Beside(
                name="torch",
                package="arrays",
                options={"loader": "torch"},
                arguments={"num_images": 10240, "num_epochs": 1},
                least_ratio=40,
            ),
            Beside(name="airbench's way", package="arrays", options={"loader": "airbench"}, least_ratio=6),
            Beside(
                name="FFCV",
                package="ffcv",
                options={"file": "arrays"},
                environment="ffcv",
                packed="ffcv-arrays",
                least_ratio=6,
            ),
        ),
        metrics=_metrics("us"),
        arguments={
            "work": "arrays",
            "num_images": 51200,
            "num_epochs": 4,
            "batch_size": 512,
            "num_workers": 2,
            "values": "float32",
        },
        quick={"num_images": 10240},
        share=1.0,
    ),
)
