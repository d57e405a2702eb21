"""Tables of what a loader is made of, and of other work: each a function of the rows that returns Markdown."""

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
    ("24 small tensors of unequal shapes a sample, left apart", "ragged-2-workers", OURS, STEADY),
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
    ("no loader at all: two processes that load JPEG files and drop them", "imagefolder-bound", "no loader", STEADY),
)  # fmt: skip


def work(rows: Rows) -> str:
    """Other work than images from files: many samples a second, start, memory; where fastload loses, too."""
    lines = []
    for words, case, side, metric in WORK:
        ours = rows.get("engine", case, side, metric)
        if ours is None:
            continue
        others = [row for row in rows.suite("engine") if row.case == case and row.metric == metric]
        baseline = ours.ratio_of.partition(" / ")[2]
        theirs = next(row for row in others if row.side == (baseline or "torch"))
        theirs = rows.beside("engine", ours, theirs.side)
        lines.append(line(words, value_cell(theirs), value_cell(ours), ratio_cell(ours, with_spread=True)))
    return markdown(
        ("work", "torch", "fastload", "times as good (95 %)"), lines,
        about="Samples a second unless stated otherwise; two workers unless stated otherwise.",
    )  # fmt: skip


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


def gpu(rows: Rows) -> str:
    lines = []
    for row in rows.suite("gpu"):
        ratio: str | Cell = "" if row.ratio is None else Cell(f"{digits(row.ratio)}: {row.ratio_of}", (row,))
        value = value_cell(row, with_spread=True) if row.value is not None else ""
        lines.append(line(row.case, row.side, row.metric, value, ratio))
    if not lines:
        lines.append(line("all cases", "all sides", "", "not verified: no GPU", ""))
    return markdown(("case", "side", "what", "median (quartiles)", "ratio"), lines)
