"""The zoo seen by other tools, beside ``fastload profile``: ``python -m benchmarks.profiling.others --python PYTHON``.

In: names of pipelines, seeds, the interpreter of an environment that has the other tools. Out: for each pipeline and
tool whether it says that the input is the problem, whether it names the cause, what it says a fix would bring, and how
much longer a step takes under it.

    uv venv DIR
    uv pip install --python DIR/bin/python torch torchvision rich traceml-ai nvidia-dali-cuda130
    python -m benchmarks.profiling.others --python DIR/bin/python --seed 7

A tool that is not there is left out, with the reason. torch.profiler runs twice: as it is, and with stacks. Lines of
``--json`` files can be shown again with ``--show``.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.box import MARKDOWN, SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.neighbours import cores_used_by_others, read_cpu
from benchmarks.profiling.other_tools import TOOLS, Seen, ToolError, plain
from benchmarks.profiling.pipelines import Pipeline, drawn, names
from benchmarks.report import look_around

PACKAGES: Mapping[str, str] = {"TraceML": "traceml-ai", "LoaderEvaluator": "nvidia-dali-cuda130"}
"""What a tool is installed as; the others come with torch and fastload."""

ATTEMPTS = 3
"""On a busy machine TraceML's own processes may not find each other within its 15 seconds."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What all tools came to for one pipeline."""

    seed: int
    name: str
    cause: str
    stall: float
    """By construction."""
    step_ms: float
    """By construction."""
    changed_ms: float | None
    """With the change that is known to help, by construction."""
    plain_ms: list[float]
    """A step without any tool, before and after the others."""
    others_cores: float
    """Cores that worked for somebody else meanwhile."""
    seen: dict[str, Seen]

    @property
    def stalled(self) -> bool:
        """Whether its input is the problem."""
        return self.cause != "compute"


def measure(pipeline: Pipeline, seed: int, folder: Path, python: str, tools: Sequence[str]) -> Row:
    """Run a pipeline under each tool.

    Raises:
        ToolError: it does not even run without one.
    """
    before = read_cpu()
    seen: dict[str, Seen] = {}
    took = [plain(pipeline, folder / "before", python).took_ms]
    for tool in tools:
        for attempt in range(ATTEMPTS):
            try:
                seen[tool] = TOOLS[tool](pipeline, folder / f"{tool.replace(' ', '-')}-{attempt}", python)
                break
            except ToolError as error:
                seen[tool] = Seen(problem=str(error))
        print(f"{pipeline.name}, {tool}: {cell(seen[tool])}", file=sys.stderr, flush=True)
    took.append(plain(pipeline, folder / "after", python).took_ms)
    return Row(
        seed=seed,
        name=pipeline.name,
        cause=pipeline.cause,
        stall=pipeline.stall,
        step_ms=pipeline.step_ms,
        changed_ms=pipeline.changed_ms,
        plain_ms=[one for one in took if one is not None],
        others_cores=cores_used_by_others(before, read_cpu()),
        seen=seen,
    )


def from_json(line: str) -> Row:
    """Return the row that a line of a ``--json`` file holds."""
    value = json.loads(line)
    return Row(**{**value, "seen": {tool: Seen(**seen) for tool, seen in value["seen"].items()}})


def cell(seen: Seen) -> str:
    """Return what a tool says, in few words."""
    if seen.input_bound is None and seen.share is None:
        return seen.words or (f"none: {seen.problem}" if seen.problem else "nothing")
    share = "" if seen.share is None else f"{seen.share:.0%}"
    clue = "" if seen.clue in ("", seen.words) else f"({seen.clue})"
    return " ".join(part for part in (seen.words, share, clue) if part)


def fix(seen: Seen) -> str:
    """Return what a tool says a change would bring."""
    if seen.fix_ms is None:
        return ""
    before = "" if seen.step_ms is None else f"{seen.step_ms:.1f} → "
    return f"{seen.fix}: {before}{seen.fix_ms:.1f}"


def list_of(rows: Sequence[Row], tools: Sequence[str]) -> Table:
    """Return a line for each pipeline, what each tool says in its columns."""
    table = Table("pipeline", "cause", "stall", *tools, box=SIMPLE_HEAD)
    for row in rows:
        cells = []
        for tool in tools:
            seen = row.seen.get(tool, Seen(problem="not run"))
            wrong = seen.input_bound is not None and seen.input_bound != row.stalled
            text = escape(cell(seen)) + (" ✓" if seen.cause else "")
            cells.append(f"[red]{text}[/] ✗" if wrong else text)
        table.add_row(row.name, row.cause, f"{row.stall:.0%}", *cells)
    return table


def fixes(rows: Sequence[Row], tools: Sequence[str]) -> Table:
    """Return a line for each pipeline, with the numbers that tools give for a change, in ms a step."""
    giving = [tool for tool in tools if any(row.seen.get(tool, Seen()).fix_ms is not None for row in rows)]
    table = Table("pipeline", "built", "built with its change", *giving, box=SIMPLE_HEAD)
    for row in rows:
        known = "" if row.changed_ms is None else f"{row.changed_ms:.1f}"
        cells = (escape(fix(row.seen.get(tool, Seen()))) for tool in giving)
        table.add_row(row.name, f"{row.step_ms:.1f}", known, *cells)
    return table


def counts(rows: Sequence[Row], tools: Sequence[str]) -> Table:
    """Return for each tool how often it was right, and what it costs a step."""
    table = Table("tool", "input-bound or not", "names the cause", "a number for a fix", "step", box=SIMPLE_HEAD)
    for tool in tools:
        seen = [(row, row.seen[tool]) for row in rows if tool in row.seen]
        stalled = [(row, one) for row, one in seen if row.stalled]

        def of(found: Sequence[tuple[Row, Seen]], holds: Callable[[Row, Seen], bool]) -> str:
            return f"{sum(holds(row, one) for row, one in found)} of {len(found)}"

        table.add_row(
            tool,
            of(seen, lambda row, one: one.input_bound == row.stalled),
            of(stalled, lambda _, one: one.cause),
            of(stalled, lambda _, one: one.fix_ms is not None),
            slower(seen),
        )
    return table


def slower(found: Sequence[tuple[Row, Seen]]) -> str:
    """Return by how much steps are longer under a tool: the median of pipelines, and the middle half of them."""
    shares = [one.took_ms / statistics.mean(row.plain_ms) - 1 for row, one in found if one.took_ms is not None]
    if len(shares) < 2:
        return ""
    low, middle, high = statistics.quantiles(shares, n=4, method="inclusive")
    return f"{middle:+.1%} ({low:+.1%} to {high:+.1%})"


def unsteady(rows: Sequence[Row]) -> str:
    """Return how far apart the same steps are without any tool."""
    shares = [abs(row.plain_ms[1] / row.plain_ms[0] - 1) for row in rows if len(row.plain_ms) == 2]
    busy = statistics.mean(row.others_cores for row in rows)
    return (
        f"without any tool, before and after: {statistics.median(shares):.1%} apart (median), at most "
        f"{max(shares):.0%}; cores used by others meanwhile: {busy:.1f}"
    )


def in_markdown(tables: Sequence[Table]) -> str:
    """Return tables as Markdown."""
    parts = []
    for table in tables:
        table.box = MARKDOWN
        console = Console(width=1000, file=io.StringIO(), record=True)
        console.print(table)
        lines = [line.strip() for line in console.export_text().splitlines()]
        lines = [re.sub("-+", "---", line) if set(line) <= set("|-") else re.sub(" +", " ", line) for line in lines]
        parts.append("\n".join(line for line in lines if line))
    return "\n\n".join(parts) + "\n"


def versions(python: str) -> dict[str, str]:
    """Return the versions of what the tools come in; what is not there is left out."""
    wanted = ["torch", *PACKAGES.values()]
    code = (
        "import importlib.metadata as m, json, sys\n"
        "print(json.dumps({d.name: d.version for d in m.distributions() if d.name in sys.argv[1:]}))"
    )
    done = subprocess.run([python, "-c", code, *wanted], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return {name: str(found[name]) for name in wanted if name in found}


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line; the status is 1 if a pipeline does not run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.profiling.others",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="pipelines (all)")
    parser.add_argument("--python", default=sys.executable, metavar="PYTHON", help="an interpreter that has the tools")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS), metavar="TOOL", help=", ".join(TOOLS))
    parser.add_argument("--seed", type=int, action="append", help="draws the parameters; may be given again (0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a JSON line for each pipeline to FILE")
    parser.add_argument("--show", type=Path, nargs="+", metavar="FILE", help="run nothing, show lines of such files")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables to FILE, for README.md")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep scripts and what the tools wrote there")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - set(names())):
        parser.error(f"no such pipeline: {', '.join(unknown)}; there are {', '.join(names())}")
    if options.show:
        rows = [from_json(line) for path in options.show for line in path.read_text(encoding="utf-8").splitlines()]
    else:
        rows = run(options)
    if not rows:
        return 1
    report(rows, options.markdown)
    return 0


def run(options: argparse.Namespace) -> list[Row]:
    """Run what the command line asks for; stop at a pipeline that does not run."""
    there = versions(options.python)
    around = look_around(sys.argv[1:], module="benchmarks.profiling.others")
    print(f"{around.date}, {around.commit}, {around.command}\n{around.machine}\n{there}", file=sys.stderr)
    tools = [tool for tool in options.tools if PACKAGES.get(tool, "torch") in there]
    for tool in sorted(set(options.tools) - set(tools)):
        print(f"{tool}: left out, {options.python} has no {PACKAGES[tool]}", file=sys.stderr)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="fastload-zoo-") as temporary:
        for seed in options.seed or [0]:
            for pipeline in drawn(seed, options.names):
                if pipeline.needs:
                    print(f"{pipeline.name}: left out, it needs {pipeline.needs}", file=sys.stderr)
                    continue
                folder = (options.keep or Path(temporary)).resolve() / str(seed) / pipeline.name
                try:
                    row = measure(pipeline, seed, folder, options.python, tools)
                except ToolError as error:
                    print(f"{pipeline.name}: {error}", file=sys.stderr)
                    return rows
                rows.append(row)
                if options.json:
                    with options.json.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(asdict(row)) + "\n")
    return rows


def report(rows: Sequence[Row], markdown: Path | None) -> None:
    """Print the tables, and write them to a file if wanted."""
    tools = [tool for tool in TOOLS if any(tool in row.seen for row in rows)]
    tables = [counts(rows, tools), list_of(rows, tools), fixes(rows, tools)]
    console = Console() if sys.stdout.isatty() else Console(width=200)
    console.print(*tables)
    console.print(unsteady(rows))
    if markdown:
        markdown.write_text(f"{in_markdown(tables)}\n{unsteady(rows)}\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
