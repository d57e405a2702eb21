"""Defaults of fastload's own arguments, for every loader that is made: from the environment, the command line, or code.

In: ``FASTLOAD_LOADER="fuse=true,seed=1"``, options of ``fastload run`` (which sets that variable), or the arguments of
:func:`fastload.install`. Out: the defaults that ``DataLoader.__init__`` has in place of those in its source. What a
script gives itself is no default, so it wins.

Imports nothing that takes time: the command line reads this.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from typing import Any

from .errors import ConfigError

VARIABLE = "FASTLOAD_LOADER"

OPTIONS: Mapping[str, str] = {
    "fuse": "true, false or auto; without a value: true",
    "seed": "an integer",
    "worker_method": "multiprocessing or thread",
    "seeding": "sample or torch",
    "chunk_size": "samples a task; or batch",
    "resident": "host, device or auto",
    "decoder": "auto, native, torchvision or pillow",
    "on_error": "raise, skip or replace",
    "max_errors": "samples that may fail in an epoch",
    "overlap_epochs": "true or false; without a value: true",
    "device": "where batches are to be, as torch names it",
    "prefetch_to_device": "batches on the device beyond the one given out",
    "channels_last": "true or false; without a value: true",
    "fixed_buffers": "true or false; without a value: true",
}
"""The arguments that are options of ``fastload run``, with what they take. (The other two take no plain values.)"""

FLAGS = ("fuse", "overlap_epochs", "channels_last", "fixed_buffers")
"""Those options that need no value."""

FLAG_WORDS = ("true", "false", "auto")
"""What can be the value of such an option if it stands in a word of its own."""

_CONSTANTS = {"true": True, "false": False, "none": None}


def read_text(text: str) -> dict[str, str]:
    """Return the arguments that ``fuse=true,seed=1`` gives, as words.

    Raises:
        ConfigError: it does not read like this, or names an argument twice.
    """
    words: dict[str, str] = {}
    for piece in text.split(",") if text.strip() else ():
        name, equals, word = (part.strip() for part in piece.partition("="))
        if not equals or not name or not word:
            raise ConfigError(f"it must read like fuse=true,seed=1, got {piece.strip()!r}")
        if name in words:
            raise ConfigError(f"it gives {name} twice: {words[name]} and {word}")
        words[name] = word
    return words


def as_text(words: Mapping[str, str]) -> str:
    """Return what :func:`read_text` reads."""
    return ",".join(f"{name}={word}" for name, word in words.items())


def values_of(words: Mapping[str, str]) -> dict[str, Any]:
    """Return what words stand for: true, false, none and integers for themselves, all else for the word."""
    return {name: _value_of(word) for name, word in words.items()}


def _value_of(word: str) -> Any:
    if word.lower() in _CONSTANTS:
        return _CONSTANTS[word.lower()]
    try:
        return int(word)
    except ValueError:
        return word


def own_argument_names(loader_class: Any) -> tuple[str, ...]:
    """Return the names of those arguments of :class:`fastload.DataLoader` that torch's class does not have."""
    torchs = _torchs_parameters(loader_class)
    return tuple(name for name in _initializer(loader_class).__kwdefaults__ if name not in torchs)


def _torchs_parameters(loader_class: Any) -> Mapping[str, Any]:
    return inspect.signature(loader_class.__base__.__init__).parameters


def _initializer(loader_class: Any) -> Any:
    return inspect.unwrap(loader_class.__init__)  # Lightning and explain wrap it for some time


class Defaults:
    """The defaults of one class, which can be changed and taken back.

    Args:
        loader_class: :class:`fastload.DataLoader`.
    """

    def __init__(self, loader_class: Any) -> None:
        self._class = loader_class
        self._written = dict(_initializer(loader_class).__kwdefaults__)
        self.changed: dict[str, Any] = {}

    def read_environment(self) -> None:
        """Give the arguments the defaults that FASTLOAD_LOADER says, and no others.

        Raises:
            ConfigError: the variable cannot be read, or what it says cannot be.
        """
        self._set({})
        text = os.environ.get(VARIABLE, "")
        try:
            self.change(values_of(read_text(text)))
        except ConfigError as error:
            raise ConfigError(f"{VARIABLE}={text!r}: {error}") from None

    def change(self, values: Mapping[str, Any]) -> None:
        """Give arguments other defaults.

        Raises:
            ConfigError: there is no such argument, or no loader can have these values; nothing is changed.
        """
        self.check(values)
        self._set({**self.changed, **values})

    def check(self, values: Mapping[str, Any]) -> None:
        """Check that there are such arguments, and that a loader can have these values, as it checks them itself.

        Raises:
            ConfigError: no.
        """
        known = own_argument_names(self._class)
        for name in values:
            if name not in known:
                torchs = name in _torchs_parameters(self._class)
                whose = "an argument of torch's DataLoader" if torchs else "no argument of fastload.DataLoader"
                raise ConfigError(f"{name} is {whose}; defaults can be given to {', '.join(known)}")
        if values:
            self._class([0], **{**self.changed, **values})

    def _set(self, changed: dict[str, Any]) -> None:
        self.changed = changed
        _initializer(self._class).__kwdefaults__ = {**self._written, **changed}

    def explain(self, error: ConfigError) -> None:
        """Have an error that a loader's arguments cause say which of them the script did not give."""
        if self.changed:
            said = ", ".join(f"{name}={value!r}" for name, value in self.changed.items())
            error.add_note(f"defaults here, from {VARIABLE}, fastload run or fastload.install(): {said}")


__all__ = ["FLAGS", "FLAG_WORDS", "OPTIONS", "VARIABLE", "Defaults", "as_text", "own_argument_names", "read_text"]
__all__ += ["values_of"]
