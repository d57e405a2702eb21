"""Defaults of fastload's own arguments: from the environment, the command line, or :func:`fastload.install`.

The environment's are ``FASTLOAD_LOADER="fuse=true,seed=1"``, which ``fastload run`` sets from its options. An argument
that a script gives overrides them. Imports nothing that takes time: the command line reads this.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError
from ..options import OPTIONS

VARIABLE = "FASTLOAD_LOADER"

FLAG_WORDS = ("true", "false", "auto")
"""The values that an option which needs none can have as a separate word."""

_CONSTANTS = {"true": True, "false": False, "none": None}


def read_text(text: str) -> dict[str, str]:
    """Return the arguments in a text like ``fuse=true,seed=1``, unparsed."""
    words: dict[str, str] = {}
    for piece in text.split(",") if text.strip() else ():
        name, equals, word = (part.strip() for part in piece.partition("="))
        if not equals or not name or not word:
            raise ConfigError(f"it must have the form fuse=true,seed=1, got {piece.strip()!r}")
        if name in words:
            raise ConfigError(f"it has {name} twice: {words[name]} and {word}")
        words[name] = word
    return words


def as_text(words: Mapping[str, str]) -> str:
    """Return the text that :func:`read_text` reads."""
    return ",".join(f"{name}={word}" for name, word in words.items())


def values_of(words: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of words: true, false, none and integers; any other word is a string."""

    def value(word: str) -> Any:
        with contextlib.suppress(ValueError):
            return _CONSTANTS[word.lower()] if word.lower() in _CONSTANTS else int(word)
        return word

    return {name: value(word) for name, word in words.items()}


def _initializer(loader_class: Any) -> Any:
    return inspect.unwrap(loader_class.__init__)  # Lightning wraps it for a time


class Defaults:
    """The defaults of a class, :class:`fastload.DataLoader`, which can be changed and restored."""

    def __init__(self, loader_class: Any) -> None:
        self._class = loader_class
        self._written = dict(_initializer(loader_class).__kwdefaults__)
        self.changed: dict[str, Any] = {}

    def read_environment(self) -> None:
        """Use the defaults in FASTLOAD_LOADER, and no others."""
        self._set({})
        text = os.environ.get(VARIABLE, "")
        try:
            self.change(values_of(read_text(text)))
        except ConfigError as error:
            raise ConfigError(f"{VARIABLE}={text!r}: {error}") from None

    def change(self, values: Mapping[str, Any]) -> None:
        """Change defaults of arguments; nothing is changed where that is an error."""
        self.check(values)
        self._set({**self.changed, **values})

    def check(self, values: Mapping[str, Any]) -> None:
        """Check that there are such arguments, and that a loader accepts these values.

        Raises:
            ConfigError: there is no such argument, or a loader refuses a value.
        """
        for name in values:
            if name not in OPTIONS:
                torchs = name in inspect.signature(self._class.__base__.__init__).parameters
                whose = "an argument of torch's DataLoader" if torchs else "not an argument of fastload.DataLoader"
                raise ConfigError(f"{name} is {whose}; there are defaults for {', '.join(OPTIONS)}")
        if values:
            self._class([0], **{**self.changed, **values})

    def _set(self, changed: dict[str, Any]) -> None:
        self.changed = changed
        _initializer(self._class).__kwdefaults__ = {**self._written, **changed}

    def explain(self, error: ConfigError) -> None:
        """Add a note with the changed defaults to an error about a loader's arguments."""
        if self.changed:
            said = ", ".join(f"{name}={value!r}" for name, value in self.changed.items())
            error.add_note(f"defaults set by {VARIABLE}, fastload run or fastload.install(): {said}")
