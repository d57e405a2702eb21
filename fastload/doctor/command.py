"""``fastload doctor``: runs the probes in a child process, and prints what they found.

This process imports neither torch nor anything else that may be broken or takes time.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator, Sequence
from typing import IO

from ..base.version import __version__
from .finding import Finding, State
from .probes import PROBES, Probe

SECONDS = 120.0
"""The time limit of a probe; importing torch from a slow disk takes half of it."""

_COLORS: dict[State, str] = {"ok": "32", "absent": "2", "costs": "33", "broken": "1;31"}
_STATE, _NAME = 8, 16


def examine_and_print(*, as_json: bool) -> int:
    """Carry out ``fastload doctor``; return the exit status: 1 if something is broken."""
    found: list[tuple[str, Finding]] = []
    _show_progress(f"checking {PROBES[0].name} ...")
    for number, (probe, findings) in enumerate(examine(PROBES, f"{__package__}.probes", SECONDS), 1):
        found += [(probe.section, finding) for finding in findings]
        _show_progress(f"checking {PROBES[number].name} ..." if number < len(PROBES) else "")
    if as_json:
        print(to_json(__version__, found))
    else:
        columns = min(shutil.get_terminal_size((100, 24)).columns, 120)
        colored = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        print("\n".join(page(f"fastload {__version__}", found, columns, colored=colored)))
    return int(any(finding.state == "broken" for _, finding in found))


def _show_progress(words: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{words}", end="", file=sys.stderr, flush=True)


# -- the child process ------------------------------------------------------------------------------------------------


def run_probes(probes: Sequence[Probe]) -> None:
    """Run probes in this process; write a line of JSON to standard output for each."""
    out = os.dup(1)
    os.dup2(2, 1)  # libraries print, too
    for probe in probes:
        line = json.dumps(probe.findings()).encode() + b"\n"
        while line:
            line = line[os.write(out, line) :]


def examine(probes: Sequence[Probe], module: str, seconds: float) -> Iterator[tuple[Probe, list[Finding]]]:
    """Run probes in a child process, in another one after a probe that has ended it or hangs; yield what each found.

    The child imports ``module``, which has the table as ``PROBES``. ``seconds``: the time limit of each.
    """
    first = 0
    while first < len(probes):
        for probe, findings in _in_one_process(probes, first, module, seconds):
            first += 1
            yield probe, findings


def _in_one_process(
    probes: Sequence[Probe], first: int, module: str, seconds: float
) -> Iterator[tuple[Probe, list[Finding]]]:
    """Yield what the probes found from the first on; the last one may have ended the process."""
    # The child finds modules where this process has found them, whatever the current folder holds.
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; from {module} import PROBES; "
        f"from {__name__} import run_probes; run_probes(PROBES[{first}:])"
    )
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
        )
        assert process.stdout is not None
        lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
        reader.start()
        try:
            for probe in probes[first:]:
                try:
                    line = lines.get(timeout=seconds)
                except queue.Empty:
                    yield probe, [probe.failure(f"gave no answer within {seconds:g} seconds")]
                    return
                if not line.endswith(b"\n"):  # the process has ended
                    yield probe, [probe.failure(_end_of(process) + _last_line(errors))]
                    return
                yield probe, [Finding(*found) for found in json.loads(line)]
        finally:
            process.kill()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:  # it hangs in the kernel; nothing can be done
                pass
            reader.join(10)  # a process that the probe has started may keep the pipe open
            if not reader.is_alive():
                process.stdout.close()


def _read(pipe: IO[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    for line in pipe:
        lines.put(line)
    lines.put(b"")


def _end_of(process: subprocess.Popen[bytes]) -> str:
    try:
        status = process.wait(10)
    except subprocess.TimeoutExpired:
        return "its process has closed its output"
    return f"its process was ended by signal {-status}" if status < 0 else f"its process ended with status {status}"


def _last_line(errors: IO[bytes]) -> str:
    """Return the last line of the process's standard error, as the end of a sentence."""
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(size - 2000, 0))
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return f": {lines[-1].strip()[:200]}" if lines else ""


# -- the page ---------------------------------------------------------------------------------------------------------


def page(title: str, found: Sequence[tuple[str, Finding]], columns: int, *, colored: bool = False) -> Iterator[str]:
    """Yield the page's lines, wrapped at ``columns``; commands are not wrapped, so that they can be copied."""

    def style(text: str, code: str) -> str:
        return f"\033[{code}m{text}\033[0m" if colored and code and text else text

    yield style(title, "1")
    color = "1;31" if any(finding.state == "broken" for _, finding in found) else "1;32"
    yield from (style(line, color) for line in textwrap.wrap(summary([finding for _, finding in found]), columns))
    margin = " " * (2 + _STATE + _NAME)
    room = max(columns - len(margin), 30)
    last = ""
    for section, finding in found:
        if section != last:
            yield ""
            yield style(section, "1;36")
            last = section
        color = _COLORS[finding.state]
        dim = color if finding.state == "absent" else ""
        first, *rest = textwrap.wrap(finding.words, room) or [""]
        begin = style(f"{finding.state:<{_STATE}}", color)
        yield f"  {begin}{finding.name:<{_NAME - 1}} {style(first, dim)}".rstrip()
        yield from (margin + style(line, dim) for line in rest)
        if finding.cost:
            for line in textwrap.wrap(f"cost: {finding.cost}", room, subsequent_indent="      "):
                yield margin + style(line, color)
        if finding.remedy:
            yield f"{margin}{style('do:', '2')}   {style(finding.remedy, '2' if dim else '1')}"


def summary(found: Sequence[Finding]) -> str:
    """Return the verdict, which stands first on the page."""
    names = {state: ", ".join(dict.fromkeys(one.name for one in found if one.state == state)) for state in _COLORS}
    words = f"Broken: {names['broken']}." if names["broken"] else "Everything that fastload needs works."
    return words + (f" Slower or limited: {names['costs']}." if names["costs"] else "")


def to_json(version: str, found: Sequence[tuple[str, Finding]]) -> str:
    """Return everything as JSON: ``{"version": 1, "fastload": ..., "ok": ..., "findings": [...]}``."""
    listed = [{"section": section, **finding._asdict()} for section, finding in found]
    ok = not any(finding.state == "broken" for _, finding in found)
    return json.dumps({"version": 1, "fastload": version, "ok": ok, "findings": listed}, indent=2)
