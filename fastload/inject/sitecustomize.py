"""What every Python process below ``fastload run`` executes first.

Waits for torch's DataLoader to be imported and then replaces it; leaves the process as it would have been without
us: ``sys.path`` loses this folder, and the ``sitecustomize`` that this one hides (the user's, Debian's) is executed
in its place. The environment keeps PYTHONPATH, so that the process's own children come here too.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


def _arm() -> None:
    """Have torch's DataLoader replaced as soon as it exists."""
    from fastload_hook import after_import, replace_init  # type: ignore[import-not-found] # on sys.path by now only

    after_import("torch.utils.data.dataloader", lambda module: replace_init(module.DataLoader))
    verify, explain = os.environ.get("FASTLOAD_VERIFY"), os.environ.get("FASTLOAD_EXPLAIN")
    tune = os.environ.get("FASTLOAD_TUNE")
    if verify is not None or explain is not None or tune is not None:

        def catch(module: ModuleType) -> None:
            if verify is not None:
                from fastload.verification.script import catch_loader

                catch_loader(module.DataLoader, verify)
            if explain is not None:
                from fastload.plan_tables import explain_first

                explain_first(module.DataLoader, explain)
            if tune is not None:
                from fastload.tune.script import catch_loaders

                catch_loaders(module.DataLoader, tune)

        after_import("fastload.loader", catch)


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
        # an error in there reaches site.py, which reports it as it would have without us
        spec.loader.exec_module(module)


def _listen(wanted: str) -> None:
    """Have the process recorded for ``fastload profile``."""
    has_json = "json" in sys.modules
    try:
        from fastload.profiling.hooks.start import start
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
    if not has_json:  # torch can do without it: a script may have a module of that name, which would not be found
        for name in [name for name in sys.modules if name.partition(".")[0] == "json"]:
            del sys.modules[name]


try:
    if os.environ.get("FASTLOAD_INSTALL") == "1":
        _arm()
    if "FASTLOAD_PROFILE" in os.environ:
        _listen(os.environ["FASTLOAD_PROFILE"])
finally:
    _step_aside()
