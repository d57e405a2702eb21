"""When and where a run took place, and what it writes."""

import datetime
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Where and when a run took place."""

    date: str
    """Day, as YYYY-MM-DD in UTC."""
    commit: str
    """Short commit id; a plus sign behind it if the tree had other changes."""
    command: str
    """The command as typed, without the folders of this machine."""
    machine: str
    """Processor, cores, memory, kernel."""
    versions: Mapping[str, str]
    """Versions of Python and of the packages that matter."""
    control: bool
    """True if torch's class stood on both sides."""


def look_around(arguments: Sequence[str], *, module: str, control: bool = False) -> Surroundings:
    """Collect date, commit, machine and versions; the command was ``python -m module`` with these arguments."""
    packages = {}
    for name in ("torch", "torchvision", "numpy", "pillow", "fastload"):
        try:
            packages[name] = version("torch-fastload" if name == "fastload" else name)
        except PackageNotFoundError:
            packages[name] = "none"
    # A folder's name says nothing to a reader on another machine.
    shown = [re.sub(r"^([\w-]*=|)/.*", r"\1DIR", argument, flags=re.DOTALL) for argument in arguments]
    threads = f"OMP_NUM_THREADS={os.environ['OMP_NUM_THREADS']} " if "OMP_NUM_THREADS" in os.environ else ""
    return Surroundings(
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        commit=_commit(),
        command=threads + shlex.join(["python", "-m", module, *shown]),
        machine=_machine(),
        versions={"python": platform.python_version(), **packages},
        control=control,
    )


def _commit() -> str:
    """Return the commit of the tree that this file is in, or "unknown" outside a repository."""
    # --no-optional-locks: looking at the state must not write to the index of a tree in which somebody works.
    git = ["git", "--no-optional-locks", "-C", str(Path(__file__).parent)]
    try:
        commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        # What an earlier command appended to the rows is no change of what is measured.
        paths = ["--", ":/", ":(top,exclude)benchmarks/rows"]
        changes = subprocess.run([*git, "status", "--porcelain", *paths], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit.stdout.strip() + ("+" if changes.stdout.strip() else "")


def _machine() -> str:
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        processor = names[0] if names else processor
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    kernel = ".".join(platform.release().split(".")[:2])
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{processor}, {cores} cores, {memory_gib:.0f} GiB, {platform.system()} {kernel}"


def stamp(
    surroundings: Surroundings, others: float | None = None, versions: Mapping[str, str] | None = None
) -> dict[str, str]:
    named = surroundings.versions if versions is None else versions
    words = {"python": "Python", "pillow": "Pillow"}
    return {
        "others": "" if others is None else f"{others:.1f}",
        "date": surroundings.date,
        "commit": surroundings.commit,
        "machine": surroundings.machine,
        "versions": ", ".join(f"{words.get(name, name)} {text}" for name, text in named.items() if name != "fastload"),
        "command": surroundings.command,
    }


def progress(total: int) -> Callable[[str], None]:
    """Return a function that takes what is done next, and says it on standard error where it is new."""
    seen: dict[str, int] = {}
    start = time.monotonic()

    def advance(what: str) -> None:
        num_begun = sum(seen.values()) + 1
        if what not in seen:
            complain(f"{time.monotonic() - start:6.0f} s  {num_begun} of {total}: {what}")
        seen[what] = seen.get(what, 0) + 1

    return advance


def complain(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def append_lines(file: Path | None, lines: Sequence[str]) -> None:
    if file is not None:
        with file.open("a") as stream:
            stream.writelines(line + "\n" for line in lines)
