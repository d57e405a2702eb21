"""The names of other libraries that give way to fastload's: one table that installs, compares, lists and undoes them.

A module that knows what to do in a name's place has an :class:`Override` of it in its tuple ``OVERRIDES``, and is named
in :data:`MODULES`. All follow the same rules:

* A name that a user or another library has replaced stays as it is, and so does one that cannot be replaced or that
  this version lacks: slower, told by ``loader.explain()``, and never an error. Only what gives other libraries
  fastload's loader is put around whatever is there (:attr:`Override.always`).
* ``make`` returns None for whatever it does not know: then the original is called, with the same arguments.
* Before it is used, what ``make`` returns is compared with what the original returns (:meth:`Override.agrees`).
* Who reads the replacement finds what the original has: its source, signature and globals.
* ``FASTLOAD_OVERRIDES=0`` installs none of them; ``fastload doctor --overrides`` lists them.

To replace one more function, write what takes its place, and an entry. For ``json.loads`` in workers::

    def _loaded(override: Override, text: Any, **named: Any) -> Any:
        return own_loads(text) if type(text) is str and not named and override.agrees() else None

    def _is_same(override: Override) -> bool:
        return own_loads(TEXT) == override.original(TEXT)

    OVERRIDES = (Override("json", "json", "loads", "texts are parsed sooner", _loaded, _is_same),)

Add a new module to :data:`MODULES`, or to :data:`OTHER_MODULES` if it installs its overrides itself. What is to be
another one only while a sample is made is a :class:`fastload.late.patch_guard.SampleOverride`; a function that fastload
does without, and leaves in its place, is a :class:`Bypass`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import os
import pkgutil
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import ConfigError, one_line

VARIABLE = "FASTLOAD_OVERRIDES"
WORKERS, PROCESS = "worker processes", "every process that loads samples"
THREADS, LOADERS = "worker threads", "every process that makes loaders"
"""Where overrides are active."""
MODULES = {
    "cv2": ("fastload.late.arrays",),
    "torchvision.io": ("fastload.late.arrays",),
    "torchcodec.decoders": ("fastload.late.arrays",),
    "lerobot": ("fastload.tables.lerobot",),
    "PIL.ImageEnhance": ("fastload.late.colors",),
    "torchvision.transforms._functional_pil": ("fastload.late.colors",),
    "torchvision.transforms._functional_tensor": ("fastload.late.tensor_colors",),
    "torchvision.transforms.v2": ("fastload.late.draws",),
    "torchvision.transforms.v2.functional": ("fastload.late.colors", "fastload.late.tensor_colors"),
}
"""Modules, by library, whose ``OVERRIDES`` a worker process installs once the library is imported."""
OTHER_MODULES = (
    *("fastload.late.opener", "fastload.late.containers", "fastload.base.compat_features"),
    *("fastload.keys.seeding", "fastload.tables", "fastload.tables.padding", "fastload.workers.routing"),
    *("fastload.run.installation", "fastload.run.adapters"),
)
"""Modules that install their ``OVERRIDES`` themselves."""
TRIED_WITH = {
    "torch": "2.6 to 2.15", "torchvision": "0.21 to 0.29", "PIL": "10.1 to 13.0", "cv2": "4.10 to 5.0",
}  # fmt: skip
"""Versions of each package with which its overrides were tested. Each override tests itself with any version."""


def _are_on() -> bool:
    wish = os.environ.get(VARIABLE, "1")
    if wish not in ("", "0", "1"):
        raise ConfigError(f"{VARIABLE} must be 0 (no name of another library is replaced) or 1, got {wish!r}")
    return wish != "0"


ON = _are_on()
"""True if names of other libraries may be replaced."""
results: dict[tuple[Any, ...], bool] = {}
"""Results of the self-tests, by what was compared: True if they agree. Worker processes get their parent's."""


def agreed(key: tuple[Any, ...], compare: Callable[[], Any]) -> bool:
    """Return the result of a comparison, which is made once; torch's generator is left as it was."""
    if key not in results:
        state = torch.get_rng_state()
        try:
            results[key] = bool(compare())
        finally:
            torch.set_rng_state(state)
    return results[key]


def compared(compare: Callable[..., bool]) -> Callable[..., bool]:
    """Make a comparison once for the same arguments: a decorator. See :data:`results`."""

    @functools.wraps(compare)
    def known(*arguments: Any) -> bool:
        return agreed((compare.__module__, compare.__name__, *arguments), lambda: compare(*arguments))

    return known


_MISSING: Any = object()
_changing = threading.RLock()
"""Held while a name is replaced, by one of several threads, and during a fork: a child has none half replaced."""
os.register_at_fork(before=_changing.acquire, after_in_parent=_changing.release, after_in_child=_changing.release)


@dataclass(eq=False)
class Override:
    """A name of another library, and what takes its place."""

    library: str
    """The module that must be imported."""
    owner: str
    """The module, class or mapping that has the name: ``module`` or ``module:name``."""
    name: str
    purpose: str
    """One line for ``fastload doctor --overrides``."""
    make: Callable[..., Any] | None = None
    """``make(override, *args, **named)`` returns what the original would, or None: the original is to be called."""
    self_test: Callable[..., bool] | None = None
    """``self_test(override, *case)`` compares it with ``override.original``."""
    where: str = WORKERS
    needs: Callable[[], str | None] = field(default=lambda: None)
    """Returns why fastload has nothing in its place on this machine; None where it has."""
    always: bool = False
    """True if it also wraps a user's replacement, and stays with ``FASTLOAD_OVERRIDES=0``."""
    everywhere: bool = False
    """True if modules that imported the original by name are patched too: see :func:`install_all`."""
    is_installed: bool = field(default=False, init=False)
    own: Any = field(default=None, init=False)
    """The replacement that was installed last."""
    _replaced: Any = field(default=None, init=False)
    _before: Any = field(default=_MISSING, init=False)
    """The owner's own attribute before it was replaced."""
    _places: list[tuple[types.ModuleType, str]] = field(default_factory=list, init=False)
    """Other modules in which the name was replaced."""

    @functools.cached_property
    def path(self) -> str:
        """The name with that of its owner."""
        return f"{self.owner}.{self.name}".replace(":", ".")

    @property
    def package(self) -> str:
        """The package that has the name."""
        return self.owner.partition(":")[0].partition(".")[0]

    def place(self) -> tuple[Any, Any]:
        """Return the owner, and the name or, in a mapping, the key."""
        return pkgutil.resolve_name(self.owner), self.name

    def found(self) -> Any:
        """Return what is there now.

        Raises:
            Exception: this version has no such thing.
        """
        owner, name = self.place()
        return owner[name] if isinstance(owner, MutableMapping) else getattr(owner, name)

    @property
    def original(self) -> Any:
        """The library's own object, also while it is replaced."""
        found = self._replaced if self.is_installed else self.found()
        return getattr(found, "stands_for", found)

    def is_original(self, found: Any) -> bool:
        """Return whether an object is the library's own."""
        return isinstance(unwrapped(found), types.BuiltinFunctionType) or is_written_in(found, self.package)

    def is_active(self) -> bool:
        """Return whether the replacement handles a call; else the original is called."""
        return True

    def agrees(self, *case: Any) -> bool:
        """Return whether both make the same, compared at the first question."""
        return self.self_test is None or agreed((self.path, *case), lambda: self.compare(*case))

    def compare(self, *case: Any) -> bool:
        """Compare both; False where that fails."""
        assert self.self_test is not None
        try:
            return bool(self.self_test(self, *case))
        except Exception:
            return False

    def cases(self, *, usual: bool) -> Iterable[tuple[Any, ...]]:
        """Return the arguments of :meth:`agrees`: all, or those that are compared before workers start."""
        return [] if self.self_test is None or usual else [()]

    def stand_in(self, original: Any) -> Any:
        """Return what is to stand in the original's place."""

        @in_place_of(original)
        def run(*args: Any, **named: Any) -> Any:
            # Asked first, so that torch.compile sees nothing but the original.
            if torch.compiler.is_compiling() or not self.is_active():
                return original(*args, **named)
            assert self.make is not None
            made = self.make(self, *args, **named)
            return original(*args, **named) if made is None else made

        return run

    def unavailable_reason(self) -> str | None:
        """Return why the original stays; None where it is replaced, or can be."""
        if self.is_installed:
            return None
        reason = self.needs() if ON or self.always else f"{VARIABLE}=0"
        if reason is not None:
            return reason
        try:
            found = self.found()
        except Exception:  # whatever another version raises
            return f"this version of {self.package} has no {self.path}"
        if not self.always and not self.is_original(found):
            who = getattr(found, "__qualname__", None) or type(found).__qualname__
            return f"it was replaced by {getattr(found, '__module__', '?')}.{who}, which is called"
        try:
            with _changing:
                if not self.is_installed:  # by another thread, meanwhile
                    self._set(found)
                    self._put_back()
        except (AttributeError, TypeError) as error:
            return f"it cannot be replaced: {one_line(error)}"
        return None

    def install(self) -> None:
        """Replace the name, unless :meth:`unavailable_reason` says why not."""
        if self.is_installed or self.unavailable_reason() is not None:
            return
        with _changing:
            if not self.is_installed:  # by another thread, meanwhile
                self._replaced = self.found()
                self.own = self.stand_in(self._replaced)
                self._set(self.own)
                self.is_installed = True

    def undo(self) -> None:
        """Put the original back, unless somebody has replaced ours since."""
        if self.is_installed and self._is_there():
            self._put_back()
        for module, name in self._places:
            if vars(module).get(name) is self.own:
                setattr(module, name, self._replaced)
        self._places.clear()
        self.is_installed = False

    def _is_there(self) -> bool:
        try:
            return self.found() is self.own
        except Exception:  # somebody has deleted the name
            return False

    def _set(self, value: Any) -> None:
        owner, name = self.place()
        if isinstance(owner, MutableMapping):
            self._before, owner[name] = owner[name], value
        else:
            self._before = getattr(owner, "__dict__", {}).get(name, _MISSING)  # a class may inherit it
            setattr(owner, name, value)

    def _put_back(self) -> None:
        owner, name = self.place()
        if isinstance(owner, MutableMapping):
            owner[name] = self._before
        elif self._before is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, self._before)


class Bypass(Override):
    """A function that fastload does without, as long as it is the library's own; nothing is put in its place."""

    def install(self) -> None:
        """Leave it."""

    def _set(self, value: Any) -> None:
        pass

    def _put_back(self) -> None:
        pass


Holders = dict[int, list[tuple[types.ModuleType, str]]]
"""By the identity of an object: the modules that hold it, each with the name."""


def install_all(some: Iterable[Override], known: Holders | None = None) -> None:
    """Install overrides, and those that are for :attr:`~Override.everywhere` in all modules that hold an original.

    What is held in another way than under a module's name, as a default argument or in a closure, stays.
    ``known``: who holds them, if that was searched before.
    """
    by_original = {}
    for one in some:
        one.install()
        if one.is_installed and one.everywhere:
            by_original[id(one.original)] = one
    if known is None or not by_original.keys() <= known.keys():
        known = _holders_of(by_original)
    for original, one in by_original.items():
        for module, name in known[original]:
            setattr(module, name, one.own)
            one._places.append((module, name))


def _holders_of(originals: Iterable[int]) -> Holders:
    """Search all modules but fastload's for objects with these identities: 20 ms for 3,500 modules."""
    found: Holders = {one: [] for one in originals}
    for module in list(sys.modules.values()) if found else ():
        if not issubclass(type(module), types.ModuleType):
            continue
        # Not vars(): a module that is loaded when it is first asked for something is not loaded.
        names: dict[str, Any] = object.__getattribute__(module, "__dict__")
        if found.keys().isdisjoint(map(id, tuple(names.values()))):
            continue
        if str(names.get("__name__")).partition(".")[0] != "fastload":
            for name, value in tuple(names.items()):
                if id(value) in found:
                    found[id(value)].append((module, name))
    return found


_waiting = dict(MODULES)
_prepared: tuple[int, Holders] = 0, {}
"""How many modules there were in :func:`prepare`, and who held what workers replace everywhere."""


def _of(library: str) -> Iterator[Override]:
    for module in MODULES[library]:
        yield from (one for one in importlib.import_module(module).OVERRIDES if one.library == library)


def prepare() -> None:
    """Do once what all workers would do: compare what most of them ask for, and search modules for what they replace.

    Only for the libraries that are imported.
    """
    global _prepared
    everywhere = []
    for one in itertools.chain(*map(_of, filter(is_imported, MODULES))):
        cases = list(one.cases(usual=True))
        if (cases or one.everywhere) and one.unavailable_reason() is None:
            everywhere += [id(one.original)] if one.everywhere else []
            for case in cases:
                one.agrees(*case)
    if _prepared[0] != len(sys.modules):
        _prepared = len(sys.modules), _holders_of(everywhere)


def install() -> None:
    """Install the overrides of the libraries that are imported. A worker process calls it when it begins a chunk."""
    # Several threads may do it: each takes others.
    mine = [one for one in list(_waiting) if is_imported(one) and _waiting.pop(one, None) is not None]
    if mine:
        number, known = _prepared
        install_all(itertools.chain(*map(_of, mine)), known if number == len(sys.modules) else None)


def undo() -> None:
    """Undo what :func:`install` has done."""
    for one in itertools.chain(*map(_of, MODULES.keys() - _waiting.keys())):
        one.undo()
    _waiting.update(MODULES)


def table() -> Iterator[tuple[str, Override]]:
    """Yield all overrides, each with the module that has it. The modules are imported."""
    for module in dict.fromkeys([*itertools.chain(*MODULES.values()), *OTHER_MODULES]):
        yield from ((module, one) for one in importlib.import_module(module).OVERRIDES)


def in_words() -> Iterator[str]:
    """Yield what workers do not replace though its library is imported, and why, for ``explain()``."""
    if not ON:
        yield f"{VARIABLE}=0: no name of another library is replaced"
    for library in filter(is_imported, MODULES if ON else ()):
        yield from told(library, _of(library))


def told(library: str, some: Iterable[Override]) -> Iterator[str]:
    """Yield which of some overrides are not installed, and why; all of them are called ``library``."""
    some = list(some)
    reasons = {one.path: reason for one in some if (reason := one.unavailable_reason()) is not None}
    for reason in dict.fromkeys(reasons.values()):
        paths = [path for path in reasons if reasons[path] == reason]
        names = library if len(paths) == len(some) else ", ".join(paths)
        yield f"{names} in {some[0].where} is as it was: {reason}"


def is_imported(name: str) -> bool:
    """Return whether a module is imported, and not just being imported by another thread."""
    module = sys.modules.get(name)
    return module is not None and not getattr(module.__spec__, "_initializing", False)


class _InPlaceOfBuiltin:
    """Replacement for a built-in function."""

    def __init__(self, original: Any, call: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original, updated=())
        self.stands_for, self._call = original, call

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._call(*args, **named)

    def __repr__(self) -> str:
        return repr(self.stands_for)

    def __reduce__(self) -> Any:
        return self.stands_for.__reduce__()  # OpenCV's by their names; operators cannot be pickled


def in_place_of(original: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that makes a function such that it can stand in for another function.

    What reads the other one finds in it what it would find there: signature, source, annotations, name and module; and
    its globals too, since ``torch.jit.script`` compiles the source of ``__wrapped__`` with the wrapper's globals.
    """

    def stand_in(function: Callable[..., Any]) -> Callable[..., Any]:
        written = inspect.unwrap(original)
        if not isinstance(written, types.FunctionType):
            return _InPlaceOfBuiltin(original, function)
        code, closure = _calling(function)
        made: Any = types.FunctionType(code, written.__globals__, closure=closure)
        functools.update_wrapper(made, original)
        made.__signature__ = inspect.signature(original)  # inspect.getfullargspec() looks at nothing wrapped
        made.stands_for = original
        return made  # type: ignore[no-any-return]

    return stand_in


def _calling(function: Callable[..., Any]) -> tuple[types.CodeType, Any]:
    """Return the code, without a global name, and the closure of what calls a function."""

    def _stand_in(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return _stand_in.__code__, _stand_in.__closure__


_CODE = _calling(print)[0]


def unwrapped(function: Any) -> Any:
    """Return the function that fastload's profiler has put others around."""
    while hasattr(function, "__wrapped__") and _package_of(function) == "fastload":
        function = function.__wrapped__
    return function


def is_written_in(function: Any, *packages: str) -> bool:
    """Return whether a function, and everything it wraps, comes from one of these packages; False for None.

    Its ``__module__`` does not tell: functools.wraps copies that of the wrapped function.
    """
    while True:
        if isinstance(function, property):
            function = function.fget
        function = getattr(function, "__func__", function)  # of a bound method
        if _package_of(function) not in packages:
            return False
        function = getattr(function, "__wrapped__", None)
        if function is None:
            return True


def _package_of(function: Any) -> str:
    kind = type(function)  # not `__class__`: a wrapper may say that it is what it wraps
    if kind is types.FunctionType:
        # By its globals a stand-in would be the other function's.
        module = __name__ if function.__code__ is _CODE else function.__globals__.get("__name__")
    else:
        is_named = issubclass(kind, (types.BuiltinFunctionType, type)) or kind.__name__ == "cython_function_or_method"
        module = function.__module__ if is_named else kind.__module__
    return str(module).partition(".")[0]
