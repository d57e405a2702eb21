"""Commands in the READMEs beside the code, most of which measure for minutes: their modules and options exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documentation_blocks import ROOT, Block, blocks_of

READMES = sorted([*(ROOT / "benchmarks").glob("**/README.md"), *(ROOT / "examples").glob("**/README.md")])
# What a command starts with names its file; the options behind it are that file's, or of what it imports.
_STARTED = re.compile(r"-m (?P<module>benchmarks[\w.]*)|(?P<path>(?:examples|benchmarks)/[\w/]+\.(?:py|sh))")
_OPTION = re.compile(r"(?<=\s)--[a-z][\w-]+")


def commands_of(path: Path) -> list[tuple[Block, str]]:
    """Return the commands that start something of this repository; ``...`` continues with the one before."""
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


@pytest.mark.parametrize("path", READMES, ids=lambda path: path.parent.name)
def test_the_commands_of_a_readme_name_what_is_there(path: Path) -> None:
    assert {block.language for block in blocks_of(path)} <= {"sh", "text", "python"}, path
    problems = {f"{block}: {command}": problem_of(command) for block, command in commands_of(path)}
    assert problems, path
    assert {where: why for where, why in problems.items() if why is not None} == {}


def test_what_is_not_there_is_found() -> None:
    for command in ("-m benchmarks.nothing", "examples/nothing.py", "-m benchmarks.engine --nothing"):
        assert problem_of(command) is not None
