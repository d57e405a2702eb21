"""The list in examples/parallelism/README.md: its rows, files and tests, and the docstrings of the examples."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from scripts import PARALLELISM, REPOSITORY

FOLDER = REPOSITORY / PARALLELISM
HERE, TESTS = Path(__file__).parent, REPOSITORY / "tests"
README = (FOLDER / "README.md").read_text()
LIST = README[README.index("## The list") : README.index("## Measured")]
ROWS = [line.strip("| ").split(" | ") for line in LIST.splitlines() if re.match(r"\| \d+ \|", line)]
EXAMPLES = sorted(path.name for path in FOLDER.glob("*.py") if path.name not in ("__init__.py", "common.py"))
NONE = "\N{EN DASH}"


def test_all_42_rows_exist_in_order_and_those_without_a_test_give_a_reason() -> None:
    assert [int(row[0]) for row in ROWS] == list(range(1, 43))
    assert [int(row[0]) for row in ROWS if NONE in row] == [3, 4, 29, 39, 41, 42]
    assert all(len(row[4]) > 40 for row in ROWS if NONE in row)


def test_all_linked_files_exist_and_every_example_has_a_row() -> None:
    assert not [link for link in re.findall(r"\]\(([^)]+)\)", README) if not (FOLDER / link).exists()]
    assert not [name for name in EXAMPLES if not any(f"({name})" in row[2] for row in ROWS)]


def test_all_tests_named_in_rows_exist() -> None:
    functions = "\n".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    for number, _, _, tests, *_ in ROWS:
        named = set(re.findall(r"`(test_\w+)`|::(test_\w+)", tests))
        for name in filter(None, (name for pair in named for name in pair)):
            assert f"def {name}(" in functions, f"row {number}: {name}"
            tests = tests.replace(f"`{name}`", "").replace(f"::{name}", "")
        for word in re.findall(r"(?:tests|\.\.|benchmarks)/[\w/]+|\btest_\w+", tests):
            places = [folder / f"{word}{end}" for folder in (HERE, TESTS, REPOSITORY) for end in ("", ".py")]
            assert any(place.exists() for place in places) or any(TESTS.rglob(f"{word}.py")), f"row {number}: {word}"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_examples_docstring_has_its_command_the_notes_and_what_was_measured(name: str) -> None:
    opening = ast.get_docstring(ast.parse((FOLDER / name).read_text())) or ""
    command = rf"^    (python|torchrun.*) (examples/parallelism/{name}|-m examples\.parallelism\.{name[:-3]})\b"
    assert re.search(command, opening, re.MULTILINE)
    assert "the notes" in opening.lower()
    assert re.search(r"^Measured", opening, re.MULTILINE)
    assert (HERE / f"test_{name}").exists()
