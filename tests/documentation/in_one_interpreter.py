"""Runs lines of a shell that start ``fastload``, one after the other: ``python in_one_interpreter.py FOLDER LINE ...``.

Each runs in a child, forked from an interpreter that has imported torch for those that would, which takes seconds.
FOLDER gets what the N-th line said (``N.out``); the last line of standard output is a JSON list of their statuses.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path

from fastload import cli

IMPORTING = {"pack", "tune", "unpack", "verify"}
"""Those that import torch, and in no process of their own."""


def begin(line: str, said: Path) -> list[str]:
    """Make this process that of one line, and return the words after ``fastload``."""
    file = os.open(said, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    words = shlex.split(line)
    while found := re.fullmatch(r"([A-Z_]+)=(.*)", words[0]):
        os.environ[found[1]] = found[2]
        del words[0]
    sys.argv = words
    return words[1:]


def main() -> int:
    statuses = []
    if any(IMPORTING & {*shlex.split(line)[:2]} for line in sys.argv[2:]):
        import torchvision  # noqa: F401
    for number, line in enumerate(sys.argv[2:]):
        child = os.fork()
        if not child:
            return cli.main(begin(line, Path(sys.argv[1], f"{number}.out")))
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(json.dumps(statuses))
    return 0


if __name__ == "__main__":
    sys.exit(main())
