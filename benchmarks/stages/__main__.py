"""Run fastload in others' benchmarks: ``python -m benchmarks.stages``, from the repository's root.

It fetches nothing. What is not there is left out: IMREAD and ALBUMENTATIONS are folders of their sources.

    uv run --with IMREAD --with simplejpeg python -m benchmarks.stages --data DIR --albumentations ALBUMENTATIONS
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from benchmarks import command
from benchmarks.report import complain
from benchmarks.spec import FASTLOAD, TORCH, Case, Comparison, Metric, Side
from benchmarks.stages.measuring import make_package

_DECODERS = ("fastload", "pillow", "opencv", "torchvision", "simplejpeg", "torchcodec")
# imread_benchmark's workloads, and how often a pass decodes all images, so that it takes about a second.
_WORKLOADS = {"controlled-le0512-q075": 20, "controlled-native-q095": 3}
_AFTER_CROP = ("HorizontalFlip", "ColorJitter", "Affine", "Equalize", "GaussianBlur")
_RECIPES = ("RandomResizedCrop", *(f"RandomCrop224+{name}" for name in _AFTER_CROP))


def _case(name: str, sides: Sequence[Side], metrics: Sequence[str], **arguments: object) -> Case:
    """Return a case; where sides have no loader, all stand beside the first."""
    rates = tuple(Metric(name=one, more_is_better=True, least_ratio=None) for one in metrics)
    others = [side.name for side in sides[1:]] if sides[0].package == "none" else []
    return Case(
        name=name,
        measure=f"benchmarks.stages.measuring:{name.partition('-')[0]}",
        metrics=rates,
        sides=tuple(sides),
        compared=tuple(Comparison(ours="fastload", theirs=other, metric=rates[0]) for other in others),
        ratios_with_theirs=bool(others),
        arguments=arguments,
        quick={"repeats": 1} if "repeats" in arguments else {"num_images": 4},
        fresh_process=True,
        repetitions=3,
    )


def _decoder(name: str, package: str = "none") -> Side:
    beside = f"torch, {name}" if package == "fastload" else None
    shown = name if package == "none" else f"{package}, {name}"
    return Side(name=shown, package=package, arguments={"decoder": name}, compared_with=beside)


_SUPPLYING = [_decoder(name, at) for name in ("pillow", "simplejpeg", "fastload") for at in ("torch", "fastload")]
_GIVEN = {"recipes": _RECIPES, "num_images": 500}
_RUNS = (TORCH, replace(FASTLOAD, name="fastload run"))
CASES = (
    *(
        _case(f"imread-{name}", [*map(_decoder, _DECODERS)], ["images/s"], workload=name, repeats=repeats, workers=0)
        for name, repeats in _WORKLOADS.items()
    ),
    _case("imread-loader-supply", _SUPPLYING, ["images/s"],
          workload="controlled-le0512-q075", repeats=20, workers=2),
    *(
        _case(f"albumentations-{scope}", _RUNS, [f"{one}, images/s" for one in _RECIPES],
              scope=f"{scope}_dataloader_augment", **_GIVEN)
        for scope in ("decode", "memory")
    ),
)  # fmt: skip


def main() -> int:
    """Run what the command line names; return 1 if a side failed."""
    parser = command.parser_of("benchmarks.stages", __doc__.splitlines()[0])
    command.add_data(parser)
    parser.add_argument("--albumentations", type=Path, metavar="DIR", help="sources of albumentations-team/benchmark")
    options = command.parse(parser, needs_data=True)
    cases = command.chosen(CASES, options.names)
    with tempfile.TemporaryDirectory(prefix="stages-") as made:
        if not options.list:
            given = _given(options, Path(made), {case.subject for case in cases})
            cases = [one for one in cases if one.subject in given]
            cases = [command.with_arguments(one, quick=options.quick, **given[one.subject]) for one in cases]
        return command.run(cases, options, "benchmarks.stages")


def _given(options: argparse.Namespace, made: Path, subjects: set[str]) -> dict[str, dict[str, str]]:
    """Return what the cases of each subject get that can be run; imread_benchmark's images are made."""
    found = {}
    if "imread" in subjects and find_spec("imread_benchmark"):
        (about := made / "plug_ins-0.dist-info").mkdir()
        lines = [f"{name} = benchmarks.stages.decoders:{name.title()}\n" for name in ("fastload", "torchcodec")]
        (about / "entry_points.txt").write_text(f"[imread_benchmark.decoders]\n{''.join(lines)}")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(made), os.environ.get("PYTHONPATH", "")])
        found["imread"] = {"package": make_package(options.data, made, 4 if options.quick else 56)}
    if options.albumentations is not None:
        found["albumentations"] = {"data": str(options.data), "sources": str(options.albumentations.resolve())}
    for name in sorted(subjects - found.keys()):
        complain(f"skipped {name}: its benchmark is not there")
    return found


if __name__ == "__main__":
    sys.exit(main())
