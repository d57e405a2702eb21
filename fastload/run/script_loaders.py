"""Acts on a loader of a script in place of the loader's first batch, in the script's own process.

``fastload verify``, ``explain`` and ``tune`` ask for it by an environment variable; the loaders announce themselves
(:mod:`fastload.observe`). The result of the verb is written to a file, and the script ends.
Where a script starts several processes, as ranks, only the first one that asks for a batch acts; all of them end.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
import weakref
from dataclasses import dataclass, field
from typing import Any

from .. import observe
from ..base.users_line import users_frame
from ..errors import ConfigError
from .result_file import may_act, write_result
from .targets import VARIABLE, Target, TargetResult, UsageError, call_action


def start() -> None:
    """Observe the loaders of this process as the environment variable says."""
    loaders = ScriptLoaders(**json.loads(os.environ[VARIABLE]))
    observe.on_construction.append(loaders.constructed)
    observe.on_iteration.append(loaders.iterating)


@dataclass
class ScriptLoaders:
    """Observes the loaders of a script, and acts on the one that is iterated as the first, second, ... by ``number``.

    ``action``: see :class:`fastload.run.targets.Verb`; ``result``: :func:`fastload.run.result_file.result_file`.
    """

    verb: str
    action: str
    options: dict[str, Any]
    number: int
    result: str
    _made: list[tuple[weakref.ref[Any], str]] = field(default_factory=list)
    # Kept alive, so that no identity is used twice.
    _iterated: dict[int, Any] = field(default_factory=dict)

    def constructed(self, loader: Any) -> None:
        """Note where the script constructs a loader."""
        self._made.append((weakref.ref(loader), _line_of_user()))

    def iterating(self, loader: Any) -> None:
        """Act on the loader that is meant, and end the script."""
        if id(loader) in self._iterated:
            return
        self._iterated[id(loader)] = loader
        if len(self._iterated) < self.number:
            return
        # What is done from here on makes loaders of its own.
        observe.on_construction.remove(self.constructed)
        observe.on_iteration.remove(self.iterating)
        os.environ.pop(VARIABLE, None)
        status = 0
        try:
            if may_act(self.result):
                self._act(loader)
        except (Exception, SystemExit):  # a bug of fastload's: print it here, since the script may hide it
            traceback.print_exc()
            status = 2
        # The exit status of the command comes from the result: a script may catch SystemExit. It must not train then.
        observe.on_iteration.append(lambda _: os._exit(0))
        sys.stdout.flush()
        if threading.current_thread() is not threading.main_thread():
            os._exit(status)  # SystemExit would end this thread alone, and other threads may wait for its batches
        raise SystemExit(status)

    def _act(self, loader: Any) -> None:
        made = [(one, line) for reference, line in self._made if (one := reference()) is not None]
        try:
            result = call_action(self.action, Target(loader, made=made), self.options)
        except (UsageError, ConfigError) as error:
            print(f"fastload {self.verb}: {error}", file=sys.stderr)
            result = TargetResult(2)
        sys.stdout.flush()
        write_result(self.result, result)


def _line_of_user() -> str:
    """Return ``file:line`` of the user's code that constructs a loader; of a library's if there is none."""
    frame = users_frame()
    if frame is None:
        return ""
    file = frame.f_code.co_filename
    near = os.path.relpath(file)
    return f"{file if near.startswith(os.pardir) else near}:{frame.f_lineno}"
