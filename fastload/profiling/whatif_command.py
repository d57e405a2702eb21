"""``fastload whatif``: its options and what it does. Slow imports happen only where they are needed."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.console import show
from ..errors import ConfigError, TraceError
from .command import new_folder, record_script
from .formatting import ms, no_fix_text, simulation_text
from .hooks.rerun import SETTABLE, VARIABLE
from .reader import read_trace
from .recording import read_settings

if TYPE_CHECKING:
    from .schema import Fix, Simulation
    from .trace import Rank, Trace
    from .whatif import WhatIf

EPILOG = """\
examples:  fastload whatif fastload-profile-20260101-120000
           fastload whatif DIR --num-workers 12 --prefetch-factor 4
           fastload whatif DIR --num-workers 12 --rerun

status:    0; 1 if nothing can be predicted; 2 if the command was not understood
"""

VERSION = 1
"""Of the output of ``--json``."""
_RERUN = (*SETTABLE, "engine")
_BY_HAND = "make the change in the script, record it again, and use fastload compare"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fastload whatif`` to a parser."""
    parser.add_argument("folder", metavar="DIR", help="a recording of fastload profile")
    settings = parser.add_argument_group("what to change (without any: search for what helps)")
    settings.add_argument("--num-workers", type=int, metavar="N", help="number of workers; 0: none")
    settings.add_argument("--prefetch-factor", type=int, metavar="N", help="batches in flight per worker")
    flag = argparse.BooleanOptionalAction
    settings.add_argument("--in-order", action=flag, default=None, help="or deliver batches as they are ready")
    settings.add_argument("--persistent-workers", action=flag, default=None, help="keep workers between epochs")
    settings.add_argument("--pin-memory", action="store_true", default=None, help="and copy with non_blocking=True")
    settings.add_argument("--uint8", action="store_true", default=None, help="copy uint8 to the device, not float32")
    settings.add_argument("--engine", choices=("torch", "fastload"), help="torch's or fastload's loader")
    settings.add_argument("--fuse", type=_fuse, metavar="auto|true|false", help="of fastload's loader")
    settings.add_argument(
        "--seeding", choices=("sample", "torch"), help="each sample by its key, as with a seed; or torch's streams"
    )
    settings.add_argument("--cache", choices=("auto", "encoded", "decoded"), help="keep coefficients, files or images")
    settings.add_argument("--decoder-speedup", type=float, metavar="X", help="decoding is X times as fast")
    settings.add_argument(
        "--on-device", action="append", metavar="TRANSFORM", help="move it from workers to the device (may be repeated)"
    )
    parser.add_argument("--rank", type=int, metavar="N", help="the rank to predict for (that of the summary)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--rerun", action="store_true", help="run the script again with the change, and compare (in this folder)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="with --rerun: a new folder for its recording")


def _fuse(word: str) -> bool | str:
    known: dict[str, bool | str] = {"auto": "auto", "true": True, "false": False}
    if word.lower() not in known:
        raise argparse.ArgumentTypeError(f"must be auto, true or false, got {word!r}")
    return known[word.lower()]


def what_if(options: argparse.Namespace, program: Callable[[list[str]], list[str]]) -> int:
    """Predict, and with ``--rerun`` compare with the run, which ``program`` starts; returns the exit status.

    Raises:
        ConfigError: a setting has a value that is not supported, or a folder for the second recording cannot be made.
    """
    from .changes import SETTINGS
    from .whatif import WhatIf

    settings = {name: value for name in SETTINGS if (value := getattr(options, name)) is not None}
    if options.out is not None and not options.rerun:
        raise ConfigError("--out is the folder of the second recording; add --rerun")
    try:
        if options.rerun:
            _check_rerun(settings, read_settings(options.folder))
        trace = read_trace(options.folder)
        rank = _rank(trace, options.rank)
        whatif = WhatIf(rank, trace.warmup)
        _check_workers(settings, whatif.settings)
        if options.rerun and settings.get("engine", "fastload") != whatif.settings["engine"] == "fastload":
            raise ConfigError(f"--rerun cannot replace fastload's loader by torch's: {_BY_HAND}")
        fixes = [whatif.fix(settings)] if settings else whatif.fixes()
        number = options.rank if options.rank is not None else rank.rank
        observed = _rerun(options, program, number, trace, whatif, settings) if options.rerun else None
    except (TraceError, OSError) as error:
        print(f"fastload whatif: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(_json(rank, whatif.simulation, fixes, observed))
    else:
        show(*_lines(rank, whatif.simulation, fixes, observed))
    return 0


def _rank(trace: Trace, number: int | None) -> Rank:
    if number is None:
        from .analyze import analyze, main_rank

        return main_rank(trace, analyze(trace))
    for rank in trace.ranks:
        if (rank.rank or 0) == number:
            return rank
    known = ", ".join(str(rank.rank or 0) for rank in trace.ranks)
    raise ConfigError(f"--rank must be one of the recorded ranks ({known}), got {number}")


def _check_workers(settings: dict[str, Any], before: dict[str, Any]) -> None:
    """Refuse arguments about workers without workers, as torch does."""
    for name in ("prefetch_factor", "persistent_workers"):
        if settings.get(name) and not settings.get("num_workers", before["num_workers"]):
            raise ConfigError(f"{name}={settings[name]} needs workers, and there are none; set --num-workers too")


def _check_rerun(settings: dict[str, Any], recorded: dict[str, Any]) -> None:
    """Require that a run can be repeated with settings without editing the script."""
    if recorded.get("within") or not recorded.get("command"):
        raise ConfigError(
            "--rerun repeats the command of fastload profile, but this recording was made by fastload.profile() "
            f"inside a program; {_BY_HAND}"
        )
    if not settings:
        raise ConfigError(f"--rerun needs a change; set one of {', '.join(_RERUN)}")
    if beyond := [name for name in settings if name not in _RERUN]:
        raise ConfigError(f"--rerun cannot set {', '.join(beyond)}, only {', '.join(_RERUN)}; {_BY_HAND}")


def _rerun(
    options: argparse.Namespace,
    program: Callable[[list[str]], list[str]],
    number: int | None,
    trace: Trace,
    whatif: WhatIf,
    settings: dict[str, Any],
) -> float | None:
    """Run the recorded command with the change; returns the observed time of a step in ms, None without one."""
    from .workload import measure_workload

    before = read_settings(options.folder)
    change = {
        "settings": {name: value for name, value in settings.items() if name in SETTABLE},
        "match": {name: whatif.loader.get(name) for name in ("dataset", "num_workers", "batch_size")},
    }
    variables = {VARIABLE: json.dumps(change)}
    if settings.get("engine") == "fastload":
        variables["FASTLOAD_INSTALL"] = "1"
    folder = options.out or new_folder(f"{os.path.normpath(options.folder)}-rerun")
    again = argparse.Namespace(
        out=folder,
        level=1,
        full=before.get("full", False),
        steps=max(1, max(len(rank.steps) for rank in trace.ranks) - trace.warmup),
        warmup=trace.warmup,
        ceiling=None,
    )
    record_script(again, program(trace.command), trace.command, variables)
    if status := read_settings(str(folder)).get("status"):
        print(f"fastload whatif: the script ended with status {status}", file=sys.stderr)
    try:
        anew = read_trace(str(folder))
        observed = measure_workload(_rank(anew, number), anew.warmup)
    except TraceError as error:
        print(f"fastload whatif: {error}", file=sys.stderr)
        return None
    asked = {**change["settings"], **({"engine": settings["engine"]} if "engine" in settings else {})}
    found = {name: observed.loader.get(name) for name in asked}
    other = {name: is_ for name, is_ in found.items() if is_ != asked[name] and not (is_ is None and not asked[name])}
    if other:
        print(f"fastload whatif: the change did not reach the script's DataLoader: it has {other}", file=sys.stderr)
        return None
    return observed.observed_ns / 1e6


def _lines(rank: Rank, simulation: Simulation, fixes: list[Fix], observed: float | None) -> Iterator[Any]:
    """Yield the predictions as rich renderables."""
    from rich.text import Text

    from .summary import fix_lines

    yield Text(("" if rank.rank is None else f"rank {rank.rank}: ") + simulation_text(simulation))
    for fix in fixes:
        yield Text()
        yield fix_lines(fix, simulation.observed_ms)
    if not fixes:
        yield Text(no_fix_text(simulation))
    if observed is not None:
        off = fixes[0].step_ms.value / observed - 1
        yield Text(f"\nrun again: {ms(observed)} ms a step; the prediction was off by {off:+.1%}")


def _json(rank: Rank, simulation: Simulation, fixes: list[Fix], observed: float | None) -> str:
    found = {
        "version": VERSION,
        "rank": rank.rank,
        "simulation": dataclasses.asdict(simulation),
        "fixes": [dataclasses.asdict(fix) for fix in fixes],
        "rerun_ms": observed,
    }
    return json.dumps(found, indent=1, allow_nan=False)
