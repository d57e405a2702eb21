"""The code blocks of the documentation: where they stand, and what is in them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+|~~~+)(?P<words>.*)$")


@dataclass(frozen=True)
class Block:
    """A fenced block: its page (``README.md``, ``docs/images.md``), the line of its first line, and its language."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The commands of a block of shell, without comments; those of several lines as they stand."""
        found: list[str] = []
        open_ = ""
        for line in self.text.splitlines():
            open_ += line
            try:
                words = shlex.split(open_, comments="\n" not in open_)
            except ValueError:  # a quotation goes on
                open_ += "\n"
                continue
            if line.endswith("\\"):
                open_ += "\n"
                continue
            if words:
                found.append(_without_comment(open_))
            open_ = ""
        assert not open_, f"{self}: what begins with {open_.splitlines()[0]!r} has no end"
        return found


def _without_comment(command: str) -> str:
    """Return a command without the comment at the end of its line; a ``#`` within quotes or words is none."""
    for place in (found.start() for found in re.finditer(r"\s+#\s", command)):
        try:
            shlex.split(command[:place])
        except ValueError:
            continue
        return command[:place]
    return command.strip()


def blocks_of(path: Path) -> list[Block]:
    """Return the blocks of a page, in order; those in tabs and lists too."""
    page = path.relative_to(ROOT).as_posix()
    blocks: list[Block] = []
    opened: tuple[str, str, str, int] | None = None
    lines: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if opened is None:
            if fence:
                language = fence["words"].split()[0] if fence["words"].split() else ""
                opened, lines = (fence["indent"], fence["ticks"], language, number + 1), []
        elif fence and fence["ticks"].startswith(opened[1]) and not fence["words"].strip():
            blocks.append(Block(page, opened[3], opened[2], "".join(f"{one}\n" for one in lines)))
            opened = None
        else:
            lines.append(line.removeprefix(opened[0]))
    assert opened is None, f"{page}:{opened[3]}: a block without an end"
    return blocks
