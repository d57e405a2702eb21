"""Measure fastload beside other loaders: ``python -m benchmarks.peers``, from the repository's root."""

import argparse
import dataclasses
import itertools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import command
from benchmarks.files import image_files, make_once
from benchmarks.peers.catalogue import ALL, OURS, Peer
from benchmarks.peers.install import python_of
from benchmarks.spec import Case, Side


def main() -> int:
    """Run what the command line names; return 1 if a side failed."""
    parser = command.parser_of("benchmarks.peers", __doc__)
    command.add_data(parser)
    parser.add_argument("--envs", type=Path, metavar="DIR", help="where benchmarks.peers.install put the peers")
    parser.add_argument(
        "--packed", type=Path, metavar="DIR", help="where peers' own files are made and kept (default: ENVS/packed)"
    )
    options = command.parse(parser, needs_data=True)
    for name in ("envs", "packed"):
        if (folder := getattr(options, name)) is not None:
            setattr(options, name, folder.resolve())
    if options.envs is not None and not options.envs.is_dir():
        parser.error(f"--envs must be a folder, got {options.envs}")
    cases = [command.with_arguments(case, quick=options.quick) for case in choose(options.names)]
    with tempfile.TemporaryDirectory() as scratch:
        if options.packed is None:
            options.packed = options.envs / "packed" if options.envs is not None else Path(scratch)
        if not options.list:
            cases = [_placed(case, options) for case in cases]
        return command.run(cases, options, "benchmarks.peers")


def choose(names: Sequence[str]) -> list[Case]:
    """Return the cases and sides that the names fit, always with fastload; ends the program if one fits none."""

    def fits(name: str, side: Side) -> bool:
        return isinstance(side, Peer) and name.lower() in (side.name.lower(), side.environment)

    of_cases = [name for name in names if any(case.name.startswith(name) for case in ALL)]
    of_sides = [name for name in names if name not in of_cases]
    for name in of_sides:
        if not any(fits(name, side) for case in ALL for side in case.sides):
            raise SystemExit(f"no case, side or peer is called {name!r}; --list prints them")
    found = []
    for case in command.chosen(ALL, of_cases):
        kept = [side for side in case.sides if side.name == OURS or any(fits(name, side) for name in of_sides)]
        found.append(dataclasses.replace(case, sides=tuple(kept) if of_sides else case.sides))
    return found


def _placed(case: Case, options: argparse.Namespace) -> Case:
    """Return the case with the folders and interpreters of this machine; the tree of images is made if it is needed."""
    sides = []
    for side in case.sides:
        assert isinstance(side, Peer)
        own = {**case.arguments, **side.arguments}
        num_images = int(str(own["num_images"]))
        images = options.data
        if own["work"] == "images":
            images = _linked(options.data, options.packed, num_images)
        packed = options.packed / (f"{side.packed}-{num_images}" if side.packed else "none")
        python, missing = side.python, ""
        if side.environment and options.envs is None:
            missing = "no --envs given"
        elif side.environment:
            python = str(python_of(options.envs, side.environment))
            if not Path(python).exists():
                missing = f"not installed: python -m benchmarks.peers.install {options.envs} {side.environment}"
        sides.append(
            dataclasses.replace(
                side,
                python=python,
                missing=missing,
                prepare="benchmarks.peers.measuring:pack" if side.packed else "",
                arguments={**side.arguments, "images": str(images), "packed": str(packed)},
            )
        )
    return dataclasses.replace(case, sides=tuple(sides))


def _linked(data: Path, folder: Path, num_images: int) -> Path:
    """Return an ImageFolder tree of ``num_images`` links to the files below ``data``, as many of each as it takes."""
    files = [file for file, _ in image_files(data)]
    if not files:
        raise SystemExit(f"--data must be an ImageFolder tree, but {data} has no folder with a .jpg or .jpeg file")
    tree = folder / f"images-{num_images}"

    def make() -> None:
        for number, file in zip(range(num_images), itertools.cycle(files), strict=False):
            link = tree / file.parent.name / f"{number // len(files):04d}_{file.name}"
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(file.resolve())

    make_once(tree, {"files": [str(file) for file in files]}, make)
    return tree


if __name__ == "__main__":
    sys.exit(main())
