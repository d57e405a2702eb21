"""What a shared library needs of a system, read from the file: ELF of Linux and Mach-O of macOS, of 64 bits.

In: the bytes. Out: :class:`Library`. Any machine can read those of any other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_ELF_PROCESSORS = {62: "x86_64", 183: "aarch64"}
_MACH_PROCESSORS = {0x01000007: "x86_64", 0x0100000C: "arm64"}
_DYNAMIC, _DYNSYM, _VERNEED = 6, 11, 0x6FFFFFFE  # kinds of sections
_NEEDED, _SONAME = 1, 14  # tags of the dynamic section
_LOAD_DYLIB, _WEAK_DYLIB, _REEXPORTED_DYLIB, _ID_DYLIB = 0xC, 0x80000018, 0x8000001F, 0xD  # load commands
_SYMTAB, _CODE_SIGNATURE, _VERSION_MIN_MACOS, _BUILD_VERSION = 0x2, 0x1D, 0x24, 0x32


@dataclass(frozen=True, kw_only=True)
class Library:
    """What a shared library says of itself."""

    system: str
    """``linux`` or ``macos``."""
    processor: str
    """As wheels call it: ``x86_64``, ``aarch64``, ``arm64``."""
    needs: frozenset[str]
    """The libraries that are loaded with it."""
    versions: frozenset[str]
    """Versions of symbols that it asks of them, as ``GLIBC_2.17``; empty on macOS, which has none."""
    least: tuple[int, int]
    """The least glibc or macOS that has all this."""
    exports: frozenset[str]
    """The functions that it gives."""
    name: str
    """What it calls itself; empty if it does not."""
    is_signed: bool
    """Whether there is a signature, without which macOS loads nothing on ARM; never on Linux."""


def read(data: bytes) -> Library:
    try:
        if data[:6] == b"\x7fELF\x02\x01":
            return _read_elf(data)
        if data[:4] == b"\xcf\xfa\xed\xfe":
            return _read_mach(data)
    except (struct.error, IndexError) as error:
        raise ValueError(f"the file is cut off or damaged: {error}") from error
    raise ValueError(f"neither a 64-bit ELF file nor a 64-bit Mach-O file: it begins with {data[:6].hex(' ')}")


def _read_elf(data: bytes) -> Library:
    (machine,) = struct.unpack_from("<H", data, 18)
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<2H", data, 58)
    # Of each section: kind, offset, size, the section it refers to, and a number.
    headers = [struct.unpack_from("<2I4Q2I", data, table + number * size) for number in range(count)]
    sections = [(header[1], header[4], header[5], header[6], header[7]) for header in headers]
    needs, versions, exports, name = set[str](), set[str](), set[str](), ""
    for kind, offset, length, link, number in sections:
        strings = sections[link][1] if kind in (_DYNAMIC, _DYNSYM, _VERNEED) else 0
        if kind == _DYNAMIC:
            for tag, value in struct.iter_unpack("<2Q", data[offset : offset + length]):
                if tag == _NEEDED:
                    needs.add(_text(data, strings + value))
                elif tag == _SONAME:
                    name = _text(data, strings + value)
        elif kind == _DYNSYM:
            for at, info, _, section, _, _ in struct.iter_unpack("<I2BH2Q", data[offset : offset + length]):
                if section and info >> 4 in (1, 2):  # defined here; global or weak
                    exports.add(_text(data, strings + at))
        elif kind == _VERNEED:
            versions |= {_text(data, strings + at) for at in _needed_versions(data, offset, number)}
    glibc = [tuple(map(int, version[6:].split(".")[:2])) for version in versions if version.startswith("GLIBC_")]
    if not needs or not exports or not glibc:
        raise ValueError("an ELF file that names no library, gives no function or asks for no version of glibc")
    return Library(
        system="linux",
        processor=_ELF_PROCESSORS.get(machine, f"ELF processor {machine}"),
        needs=frozenset(needs),
        versions=frozenset(versions),
        least=max((major, minor) for major, minor in glibc),
        exports=frozenset(exports),
        name=name,
        is_signed=False,
    )


def _needed_versions(data: bytes, offset: int, count: int) -> Iterator[int]:
    """Yield where the names of the versions are, of all libraries of the table."""
    for _ in range(count):
        _, versions, _, first, following = struct.unpack_from("<2H3I", data, offset)
        at = offset + first
        for _ in range(versions):
            _, _, _, name, further = struct.unpack_from("<I2H2I", data, at)
            yield name
            at += further
        offset += following


def _read_mach(data: bytes) -> Library:
    _, processor, _, _, count = struct.unpack_from("<5I", data)
    needs, exports, name, is_signed = set[str](), set[str](), "", False
    least: tuple[int, int] | None = None
    at = 32
    for _ in range(count):
        command, size = struct.unpack_from("<2I", data, at)
        first, second, third = struct.unpack_from("<3I", data.ljust(at + 20, b"\0"), at + 8)
        if command in (_LOAD_DYLIB, _WEAK_DYLIB, _REEXPORTED_DYLIB):
            needs.add(_text(data, at + first))
        elif command == _ID_DYLIB:
            name = _text(data, at + first)
        elif command == _VERSION_MIN_MACOS or (command == _BUILD_VERSION and first == 1):  # 1: macOS
            version = first if command == _VERSION_MIN_MACOS else second
            least = version >> 16, version >> 8 & 255
        elif command == _SYMTAB:
            for strings, kind, _, _, _ in struct.iter_unpack("<I2BHQ", data[first : first + 16 * second]):
                if kind & 0x1F == 0x0F:  # external, defined in a section, not private
                    exports.add(_text(data, third + strings).removeprefix("_"))
        elif command == _CODE_SIGNATURE:
            is_signed = True
        at += size
    if not needs or not exports or least is None:
        raise ValueError("a Mach-O file that names no library, gives no function or does not say for which macOS it is")
    return Library(
        system="macos",
        processor=_MACH_PROCESSORS.get(processor, f"Mach-O processor {processor:#x}"),
        needs=frozenset(needs),
        versions=frozenset(),
        least=least,
        exports=frozenset(exports),
        name=name,
        is_signed=is_signed,
    )


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()
