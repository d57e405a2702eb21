"""A headless Chromium, led over the DevTools protocol through a pair of pipes: no driver, no socket, no port.

In: a page's address. Out: what the page shows, what it complains of, what it asks the network for. Every wait has a
limit, and the browser is ended by its process id.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LIMIT = 60.0
"""Seconds that the browser may take for one answer; its start on a busy machine takes longest."""
KEYS = {"Tab": 9, "Enter": 13, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}
"""What can be pressed, with the number that the protocol wants."""
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --hide-scrollbars --disable-sync "
    "--disable-extensions --disable-background-networking --disable-component-update --disable-breakpad "
    "--disable-crash-reporter --remote-debugging-pipe"
)


class BrowserError(Exception):
    """The browser refused, fell silent, or ended."""


def chromium(path: str | None, required: bool) -> str:
    """Return the browser's program; skip the test, or fail it if a browser is required, where there is none.

    Args:
        path: folders to look in, as in ``PATH``.
        required: that it is there.
    """
    for name in NAMES:
        if (found := shutil.which(name, path=path)) is not None:
            return found
    reason = f"needs a browser, and there is no {NAMES[0]} in PATH"
    if required:
        pytest.fail(f"FASTLOAD_REQUIRE_BROWSER=1: {reason}")
    pytest.skip(f"{reason}; FASTLOAD_REQUIRE_BROWSER=1 makes this a failure")


class Browser:
    """A browser with a profile of its own; a context manager, which ends it.

    Args:
        program: what to start.
        folder: for its profile and what it prints; empty.

    Raises:
        BrowserError: it does not answer.
    """

    def __init__(self, program: str, folder: Path) -> None:
        self._log = folder / "browser.log"
        self._numbers = itertools.count(1)
        self._unread = bytearray()
        self._events: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        theirs, self._to = (_above_standard(one) for one in os.pipe())
        self._from, theirs_out = (_above_standard(one) for one in os.pipe())
        words = [program, *_FLAGS.split(), f"--user-data-dir={folder / 'profile'}", "about:blank"]
        self._pid = os.posix_spawn(
            program,
            words,
            os.environ | {"HOME": str(folder)},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self._log), os.O_WRONLY | os.O_CREAT, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                (os.POSIX_SPAWN_DUP2, theirs, 3),
                (os.POSIX_SPAWN_DUP2, theirs_out, 4),
            ],
            setpgroup=0,
        )
        os.close(theirs)
        os.close(theirs_out)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        ended = os.pidfd_open(self._pid)
        try:
            with contextlib.suppress(BrowserError):
                self.call("Browser.close")
            _ready(ended, time.monotonic() + 10)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)  # it is not collected yet, so the number is still its own
            os.waitpid(self._pid, 0)
            for descriptor in (ended, self._to, self._from):
                os.close(descriptor)

    @contextlib.contextmanager
    def tab(self) -> Iterator[Tab]:
        """Give an empty tab, for the time of the context."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._events[session] = []
        try:
            yield Tab(self, session)
        finally:
            self.call("Target.closeTarget", targetId=target)
            del self._events[session]

    def call(self, method: str, session: str | None = None, **arguments: Any) -> dict[str, Any]:
        """Have the browser do something; return what it answers.

        Raises:
            BrowserError: it says that it cannot, or does not answer.
        """
        deadline = time.monotonic() + LIMIT
        number = self._send(method, session, arguments)
        while (answer := self._read(deadline, method)).get("id") != number:
            pass
        if "error" in answer:
            raise self._error(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def events(self, session: str) -> list[tuple[str, dict[str, Any]]]:
        """Return what has been reported of a tab: names and contents."""
        return self._events[session]

    def wait_for(self, session: str, event: str) -> None:
        """Wait until something has been reported of a tab.

        Raises:
            BrowserError: it is not, within the limit.
        """
        deadline = time.monotonic() + LIMIT
        while not any(name == event for name, _ in self._events[session]):
            self._read(deadline, event)

    def _send(self, method: str, session: str | None, arguments: dict[str, Any]) -> int:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": arguments} | ({"sessionId": session} if session else {})
        try:
            os.write(self._to, json.dumps(message).encode() + b"\0")
        except BrokenPipeError as error:
            raise self._error(f"it has ended before {method}") from error
        return number

    def _read(self, deadline: float, what: str) -> dict[str, Any]:
        while (end := self._unread.find(b"\0")) < 0:
            if not _ready(self._from, deadline):
                raise self._error(f"no answer to {what} within {LIMIT:.0f} s")
            part = os.read(self._from, 1 << 20)
            if not part:
                raise self._error(f"it has ended during {what}")
            self._unread += part
        message: dict[str, Any] = json.loads(self._unread[:end])
        del self._unread[: end + 1]
        if message.get("sessionId") in self._events and "method" in message:
            self._events[message["sessionId"]].append((message["method"], message["params"]))
        if message.get("method") == "Page.javascriptDialogOpening":  # nothing goes on until it is closed
            self._send("Page.handleJavaScriptDialog", message["sessionId"], {"accept": True})
        return message

    def _error(self, words: str) -> BrowserError:
        printed = self._log.read_text(errors="replace")[-2000:] if self._log.exists() else ""
        return BrowserError(f"the browser: {words}; it printed: {printed}")


class Tab:
    """A tab: opens a page, reads it, presses keys."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Have the tab do something; see :meth:`Browser.call`."""
        return self._browser.call(method, self._session, **arguments)

    def open(self, path: Path, *, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Open a file in a window of a size in CSS pixels, by a user who wants ``light`` or ``dark`` pages."""
        self._browser.events(self._session).clear()
        self.resize(width, height)
        self.prefer(scheme)
        self.call("Page.navigate", url=path.as_uri())
        self._browser.wait_for(self._session, "Page.loadEventFired")
        self._settle()

    def resize(self, width: int, height: int = 900) -> None:
        """Give the window another size, in CSS pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._settle()

    def prefer(self, scheme: str, media: str = "") -> None:
        """Let the user want ``light`` or ``dark`` pages, on a medium: ``print``, or the screen."""
        self.call(
            "Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": scheme}]
        )
        self._settle()

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript, promises awaited.

        Raises:
            BrowserError: it throws.
        """
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise BrowserError(f"{expression}: {details.get('exception', {}).get('description', details['text'])}")
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key of :data:`KEYS`, and let it go; return when the page shows what that did."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])
        self._settle()

    def point_at(self, x: float, y: float) -> None:
        """Move the mouse to a place, in CSS pixels from the window's corner."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self._settle()

    def screenshot(self, path: Path) -> None:
        """Write a picture of the whole page, as PNG."""
        self._settle()
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(picture))

    def pdf(self) -> bytes:
        """Return the page as it is printed."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"])

    def complaints(self) -> list[str]:
        """Return what stands in the console, errors that nobody caught, and windows that a script opened."""
        self._settle()
        found = []
        for name, content in self._browser.events(self._session):
            if name == "Runtime.consoleAPICalled":
                words = (str(one.get("value", one.get("description"))) for one in content["args"])
                found.append(f"{content['type']}: {' '.join(words)}")
            elif name == "Runtime.exceptionThrown":
                found.append(f"thrown: {content['exceptionDetails']['text']}")
            elif name == "Log.entryAdded":
                found.append(f"{content['entry']['level']}: {content['entry']['text']}")
            elif name == "Page.javascriptDialogOpening":
                found.append(f"{content['type']}: {content['message']}")
        return found

    def requests(self) -> list[str]:
        """Return the addresses that were asked for since the page was opened, its own among them."""
        self._settle()
        events = self._browser.events(self._session)
        asked = [content["request"]["url"] for name, content in events if name == "Network.requestWillBeSent"]
        return [url for url in asked if not url.startswith("data:")]

    def _settle(self) -> None:
        """Return when the page has been laid out and drawn with what was done to it."""
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))")


def _above_standard(descriptor: int) -> int:
    """Return a copy of a descriptor that is in the way of no fixed number; the first is closed."""
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return copy


def _ready(descriptor: int, deadline: float) -> bool:
    """Wait until a descriptor has something to read; return whether it has before the deadline."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(deadline - time.monotonic(), 0.0) * 1000))
