"""Targets of ``fastload verify``, ``explain`` and ``tune``: a script, a module, or an object named ``MODULE:NAME``.

An object is imported into this process.
A script runs in a process of its own, started as ``fastload run`` starts it, so that it is the main module and its
workers find it; :mod:`fastload.run.script_loaders` acts on its loaders there and writes the result to a file. Imports
nothing that takes time.
"""

from __future__ import annotations

import argparse
import importlib
import json
import operator
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..base.interrupts import Interrupted, signals_raised
from ..inject import put_first
from .child import Child, exit_status
from .result_file import has_begun, read_result, result_file

VARIABLE = "FASTLOAD_SCRIPT_LOADERS"
"""The environment variable with the options of :mod:`fastload.run.script_loaders`, as JSON."""

_SECONDS_TO_END = 20.0
"""Time for a script to end once its result is written: it may catch SystemExit, or wait for a process that is gone."""

_INTERRUPTED = 128 + signal.SIGINT, 128 + signal.SIGTERM


class UsageError(Exception):
    """The command line cannot be carried out; the message is one line for the user."""


class Target(NamedTuple):
    """Object that a verb acts on."""

    value: Any
    """A script's loader, or the object that was named."""
    name: str = ""
    """``MODULE:NAME``, or ``MODULE:NAME()`` for what a function returned; empty for a script's loader."""
    made: Sequence[tuple[Any, str]] = ()
    """The loaders that a script has constructed so far, each with its line."""


class TargetResult(NamedTuple):
    """Result of a verb for its target."""

    status: int
    """The exit status."""
    json: str = ""
    """Text for ``--json``; empty: none."""


class Verb(NamedTuple):
    """A verb that takes a target."""

    name: str
    summary: str
    """One line for the list of verbs."""
    description: str
    """For the verb's help, as the next two."""
    loader_of_script: str
    object: str
    status: str
    add_options: Callable[[argparse.ArgumentParser], None]
    action: str
    """``"module:function"``, called as ``function(target, options)``, for a script in its own process, in place of the
    loader's first batch; returns a :class:`TargetResult`. ``options``: those of the command line, and ``command``, the
    script and its arguments. A UsageError or ConfigError is printed, and the status is 2."""

    def epilog(self) -> str:
        """Return the end of its help."""
        return f"""\
targets:   train.py --its --arguments     {self.loader_of_script}
           -m package.train               the same for a module
           package.module:name            {self.object}
           path/to/file.py:name           the same in a file

status:    {self.status}
"""


def call_action(action: str, target: Target, options: dict[str, Any]) -> TargetResult:
    """Call a verb's action: see :class:`Verb`. SIGINT and SIGTERM interrupt it; then that is the status."""
    module, _, name = action.partition(":")
    function: Callable[[Target, dict[str, Any]], TargetResult] = getattr(importlib.import_module(module), name)
    try:
        with signals_raised():
            return function(target, options)
    except Interrupted as error:
        return TargetResult(128 + error.number)


def run_target(verb: Verb, options: Mapping[str, Any]) -> int:
    """Apply a verb to its target; return the exit status.

    Args:
        verb: of the command line.
        options: of the command line; values that JSON can hold. ``command``: the target and its arguments. ``json``:
            where to write the result; with ``"-"`` a script's standard output goes to standard error, so that it does
            not mix with the JSON. ``number``: which loader of a script, counted by first iteration.

    Raises:
        UsageError: the target does not exist or is of the wrong kind, its script iterated over no loader, or the JSON
            cannot be written.
    """
    command: list[str] = options["command"]
    options = {**options, "command": shlex.join(command)}
    if command and _names_an_object(command[0]):
        if command[1:]:
            raise UsageError(f"{command[0]} takes no arguments, got {' '.join(command[1:])}")
        result = call_action(verb.action, _object(command[0]), options)
    else:
        program = program_of(command, verb.name, takes="-m MODULE or MODULE:NAME")
        result = _result_of_script(verb, program, options)
    if result.json:
        write_json(options.get("json"), result.json)
    if result.status in _INTERRUPTED:
        print(f"fastload {verb.name}: interrupted", file=sys.stderr)
    return result.status


def _result_of_script(verb: Verb, program: list[str], options: Mapping[str, Any]) -> TargetResult:
    """Run a script until it has a result; without one, return the status that says what ended it."""
    number = options.get("number", 1)
    with result_file() as file:
        environment = dict(os.environ)
        put_first(environment)
        environment["FASTLOAD_INSTALL"] = "1"
        wanted = {"verb": verb.name, "action": verb.action, "options": options, "number": number, "result": file}
        environment[VARIABLE] = json.dumps(wanted)
        output = sys.stderr.fileno() if options.get("json") == "-" else None
        sys.stdout.flush()
        with Child(program, env=environment, stdout=output) as script:
            status = _wait_for_end(script, file)
        found = read_result(file)
        if found is not None:
            return TargetResult(*found)
        begun = has_begun(file)
    ended = 128 + script.signal if script.signal else exit_status(status)
    if ended in _INTERRUPTED:
        return TargetResult(ended)
    why = _why_no_result(program, status, number, begun=begun)
    if not begun:
        raise UsageError(why)
    print(f"fastload {verb.name}: {why}", file=sys.stderr)
    return TargetResult(1)


def program_of(command: list[str], verb: str, takes: str) -> list[str]:
    """Return the words that start the script, module or program of a command line.

    Args:
        command: what follows the options of the verb.
        verb: its name.
        takes: what it takes besides a script: only with ``-- PROGRAM`` in it, other programs too.

    Raises:
        UsageError: there is no such thing, or the verb does not take it.
    """
    if not command or command in (["--"], ["-m"]):
        raise UsageError(f"a script, {takes} is missing; see fastload {verb} --help")
    takes_programs = "PROGRAM" in takes
    if command[0] == "--":
        if not takes_programs:
            raise UsageError(f"programs are not supported: name the script that it starts, or {takes}")
        if shutil.which(command[1]) is None:
            raise UsageError(f"no such program: {command[1]}")
        return command[1:]
    if command[0] != "-m" and not os.path.exists(command[0]):
        remedy = f"to {verb} a program write: fastload {verb} -- {command[0]}"
        if not takes_programs:
            remedy = "name the script that this program starts"
        raise UsageError(f"no such script: {command[0]}" + (f"; {remedy}" if shutil.which(command[0]) else ""))
    return [sys.executable, *command]


def _wait_for_end(script: Child, result: str) -> int:
    """Wait until a script ends, and end it if it goes on once its result exists; return its exit status."""
    while read_result(result) is None:
        if (status := script.wait(1.0)) is not None:
            return status
    interrupt = signal.SIGTERM if os.name == "nt" else signal.SIGINT  # also ends what the script has started
    if script.wait(_SECONDS_TO_END) is None:
        script.process.send_signal(interrupt)
        if script.wait(_SECONDS_TO_END) is None:
            script.process.kill()
    return script.process.wait()


def _why_no_result(program: Sequence[str], status: int, number: int, *, begun: bool) -> str:
    name = program[2] if program[1] == "-m" else program[1]
    if status or begun:
        how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        return f"{name} ended {how} {'while its loader was run' if begun else 'before it iterated over a loader'}"
    loaders = "a DataLoader" if number == 1 else f"{number} DataLoaders"
    remedy = "give it arguments that make it train, or name a loader as MODULE:NAME"
    return f"{name} did not iterate over {loaders}; {remedy}"


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Give a parser the option ``--json``."""
    parser.add_argument(
        "--json", type=_json_file, metavar="FILE", help="write the result as JSON; '-': to standard output, no table"
    )


def _json_file(word: str) -> str:
    if word != "-" and (os.path.isdir(word) or not os.path.isdir(os.path.dirname(word) or os.curdir)):
        raise argparse.ArgumentTypeError(f"must be a file in an existing folder, or '-', got {word!r}")
    return word


def write_json(where: str | None, text: str) -> None:
    """Write what the option ``--json`` asks for.

    Raises:
        UsageError: the file cannot be written.
    """
    if where == "-":
        print(text)
    elif where is not None:
        try:
            Path(where).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"the result cannot be written to {where}: {error}") from error


def positive(word: str) -> int:
    """Return a positive integer of the command line, as argparse's ``type``."""
    if not word.isdigit() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {word!r}")
    return int(word)


_OBJECT = re.compile(r"(?P<module>[^:]+):(?P<name>[A-Za-z_][\w.]*)")


def _names_an_object(word: str) -> bool:
    return _OBJECT.fullmatch(word) is not None and not os.path.exists(word)


def _object(word: str) -> Target:
    """Import a module and return an object in it, or what it returns if it is a function or a class.

    The word is ``package.module:name`` or ``path/to/file.py:name``; the name may have dots. Loaders are fastload's,
    also those that it constructs as torch's.
    """
    from .installation import install, uninstall  # takes time: torch

    install()
    try:
        found = _find_object(word)
        if not isinstance(found, type) and (not callable(found) or hasattr(found, "__getitem__")):
            return Target(found, word)
        try:
            return Target(found(), f"{word}()")
        except (Exception, SystemExit) as error:  # of the user's
            raise UsageError(f"{word}() raised {type(error).__name__}: {error}") from error
    finally:
        uninstall()


def _find_object(word: str) -> Any:
    matched = _OBJECT.fullmatch(word)
    assert matched is not None
    where, name = matched["module"], matched["name"]
    path, folder, module_name = Path(where), os.getcwd(), where
    if where.endswith(".py"):
        if not path.is_file():
            raise UsageError(f"no such file: {where}")
        # Imported by its name, not by its path, so that processes started by spawn can import it too.
        folder, module_name = str(path.resolve().parent), path.stem
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a script may call sys.exit()
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and (module_name == missing or module_name.startswith(missing + ".")):
            raise UsageError(f"no such module: {where}; name a file as path/to/file.py:{name}") from None
        raise UsageError(f"{where} cannot be imported: {type(error).__name__}: {error}") from error
    if where.endswith(".py") and Path(module.__file__ or "").resolve() != path.resolve():
        raise UsageError(
            f"{where} cannot be imported, because another module is called {module_name}: {module.__file__}; rename "
            "the file"
        )
    try:
        return operator.attrgetter(name)(module)
    except AttributeError:
        names = ", ".join(sorted(known for known in vars(module) if not known.startswith("_"))[:8])
        raise UsageError(f"{where} has no {name}; it has {names or 'no names'}") from None
