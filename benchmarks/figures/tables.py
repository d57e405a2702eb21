"""The tables that documents show: each a function of the rows that returns Markdown."""

import statistics

from benchmarks.figures.layout import Cell, Line, digits, line, markdown, ratio_cell, value_cell
from benchmarks.figures.rows import Row, Rows
from benchmarks.pipelines.catalogue import PIPELINES

STEADY, FIRST = "samples/s steady", "first batch ms"
FUSED = "fastload fuse=True"
WORDS = {name: one.what for name, one in PIPELINES.items()}
"""A pipeline of ``benchmarks/pipelines`` in words for readers."""


RATIO = "Ratios to torch's loader, above 1 in fastload's favour: 2 means twice as fast."


def pipeline(rows: Rows, name: str, metric: str = STEADY, workers: int = 2) -> Row:
    return rows.find("pipelines", f"{name}, {workers} workers", "fastload", metric)


def measured(rows: Rows, workers: int = 2) -> list[Row]:
    """Return the rows of all pipelines that were measured with so many workers."""
    found = (rows.get("pipelines", f"{name}, {workers} workers", "fastload", STEADY) for name in WORDS)
    return [row for row in found if row is not None]


def all_pipelines(rows: Rows, workers: int = 2) -> Cell:
    found = measured(rows, workers)
    ratios = [row.ratio for row in found if row.ratio is not None]
    return Cell(f"{digits(statistics.median(ratios))} (worst {digits(min(ratios))})", tuple(found))


STREAMS = (
    ("files opened with Pillow: first batch, of torch's time", "Pillow, first batch"),
    ("files opened with cv2: first batch, of torch's time", "cv2, first batch"),
    ("text of uneven length: samples a second, of torch's", "text of uneven length"),
    ("22 pipelines, only the import changed: the same, median", "22 pipelines"),
)


def streams(rows: Rows) -> str:
    """What torch's random streams cost beside a key for each sample."""
    lines = [
        line(words, *(value_cell(row) for row in rows.suite("by_hand") if row.case == f"streams: {case}"))
        for words, case in STREAMS
    ]
    about = "Two workers; first batches: a fresh process, batches of 50; samples a second: steady."
    return markdown(("", "no `seed`: torch's streams", "with keys"), lines, about=about, short=True)


def pipelines(rows: Rows) -> str:
    """All pipelines with only the import changed, with two workers and none."""
    lines = []
    for name, words in WORDS.items():
        case = f"{name}, 2 workers"
        if (ours := rows.get("pipelines", case, "fastload", STEADY)) is None:
            continue
        cells = [words, value_cell(ours), ratio_cell(ours, with_spread=True)]
        cells += [ratio_cell(pipeline(rows, name, metric)) for metric in ("CPU us/sample", FIRST)]
        inline = rows.get("pipelines", f"{name}, 0 workers", "fastload", STEADY)
        lines.append(line(*cells, "" if inline is None else ratio_cell(inline)))
    everything = [all_pipelines(rows), "", "", all_pipelines(rows, workers=0)]
    lines.append(line(f"all {len(lines)}: median", "", *everything))
    head = ("pipeline", "samples/s", "steady", "processor time", "first batch", "steady, without workers")
    return markdown(head, lines, about=RATIO)


CACHED = "fastload cache='2GiB'"


def cached(rows: Rows) -> str:
    """Pipelines with a cache, from the second epoch on."""
    lines = []
    for name, words in WORDS.items():
        if (ours := rows.get("pipelines", f"{name}, 2 workers", CACHED, STEADY)) is None:
            continue
        without = rows.beside("pipelines", ours, "fastload")
        times = Cell(digits((ours.value or 0) / (without.value or 1)), (ours, without))
        lines.append(line(words, value_cell(without), value_cell(ours), times, ratio_cell(ours)))
    head = ("pipeline", "without a cache, samples/s", "with it", "times as fast", "against torch")
    return markdown(head, lines, about="From the second epoch on, two workers, two cores.", short=True)


def peers(rows: Rows) -> str:
    """Other loaders, on JPEG files; what was measured in one run stands together, behind fastload's own rate."""
    newest = [row for row in rows.suite("peers") if row.case == "images-float32" and row.metric == "images/s"]
    others = [row for row in newest if row.side != "fastload"]
    others.sort(key=lambda row: row.value or 0, reverse=True)
    lines: list[Line] = []
    for run in sorted({row.run for row in others}, reverse=True):
        of_run = [row for row in others if row.run == run]
        for row in (rows.beside("peers", of_run[0], "fastload"), *of_run):
            left = rows.last("peers", ("images-uint8", row.side, row.metric), run)
            cells = [_rate_and_ratio(one) for one in (row, left)]
            lines.append(line(PEERS.get(row.side, row.side), *cells[0], *cells[1]))
    head = ("loader", "normalised to float32: images/s", "fastload / it", "left as bytes: images/s", "fastload / it")
    return markdown(head, lines, about="fastload / it: how many times as fast fastload is, with its 95 % interval.")


def _rate_and_ratio(row: Row | None) -> tuple[str | Cell, str | Cell]:
    return ("", "") if row is None else (value_cell(row), ratio_cell(row, with_spread=True))


def peers_cifar(rows: Rows) -> str:
    newest = [row for row in rows.suite("peers") if row.case == "cifar" and row.metric == "images/s"]
    newest.sort(key=lambda row: row.value or 0, reverse=True)
    lines = [line(PEERS.get(row.side, row.side), *_rate_and_ratio(row)) for row in newest]
    return markdown(("loader", "images/s", "fastload / it"), lines)


HALF_RAW = "FFCV, its own file of half raw images of at most 500 pixels"
PEERS = {
    "fastload": "**fastload**, `fuse=True`",
    "fastload, coefficients": "**fastload**, pack of coefficients",
    "torch": "torch and Pillow",
    "torchvision.io": "torch and torchvision.io",
    "DALI": "DALI on the CPU",
    "FFCV, half raw": HALF_RAW,
    "FFCV, JPEG": "FFCV, its own file of JPEGs",
    "SPDL": "SPDL, threads",
}
"""The sides of ``benchmarks/peers`` in words for readers."""
