"""Executed first by every Python process below ``fastload run``.

Waits for torch's DataLoader to be imported, and then replaces it. The process is otherwise as without fastload:
``sys.path`` loses this folder, and the ``sitecustomize`` that this one hides (the user's, Debian's) is executed after
it. The environment keeps PYTHONPATH, so that child processes execute this file too.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def _install() -> None:
    """Replace torch's DataLoader once it is imported."""
    from fastload_hook import after_import, replacement  # type: ignore[import-not-found] # on sys.path only now

    def find_initialize() -> Any:
        from fastload.run.installation import initialize

        return initialize

    def replace(loader_class: Any) -> None:
        loader_class.__init__ = replacement(loader_class.__init__, find_initialize)

    after_import("torch.utils.data.dataloader", lambda module: replace(module.DataLoader))
    after_import("torchdata.stateful_dataloader.stateful_dataloader", lambda module: replace(module.StatefulDataLoader))
    if "FASTLOAD_SCRIPT_LOADERS" in os.environ:  # for fastload verify, explain and tune

        def observe(_: ModuleType) -> None:
            from fastload.run.script_loaders import start

            start()

        after_import("fastload.loader", observe)


def _say_if_nothing_is_replaced(noted: str) -> None:
    """Say at exit, in the process that ``fastload run`` became, that no loader was replaced in it or below it.

    ``noted``: the path of an open file, to which each process writes that has iterated a loader.
    """
    process = os.getpid()
    if not noted.startswith(f"/proc/{process}/") or not os.path.exists(noted):
        return
    import atexit

    os.set_inheritable(int(noted.rpartition("/")[2]), False)

    def tell() -> None:
        uses_torch = "torch.utils.data" in sys.modules or os.environ.get("FASTLOAD_REPORT") == "1"
        failed = hasattr(sys, "last_value")  # then the traceback is what matters
        is_open = os.getpid() == process and os.path.exists(noted)  # not in a fork, nor in a daemon
        if is_open and uses_torch and not failed and os.stat(noted).st_size == 0:
            print(
                "fastload: nothing was replaced: no DataLoader of torch's was iterated, and loaders of other libraries "
                "stay as they are",
                file=sys.stderr,
            )

    atexit.register(tell)


def _profile(wanted: str) -> None:
    """Record the process for ``fastload profile``."""
    has_json = "json" in sys.modules
    try:
        from fastload.profiling.hooks.process import start
    except ImportError as error:
        from fastload_hook import after_import

        why = str(error)

        def warn(_: ModuleType) -> None:
            print(
                f"fastload profile: {sys.executable} is not recorded, because it cannot import fastload ({why}); "
                "install fastload in that environment",
                file=sys.stderr,
            )

        after_import("torch.utils.data.dataloader", warn)
    else:
        start(wanted)
    if not has_json:  # a script may have a module of that name, which would not be found; torch can do without it
        for name in [name for name in sys.modules if name.partition(".")[0] == "json"]:
            del sys.modules[name]


def _step_aside() -> None:
    """Take this folder from ``sys.path`` and execute the next ``sitecustomize``, if there is one."""
    from importlib.machinery import PathFinder

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        # An error in it reaches site.py, which reports it as without fastload.
        spec.loader.exec_module(module)


try:
    if os.environ.get("FASTLOAD_INSTALL") == "1":
        _install()
    if "FASTLOAD_RUN" in os.environ:
        _say_if_nothing_is_replaced(os.environ["FASTLOAD_RUN"])
    if "FASTLOAD_PROFILE" in os.environ:
        _profile(os.environ["FASTLOAD_PROFILE"])
finally:
    _step_aside()
