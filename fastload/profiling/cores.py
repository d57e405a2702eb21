"""The cores and the clock of the simulation: threads share them, block, and are parked. Pure; times in ns."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Generator

CPU, BLOCKED, PARKED = 0, 1, 2
Wish = tuple[int, float]
"""What a thread asks for, and for how long: a core, blocked time, or to be parked until it is woken."""
Doing = Generator[Wish, None, None]
"""What a thread does: its wishes, one after the other."""


class Thread:
    """Something that asks for a core now and then."""

    __slots__ = ("doing", "width")

    def __init__(self, doing: Doing) -> None:
        self.doing = doing
        self.width = 1
        """Cores that it keeps busy when it runs."""


class Cores:
    """Shares cores among threads: each of n that want one, those of other programs too, gets min(1, cores / n) of one.

    All that are on the cores advance alike, so how far they have come is one number (``_progress``), and who is done
    first is told by a heap.
    """

    def __init__(self, cores: float, others: float) -> None:
        self.now = 0.0
        self.spent = 0.0
        self.current: Thread
        self._cores = cores
        self._others = others
        self._wanting = 0
        self._progress = 0.0
        self._running: list[tuple[float, int, Thread]] = []
        self._blocked: list[tuple[float, int, Thread]] = []
        self._ready: deque[Thread] = deque()
        self._count = 0

    def start(self, doing: Doing) -> Thread:
        """Start a thread."""
        thread = Thread(doing)
        self._ready.append(thread)
        return thread

    def wake(self, thread: Thread) -> None:
        """Let a parked thread go on."""
        self._ready.append(thread)

    def play(self, main: Thread) -> None:
        """Go on until ``main`` ends; the others are left as they are."""
        ready, running, blocked = self._ready, self._running, self._blocked
        while True:
            while ready:
                self.current = thread = ready.popleft()
                try:
                    kind, ns = next(thread.doing)
                except StopIteration:
                    if thread is main:
                        return
                    continue
                if kind == PARKED:
                    continue
                self._count += 1
                if kind == BLOCKED:
                    heapq.heappush(blocked, (self.now + ns, self._count, thread))
                else:
                    self._wanting += thread.width
                    self.spent += ns * thread.width
                    heapq.heappush(running, (self._progress + ns, self._count, thread))
            self._advance()

    def _advance(self) -> None:
        running, blocked = self._running, self._blocked
        if not running and not blocked:
            raise RuntimeError("every thread of the simulation waits for another one")
        rate = min(1.0, self._cores / (self._wanting + self._others)) if running else 1.0
        until = self.now + (running[0][0] - self._progress) / rate if running else float("inf")
        if blocked and blocked[0][0] < until:
            ended, _, thread = heapq.heappop(blocked)
            if running:
                self._progress += (ended - self.now) * rate
            self.now = ended
        else:
            self._progress, _, thread = heapq.heappop(running)
            self._wanting -= thread.width
            self.now = until
        self._ready.append(thread)


__all__ = ["BLOCKED", "CPU", "PARKED", "Cores", "Doing", "Thread", "Wish"]
