"""Tables of ``benchmarks.scaling``: what a task costs, what clusters make of it, and how far that is right."""

from dataclasses import fields, replace

from benchmarks.figures.layout import Cell, line, markdown, rate, value_cell
from benchmarks.figures.rows import Rows
from benchmarks.scaling.measuring import VALIDATION
from benchmarks.scaling.model import CLUSTERS, JOBS, Cluster, Costs, in_tasks, narrowest

SUITE = "scaling"

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
    lines = []
    for side, (words, unit) in _COSTS.items():
        row = rows.find(SUITE, "costs", side, unit.replace("µ", "u"))
        lines.append(line(words, value_cell(row, unit=f" {unit}"), f"{rate(row.low or 0)} to {rate(row.high or 0)}"))
    return markdown(["what", "processor time", "quartiles"], lines)


def costs_in(rows: Rows) -> Costs:
    return Costs(**{row.side: row.value for row in rows.suite(SUITE) if row.case == "costs"})  # type: ignore[arg-type]


def scaling(rows: Rows) -> str:
    """Return what clusters make, with the chunks of local workers and of remote ones."""
    found, lines = costs_in(rows), []
    for words, job in JOBS.items():
        for cluster in CLUSTERS:
            cells = [words, str(cluster.workers), str(cluster.ranks)]
            for tasks in in_tasks(job, cluster):
                part, samples_per_s = narrowest(found, cluster, tasks)
                cells += [str(tasks.chunk), rate(samples_per_s), part]
            lines.append(line(*cells))
    head = ["samples", "workers", "ranks", "chunk as local", "samples/s", "limit", "chunk", "samples/s", "limit"]
    return markdown(head, lines)


def validation(rows: Rows) -> str:
    """Return what small clusters made, beside what the costs say of them, with the cores that others left."""
    found, lines = costs_in(rows), []
    for row in rows.suite(SUITE):
        if not row.case.startswith("validation: "):
            continue
        name, count = row.case.removeprefix("validation: "), row.side.split()[0]
        slower = 2 / max(0.2, 2 - float(row.others))
        on_others = {
            one.name: getattr(found, one.name) * (slower if one.name.endswith("_us") else 1.0) for one in fields(Costs)
        }
        cluster = Cluster(workers=int(count), workers_per_node=1, cores=2)
        computed = narrowest(replace(found, **on_others), cluster, VALIDATION[name][0])[1]
        lines.append(line(name, count, value_cell(row, with_spread=True), rate(computed), Cell(row.others)))
    return markdown(["samples", "nodes", "measured, samples/s", "computed", "cores that others used"], lines)
