"""Tables of ``benchmarks.scaling``: what a task costs, what a simulation makes of it, and how far it is right."""

from benchmarks.figures.layout import Cell, line, markdown, rate, value_cell
from benchmarks.figures.rows import Row, Rows

SUITE, SIMULATED = "scaling", "samples/s, simulated"

# Of a cost: what it is, in words; a unit.
_COSTS = {
    "python_us": ("the loader's Python: a task", "µs"),
    "stored_python_us": ("the same, more for a result in the object store", "µs"),
    "copy_us": ("the same, a megabyte into its batch", "µs"),
    "scan_us": ("the same, for each worker it has", "µs"),
    "ray_us": ("the loader's Ray thread: a task", "µs"),
    "stored_us": ("the same, more for a result in the object store", "µs"),
    "raylet_us": ("raylet of the loader's machine, main thread: a stored result", "µs"),
    "node_us": ("raylets of both machines, all threads: a stored result", "µs"),
    "node_mb_us": ("the same, a megabyte", "µs"),
    "worker_us": ("worker: a task, beside its samples", "µs"),
    "stored_worker_us": ("the same, more for a result in the object store", "µs"),
    "worker_mb_us": ("the same, a megabyte", "µs"),
    "call_ms": ("a call to an idle worker and back, by the clock", "ms"),
}


def costs(rows: Rows) -> str:
    """Return the measured costs."""
    lines = []
    for side, (words, unit) in _COSTS.items():
        row = rows.find(SUITE, "costs", side, unit.replace("µ", "u"))
        lines.append(line(words, value_cell(row, unit=f" {unit}"), f"{rate(row.low or 0)} to {rate(row.high or 0)}"))
    return markdown(["what", "processor time", "quartiles"], lines)


def _cells(row: Row) -> tuple[str, str, str]:
    chunk, _, limit = row.note.partition("; limit: ")
    return chunk.removeprefix("chunk "), rate(row.value or 0), limit


def scaling(rows: Rows) -> str:
    """Return what clusters make in the simulation, with the chunks of local workers and of remote ones."""
    lines = []
    for row in rows.suite(SUITE):
        if row.metric != SIMULATED or not row.side.endswith("chunks as remote"):
            continue
        before = rows.find(SUITE, row.case, row.side.replace("as remote", "as local"), SIMULATED)
        workers, ranks, _ = row.side.split(", ")
        lines.append(line(row.case, workers.split()[0], ranks.split()[0], *_cells(before), *_cells(row)))
    head = ["samples", "workers", "ranks", "chunk as local", "samples/s", "limit", "chunk", "samples/s", "limit"]
    return markdown(head, lines)


def validation(rows: Rows) -> str:
    """Return what small clusters made, beside their simulation."""
    lines = []
    for row in rows.suite(SUITE):
        if row.case.startswith("validation: ") and not row.side.endswith("simulated"):
            simulated = rows.find(SUITE, row.case, f"{row.side}, simulated", row.metric)
            names = row.case.removeprefix("validation: "), row.side.split()[0]
            measured = value_cell(row, with_spread=True)
            lines.append(line(*names, measured, Cell(rate(simulated.value or 0)), Cell(row.others)))
    return markdown(["samples", "nodes", "measured, samples/s", "simulated", "cores that others used"], lines)
