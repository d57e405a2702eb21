"""The reference pages have every command, every error and every public name."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import command_line_page
import pytest
from documentation_blocks import PAGES, ROOT, Block, blocks_of

import fastload
import fastload.images
import fastload.transforms
from fastload import errors

DOCS = ROOT / "docs"


def test_the_page_of_the_command_line_is_the_parsers() -> None:
    remedy = "python tests/documentation/command_line_page.py writes it"
    assert command_line_page.PAGE.read_text(encoding="utf-8") == command_line_page.render(), remedy


def test_the_reference_has_every_public_name_and_no_other() -> None:
    modules = (fastload, fastload.transforms, fastload.images)
    names = {f"{module.__name__}.{name}" for module in modules for name in module.__all__}
    shown = re.findall(r"(?m)^::: (fastload(?:\.transforms|\.images)?\.\w+)$", (DOCS / "api.md").read_text())
    assert {*shown} == names


def test_every_error_is_on_its_page() -> None:
    text = (DOCS / "faults.md").read_text()
    own = [one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, errors.FastloadError)]
    assert len(own) > 5
    assert [one.__name__ for one in own if f"`{one.__name__}`" not in text] == []


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("nav:\n  -")[2]
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.glob("**/*.md")]
    assert [page for page in pages if f": {page}\n" not in navigation] == []


# -- layout ------------------------------------------------------------------------------------------------------------


_FENCE = re.compile(r" *(```|~~~)")
_ITEM = re.compile(r" *([*-]|\d+\.) ")


def faults_of(text: str) -> list[tuple[int, str]]:
    """Return the lines that the site would show wrongly, with the reason."""
    found = []
    inside = False
    before = ""
    for number, line in enumerate(text.splitlines(), 1):
        if _FENCE.match(line):
            inside = not inside
            if (len(line) - len(line.lstrip())) % 4:
                found.append((number, "a block within a list is indented by four spaces, or the list ends there"))
        elif not inside:
            if line.lstrip().startswith("<!-- figure:") and before.strip():
                found.append((number, "a line that begins with a comment ends the paragraph before it"))
            if _ITEM.match(line) and before.strip() and not _ITEM.match(before) and not before.startswith(" "):
                found.append((number, "a list needs an empty line before it"))
        before = line
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_site_shows_a_page_as_it_is_meant(path: Path) -> None:
    assert faults_of(path.read_text(encoding="utf-8")) == []


# -- commands that start something of this repository -----------------------------------------------------------------


READMES = sorted([*(ROOT / "benchmarks").glob("**/README.md"), *(ROOT / "examples").glob("**/README.md")])
# What a command starts with names its file; the options behind it are that file's, or of what it imports.
_STARTED = re.compile(r"-m (?P<module>benchmarks[\w.]*)|(?P<path>(?:examples|benchmarks)/[\w/]+\.(?:py|sh))")
_OPTION = re.compile(r"(?<=\s)--[a-z][\w-]+")


def commands_of(path: Path) -> list[tuple[Block, str]]:
    """Return these commands of a page; ``...`` continues with the one before."""
    found: list[tuple[Block, str]] = []
    for block in blocks_of(path):
        if block.language != "sh":
            continue
        started = ""
        for line in block.text.replace("\\\n", " ").splitlines():
            command = re.split(r"\s#\s", line)[0]
            if place := _STARTED.search(command):
                started = place[0]
                found.append((block, command[place.start() :]))
            elif command.startswith("..."):
                found.append((block, started + command.removeprefix("...")))
    return found


def problem_of(command: str) -> str | None:
    """Return what a command names that is not there."""
    place = _STARTED.match(command)
    assert place is not None
    name = place["path"] or place["module"].replace(".", "/")
    if not any((ROOT / f"{name}{end}").is_file() for end in ("", ".py", "/__main__.py")):
        return f"there is no {place[0]}"
    known = "".join(one.read_text() for one in (ROOT / name.partition("/")[0]).glob("**/*.py"))
    missing = [one for one in _OPTION.findall(command) if f'"{one}"' not in known]
    return f"no options {missing}" if missing else None


@pytest.mark.parametrize("path", [*READMES, *PAGES], ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_commands_of_a_page_name_what_is_there(path: Path) -> None:
    problems = {f"{block}: {command}": problem_of(command) for block, command in commands_of(path)}
    assert problems or path in PAGES, path
    assert {where: why for where, why in problems.items() if why is not None} == {}
