"""What ``fastload verify``, ``explain`` and ``tune`` have in common: a target, how it is reached, and ``--json``.

In: the words of a command line that name a script, a module, or an object in one. Out: what the verb makes of it. An
object is looked at in this process. A script runs in a process of its own, exactly as ``fastload run`` would start it,
so that it is the main module and its workers find it; there, its loader is caught (see caught.py). The result comes
from a file, whatever the script does with the ``SystemExit`` that ends it. Imports nothing that takes time.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

from .caught import run_script, why_not_caught


class TargetError(Exception):
    """The command cannot be carried out with its target; the message is one line for the user."""


class Starter(NamedTuple):
    """How the command line starts scripts."""

    script_of: Callable[[list[str]], list[str]]
    """Returns the words that start a script."""
    inject: Callable[[MutableMapping[str, str]], None]
    """Changes an environment as ``fastload run`` does."""


def run_target(
    verb: str,
    command: list[str],
    options: Mapping[str, Any],
    starter: Starter,
    with_object: Callable[[str, dict[str, Any]], object],
    *,
    instead: str,
    number: int = 1,
) -> dict[str, Any]:
    """Have a verb's work done on its target.

    Args:
        verb: of the command line. A script gets the options in the variable ``FASTLOAD_VERB``.
        command: the target and its arguments.
        options: for the work, as JSON can hold them. If ``table`` is False, what a script prints goes to standard
            error, so that it does not stand among the JSON. ``result`` is added: the file for the result, as JSON.
        starter: starts a script.
        with_object: does the work on an object, given its word and the options.
        instead: what to do where a program was named.
        number: of the loader that is caught in a script.

    Returns:
        The result; empty where the work wrote none.

    Raises:
        TargetError: the target is none, or its script has iterated over no loader.
    """
    _check_command(verb, command, instead)
    with tempfile.TemporaryDirectory(prefix=f"fastload-{verb}-") as folder:
        result = Path(folder) / "result.json"
        given = {**options, "result": str(result)}
        if _names_an_object(command[0]):
            with_object(command[0], given)
        else:
            output = None if given.get("table", True) else sys.stderr.fileno()
            variable = f"FASTLOAD_{verb.upper()}"
            ended = run_script(starter.script_of(command), starter.inject, variable, given, output)
            if not result.exists():
                raise TargetError(why_not_caught(command, ended, number))
        text = result.read_text(encoding="utf-8") if result.exists() else ""
    found: dict[str, Any] = json.loads(text) if text else {}
    return found


def epilog(script: str, found: str, status: str) -> str:
    """Return the end of a verb's help.

    Args:
        script: what is taken of a script.
        found: what an object may be.
        status: what the exit statuses mean.
    """
    return f"""\
targets:   train.py --its --arguments     {script}
           -m package.train               the same for a module
           package.module:name            {found}
           path/to/file.py:name           the same in a file

status:    {status}
"""


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Give a parser the option ``--json``: see :func:`write_json`."""
    parser.add_argument(
        "--json", type=_json_file, metavar="FILE", help="write the result as JSON; '-': to standard output, no table"
    )


def _json_file(word: str) -> str:
    if word != "-" and (os.path.isdir(word) or not os.path.isdir(os.path.dirname(word) or os.curdir)):
        raise argparse.ArgumentTypeError(f"must be a file in a folder that there is, or '-', got {word!r}")
    return word


def write_json(where: str | None, text: str) -> None:
    """Write JSON to a file, to standard output for "-", or nowhere.

    Raises:
        TargetError: the file cannot be written.
    """
    if where == "-":
        print(text)
    elif where is not None:
        try:
            Path(where).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise TargetError(f"the result cannot be written to {where}: {error}") from error


_OBJECT = re.compile(r"(?P<module>[^:]+):(?P<name>[A-Za-z_][\w.]*)")


def _names_an_object(word: str) -> bool:
    """Whether a word of the command line is ``package.module:name`` or ``file.py:name``."""
    return _OBJECT.fullmatch(word) is not None and not os.path.exists(word)


def _check_command(verb: str, command: list[str], instead: str) -> None:
    """Refuse what no script, module or object can be.

    Raises:
        TargetError: nothing is named, a program is, or an object with arguments.
    """
    if not command or command == ["-m"]:
        raise TargetError(f"a script, -m MODULE or MODULE:NAME is missing; see fastload {verb} --help")
    if command[0] == "--":
        raise TargetError(f"it takes a script, -m MODULE or MODULE:NAME, and no program; {instead}")
    if _names_an_object(command[0]) and command[1:]:
        raise TargetError(f"{command[0]} takes no arguments, got {' '.join(command[1:])}")


def find_object(word: str) -> Any:
    """Import a module and return the object in it.

    Args:
        word: ``package.module:name`` or ``path/to/file.py:name``; the name may have dots.

    Raises:
        TargetError: there is no such file, module or name, or importing it fails.
    """
    matched = _OBJECT.fullmatch(word)
    assert matched is not None
    where, name = matched["module"], matched["name"]
    path = Path(where)
    if where.endswith(".py"):
        if not path.is_file():
            raise TargetError(f"no such file: {where}")
        # By its name, not by its path, so that processes started by spawn can import it too.
        folder, module_name = str(path.resolve().parent), path.stem
    else:
        folder, module_name = os.getcwd(), where
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise TargetError(f"no such module: {where}; give a file as path/to/file.py:{name}") from None
        raise TargetError(f"{where} cannot be imported: {type(error).__name__}: {error}") from error
    except (Exception, SystemExit) as error:  # a script may end itself
        raise TargetError(f"{where} cannot be imported: {type(error).__name__}: {error}") from error
    if where.endswith(".py") and Path(module.__file__ or "").resolve() != path.resolve():
        raise TargetError(f"{where} cannot be imported, since {module_name} is {module.__file__}; rename the file")
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            offers = ", ".join(sorted(known for known in vars(module) if not known.startswith("_"))[:8])
            raise TargetError(f"{where} has no {name}; it has {offers or 'nothing'}")
        found = getattr(found, part)
    return found


def unguarded(script: str) -> str | None:
    """Return why a script cannot be imported by processes started by spawn; None if it can.

    Args:
        script: its path.
    """
    try:
        tree = ast.parse(Path(script).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return None  # what runs it will say
    for node in tree.body:
        if isinstance(node, ast.If) and any(
            isinstance(one, ast.Name) and one.id == "__name__" for one in ast.walk(node.test)
        ):
            return None
    return "the script has no `if __name__ == '__main__':`, so a process started by spawn would run it again"


__all__ = [
    "Starter",
    "TargetError",
    "add_json_option",
    "epilog",
    "find_object",
    "run_target",
    "unguarded",
    "write_json",
]
