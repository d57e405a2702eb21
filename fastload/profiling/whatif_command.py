"""``fastload whatif``: its options, and what it does. Nothing that takes time is imported before it is needed."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import sys
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, TraceError
from .command import record_script
from .hooks.rerun import SETTABLE, VARIABLE
from .reader import read_trace
from .recording import read_settings
from .text import nothing_in_words, shared_in_words

if TYPE_CHECKING:
    from .analysis import Fix, Simulation
    from .trace import Rank, Trace
    from .whatif import WhatIf

EPILOG = """\
examples:  fastload whatif fastload-profile-20260101-120000
           fastload whatif DIR --num-workers 12 --prefetch-factor 4
           fastload whatif DIR --num-workers 12 --rerun

status:    0; 1 if nothing can be predicted; 2 if the command was not understood
"""

VERSION = 1
"""Of what ``--json`` prints."""
_RERUN = (*SETTABLE, "engine")
_BY_HAND = "make the change in the script, record it again, and see fastload compare"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give a parser the options of ``fastload whatif``."""
    parser.add_argument("folder", metavar="DIR", help="a recording of fastload profile")
    knobs = parser.add_argument_group("what to change (without any: look for what helps)")
    knobs.add_argument("--num-workers", type=int, metavar="N", help="workers; 0: none")
    knobs.add_argument("--prefetch-factor", type=int, metavar="N", help="batches in flight for each worker")
    flag = argparse.BooleanOptionalAction
    knobs.add_argument("--in-order", action=flag, default=None, help="or batches as they are ready")
    knobs.add_argument("--persistent-workers", action=flag, default=None, help="workers stay from epoch to epoch")
    knobs.add_argument("--pin-memory", action="store_true", default=None, help="and copy with non_blocking=True")
    knobs.add_argument("--uint8", action="store_true", default=None, help="copy bytes to the device, not float32")
    knobs.add_argument("--engine", choices=("torch", "fastload"), help="whose loader")
    knobs.add_argument("--fuse", type=_fuse, metavar="auto|true|false", help="of fastload's loader")
    knobs.add_argument("--seeding", choices=("sample", "torch"), help="of fastload's loader")
    knobs.add_argument("--worker-method", choices=("multiprocessing", "thread"), help="of fastload's loader")
    knobs.add_argument("--cache", choices=("encoded", "decoded"), help="keep files, or decoded images, in memory")
    knobs.add_argument("--decoder-speedup", type=float, metavar="X", help="decoding is X times as fast")
    knobs.add_argument(
        "--on-device", action="append", metavar="TRANSFORM", help="workers no longer do this (may be repeated)"
    )
    parser.add_argument("--rank", type=int, metavar="N", help="of several ranks, this one (the card's)")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    parser.add_argument(
        "--rerun", action="store_true", help="run the script again with the change, and compare (in this folder)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="with --rerun: a new folder for its recording")


def _fuse(word: str) -> bool | str:
    known: dict[str, bool | str] = {"auto": "auto", "true": True, "false": False}
    if word.lower() not in known:
        raise argparse.ArgumentTypeError(f"must be auto, true or false, got {word!r}")
    return known[word.lower()]


def what_if(
    options: argparse.Namespace,
    program: Callable[[list[str]], list[str]],
    recorded: Callable[[MutableMapping[str, str]], None],
    installed: Callable[[MutableMapping[str, str]], None],
) -> int:
    """Predict, and with ``--rerun`` compare with what happens.

    Args:
        options: the parsed options.
        program: returns the words that start a command of the user's.
        recorded: changes an environment so that our ``sitecustomize`` is executed first.
        installed: the same, with fastload's loader in the place of torch's.

    Returns:
        The exit status.

    Raises:
        ConfigError: a knob cannot be set so.
        FolderError: a folder for the second recording cannot be made.
    """
    from .changes import KNOBS
    from .whatif import WhatIf

    settings = {knob: value for knob in KNOBS if (value := getattr(options, knob)) is not None}
    if options.out is not None and not options.rerun:
        raise ConfigError("--out is the folder of the second recording; give --rerun too")
    try:
        if options.rerun:
            _require_rerun(settings, read_settings(options.folder))
        trace = read_trace(options.folder)
        rank = _rank(trace, options.rank)
        whatif = WhatIf(rank, trace.warmup)
        _require_workers(settings, whatif.settings)
        if options.rerun and settings.get("engine", "fastload") != whatif.settings["engine"] == "fastload":
            raise ConfigError(f"--rerun cannot take fastload's loader out of a script: {_BY_HAND}")
        fixes = [whatif.fix(_title(settings), settings)] if settings else whatif.fixes()
    except (TraceError, OSError) as error:
        print(f"fastload whatif: {error}", file=sys.stderr)
        return 1
    number = options.rank if options.rank is not None else rank.rank
    observed = _rerun(options, number, trace, whatif, settings, program, recorded, installed) if options.rerun else None
    if options.json:
        print(_json(rank, whatif.simulation, fixes, observed))
    else:
        print(_text(rank, whatif.simulation, fixes, observed))
    return 0


def _rank(trace: Trace, number: int | None) -> Rank:
    if number is None:
        from .analyze import chosen_rank

        return chosen_rank(trace)
    for rank in trace.ranks:
        if (rank.rank or 0) == number:
            return rank
    known = ", ".join(str(rank.rank or 0) for rank in trace.ranks)
    raise ConfigError(f"--rank must be one of those recorded ({known}), got {number}")


def _require_workers(settings: dict[str, Any], before: dict[str, Any]) -> None:
    """Require that arguments of workers are not set where there are none, which torch refuses."""
    for knob in ("prefetch_factor", "persistent_workers", "worker_method"):
        if settings.get(knob) and not settings.get("num_workers", before["num_workers"]):
            raise ConfigError(f"{knob}={settings[knob]} is for workers, and there are none; set --num-workers too")


def _title(settings: dict[str, Any]) -> str:
    return ", ".join(f"{knob}={value}" for knob, value in settings.items())


# -- running again ----------------------------------------------------------------------------------------------------


def _require_rerun(settings: dict[str, Any], recorded: dict[str, Any]) -> None:
    """Require that a recording can be made again with settings, without an edit of the script."""
    if recorded.get("within") or not recorded.get("command"):
        raise ConfigError(
            "--rerun runs the command of fastload profile again, and this recording was made within a program, by "
            f"fastload.profile(); {_BY_HAND}"
        )
    if not settings:
        raise ConfigError(f"--rerun runs the script again with a change; set one of {', '.join(_RERUN)}")
    if beyond := [knob for knob in settings if knob not in _RERUN]:
        raise ConfigError(
            f"--rerun changes {', '.join(_RERUN)} from outside, and {' and '.join(beyond)} "
            f"{'takes an edit' if len(beyond) == 1 else 'take edits'}: {_BY_HAND}"
        )


def _rerun(
    options: argparse.Namespace,
    number: int | None,
    trace: Trace,
    whatif: WhatIf,
    settings: dict[str, Any],
    program: Callable[[list[str]], list[str]],
    recorded: Callable[[MutableMapping[str, str]], None],
    installed: Callable[[MutableMapping[str, str]], None],
) -> float | None:
    """Run the recorded command with the change; return the observed time of a step in ms, None if there was none."""
    from .demands import measure

    before = read_settings(options.folder)
    change = {
        "settings": {knob: value for knob, value in settings.items() if knob in SETTABLE},
        "match": {name: whatif.loader.get(name) for name in ("dataset", "num_workers", "batch_size")},
    }

    def prepared(environment: MutableMapping[str, str]) -> None:
        recorded(environment)
        if settings.get("engine") == "fastload":
            installed(environment)
        environment[VARIABLE] = json.dumps(change)

    steps = max(1, max(len(rank.steps) for rank in trace.ranks) - trace.warmup)
    folder = options.out or _free(options.folder)
    again = argparse.Namespace(
        out=folder,
        level=1,
        full=before.get("full", False),
        cold=before.get("cold", False),
        steps=steps,
        warmup=trace.warmup,
        ceiling=None,
    )
    record_script(again, program(trace.command), trace.command, prepared)
    if status := read_settings(str(folder)).get("status"):
        print(f"fastload whatif: the script ended with status {status}", file=sys.stderr)
    try:
        anew = read_trace(str(folder))
        observed = measure(_rank(anew, number), anew.warmup)
    except TraceError as error:
        print(f"fastload whatif: {error}", file=sys.stderr)
        return None
    asked = {**change["settings"], **({"engine": settings["engine"]} if "engine" in settings else {})}
    other = {name: observed.loader.get(name) for name in asked if not _is_set(observed.loader.get(name), asked[name])}
    if other:
        print(f"fastload whatif: the change did not reach the script's DataLoader: it has {other}", file=sys.stderr)
        return None
    return observed.observed_ns / 1e6


def _is_set(found: Any, wanted: Any) -> bool:
    return bool(found == wanted) or (found is None and not wanted)


def _free(folder: str) -> Path:
    """Return a folder beside another one that does not exist yet."""
    stem = f"{os.path.normpath(folder)}-rerun"
    return next(path for number in itertools.count(1) if not (path := Path(f"{stem}-{number}")).exists())


# -- what is printed --------------------------------------------------------------------------------------------------


def _text(rank: Rank, simulation: Simulation, fixes: list[Fix], observed: float | None) -> str:
    off = simulation.reproduced_ms / simulation.observed_ms - 1
    name = "" if rank.rank is None else f"rank {rank.rank}: "
    lines = [
        f"{name}observed {_ms(simulation.observed_ms)} a step; the simulation of the same run: "
        f"{_ms(simulation.reproduced_ms)} ({off:+.1%})"
    ]
    if simulation.shared is not None:
        lines[0] += f"; {shared_in_words(simulation.shared)}"
    for fix in fixes:
        interval = f"{_ms(fix.step_ms.low)} to {_ms(fix.step_ms.high)}"
        lines += ["", f"{fix.title}: {_ms(fix.step_ms.value)} a step ({interval}), {fix.speedup:.2f}x as fast"]
        lines += [f"    {line}" for line in fix.change.splitlines()]
        lines.append(f"    then bound by {fix.then}")
    if not fixes:
        lines.append(nothing_in_words(simulation))
    if observed is not None:
        off = fixes[0].step_ms.value / observed - 1
        lines += ["", f"run again: {_ms(observed)} a step; the prediction was off by {off:+.1%}"]
    return "\n".join(lines)


def _ms(value: float) -> str:
    return f"{value:.3g} ms" if value < 100 else f"{value:.0f} ms"


def _json(rank: Rank, simulation: Simulation, fixes: list[Fix], observed: float | None) -> str:
    found = {
        "version": VERSION,
        "rank": rank.rank,
        "simulation": dataclasses.asdict(simulation),
        "fixes": [dataclasses.asdict(fix) for fix in fixes],
        "rerun_ms": observed,
    }
    return json.dumps(found, indent=1, allow_nan=False)


__all__ = ["EPILOG", "VERSION", "add_options", "what_if"]
