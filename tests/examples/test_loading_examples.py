"""The small examples of examples/loading: each is run, and prints what its docstring claims."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from scripts import LOADING, REPOSITORY, printed_by

pytestmark = pytest.mark.slow

FOLDER = REPOSITORY / LOADING
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py"))


def others(start: int, *steps: int) -> str:
    """Return a pattern of the list of these four indices, and of others that begin at ``steps``."""
    return re.escape(str([index for first in (start, *steps) for index in range(first, first + 4)]))


# What each script prints, in this order.
CASES: dict[str, list[str]] = {
    "batch_split": [
        r"torch\.DistributedSampler +a rank gets \[100, 100, 100, 100\], a step has 400",
        r"fastload\.DistributedSampler +a rank gets \[100, 100, 100, 100\], a step has 400",
        r"fastload\.DistributedBatchSampler +a rank gets \[25, 25, 25, 25\], a step has 100",
    ],
    "head_of_line": [
        rf"torch, while sample 0 is blocked: +{others(4, 12)}",
        rf"in_order=False gives first: +{others(4)}",
        rf"fastload, sample 0 is blocked: +{re.escape(str(list(range(1, 16))))}",
    ],
    "packed_sequences": [
        r"62 steps: 0\.[0-6]",
        "padding: 69%; in buckets 3%",
        r"1 ranks: \[62\]",
        r"4 ranks: \[62, 62, 62, 62\]",
    ],
    "weighted_sampling": [r"expected 0\.000 0\.125 0\.250 0\.625", r"drawn +0\.000 0\.125 0\.259 0\.616"],
    "worker_count": [r"fastload: (\w+), (\w+)\n(?:\d workers.*: \1, \2\n){3}(?:\d ranks.*order \1, drawn \2\n){3}"],
    "worker_memory": [rf"^{kind} +worker [01]: +RSS" for kind in ("a list of strings", "one array") for _ in range(2)],
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_script_prints_what_its_docstring_claims(name: str, tmp_path: Path) -> None:
    printed = printed_by(FOLDER / f"{name}.py", tmp_path)
    place = 0
    for pattern in CASES[name]:
        found = re.compile(pattern, re.MULTILINE).search(printed, place)
        assert found, f"{pattern} is not in\n{printed}"
        place = found.end()


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_has_a_row_in_the_list_and_says_its_command(name: str) -> None:
    assert f"]({name}.py)" in (FOLDER / "README.md").read_text()
    opening = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text())) or ""
    assert f"    python examples/loading/{name}.py" in opening
