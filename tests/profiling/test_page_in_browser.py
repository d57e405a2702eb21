"""The page in a real browser: it complains of nothing, asks the network for nothing, and shows what it says.

Where there is no Chromium the tests are skipped; with ``FASTLOAD_REQUIRE_BROWSER=1`` that is a failure.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser import Browser, BrowserError, Tab, chromium
from profile_analyses import HOSTILE, all_kinds
from profiled import profile, write

from fastload.profiling.command import HTML, load_analysis
from fastload.profiling.formatting import ms, printable
from fastload.profiling.page import page

KINDS = all_kinds()
STRAINED = (
    "verdict read",
    "bare",
    "no ranks",
    "eight ranks",
    "large",
    "hostile",
    "unknown costs",
    "one step",
    "unheard",
)
"""Kinds that differ in what is on the page."""
WIDTHS = (390, 768, 1280)
"""A phone, a tablet, a desk; CSS pixels."""

TOO_WIDE = """
(() => {
  document.querySelectorAll("details").forEach((one) => { one.open = true; });
  const found = [...document.querySelectorAll("body *")].filter((one) => {
    if (one.closest(".scroll, pre") && !one.matches(".scroll, pre")) return false; // these can be scrolled
    const box = one.getBoundingClientRect();
    return box.width > 0 && (box.right > WIDTH + 0.5 || box.left < -0.5);
  });
  return [document.scrollingElement.scrollWidth, found.map((one) => `${one.tagName}.${one.className} #${one.id}`)];
})()
"""
"""The width that the page needs, and elements that stick out of the window."""

PALE = """
(() => {
  document.querySelectorAll("details").forEach((one) => { one.open = true; });
  const parts = (color) => {
    if (!/^rgba?\\(/.test(color)) throw new Error(`a colour that is not understood: ${color}`);
    const [red, green, blue, alpha = 1] = color.match(/[\\d.]+/g).map(Number);
    return { alpha, rgb: [red, green, blue] };
  };
  const over = (under, { alpha, rgb }) => rgb.map((value, place) => value * alpha + under[place] * (1 - alpha));
  const behind = (element) => {
    const layers = [];
    for (let one = element; one; one = one.parentElement) layers.unshift(parts(getComputedStyle(one).backgroundColor));
    return layers.reduce(over, [255, 255, 255]);
  };
  const light = (rgb) => {
    const [red, green, blue] = rgb.map((value) => value / 255)
      .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  let number = 0;
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement, range = document.createRange();
    range.selectNodeContents(node);
    if (!node.data.trim() || !range.getClientRects().length) continue;
    number += 1;
    const back = behind(element), ink = light(over(back, parts(getComputedStyle(element).color))), ground = light(back);
    const ratio = (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
    if (ratio < 4.5) found.push(`${ratio.toFixed(2)} ${element.tagName}.${element.className}: ${node.data.trim()}`);
  }
  return [number, found];
})()
"""
"""The number of shown texts, and those that differ too little from what is behind them (WCAG 2.2, 1.4.3)."""

COLOURS = """
(() => {
  const canvas = document.querySelector("CANVAS"), brush = canvas.getContext("2d");
  const pixels = new Uint32Array(brush.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
  return new Set(pixels).size;
})()
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    required = os.environ.get("FASTLOAD_REQUIRE_BROWSER", "") not in ("", "0")
    program = chromium(os.environ.get("PATH"), required)
    with Browser(program, tmp_path_factory.mktemp("browser")) as one:
        yield one


@pytest.fixture
def tab(browser: Browser) -> Iterator[Tab]:
    with browser.tab() as one:
        yield one


@pytest.fixture
def file_of(tmp_path: Path) -> Callable[[str], Path]:
    def write_page(kind: str) -> Path:
        path = tmp_path / "profile.html"
        path.write_text(page(KINDS[kind]), encoding="utf-8")
        return path

    return write_page


def shown(tab: Tab, selector: str) -> list[str]:
    """Return the texts of the elements that can be seen."""
    words = (
        "[...document.querySelectorAll(%r)].filter((one) => one.checkVisibility()).map((one) => one.innerText.trim())"
    )
    found = tab.evaluate(words % selector)
    assert isinstance(found, list)
    return found


# -- the browser itself -----------------------------------------------------------------------------------------------


def test_without_a_browser_tests_are_skipped_unless_one_is_required(tmp_path):
    with pytest.raises(pytest.skip.Exception, match="FASTLOAD_REQUIRE_BROWSER=1 makes this a failure"):
        chromium(str(tmp_path), required=False)
    with pytest.raises(pytest.fail.Exception, match="there is no chromium"):
        chromium(str(tmp_path), required=True)


@pytest.mark.slow
def test_what_a_page_does_wrong_is_noticed(tab, tmp_path):
    path = tmp_path / "bad.html"
    path.write_text(
        "<meta name=viewport content='width=device-width'><body style='background:#fff;color:#bbb'>pale"
        "<div style='width:900px'>wide</div><img src='http://127.0.0.1:9/nothing.png'>"
        "<script>console.warn('careful'); alert('hello'); throw new Error('thrown away')</script>",
        encoding="utf-8",
    )
    tab.open(path, width=390)
    said = "\n".join(tab.complaints())
    assert "warning: careful" in said
    assert "alert: hello" in said
    assert "thrown: Uncaught" in said
    assert "http://127.0.0.1:9/nothing.png" in tab.requests()
    width, wide = tab.evaluate(TOO_WIDE.replace("WIDTH", "390"))
    assert width > 390
    assert wide
    assert len(tab.evaluate(PALE)[1]) == 2
    with pytest.raises(BrowserError, match="no such thing"):
        tab.evaluate("(() => { throw new Error('no such thing') })()")


# -- every page -------------------------------------------------------------------------------------------------------


SECTIONS = ["Why", "What to change", "Steps", "Timeline", "Slowest samples", "Workers and loader"]
ABSENT = {"unheard": {"Slowest samples"}, "bare": {"Steps", "Timeline", "Slowest samples"}}
"""What is left out where nothing is known of it."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_page_has_all_sections_complains_of_nothing_and_asks_the_network_for_nothing(kind, tab, file_of):
    path = file_of(kind)
    tab.open(path)
    if kind not in ("eight ranks", "no ranks"):
        assert shown(tab, "h2") == [
            *(name for name in SECTIONS if name not in ABSENT.get(kind, ())),
            "This recording",
        ]
    assert len(shown(tab, "h1")) == 1
    assert tab.complaints() == []
    assert tab.requests() == [path.as_uri()]


@pytest.mark.slow
@pytest.mark.parametrize("kind", STRAINED)
def test_nothing_is_wider_than_the_window(kind, tab, file_of):
    tab.open(file_of(kind))
    for width in WIDTHS:
        tab.resize(width)
        needed, sticking_out = tab.evaluate(TOO_WIDE.replace("WIDTH", str(width)))
        assert needed <= width
        assert sticking_out == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", STRAINED)
def test_all_text_can_be_read(kind, scheme, tab, file_of):
    tab.open(file_of(kind), scheme=scheme)
    backgrounds = {"light": "rgb(246, 247, 248)", "dark": "rgb(20, 23, 26)"}
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == backgrounds[scheme]
    number, pale = tab.evaluate(PALE)
    assert number > 10
    assert pale == []


# -- fixes ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_fixes_have_their_bounds(tab, file_of):
    tab.open(file_of("verdict read"))
    assert shown(tab, ".gain") == [
        "at most 1.5x; fastload tune measures it",
        "at most 1.1x; record again to measure it",
    ]
    tab.open(file_of("unknown costs"))
    assert "None: how the batches were made is not known" in "\n".join(shown(tab, "section"))


# -- steps, timeline, ranks -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["verdict read", "large", "one step", "hostile"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_steps_and_timeline_are_drawn(kind, scheme, tab, file_of):
    tab.open(file_of(kind), scheme=scheme)
    for canvas in ("#strip-0", "#timeline-0"):
        assert tab.evaluate(COLOURS.replace("CANVAS", canvas)) > 5


@pytest.mark.slow
def test_a_step_that_is_pointed_at_tells_its_numbers(tab, file_of):
    tab.open(file_of("verdict read"), height=4000)
    place = tab.evaluate("document.getElementById('strip-0').getBoundingClientRect().toJSON()")
    tab.point_at(place["right"] - 2, place["top"] + place["height"] / 2)
    step = KINDS["verdict read"].ranks[0].steps[-1]
    said = tab.evaluate("document.getElementById('strip-says-0').textContent")
    assert said.startswith(f"Step 199 (batch 199): waited {ms(step.wait_ms)} ms; stall {ms(step.stall_ms)} ms: read ")
    tab.evaluate("document.getElementById('strip-0').focus()")
    tab.press("Home")
    tab.press("Enter")
    for place in ("strip", "timeline"):
        said = tab.evaluate(f"document.getElementById('{place}-says-0').textContent")
        assert said.startswith("Step 0 (batch 0, warm-up): ")


@pytest.mark.slow
def test_what_keys_reach_shows_that_it_has_the_focus(tab, file_of):
    tab.open(file_of("verdict read"))
    visited = []
    while "strip-0" not in visited:
        tab.press("Tab")
        visited.append(tab.evaluate("document.activeElement.id"))
        assert len(visited) < 20
        outline = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", f"{visited[-1]} has the focus, and does not show it"
    tab.press("ArrowRight")
    assert tab.evaluate("document.getElementById('strip-says-0').textContent").startswith("Step 0 (")


@pytest.mark.slow
def test_another_rank_can_be_looked_at(tab, file_of):
    tab.open(file_of("eight ranks"))
    assert "Why: rank 5" in shown(tab, "h2")
    tab.evaluate("document.getElementById('rank').focus()")
    tab.press("Home")
    assert "Why: rank 0" in shown(tab, "h2")
    assert "Why: rank 5" not in shown(tab, "h2")
    assert tab.evaluate(COLOURS.replace("CANVAS", "#timeline-0")) > 5
    assert tab.complaints() == []


# -- what others wrote ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_hostile_names_are_text(tab, file_of):
    tab.open(file_of("hostile"))
    for selector in (".command", ".sentence", ".verdict ul:not(.legend) li", ".fixes h3", "td.file", ".missing dt"):
        assert printable(HOSTILE) in shown(tab, selector)[0]
    assert printable(HOSTILE.partition("\n")[0]) in shown(tab, ".fixes pre")[0]  # a change of code has lines
    assert tab.evaluate("document.scripts.length") == 2
    assert tab.evaluate("document.querySelectorAll('img, iframe, object, link:not([rel=icon])').length") == 0
    tab.evaluate("document.getElementById('strip-0').focus()")
    tab.press("Home")
    assert printable(HOSTILE) in tab.evaluate("document.getElementById('strip-says-0').textContent")
    assert tab.complaints() == []


# -- on paper ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["verdict read", "eight ranks"])
def test_what_is_printed_is_dark_on_white_and_needs_no_hand(kind, tab, file_of):
    tab.open(file_of(kind), width=700, scheme="dark")
    tab.prefer("dark", media="print")
    assert tab.evaluate("getComputedStyle(document.querySelector('h1')).color") == "rgb(26, 29, 33)"
    assert tab.evaluate(PALE)[1] == []
    assert shown(tab, "button, input, select, .readout") == []
    assert tab.pdf().startswith(b"%PDF")


# -- a recording ------------------------------------------------------------------------------------------------------

SCRIPT = """
class Files(Dataset):
    def __init__(self, folder):
        self.files = sorted(os.path.join(root, name) for root, _, names in os.walk(folder) for name in names)

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        with open(self.files[index], "rb") as file:
            data = file.read()
        time.sleep(0.002 if data == b"quick" else 0.02)
        return torch.full((4,), index)

loader = DataLoader(Files("data"), batch_size=4, num_workers=2, persistent_workers=True)
for epoch in range(4):
    for batch in loader:
        pass
"""


@pytest.mark.thorough
def test_the_page_of_a_recording_shows_its_files_and_runs_none_of_them(tab, tmp_path):
    (tmp_path / "data").mkdir()
    for number in range(46):
        (tmp_path / "data" / f"{number:02}.jpg").write_bytes(b"quick")
    folder = tmp_path / "data" / "\"'><script>alert(1)<"
    folder.mkdir()
    slow = [folder / "script>.jpg", tmp_path / "data" / os.fsdecode(b"\xff<img src=x onerror=alert(1)>.jpg")]
    for path in slow:
        path.write_bytes(b"slow")
    done = profile(tmp_path, write(tmp_path, SCRIPT))
    assert done.status == 0, done.errors
    analysis = load_analysis(str(done.folder))
    tab.open(done.folder / HTML)
    assert tab.complaints() == []
    assert tab.requests() == [(done.folder / HTML).as_uri()]
    tab.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    names = set(shown(tab, "td.file"))
    assert names >= {printable(str(Path(*path.parts[len(tmp_path.parts) :]))) for path in slow}
    assert shown(tab, ".sentence")[0].startswith(analysis.ranks[0].verdict.sentence)
    for width in WIDTHS:
        tab.resize(width)
        needed, sticking_out = tab.evaluate(TOO_WIDE.replace("WIDTH", str(width)))
        assert needed <= width
        assert sticking_out == []
