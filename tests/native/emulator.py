"""Calls functions of the C library here, and those of a build for 64-bit ARM under qemu; arguments are bytes.

Structs and what they point to are :class:`Buffer` objects: each machine puts them where it likes.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import pytest

from fastload import native

SOURCES = native.LIBRARY.with_name("src")
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
# Those of setup.py.
FLAGS = ["-std=c11", "-O3", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]
REQUIRED = os.environ.get("FASTLOAD_REQUIRE_QEMU", "") not in ("", "0")


class Buffer:
    """Memory that a function reads or writes. ``pointers``: at which bytes the address of another one goes."""

    def __init__(self, data: bytes | int, pointers: dict[int, Buffer] | None = None) -> None:
        self.data = bytes(data)
        self.pointers = pointers or {}

    def put(self, data: bytes) -> None:
        """Take what a function has left here, without addresses."""
        for at in self.pointers:
            data = data[:at] + bytes(8) + data[at + 8 :]
        self.data = data


def reachable(arguments: Sequence[int | Buffer]) -> list[Buffer]:
    """Return all buffers that a call needs."""
    found: list[Buffer] = []
    left = [one for one in arguments if isinstance(one, Buffer)]
    while left:
        buffer = left.pop()
        if buffer not in found:
            found.append(buffer)
            left.extend(buffer.pointers.values())
    return found


class Machine(Protocol):
    """Where functions are called."""

    def call(self, name: str, *arguments: int | Buffer) -> int:
        """Return the result, as 64 bits; buffers get what the function has left in them."""


class Here:
    """The library that is installed, on this processor."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(native.LIBRARY))

    def call(self, name: str, *arguments: int | Buffer) -> int:
        buffers = reachable(arguments)
        memory = {one: ctypes.create_string_buffer(one.data, len(one.data) + 8) for one in buffers}
        for buffer in buffers:
            for at, other in buffer.pointers.items():
                struct.pack_into("q", memory[buffer], at, ctypes.addressof(memory[other]))
        function = self._library[name]
        function.restype = ctypes.c_int64
        words = [ctypes.addressof(memory[one]) if isinstance(one, Buffer) else one for one in arguments]
        result = int(function(*(ctypes.c_int64(word) for word in words)))
        for buffer in buffers:
            buffer.put(memory[buffer].raw[: len(buffer.data)])
        return result


class Emulated:
    """A build for 64-bit ARM, which an emulator runs until :meth:`close`."""

    def __init__(self, folder: Path, flags: Sequence[str] = ()) -> None:
        missing = [name for name in (COMPILER, EMULATOR) if shutil.which(name) is None]
        if missing:
            reason = (
                f"no {' and no '.join(missing)}: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
            )
            (pytest.fail if REQUIRED else pytest.skip)(reason)
        program = folder / "answer_calls"
        sources = [*sorted(SOURCES.glob("*.c")), Path(__file__).with_name("answer_calls.c")]

        def compiled(source: Path) -> str:
            made = folder / f"{source.stem}.o"
            command = [COMPILER, *FLAGS, *flags, f"-I{SOURCES}", "-c", str(source), "-o", str(made)]
            subprocess.run(command, check=True)
            return str(made)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compiled, sources))
        # Static: then it needs no libraries of that processor.
        subprocess.run([COMPILER, "-static", *objects, "-o", str(program), "-lm"], check=True)
        self._process = subprocess.Popen([EMULATOR, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout

    def call(self, name: str, *arguments: int | Buffer) -> int:
        buffers = reachable(arguments)
        pointers = [
            (buffers.index(one), at, buffers.index(other)) for one in buffers for at, other in one.pointers.items()
        ]
        words = [
            (1, buffers.index(argument)) if isinstance(argument, Buffer) else (0, argument) for argument in arguments
        ]
        parts = [struct.pack("4q", len(name), len(arguments), len(buffers), len(pointers)), name.encode()]
        parts += [struct.pack("2q", *word) for word in words]
        for buffer in buffers:
            parts += [struct.pack("q", len(buffer.data)), buffer.data]
        parts += [struct.pack("3q", *pointer) for pointer in pointers]
        self._to.write(b"".join(parts))
        self._to.flush()
        (result,) = struct.unpack("q", self._read(8))
        for buffer in buffers:
            buffer.put(self._read(len(buffer.data)))
        return int(result)

    def _read(self, num_bytes: int) -> bytes:
        found = self._from.read(num_bytes)
        if len(found) != num_bytes:
            raise RuntimeError(f"the emulated library ended with exit code {self._process.wait()}")
        return found

    def close(self) -> None:
        self._to.close()
        self._process.wait()
        self._from.close()
