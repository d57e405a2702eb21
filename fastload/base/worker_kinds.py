"""The kinds of workers: values of ``worker_method``. Imports nothing, since the command line reads it too."""

from __future__ import annotations

from typing import Literal, NamedTuple

WorkerMethod = Literal["multiprocessing", "thread", "ray"]


class WorkerKind(NamedTuple):
    """A kind of worker."""

    module: str
    """Module of :mod:`fastload.workers` that starts them."""
    one: str
    many: str
    threads: bool = False
    """True if they are threads of this process."""

    def counted(self, number: int) -> str:
        """Return so many of them, in words."""
        return f"{number} {self.one if number == 1 else self.many}"


WORKER_KINDS = {
    "multiprocessing": WorkerKind("processes", "process", "processes"),
    "thread": WorkerKind("threads", "thread", "threads", threads=True),
    "ray": WorkerKind("ray.pool", "Ray worker", "Ray workers"),
}


def has_threads(worker_method: object) -> bool:
    """Return whether workers are threads of this process; False for what is no ``worker_method``."""
    kind = WORKER_KINDS.get(str(worker_method))
    return kind is not None and kind.threads
