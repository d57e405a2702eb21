"""Runs the tests that depend on other packages' code with sets of versions, each in an environment of its own.

    uv run -m benchmarks.versions --rows benchmarks/rows/versions.csv                             # every set of SETS
    uv run -m benchmarks.versions --rows benchmarks/rows/versions.csv --set 3.12:2.6.0:1.26:10.1  # those that are named

and then ``python -m benchmarks.figures`` writes the table of docs/install.md. A set is PYTHON:TORCH:NUMPY:PILLOW.
TORCH is a version, ``newest`` or ``nightly`` (the index that UV_INDEX names); NUMPY and PILLOW are the beginning of a
version, or ``newest``; torchvision is the one that wants this torch. What cannot be had here, a Python, a wheel or an
index, gets a row that says so. As ``pytest`` does without names, it runs a part of the cases; ``--whole``: all of them.
Tests that fail run once more, alone, before they count: a busy machine makes some of them late. Those that then pass
are printed: they may have failed by what another test left. Packages stay in uv's cache, where each torch with its CUDA
packages has some 5 GB.

``.ci/run`` runs :data:`SOON`, a part of these tests, with a second Python.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.figures.rows import Row, append_rows
from benchmarks.report import look_around, progress, stamp

ROOT = Path(__file__).parents[1]
UV = os.environ.get("UV", "uv")  # set by "uv run"
PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.15")
SETS = (
    *(f"{python}:{torch}:newest:newest" for torch in ("2.6.0", "2.13.0", "newest") for python in PYTHONS),
    *(f"{python}:{torch}:1.26:10.1" for torch in ("2.6.0", "2.13.0", "newest") for python in PYTHONS[:2]),
    "3.11:nightly:newest:newest",
)
# What depends on the packages' own code: all that replaces, or reads, their private names, and the bits of samples.
TESTS = (
    *("tests/base", "tests/buffers/test_layout.py", "tests/buffers/test_packing.py", "tests/contract"),
    *("tests/fusion/test_fusion_equality.py", "tests/images/test_images_decoders.py", "tests/keys", "tests/late"),
    *("tests/native/test_native_generators.py", "tests/profiling/test_profiling_hooks.py", "tests/run/test_install.py"),
    *("tests/sampling/test_sampler_generators.py", "tests/tables", "tests/transforms/test_equality.py"),
    *("tests/transforms/test_resize.py", "tests/workers/test_iterable.py", "tests/workers/test_routing.py"),
    *("tests/workers/test_sample_threads.py", "tests/workers/test_spawn_start.py", "tests/workers/test_threads.py"),
    "tests/workers/test_video_decoders.py",
)
SOON = ("tests/base", "tests/late/test_late_images.py", "tests/late/test_late_overrides.py", "tests/tables")
"""What ``.ci/run`` has time for: the tests of each override and of each private name among them."""
SIDE = "fastload"
TOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]["versions"]
PRINT_VERSIONS = """
import platform, PIL, numpy, torch, torchvision
print(f"Python {platform.python_version()}, torch {torch.__version__}, torchvision {torchvision.__version__}, "
      f"NumPy {numpy.__version__}, Pillow {PIL.__version__}")
"""


class NotHereError(Exception):
    """The versions cannot be run on this machine; says what is missing."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, help="the CSV file to which the rows are appended")
    parser.add_argument("--set", action="append", default=[], metavar="PYTHON:TORCH:NUMPY:PILLOW")
    parser.add_argument("--tests", nargs="+", default=TESTS, metavar="PATH", help="in place of TESTS")
    parser.add_argument("--processes", type=int, default=0, help="of pytest; 0: the tests run in its own")
    parser.add_argument("--whole", action="store_true", help="all cases of tests that have many")
    options = parser.parse_args()
    failed = []
    sets = options.set or SETS
    advance = progress(len(sets))
    for one in sets:
        advance(one)
        rows, failures = tried(one, options.tests, options.processes, options.whole)
        append_rows(options.rows, rows)
        print(f"{one}: {', '.join(told(row) for row in rows)}", *failures, sep="\n    ", flush=True)
        failed += failures
    return int(bool(failed))


def told(row: Row) -> str:
    return f"{row.metric}: {row.note}" if row.value is None else f"{row.value:.0f} {row.metric}"


def tried(versions: str, tests: Sequence[str], processes: int, whole: bool) -> tuple[list[Row], list[str]]:
    """Run the tests with one set of versions; return its rows, and the names of tests that failed twice."""
    given = [*(["--whole"] if whole else []), *(["--tests", *tests] if tests is not TESTS else [])]
    common = stamp(look_around(given, module="benchmarks.versions"))
    try:
        environment = prepared(*versions.split(":"))
        common["versions"] = uv(*environment, "python", "-c", PRINT_VERSIONS).strip()
    except NotHereError as error:
        common["versions"] = ""
        return [Row(case=versions, side=SIDE, metric="not run", note=str(error), **common)], []
    chosen = tests if whole else ["-o", f"testpaths={' '.join(tests)}"]
    passed, skipped, suspects = counted(environment, chosen, processes)
    failed = counted(environment, suspects, 0)[2] if suspects else []
    for name in sorted({*suspects} - {*failed}):
        print(f"passed alone: {name}", flush=True)
    passed += len(suspects) - len(failed)
    again = f"{len(suspects)} failed at first, and ran once more, alone" if suspects else ""
    counts = {"passed": passed, "failed": len(failed), "skipped": skipped}
    rows = [
        Row(case=versions, side=SIDE, metric=metric, value=value, n=sum(counts.values()), note=again, **common)
        for metric, value in counts.items()
    ]
    return rows, failed


def prepared(python: str, torch: str, numpy: str, pillow: str) -> list[str]:
    try:
        uv("python", "find", "--no-project", "--no-python-downloads", python)
    except NotHereError:
        raise NotHereError(f"no Python {python} here") from None
    packages = ["torch" if torch in ("newest", "nightly") else f"torch=={torch}", "torchvision"]
    asked_for = {"numpy": numpy, "pillow": pillow}
    packages += [name if one == "newest" else f"{name}=={one}.*" for name, one in asked_for.items()]
    # pyarrow names no NumPy, and refuses to be imported with an older one.
    packages += [*TOOLS, *(["pyarrow<20"] if numpy.startswith("1.") else [])]
    if torch == "nightly" and "UV_INDEX" not in os.environ:
        raise NotHereError("UV_INDEX names no index of nightly builds")
    words = ["--prerelease", "allow"] if torch == "nightly" else []
    with tempfile.TemporaryDirectory() as name:
        asked = Path(name, "asked.txt")  # in a folder of its own: in the clone its constraints would hold
        asked.write_text("\n".join(packages), encoding="utf-8")
        try:
            found = uv("pip", "compile", "--directory", name, "-q", "--no-header", "--no-annotate", "--only-binary",
                       ":all:", "--python-version", python, *words, asked)  # fmt: skip
        except NotHereError as error:
            if "No solution found" in str(error):
                raise NotHereError(f"no wheels of {' and '.join(packages)} for this Python") from None
            raise NotHereError("the index of the packages cannot be reached") from error
    withs = [word for line in found.splitlines() if "==" in line for word in ("--with", line)]
    return ["run", "--no-project", "--isolated", "--python", python, *words, "--with", ".", *withs]


def counted(environment: Sequence[str], tests: Sequence[str], processes: int) -> tuple[int, int, list[str]]:
    """Run tests; return how many passed, how many were skipped, and the names of the others, for pytest."""
    found = results([UV, *environment, "pytest", "-n", str(processes)], tests, ROOT)
    counts = Counter(found.values())
    return counts["passed"], counts["skipped"], sorted(name for name, result in found.items() if result == "failed")


def results(
    command: Sequence[str], tests: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Run tests by a command that ends with pytest and options; return "passed", "failed" or "skipped" for each name.

    An error counts as failed, a failure that was expected as skipped. The names are those that pytest takes.
    """
    with tempfile.TemporaryDirectory() as name:
        report = Path(name, "report.xml")
        words = [*command, "-q", "-o", "junit_family=xunit1", f"--junitxml={report}", *tests]
        done = subprocess.run(words, cwd=folder, env=environment, text=True, capture_output=True)
        if done.returncode not in (0, 1) or not report.exists():  # else interrupted, misused or without tests
            raise RuntimeError(
                f"pytest ended with status {done.returncode}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
            )
        cases = list(ET.parse(report).iter("testcase"))
    found: dict[str, str] = {}
    for case in cases:
        file, parts = case.get("file", ""), case.get("classname", "").split(".")
        classes = parts[len(Path(file).parts) :]  # behind the names of the file's folders and of the file
        test = "::".join([file, *classes, case.get("name", "")])
        tags = {one.tag for one in case}
        result = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
        if found.get(test) != "failed":  # a test that failed, and then passed or failed in its teardown, comes twice
            found[test] = result
    return found


def uv(*words: str | Path) -> str:
    done = subprocess.run([UV, *words], cwd=ROOT, text=True, capture_output=True)
    if done.returncode:
        raise NotHereError(done.stderr.strip() or done.stdout.strip())
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
