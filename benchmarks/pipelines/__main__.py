"""Measure the pipelines that people have with torch's loader and with fastload's: ``python -m benchmarks.pipelines``.

Run it from the repository's root, in an environment that holds requirements.txt beside this file.
"""

import argparse
import ast
import dataclasses
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks import command
from benchmarks.pipelines.catalogue import LEAST_RATIO, PIPELINES
from benchmarks.spec import FASTLOAD, TORCH, Case, Metric, Side

_METRICS = (
    *(Metric(name=name, least_ratio=None) for name in ("CPU us/sample", "epoch ms", "first batch ms")),
    Metric(name="peak MiB", least_ratio=None, has_ratio=False),
)


def main() -> int:
    """Measure what the command line names; return 1 if a side failed."""
    parser = command.parser_of("benchmarks.pipelines", __doc__.splitlines()[0])
    command.add_data(parser)
    parser.add_argument(
        "--workers", nargs="+", type=int, default=[2, 0], metavar="N", help="num_workers (default: 2 0)"
    )
    parser.add_argument("--other", type=Path, metavar="CHECKOUT", help="measure the (built) fastload there, too")
    parser.add_argument(
        "--loader-args",
        action="append",
        type=loader_args,
        metavar="ARGS",
        help="fastload's own arguments, such as \"fuse=True, seeding='torch'\"; may be repeated, '' for none",
    )
    options = command.parse(parser, needs_data=True)
    if unknown := sorted(set(options.names) - PIPELINES.keys()):
        parser.error(f"no pipeline is called {unknown[0]!r}; there are {', '.join(PIPELINES)}")
    if options.other is not None and not (options.other / "fastload" / "__init__.py").is_file():
        parser.error(f"--other must be a checkout of fastload, got {options.other}")
    if min(options.workers) < 0:
        parser.error(f"--workers must be at least 0, got {min(options.workers)}")
    with tempfile.TemporaryDirectory(prefix="pipelines-") as made:
        return command.run(_cases(options, made), options, "benchmarks.pipelines")


def loader_args(text: str) -> dict[str, object]:
    """Parse the arguments of a call, which must be named literals."""
    try:
        call = ast.parse(f"dict({text})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or not all(keyword.arg for keyword in call.keywords):
            raise ValueError(text)
        return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError):
        raise argparse.ArgumentTypeError(f"must be named arguments such as fuse=False, got {text!r}") from None


def _cases(options: argparse.Namespace, made: str) -> list[Case]:
    """Return the chosen pipelines, with each number of workers; the first of them makes a pipeline's files."""
    sides = [_side(arguments) for arguments in options.loader_args or [{}]]
    if options.other is not None:
        checkout = {"checkout": str(options.other.resolve())}
        sides.insert(0, dataclasses.replace(FASTLOAD, name="other", arguments=checkout))
    maker = dataclasses.replace(TORCH, prepare="benchmarks.pipelines.measuring:prepare")
    cases = []
    for name in options.names or PIPELINES:
        for num_workers in options.workers:
            goal = PIPELINES[name].goal if num_workers else LEAST_RATIO
            steady = Metric(name="samples/s steady", more_is_better=True, least_ratio=goal)
            arguments = {"pipeline": name, "images": str(options.data), "made": made, "num_workers": num_workers}
            case = Case(
                name=f"{name}, {num_workers} workers",
                measure="benchmarks.pipelines.measuring:epoch",
                first="benchmarks.pipelines.measuring:memory",
                metrics=(steady, *_METRICS),
                sides=(maker if num_workers == options.workers[0] else TORCH, *sides),
                arguments=arguments,
            )
            cases.append(case)
    return cases


def _side(arguments: Mapping[str, object]) -> Side:
    """Return the side of this checkout with arguments of its own."""
    words = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return dataclasses.replace(FASTLOAD, name=f"fastload {words}".rstrip(), options=arguments)


if __name__ == "__main__":
    sys.exit(main())
