"""Drawings of rows: bars and lines in SVG, in light and dark, written by hand so that nothing has to be installed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.figures.layout import digits, rate
from benchmarks.figures.rows import Row, Rows
from benchmarks.figures.tables import HALF_RAW, PEERS, WORDS, measured

_WIDTH, _LABELS, _BAR, _STEP, _TOP = 760, 330, 15, 23, 62
_STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de; }
  text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #1f2328; }
  .title { font-size: 15px; font-weight: 600; }
  .small { font-size: 12px; fill: #57606a; }
  .label { text-anchor: end; }
  polyline.line { fill: none; stroke-width: 2; } .line.ours { stroke: #3b78c9; } .line.theirs { stroke: #8c959f; }
  .line.other { stroke: #3b78c9; stroke-dasharray: 5 4; } .grid { stroke: #d0d7de; } .middle { text-anchor: middle; }
  .ours { fill: #3b78c9; } .theirs { fill: #b6bec8; } .rule { stroke: #57606a; stroke-dasharray: 3 3; }
  @media (prefers-color-scheme: dark) {
    .card { fill: #161b22; stroke: #3d444d; }
    text { fill: #e6edf3; }
    .small { fill: #9da7b3; }
    .grid { stroke: #3d444d; } .line.ours, .line.other { stroke: #6ea8f5; }
    .ours { fill: #6ea8f5; } .theirs { fill: #57606a; } .rule { stroke: #9da7b3; }
  }
"""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar, with what stands before and behind it."""

    label: str
    value: float
    text: str
    ours: bool = True


def bars(title: str, below: str, found: Sequence[Bar], *, rule: float | None = None) -> str:
    """Return a drawing of horizontal bars; ``rule`` is a value at which a line is drawn through all of them."""
    scale = (_WIDTH - _LABELS - 80) / max(bar.value for bar in found)
    parts = _head(title, below, _WIDTH, _TOP + _STEP * len(found) + 14)
    for number, bar in enumerate(found):
        top = _TOP + _STEP * number
        width = max(1.0, bar.value * scale)
        kind = "ours" if bar.ours else "theirs"
        parts += [
            f'<text class="label" x="{_LABELS - 10}" y="{top + 12}">{escape(bar.label)}</text>',
            f'<rect class="{kind}" x="{_LABELS}" y="{top}" width="{width:.1f}" height="{_BAR}" rx="2"/>',
            f'<text class="small" x="{_LABELS + width + 7:.1f}" y="{top + 12}">{escape(bar.text)}</text>',
        ]
    if rule is not None:
        x, bottom = _LABELS + rule * scale, _TOP + _STEP * len(found) - 4
        parts.append(f'<line class="rule" x1="{x:.1f}" y1="{_TOP - 5}" x2="{x:.1f}" y2="{bottom}"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _head(title: str, below: str, width: int, height: int) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-labelledby="title">',
        f'<title id="title">{escape(title)}</title>',
        f"<style>{_STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>',
        f'<text class="title" x="20" y="27">{escape(title)}</text>',
        f'<text class="small" x="20" y="46">{escape(below)}</text>',
    ]


_SCALES = {
    "workers": "workers that wait (dashed: threads)",
    "ranks": "ranks of one machine",
    "files": "files in a list, spawned workers",
    "indices": "indices (dashed: seed=1)",
}


def scale(rows: Rows) -> str:
    """Time to the first batch against size, a panel for each kind of size; both axes are logarithmic."""
    found = [row for row in rows.suite("engine") if row.case.startswith("scale-") and row.metric == "first batch ms"]
    parts = _head("Time to the first batch, by size", f"blue: fastload, grey: torch. {_where(found)}", 560, 440)
    kinds = {"torch": "theirs", "fastload": "ours"}
    for number, (what, words) in enumerate(_SCALES.items()):
        of_panel = [row for row in found if row.case.startswith(f"scale-{what}-")]
        left, top = 62 + 268 * (number % 2), 92 + 182 * (number // 2)
        parts.append(f'<text x="{left}" y="{top - 12}">{words}</text>')
        for power, tick in enumerate(("1 ms", "10 ms", "0.1 s", "1 s", "10 s")):
            y = top + 120 - 28 * power
            parts.append(f'<path class="grid" d="M{left} {y}h206"/>')
            parts.append(f'<text class="small label" x="{left - 6}" y="{y + 4}">{tick}</text>')
        across = {
            case: left + 20 + 83 * place for place, case in enumerate(dict.fromkeys(row.case for row in of_panel))
        }
        for case, x in across.items():
            size = int(case.rpartition("-")[2])
            parts.append(f'<text class="small middle" x="{x}" y="{top + 140}">{size:,}</text>')
        for side in dict.fromkeys(row.side for row in of_panel):
            values = {across[row.case]: math.log10(row.value or 1) for row in of_panel if row.side == side}
            points = " ".join(f"{x},{top + 120 - 28 * power:.1f}" for x, power in values.items())
            parts.append(f'<polyline class="line {kinds.get(side, "other")}" points="{points}"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


SHORT = {
    "own_v1": "own Dataset class, transforms v1",
    "own_v2": "own Dataset class, v2",
    "own_v2_tensors": "own Dataset class, v2, ToImage first",
    "own_resize": "own Dataset class, Resize, CenterCrop",
    "two_views": "own Dataset class, two views",
    "imagefolder": "ImageFolder: RandomResizedCrop, flip",
    "imagefolder_png": "ImageFolder of PNG files",
    "imagefolder_trivial": "ImageFolder: TrivialAugmentWide",
    "simclr": "ImageFolder, two views: jitter, blur",
    "yolo": "YOLO: cv2 letterbox, HSV jitter",
    "ultralytics_yolo": "Ultralytics' own loader, mosaics",
    "hf_masked_tokens": "Hugging Face, masked tokens",
    "segmentation": "segmentation: PIL image, mask",
    "segmentation_tensors": "segmentation: tv_tensors",
    "hf_images": "Hugging Face datasets, images",
    "webdataset_pipeline": "webdataset, batched in the pipeline",
    "webdataset_loader": "webdataset, batched by the loader",
    "lerobot_actions": "LeRobot: a frame, 50 actions",
    "lerobot_cameras": "LeRobot: three cameras, 50 actions",
    "lerobot_history": "LeRobot: two frames in float32",
    "lerobot_frames": "LeRobot: a frame, no actions",
    "hf_tokens": "Hugging Face datasets, tokens",
    "tensordataset": "TensorDataset, batches of 256",
}
"""Pipelines whose words are too long for a drawing, or make sense in the table's order only."""


def _plain(words: str) -> str:
    return words.replace("`", "").replace("**", "")


def _when(rows: Sequence[Row]) -> str:
    dates = sorted({row.date for row in rows})
    return dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"


def _where(rows: Sequence[Row]) -> str:
    runs = list(dict.fromkeys((row.date, row.machine) for row in rows))
    return "; ".join(f"{date}, {machine}" for date, machine in runs)


def pipelines(rows: Rows) -> str:
    """How many times as fast each pipeline is with only the import changed."""
    found = sorted(measured(rows), key=lambda row: row.ratio or 0, reverse=True)
    every = []
    for row in found:
        name, ratio = row.case.partition(",")[0], row.ratio or 0
        every.append(Bar(label=SHORT.get(name, _plain(WORDS[name])), value=ratio, text=digits(ratio)))
    below = f"torch's loader is 1; two workers. Measured {_when(found)}; the table names the machines"
    return bars("Samples a second with only the import changed, as multiples of torch's loader", below, every, rule=1)


def peers(rows: Rows) -> str:
    """Images a second of fastload and other loaders, of the run that had most of them: others are of other machines."""
    found = rows.fullest_run("peers", "images-float32", "images/s")
    found.sort(key=lambda row: row.value or 0, reverse=True)
    every = [
        Bar(
            label=_plain(PEERS.get(row.side, row.side)).replace(HALF_RAW, "FFCV, its own file, half raw"),
            value=row.value or 0,
            text=rate(row.value or 0),
            ours=row.side.startswith("fastload"),
        )
        for row in found
    ]
    below = f"RandomResizedCrop(224), flip, float32; two workers. {_where(found)}"
    return bars("ImageNet files, images a second", below, every)
