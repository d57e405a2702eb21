"""Puts faults into the package and tells which of them the tests find: before and after tests are changed.

    uv run python tests/mutants.py draw --seed 30 --each 10 engine workers ... > mutants.json
    uv run python tests/mutants.py run mutants.json --tree CHECKOUT >> found.jsonl

A mutant is one change of one place of the syntax tree: a comparison swapped, a call whose result nobody uses dropped,
an integer off by one, a condition negated. ``run`` writes each into the package of a checkout, runs the tests that
belong to it until one fails, and restores the file. So tests of two checkouts can be compared by the same mutants, if
the package is the same in both. A test that has not ended after 120 s has found its mutant too.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
# Tests that belong to a package beside those in the folder of its name.
MORE_TESTS = {
    "engine": ["contract", "faults"],
    "workers": ["faults", "contract"],
    "sampling": ["engine"],
    "buffers": ["engine"],
    "keys": ["engine", "native"],
    "device": ["engine"],
    "run": ["tune"],
}
_SWAPPED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip


class Mutant(NamedTuple):
    """A text that takes the place of another in a file."""

    file: str
    line: int
    begin: int
    """In the file's characters."""
    end: int
    old: str
    new: str
    kind: str


def mutants_of(file: str, source: str) -> Iterator[Mutant]:
    """Yield all mutants of a module."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    data = source.encode()
    tree = ast.parse(source)
    # What is not computed: annotations, and what only the type checker sees.
    left_out = {id(one) for node in ast.walk(tree) for part in _not_run(node) for one in ast.walk(part)}

    def mutant(node: ast.expr | ast.stmt, new: str, kind: str) -> Mutant:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        return Mutant(file, node.lineno, begin, end, data[begin:end].decode(), new, kind)

    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = (ast.unparse(one) for one in (node.left, node.comparators[0]))
            yield mutant(node, f"(({left}) {_SWAPPED[type(node.ops[0])]} ({right}))", "comparison swapped")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield mutant(node, "pass", "call dropped")
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield mutant(node, f"({node.value} + 1)", "off by one")
        if isinstance(node, (ast.If, ast.While, ast.IfExp)):
            yield mutant(node.test, f"(not ({ast.unparse(node.test)}))", "condition negated")


def _not_run(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        yield node
    for name in ("annotation", "returns"):
        if (part := getattr(node, name, None)) is not None:
            yield part


def draw(packages: list[str], seed: int, each: int) -> list[Mutant]:
    """Return so many mutants of each package, the same for the same seed and sources."""
    drawn: list[Mutant] = []
    for package in packages:
        found: list[Mutant] = []
        for path in sorted((ROOT / "fastload" / package).rglob("*.py")):
            found += mutants_of(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        by_kind = [[one for one in found if one.kind == kind] for kind in sorted({one.kind for one in found})]
        generator = random.Random(f"{seed} {package}")
        for number in range(each):  # of each kind in turn, or most would be conditions
            of_kind = by_kind[number % len(by_kind)]
            drawn.append(of_kind.pop(generator.randrange(len(of_kind))))
    return drawn


def tests_of(mutant: Mutant, tree: Path) -> list[str]:
    """Return the folders of the tests that belong to a mutant's package."""
    package = mutant.file.split("/")[1]
    return [f"tests/{name}" for name in (package, *MORE_TESTS.get(package, [])) if (tree / "tests" / name).is_dir()]


def found_by(mutant: Mutant, tree: Path) -> str:
    """Return the test of a checkout that finds a mutant; empty: none does."""
    path = tree / mutant.file
    original = path.read_bytes()
    assert original[mutant.begin : mutant.end].decode() == mutant.old, (
        f"{path} is not the file that mutants were drawn of"
    )
    marked = "not slow" if "/ray/" in mutant.file else "not slow and not ray"
    options = ["-x", "-q", "-n0", "-p", "no:cacheprovider", "--timeout=120", "-m", marked, "--tb=no"]
    command = [tree / ".venv/bin/python", "-m", "pytest", *options, *tests_of(mutant, tree)]
    path.write_bytes(original[: mutant.begin] + mutant.new.encode() + original[mutant.end :])
    try:
        done = subprocess.run(
            command, cwd=tree, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=1800
        )
    except subprocess.TimeoutExpired:
        return "no end"
    finally:
        path.write_bytes(original)
    if done.returncode == 0:
        return ""
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0] if failed else f"pytest ended with {done.returncode}"


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    drawing = verbs.add_parser("draw")
    drawing.add_argument("packages", nargs="+")
    drawing.add_argument("--seed", type=int, required=True)
    drawing.add_argument("--each", type=int, default=10)
    running = verbs.add_parser("run")
    running.add_argument("mutants", type=Path)
    running.add_argument("--tree", type=Path, default=ROOT, help="a checkout with an environment in .venv")
    options = parser.parse_args()
    if options.verb == "draw":
        print("[")
        print(",\n".join(json.dumps(one._asdict()) for one in draw(options.packages, options.seed, options.each)))
        print("]")
        return
    mutants = [Mutant(**one) for one in json.loads(options.mutants.read_text())]
    for number, mutant in enumerate(mutants, 1):
        begun = time.monotonic()
        found = found_by(mutant, options.tree.resolve())
        seconds = time.monotonic() - begun
        print(
            f"{number}/{len(mutants)} {mutant.file}:{mutant.line} {found or 'SURVIVED'} {seconds:.0f} s",
            file=sys.stderr,
        )
        print(json.dumps({**mutant._asdict(), "found": found, "seconds": round(seconds, 1)}), flush=True)


if __name__ == "__main__":
    main()
