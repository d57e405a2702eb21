"""What the command line names: a script, a module, or an object in one. Imports nothing that takes time."""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
from pathlib import Path
from typing import Any


class TargetError(Exception):
    """The command names nothing that can be verified; the message is one line for the user."""


_OBJECT = re.compile(r"(?P<module>[^:]+):(?P<name>[A-Za-z_][\w.]*)")


def names_an_object(word: str) -> bool:
    """Whether a word of the command line is ``package.module:name`` or ``file.py:name``."""
    return _OBJECT.fullmatch(word) is not None and not os.path.exists(word)


def check_command(verb: str, command: list[str], instead: str) -> None:
    """Refuse what no script, module or object can be.

    Args:
        verb: of the command line, as in ``fastload verb``.
        command: the target and its arguments.
        instead: what to do where a program was named.

    Raises:
        TargetError: nothing is named, a program is, or an object with arguments.
    """
    if not command or command == ["-m"]:
        raise TargetError(f"a script, -m MODULE or MODULE:NAME is missing; see fastload {verb} --help")
    if command[0] == "--":
        raise TargetError(f"it takes a script, -m MODULE or MODULE:NAME, and no program; {instead}")
    if names_an_object(command[0]) and command[1:]:
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
    except Exception as error:
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


__all__ = ["TargetError", "check_command", "find_object", "names_an_object", "unguarded"]
