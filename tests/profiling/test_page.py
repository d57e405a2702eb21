"""The page: its text is escaped, it loads and runs nothing, and its pictures show what was recorded."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image
from profile_analyses import HOSTILE, all_kinds, analysis, rank

from fastload.profiling.formatting import printable
from fastload.profiling.page import page

KINDS = all_kinds()
GREEN, BLUE, RED = "#2e9149", "#3e7ccf", "#d64541"
"""Computing, waiting for storage, and waiting for a core."""


def pictures_of(text: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(one) for one in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]


def boxes(picture: ElementTree.Element, colour: str) -> list[dict[str, float]]:
    """Return places and sizes of the boxes of a colour."""
    found = [one.attrib for one in picture.iter("rect") if one.attrib["fill"] == colour]
    return [{name: float(one[name]) for name in ("x", "y", "width", "height")} for one in found]


def titles(picture: ElementTree.Element) -> list[str]:
    return [one.text or "" for one in picture.iter("title")]


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_loads_nothing_runs_nothing_and_draws_within_its_pictures(kind):
    text = page(KINDS[kind])
    assert "default-src 'none'" in text
    assert not re.search(r"<script|<img|https?://|javascript:", text)
    text.encode("utf-8")
    pictures = pictures_of(text)
    assert len(pictures) == sum(bool(one.steps) for one in KINDS[kind].ranks)
    for picture in pictures:
        wide, high = map(float, picture.attrib["viewBox"].split()[2:])
        for one in picture.iter("rect"):
            x, y, width, height = (float(one.attrib[name]) for name in ("x", "y", "width", "height"))
            assert 70 <= x <= x + width <= wide + 0.31
            assert 0 <= y <= y + height <= high


def test_text_from_outside_is_text():
    text = page(KINDS["hostile"])
    shown = printable(HOSTILE)
    assert "<script" in shown
    assert shown not in text
    # In the summary, the further facts and the tips of the pictures; lines of a change and of a file are not folded.
    assert text.count("&lt;/script&gt;&lt;script&gt;throw 1&lt;/script&gt;") > 200


def test_a_bar_is_a_step_of_computing_and_of_its_stall():
    (bars,) = pictures_of(page(analysis("read")))
    step = KINDS["verdict read"].ranks[0].steps[30]
    computed, waited = (boxes(bars, colour)[30] for colour in (GREEN, BLUE))
    assert computed["x"] == waited["x"]
    assert computed["y"] == pytest.approx(waited["y"] + waited["height"], abs=0.02)
    assert computed["height"] / waited["height"] == pytest.approx(
        (step.wait_ms + (step.loop_ms or 0.0) - step.stall_ms) / step.blame_ms["read"], rel=0.01
    )
    assert sum(one.attrib.get("opacity") == "0.4" and one.attrib["fill"] == GREEN for one in bars.iter("rect")) == 20
    assert titles(bars)[0].startswith("step 0 (warm-up): waited ")
    assert any(
        re.match(r"step 30: waited [\d.]+ ms, the loop took 107 ms; stall [\d.]+ ms: read", one) for one in titles(bars)
    )


def test_of_many_steps_the_slowest_share_bars_and_one_of_a_minute_is_cut_off():
    one = rank("read", num_steps=900)
    one.steps[450].stall_ms = one.steps[450].wait_ms = 60_000.0
    one.steps[450].blame_ms = {"read": 60_000.0}
    (bars,) = pictures_of(page(analysis("read", ranks=[one])))
    computed = boxes(bars, GREEN)
    assert len(computed) == 300
    assert sorted(box["height"] for box in computed)[150] > 20
    assert any(title.startswith("step 450: waited 60000 ms") for title in titles(bars))


def test_each_rank_has_its_part():
    text = page(KINDS["eight ranks"])
    assert text.count("<details>") == 7
    assert "<summary>rank 0: compute-bound</summary>" in text
    assert text.index("delays the others") < text.index("<details>")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["verdict read", "hostile"])
def test_a_browser_shows_it(kind, tmp_path: Path):
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next((found for name in names if (found := shutil.which(name)) is not None), None)
    if program is None:
        assert os.environ.get("FASTLOAD_REQUIRE_BROWSER", "") in ("", "0"), (
            "FASTLOAD_REQUIRE_BROWSER=1: no chromium in PATH"
        )
        pytest.skip("there is no chromium in PATH; FASTLOAD_REQUIRE_BROWSER=1 makes this a failure")
    path, picture = tmp_path / "page.html", tmp_path / "page.png"
    path.write_text(page(KINDS[kind]), encoding="utf-8")
    flags = (
        f"--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --window-size=1100,2000 --screenshot={picture}"
    )
    subprocess.run(
        [program, *flags.split(), path.as_uri()], check=True, timeout=100, env={**os.environ, "HOME": str(tmp_path)}
    )
    with Image.open(picture) as shown:
        colours = {colour for _, colour in shown.convert("RGB").getcolors(1 << 24) or []}
    main = BLUE if kind == "verdict read" else "#b07c10"
    assert {tuple(bytes.fromhex(colour[1:])) for colour in (GREEN, RED, main)} <= colours
