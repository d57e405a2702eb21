"""Tables of what a loader is made of, and of other work: each a function of the rows that returns Markdown."""

from collections import Counter
from collections.abc import Sequence

from benchmarks.figures.layout import Cell, digits, line, markdown, rate, ratio_cell, value_cell
from benchmarks.figures.rows import Rows
from benchmarks.figures.tables import FUSED

STEADY, ALL, FIRST = "samples/s steady", "samples/s", "first batch ms"
OURS, SEED = "fastload", "fastload seed=1"
THREADS = "fastload fuse=True, threads"
SIXTEEN = "fastload, 16 threads"

# What is measured, in words; case; fastload's side; metric.
WORK: Sequence[tuple[str, str, str, str]] = (
    ("batches of 32 small ready tensors", "tensors32-ready", OURS, STEADY),
    ("32 samples of 32 small tensors, collated", "tensors32-collated", OURS, STEADY),
    ("`TensorDataset`, batches of 256", "tiny-tensors-2-workers", OURS, STEADY),
    ("the same, no workers", "tiny-tensors-0-workers", OURS, STEADY),
    ("padded token sequences, a `collate_fn` of one's own", "custom_collate", OURS, STEADY),
    ("the same, `seed=1`", "custom_collate", SEED, STEADY),
    ("24 tensors of unequal shapes a sample, which a `collate_fn` keeps as lists", "ragged-2-workers", OURS, STEADY),
    ("ImageFolder, `fuse=True`, float32", "fuse-imagefolder-float32", FUSED, STEADY),
    ("the same, worker threads", "fuse-imagefolder-float32", THREADS, STEADY),
    ("ImageFolder, `fuse=True`, left as bytes", "fuse-imagefolder-uint8", FUSED, STEADY),
    ("ImageFolder, `fuse=True`: first batch, ms", "fuse-imagefolder-first-batch", FUSED, FIRST),
    ("CIFAR-10's size in memory, `fuse=True`, batches of 512", "fuse-cifar", FUSED, STEADY),
    ("the same, no workers", "fuse-cifar-inline", FUSED, STEADY),
    ("images of CIFAR's size, one at a time: pad-crop, flip", "cifar", OURS, STEADY),
    ("the same, `seed=1`", "cifar", SEED, STEADY),
    ("the same, no workers", "inline", OURS, STEADY),
    ("no workers, `seed=1`", "inline", SEED, STEADY),
    ("windows of tokens, no workers", "tokens-0-workers", OURS, STEADY),
    ("the same, `seed=1`", "tokens-0-workers", SEED, STEADY),
    ("integers, no workers: nothing but the loader", "tiny-integers-0-workers", OURS, STEADY),
    ("the same, `seed=1`", "tiny-integers-0-workers", SEED, STEADY),
    ("integers, 2 workers", "tiny-integers-2-workers", OURS, STEADY),
    ("rows of a column-major table", "strided-table-2-workers", OURS, ALL),
    ("the same: first batch, ms", "strided-table-2-workers", OURS, FIRST),
    ("windows `data[:, a:b]`", "strided-windows-2-workers", OURS, ALL),
    ("Hugging Face datasets: 256 tokens a row, format torch, batches of 32", "tables-torch-32-2-workers", OURS,
     STEADY),
    ("the same, no workers", "tables-torch-32-0-workers", OURS, STEADY),
    ("batches of 256, no workers", "tables-torch-256-0-workers", OURS, STEADY),
    ("100 MB of strings, workers forked: first batch, ms", "startup-fork-objects", OURS, FIRST),
    ("the same, spawned", "startup-spawn-objects", OURS, FIRST),
    ("eight workers, spawned: first batch, ms", "startup-spawn-8-workers", OURS, "first loader ms"),
    ("the same, by forkserver", "startup-forkserver-8-workers", OURS, "first loader ms"),
    ("the same, the second loader", "startup-forkserver-8-workers", OURS, "second loader ms"),
    ("gap between epochs, persistent workers, ms", "startup-epoch-gap-persistent-workers", OURS, "gap ms"),
    ("samples of lognormal cost, 4 workers: time over a perfect schedule", "heavy_tail-lognormal-4-workers", SEED,
     "x of bound as slept"),
    ("one sample in a hundred slow: time over a perfect schedule", "heavy_tail-rare-4-workers", SEED,
     "x of bound as slept"),
    ("JPEG files that take 20 ms to come, 2 workers: `worker_threads=16`", "waiting-server", SIXTEEN, STEADY),
    ("the same beside torch's loader with 32 workers", "waiting-server-32-workers", SIXTEEN, STEADY),
    ("the same: memory (PSS), MiB", "waiting-server-32-workers", SIXTEEN, "PSS MiB"),
    ("files that do not wait: `worker_threads=2` beside 1", "waiting-nothing", "fastload, 2 threads", STEADY),
    ("growth from batch 100 to batch 1,000, MiB", "memory-images", OURS, "growth MiB"),
    ("256 workers that wait 50 ms a sample: first batch, ms", "scale-workers-256", OURS, FIRST),
    ("the same with 16 of 16 threads: memory (PSS), MiB", "scale-workers-256", "fastload, threads", "PSS MiB"),
    ("16 ranks: first batch, ms", "scale-ranks-16", OURS, FIRST),
    ("a shuffled epoch of 10^8 indices, s", "scale-indices-100000000", OURS, "epoch s"),
    ("the same, `seed=1`", "scale-indices-100000000", SEED, "epoch s"),
    ("no loader at all: two processes that load JPEG files and drop them", "imagefolder-bound", "no loader", STEADY),
)  # fmt: skip


def work(rows: Rows) -> str:
    """Other work than images from files: many samples a second, start, memory; where fastload loses, too."""
    about = "Samples a second unless stated otherwise; two workers unless stated otherwise."
    return _pairs(rows, "engine", WORK, ("work", "torch", "fastload"), about)


def stages(rows: Rows) -> str:
    """Others' benchmarks, all that was compared."""
    found = [row for row in rows.suite("stages") if row.ratio_of]
    listed = [(f"{row.case}: {row.side}, {row.metric}".removesuffix(", images/s"), *row.key) for row in found]
    return _pairs(rows, "stages", listed, ("case", "it, images/s", "fastload"), "")


def _pairs(rows: Rows, suite: str, listed: Sequence[tuple[str, str, str, str]], head: Sequence[str], about: str) -> str:
    """Return a table of two sides each: fastload's, and the one that it is compared with."""
    lines = []
    for words, case, side, metric in listed:
        if (found := rows.get(suite, case, side, metric)) is not None:
            ours, _, theirs = found.ratio_of.partition(" / ")
            first = rows.beside(suite, found, theirs or "torch")
            second = rows.beside(suite, found, ours) if side == theirs else found
            lines.append(line(words, value_cell(first), value_cell(second), ratio_cell(found, with_spread=True)))
    return markdown((*head, "times as good (95 %)"), lines, about=about)


def training(rows: Rows) -> str:
    lines = []
    for row in rows.suite("training"):
        low, high = (rate(end) if end is not None else "" for end in (row.low, row.high))
        lines.append(line(row.metric, Cell(f"{rate(row.value or 0)} ({low} to {high})", (row,)), row.note))
    return markdown(("cifar10-proxy, 5 epochs", "median (range)", ""), lines)


def versions(rows: Rows) -> str:
    """The versions of Python and of packages that tests ran with; and those that could not be had."""
    lines, pairs = [], dict.fromkeys(row.case for row in rows.suite("versions"))
    for pair in pairs:
        # The pair's last run counts, whether the tests ran or something was missing.
        last = rows.all_of("versions", pair)[-1]
        if last.value is None:
            python, torch, numpy, pillow = [*pair.split(":"), "newest"][:4]
            lines.append(line(python, torch, "", numpy, pillow, Cell(f"not run: {last.note}", (last,)), "", ""))
            continue
        counts = [rows.beside("versions", last, metric=metric) for metric in ("passed", "failed", "skipped")]
        named = dict(text.split(" ", 1) for text in last.versions.split(", "))
        names = ("Python", "torch", "torchvision", "NumPy", "Pillow")
        lines.append(line(*(named[name] for name in names), *(Cell(f"{row.value:,.0f}", (row,)) for row in counts)))
    return markdown(("Python", "torch", "torchvision", "NumPy", "Pillow", "passed", "failed", "skipped"), lines)


def conformance(rows: Rows) -> str:
    """Results of other projects' tests with torch's class and with fastload in its place, and which of them differ."""
    lines = []
    for case in dict.fromkeys(row.case for row in rows.suite("conformance")):
        last = rows.all_of("conformance", case)[-1]
        of_run = [row for row in rows.all_of("conformance", case) if row.run == last.run]
        name, *part = case.split("-")
        package = next(text for text in last.versions.split(", ") if text.lower().startswith(f"{name} "))
        cells: list[str | Cell] = [", ".join((package, *part)), of_run[0].note]
        for side in ("torch", "fastload"):
            counts = [rows.beside("conformance", last, side, metric) for metric in ("passed", "failed", "skipped")]
            cells.append(Cell(" / ".join(f"{row.value:,.0f}" for row in counts), tuple(counts)))
        reasons = Counter(row.note for row in of_run if row.value is None)
        differ = [f"{count}: {why or 'not explained'}" for why, count in reasons.items()]
        lines.append(line(*cells, "; ".join(differ) or "none"))
    return markdown(
        ("tests of", "sources", "torch", "fastload", "different"), lines, about="Passed / failed / skipped."
    )


def gpu(rows: Rows) -> str:
    lines = []
    for row in rows.suite("gpu"):
        ratio: str | Cell = "" if row.ratio is None else Cell(f"{digits(row.ratio)}: {row.ratio_of}", (row,))
        value = value_cell(row, with_spread=True) if row.value is not None else ""
        lines.append(line(row.case, row.side, row.metric, value, ratio))
    if not lines:
        lines.append(line("all cases", "all sides", "", "not verified: no GPU", ""))
    return markdown(("case", "side", "what", "median (quartiles)", "ratio"), lines)
