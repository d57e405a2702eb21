"""A wrapper around a function that hides itself."""

from __future__ import annotations

from typing import Any


class Proxy:
    """A wrapper that says that it is what it wraps, as those of wrapt do."""

    def __init__(self, wrapped: Any) -> None:
        self.__wrapped__ = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __eq__(self, other: object) -> bool:
        return self.__wrapped__ is other or self is other

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.__wrapped__)
