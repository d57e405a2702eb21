"""Runs other projects' own tests with torch's DataLoader, and again with fastload in its place; says what differs.

    uv run -m benchmarks.conformance --rows benchmarks/rows/conformance.csv --torch-tests data-e640e6f --timm-tests DIR

and then ``python -m benchmarks.figures`` writes the table of docs/figures.md. Nothing is fetched: an option gives a
folder with a project's sources. Its name is noted, so it should contain the commit, as in GitHub's archives. The tests
run in a copy, and find the installed package, not the sources beside them. On fastload's side ``fastload run``
runs pytest; tests of images and tables also run as a worker runs a sample (``as_samples.py``). A test whose results
differ runs once more with both, alone, before it counts. A difference that DIFFERENCES does not explain makes the exit
status 1.
"""

import argparse
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks.figures.rows import Row, append_rows
from benchmarks.report import look_around, progress, stamp
from benchmarks.versions import ROOT, results


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Tests of another project, in a folder of its sources."""

    package: str
    """What is tested: its installed version is noted."""
    copied: tuple[str, ...]
    """Folders and files of the sources that the tests need."""
    tests: tuple[str, ...]
    """What pytest is given."""
    as_samples: bool = False
    """Whether each test runs as a worker runs a sample."""
    swapped: Mapping[str, tuple[str, str]] | None = None
    """File -> a text of it, and what stands there instead."""


SUITES: Mapping[str, Suite] = {
    "--torch-tests": Suite(  # torch's, as torchdata has it for its own class: github.com/meta-pytorch/data
        package="torch",
        copied=("test/stateful_dataloader",),
        tests=("test/stateful_dataloader/test_dataloader.py",),
        swapped={
            "test/stateful_dataloader/test_dataloader.py": (
                "from torchdata.stateful_dataloader import StatefulDataLoader as DataLoader",
                "from torch.utils.data import DataLoader",
            )
        },
    ),
    "--torchvision-tests": Suite(
        package="torchvision",
        copied=("test",),
        tests=("test/test_image.py", "test/test_transforms.py"),
        as_samples=True,
    ),
    "--torchvision-v2-tests": Suite(
        package="torchvision",
        copied=("test",),
        tests=("test/test_transforms_v2.py", "test/test_transforms_v2_utils.py"),
        as_samples=True,
        swapped={  # Pillow's images come from files, so fastload decodes them late
            "test/common_utils.py": (
                "    return to_pil_image(make_image(*args, **kwargs))",
                "    from io import BytesIO\n\n"
                "    to_pil_image(make_image(*args, **kwargs)).save(file := BytesIO(), 'PNG')\n"
                "    return PIL.Image.open(file).copy()",
            ),
            "test/test_transforms_v2.py": (  # torch 2.15 deprecates torch.jit.script
                'filterwarnings("error")',
                'filterwarnings("error"), pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")',
            ),
        },
    ),
    "--pillow-tests": Suite(package="pillow", copied=("Tests", "conftest.py"), tests=("Tests",), as_samples=True),
    "--timm-tests": Suite(
        package="timm",
        copied=("tests",),
        tests=("tests/test_data.py", "tests/test_naflex_dataset.py", "tests/test_scheduled_sampler.py"),
    ),
    "--datasets-tests": Suite(
        package="datasets",
        copied=("tests",),
        tests=("tests/test_formatting.py", "tests/features/test_image.py"),
        as_samples=True,
    ),
}
DIFFERENCES: Mapping[str, str] = {
    r"v2.py::Test(Erase|Elastic|GaussianBlur|PermuteChannels)::test_(functional\[make_image_pil|transform\[.*cpu-)"
    r"|v2.py::TestRandomPhotometricDistort::test_transform\[cpu-|v2.py::TestGetKernel::test_pil_image_subclass"
    r"|v2.py::TestAutoAugmentTransforms::test_transform_smoke\[cpu-.*make_image_pil": (
        "inside a sample the type of a late image is a subclass of Pillow's, and the test compares types"
    )
}
"""Pattern of tests' names -> why their results are others with fastload."""
SIDES = ("torch", "fastload")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, help="the CSV file to which the rows are appended")
    for name in SUITES:
        parser.add_argument(name, type=Path, metavar="DIR", dest=name, help="a folder with the sources")
    parser.add_argument("-k", metavar="EXPRESSION", default="", help="only these tests, as for pytest")
    parser.add_argument("--seconds", type=float, default=120, help="that a test may take, on both sides")
    parser.add_argument("--processes", type=int, default=0, help="of pytest; 0: the tests run in its own")
    options = parser.parse_args(arguments)
    folders = [(name, folder) for name in SUITES if (folder := getattr(options, name)) is not None]
    surroundings = look_around(sys.argv[1:] if arguments is None else arguments, module="benchmarks.conformance")
    advance, unexplained = progress(2 * len(folders)), 0
    for name, folder in folders:
        suite, case, found = SUITES[name], name.removeprefix("--").removesuffix("-tests"), {}
        with tempfile.TemporaryDirectory() as copy:
            take_copy(suite, folder, Path(copy))
            for side in SIDES:
                advance(f"{case}, {side}")
                words = ["--timeout", str(options.seconds), "-n", str(options.processes), "-k", options.k]
                found[side] = run(suite, side, Path(copy), suite.tests, words)
            if suspects := differing(found):
                again = {side: run(suite, side, Path(copy), suspects, words[:2]) for side in SIDES}
                found = {side: found[side] | again[side] for side in SIDES}
        versions = {**surroundings.versions, suite.package: version(suite.package)}
        sources = folder.resolve().name + (f", -k {options.k!r}" if options.k else "")
        rows = told(case, sources, found, stamp(surroundings, versions=versions))
        append_rows(options.rows, rows)
        for row in rows:
            value = "" if row.value is None else f" {row.value:.0f}"
            print(f"{case}, {row.side}: {row.metric}{value}; {row.note}")
        failed = [test for test, result in found["fastload"].items() if result == "failed"]
        print(f"failed with fastload: {', '.join(failed) or 'none'}", flush=True)
        unexplained += sum(row.metric.startswith("differs: ") and not row.note for row in rows)
    return int(unexplained > 0)


def take_copy(suite: Suite, folder: Path, copy: Path) -> None:
    for name in suite.copied:
        (shutil.copytree if (folder / name).is_dir() else shutil.copy)(folder / name, copy / name)
    for file, (old, new) in (suite.swapped or {}).items():
        text = (copy / file).read_text(encoding="utf-8")
        if old not in text:
            raise ValueError(f"{file} must contain {old!r}, but does not: give the sources that SUITES names")
        (copy / file).write_text(text.replace(old, new), encoding="utf-8")


def run(suite: Suite, side: str, folder: Path, tests: tuple[str, ...], words: list[str]) -> dict[str, str]:
    """Run a suite's tests with a side's loader; return their results."""
    command = [sys.executable, *(() if side == "torch" else ("-m", "fastload", "run")), "-m", "pytest", *words]
    command += ["-p", "no:cacheprovider"]
    if side == "fastload" and suite.as_samples:
        command += ["-p", "benchmarks.as_samples"]
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    return results(command, tests, folder, environment)


def differing(found: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    names = sorted({name for of_side in found.values() for name in of_side})
    return tuple(name for name in names if len({of_side.get(name) for of_side in found.values()}) > 1)


def told(case: str, sources: str, found: Mapping[str, Mapping[str, str]], common: dict[str, str]) -> list[Row]:
    """Return the rows of a suite: how many tests had which result, and which had another with fastload."""
    rows = []
    for side, of_side in found.items():
        counts, n = Counter(of_side.values()), len(of_side)
        rows += [
            Row(case=case, side=side, metric=metric, value=counts[metric], n=n, note=sources, **common)
            for metric in ("passed", "failed", "skipped")
        ]
    for test in differing(found):
        became = " -> ".join(found[side].get(test, "absent") for side in SIDES)
        known = () if "absent" in became else DIFFERENCES.items()
        why, here = next((why for names, why in known if re.search(names, test)), ""), f"differs: {test}, {became}"
        rows.append(Row(case=case, side="fastload", metric=here, note=why, **common))
    return rows


if __name__ == "__main__":
    sys.exit(main())
