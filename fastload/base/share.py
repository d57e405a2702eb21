"""``fastload.share``: a list's values in memory that processes share, so that workers hold them once.

In: a list. Out: a sequence that gives equal values, made anew at each access. A forked worker that reads an object of
Python's writes its reference count, and the kernel copies the page; here there are no objects to write to.

Values lie as columns: a list of pairs is two columns, the paths one run of UTF-8 with the places where each ends. A
description says which column is where; it is small, and does not grow with the list. Where a column has values of
several types, each type has a column of its own, and a byte for each value says which.
"""

from __future__ import annotations

import itertools
import mmap
import operator
import os
import pathlib
import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from multiprocessing import context, reduction
from typing import Any, SupportsIndex, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt

from .memory import in_words

T = TypeVar("T")
Column: TypeAlias = tuple[Any, ...]
"""What kind it is of, and what its reader needs: see ``_READERS``."""
Reader: TypeAlias = Callable[[int], Any]

# Values that are encoded at once, and bytes that are collected before they are written: what building takes besides.
_AT_ONCE = 1024
_PIECE = 1 << 22
# Items of tuples and dicts that have a column each, where all are of one kind; more are laid end to end.
_MOST_COLUMNS = 64
# In columns of several types: values between two counts of the types before.
_BLOCK = 64
_PATH = type(pathlib.Path())


def share(values: Iterable[T], /) -> SharedSequence[T]:
    """Return a read-only sequence, equal to a list, whose values lie in memory that processes share.

    Forked workers copy the lists that they read, page by page, because reading an object counts a reference to it. Of
    what is returned here they copy nothing: objects are made at each access, and nobody keeps them.

    Args:
        values: of ``str``, ``bytes``, ``int``, ``float``, ``bool``, ``complex``, ``None``, ``pathlib.Path``, NumPy
            arrays and numbers, and ``tuple``, ``list`` and ``dict`` of these, nested as you like. Elements may differ
            in type.

    Raises:
        TypeError: a value, or one inside of it, is of another type, or of a class derived from these.
        OSError: the system has no memory for them.

    Cost:
        Each process that the sequence is given to by fork or spawn uses the same memory, about that of the text in
        UTF-8 and 4 to 8 bytes for each string. Any other pickle holds its bytes. Nothing remains when the processes
        have ended, however they end.
    """
    if isinstance(values, SharedSequence):
        return values
    if isinstance(values, (str, bytes, bytearray, Mapping, Set)):
        raise TypeError(f"share() takes a list or another sequence, not a {type(values).__name__}; give it list(...)")
    held = values if type(values) is list else list(values)
    file = _new_file()
    try:
        out = _Writer(file)
        try:
            column = _column(out, held)
        except _Unsupported:
            raise _error_for(held) from None
        out.put(b"\0")  # no empty file can be mapped
        return SharedSequence(len(held), column, file, None)
    except BaseException:
        os.close(file)
        raise


class SharedSequence(Sequence[T]):
    """What :func:`share` returns. Read-only; a slice is a list, as that of a list is.

    Each access makes the value anew: changing it, say writing to an array, changes nothing for the next access.
    """

    def __init__(self, length: int, column: Column, file: int | None, data: Any) -> None:
        """Take over the descriptor of a memory file, or, without one, hold the bytes of one."""
        self._length = length
        self._column = column
        self._view = memoryview(data if file is None else _mapped(file)).toreadonly()
        self._get = _reader(self._view, column)
        self._file = file  # last: what fails before it leaves the descriptor to the caller

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._get(place) for place in range(*index.indices(self._length))]
        place = operator.index(index)
        if place < 0:
            place += self._length
        if 0 <= place < self._length:
            return self._get(place)
        raise IndexError(f"index {index} is out of range: there are {self._length} elements")

    def __iter__(self) -> Iterator[T]:
        return map(self._get, range(self._length))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, (list, SharedSequence)):
            return NotImplemented
        return len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment] # as a list has none

    @property
    def nbytes(self) -> int:
        """The memory that it takes, once for all processes of this machine."""
        return len(self._view)

    def __repr__(self) -> str:
        return f"<fastload.share: {self._length:,} elements, {in_words(self.nbytes)}>"

    def __copy__(self) -> SharedSequence[T]:
        return self

    def __deepcopy__(self, _memo: object) -> SharedSequence[T]:
        return self  # nothing in it changes

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        if self._file is not None and context.get_spawning_popen() is not None and hasattr(reduction, "DupFd"):
            return _received, (self._length, self._column, reduction.DupFd(self._file))
        data: Any = pickle.PickleBuffer(self._view) if operator.index(protocol) >= 5 else bytes(self._view)
        return SharedSequence, (self._length, self._column, None, data)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # Bound here, since the module's names may be gone when an interpreter ends.
        file = vars(self).get("_file")
        if file is not None:
            close(file)


def _received(length: int, column: Column, duplicate: Any) -> SharedSequence[Any]:
    return SharedSequence(length, column, duplicate.detach(), None)


def _new_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fastload-share", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # without a name, so that nothing is left of it
        return os.dup(file.fileno())


def _mapped(file: int) -> Any:
    size = os.fstat(file).st_size
    if os.name != "posix":
        return mmap.mmap(file, size, access=mmap.ACCESS_READ)
    import torch

    # Python's map keeps a descriptor of its own, so that a list would take two.
    try:
        return torch.from_file(f"/dev/fd/{file}", shared=True, size=size, dtype=torch.uint8, device="cpu").numpy()
    except RuntimeError as error:  # as torch says it
        raise OSError(str(error)) from error


# -- writing ----------------------------------------------------------------------------------------------------------


class _Unsupported(Exception):
    """A type that has no column."""


class _Writer:
    """Appends to a file."""

    def __init__(self, file: int) -> None:
        self._file = file
        self.place = 0

    def put(self, data: Any) -> tuple[int, int]:
        """Write bytes, or an array's; return where they begin and end."""
        begin = self.place
        left = memoryview(data).cast("B")
        while left:
            written = os.write(self._file, left)
            left = left[written:]
            self.place += written
        return begin, self.place


def _column(out: _Writer, values: list[Any]) -> Column:
    kinds = list(dict.fromkeys(map(type, values)))
    if not kinds:
        return ("same", None)
    if len(kinds) == 1:
        return _column_of(kinds[0], out, values)
    code_of = {kind: code for code, kind in enumerate(kinds)}
    codes = np.fromiter((code_of[type(value)] for value in values), np.uint8, len(values))
    tags, _ = out.put(codes)
    codes = np.concatenate([codes, np.full(-len(codes) % _BLOCK, 255, np.uint8)]).reshape(-1, _BLOCK)
    counts = np.stack([(codes == code).sum(axis=1) for code in range(len(kinds))], axis=1)
    before = np.cumsum(counts, axis=0) - counts
    del codes, counts
    parts = [_column_of(kind, out, [value for value in values if type(value) is kind]) for kind in kinds]
    return ("mixed", tags, len(values), _integers(out, before.ravel()), tuple(parts))


def _column_of(kind: type, out: _Writer, values: list[Any]) -> Column:
    """Write values that are all of one type."""
    if kind in _WRITERS:
        return _WRITERS[kind](out, values)
    if _is_number(kind):
        return ("number", np.dtype(kind), *out.put(np.array(values, dtype=kind).view(np.uint8)))
    raise _Unsupported


def _is_number(kind: type) -> bool:
    return issubclass(kind, (np.number, np.bool_)) and not issubclass(kind, np.timedelta64)


def _integers(out: _Writer, values: npt.NDArray[Any]) -> Column:
    """Write integers of at most 64 bits in as few bytes as the largest needs."""
    least, most = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    if least == most:
        return ("same", least)
    for kind in (np.int8, np.int16, np.int32, np.int64):
        if np.iinfo(kind).min <= least and most <= np.iinfo(kind).max:
            break
    return ("cast", np.dtype(kind).char, *out.put(values.astype(kind, copy=False)))


def _write_ints(out: _Writer, values: list[int]) -> Column:
    try:
        return _integers(out, np.fromiter(values, np.int64, len(values)))
    except OverflowError:
        pieces = (value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True) for value in values)
        return ("big", _bytes(out, pieces, len(values)))


def _bytes(out: _Writer, pieces: Iterable[Any], number: int) -> Column:
    """Write pieces one after the other; return where they begin, and the column of the places between them."""
    begin = out.place
    lengths = np.empty(number, np.int64)
    held: list[Any] = []
    size = 0
    for place, piece in enumerate(pieces):
        lengths[place] = len(piece)
        held.append(piece)
        size += len(piece)
        if size > _PIECE or len(held) == _PIECE:
            out.put(b"".join(held))
            held, size = [], 0
    out.put(b"".join(held))
    return begin, _ends(out, lengths)


def _ends(out: _Writer, lengths: npt.NDArray[np.int64]) -> Column:
    """Write where each of several runs ends."""
    if (lengths == lengths[:1]).all():
        return ("every", int(lengths[:1].sum()), len(lengths) + 1)
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    return _integers(out, ends)


def _write_text(out: _Writer, values: list[str]) -> Column:
    begin = out.place
    lengths = np.empty(len(values), np.int64)
    for first in range(0, len(values), _AT_ONCE):
        some: list[Any] = values[first : first + _AT_ONCE]
        joined = "".join(some)
        if joined.isascii():
            data = joined.encode()
        else:
            some = [text.encode("utf-8", "surrogatepass") for text in some]
            data = b"".join(some)
        lengths[first : first + len(some)] = np.fromiter(map(len, some), np.int64, len(some))
        out.put(data)
    return ("text", (begin, _ends(out, lengths)))


def _write_arrays(out: _Writer, values: list[npt.NDArray[Any]]) -> Column:
    codes: dict[tuple[bytes | int, str], int] = {}
    kinds: list[tuple[np.dtype[Any], str]] = []
    about = []
    for array in values:
        if array.dtype.hasobject:
            raise _Unsupported
        order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        code = codes.setdefault((_facts(array.dtype), order), len(codes))
        if code == len(kinds):
            kinds.append((array.dtype, order))
        about.append((code, *array.shape))
    data = _bytes(out, (array.tobytes("A") for array in values), len(values))
    return ("array", data, tuple(kinds), _column(out, about))


def _facts(dtype: np.dtype[Any]) -> bytes | int:
    """Return all of a data type: those that compare equal may differ in metadata, or in the titles of fields."""
    try:
        return pickle.dumps(dtype)
    except Exception:  # its metadata may be anything
        return id(dtype)


def _write_rows(name: str) -> Callable[[_Writer, list[Any]], Column]:
    def write(out: _Writer, values: list[Any]) -> Column:
        width = len(values[0])
        if width <= _MOST_COLUMNS and len(set(map(len, values))) == 1:
            parts = tuple(_column(out, list(map(operator.itemgetter(place), values))) for place in range(width))
            return (f"{name} of columns", parts)
        return (name, *_end_to_end(out, values, len))

    return write


def _end_to_end(out: _Writer, values: list[Any], length: Callable[[Any], int]) -> tuple[Column, Column]:
    lengths = np.fromiter(map(length, values), np.int64, len(values))
    return _ends(out, lengths), _column(out, list(itertools.chain.from_iterable(values)))


def _write_dicts(out: _Writer, values: list[dict[Any, Any]]) -> Column:
    keys = tuple(values[0])
    # Keys of other types may be equal and differ all the same, as 1 and True do.
    if len(keys) <= _MOST_COLUMNS and all(tuple(value) == keys and set(map(type, value)) <= {str} for value in values):
        return ("dict of columns", keys, tuple(_column(out, [value[key] for value in values]) for key in keys))
    ends, names = _end_to_end(out, values, len)
    return ("dict", ends, names, _column(out, list(itertools.chain.from_iterable(map(dict.values, values)))))


_WRITERS: dict[type, Callable[[_Writer, list[Any]], Column]] = {
    type(None): lambda _out, _values: ("same", None),
    bool: lambda out, values: ("bool", *out.put(bytes(values))),
    int: _write_ints,
    float: lambda out, values: ("cast", "d", *out.put(np.fromiter(values, np.float64, len(values)))),
    complex: lambda out, values: ("complex", *out.put(np.fromiter(values, np.complex128, len(values)))),
    str: _write_text,
    bytes: lambda out, values: ("bytes", _bytes(out, values, len(values))),
    _PATH: lambda out, values: ("path", _write_text(out, list(map(str, values)))),
    tuple: _write_rows("tuple"),
    list: _write_rows("list"),
    dict: _write_dicts,
    np.ndarray: _write_arrays,
}


def _error_for(values: list[Any]) -> TypeError:
    for place, value in enumerate(values):
        kind = _unsupported_in(value)
        if kind is not None:
            inside = "" if type(value) is kind else f", inside of its {type(value).__name__}"
            return TypeError(
                f"element {place} has a {kind.__module__}.{kind.__qualname__}{inside}, which share() does not take; "
                "make it str, bytes, int, float, bool, complex, None, pathlib.Path, a NumPy array (no objects), or a "
                "tuple, list or dict of these"
            )
    return TypeError("the values have changed while they were shared; share them when nothing changes them")


def _unsupported_in(value: Any) -> type | None:
    kind = type(value)
    if kind in (tuple, list):
        inner: Iterable[Any] = value
    elif kind is dict:
        inner = itertools.chain(value, value.values())
    elif kind is np.ndarray:
        return kind if value.dtype.hasobject else None
    else:
        return None if kind in _WRITERS or _is_number(kind) else kind
    return next((found for found in map(_unsupported_in, inner) if found is not None), None)


# -- reading ----------------------------------------------------------------------------------------------------------


def _reader(view: memoryview, column: Column) -> Reader:
    """Return the function that makes the value of a row."""
    return _READERS[column[0]](view, *column[1:])


def _read_same(_view: memoryview, value: Any) -> Reader:
    return lambda _row: value


def _read_cast(view: memoryview, form: str, begin: int, end: int) -> Reader:
    return view[begin:end].cast(form).__getitem__  # type: ignore[call-overload,no-any-return]


def _read_bool(view: memoryview, begin: int, end: int) -> Reader:
    data = view[begin:end]
    return lambda row: data[row] == 1


def _read_complex(view: memoryview, begin: int, end: int) -> Reader:
    parts: Any = view[begin:end].cast("d")
    return lambda row: complex(parts[2 * row], parts[2 * row + 1])


def _read_number(view: memoryview, dtype: np.dtype[Any], begin: int, end: int) -> Reader:
    return np.frombuffer(view[begin:end], dtype).__getitem__


def _places(view: memoryview, ends: Column) -> Any:
    """Return the places between runs, as something that is indexed."""
    kind, *rest = ends
    if kind == "cast":
        form, begin, end = rest
        return view[begin:end].cast(form)
    width, number = rest  # of runs of equal length
    return range(0, number * width, width) if width else _Zeros()


class _Zeros:
    """Where runs begin that are all empty."""

    def __getitem__(self, _row: int) -> int:
        return 0


def _read_text(view: memoryview, data: tuple[int, Column]) -> Reader:
    begin, ends = data
    at, text = _places(view, ends), view[begin:]
    return lambda row: str(text[at[row] : at[row + 1]], "utf-8", "surrogatepass")


def _read_path(view: memoryview, text: Column) -> Reader:
    read = _reader(view, text)
    return lambda row: _PATH(read(row))


def _read_bytes(view: memoryview, data: tuple[int, Column]) -> Reader:
    begin, ends = data
    at, text = _places(view, ends), view[begin:]
    return lambda row: bytes(text[at[row] : at[row + 1]])


def _read_big(view: memoryview, data: tuple[int, Column]) -> Reader:
    read = _read_bytes(view, data)
    return lambda row: int.from_bytes(read(row), "little", signed=True)


def _read_array(view: memoryview, data: tuple[int, Column], kinds: tuple[Any, ...], about: Column) -> Reader:
    begin, ends = data
    at, held, facts = _places(view, ends), view[begin:], _reader(view, about)

    def read(row: int) -> npt.NDArray[Any]:
        code, *shape = facts(row)
        dtype, order = kinds[code]
        # A copy: it may be written to, and lies at an address that suits its type.
        return np.ndarray(shape, dtype, held[at[row] : at[row + 1]], order=order).copy(order)

    return read


def _read_tuple_of_columns(view: memoryview, parts: tuple[Column, ...]) -> Reader:
    readers = [_reader(view, part) for part in parts]
    if len(readers) == 2:
        first, second = readers
        return lambda row: (first(row), second(row))
    return lambda row: tuple([read(row) for read in readers])


def _read_list_of_columns(view: memoryview, parts: tuple[Column, ...]) -> Reader:
    readers = [_reader(view, part) for part in parts]
    return lambda row: [read(row) for read in readers]


def _read_list(view: memoryview, ends: Column, items: Column) -> Reader:
    at, read = _places(view, ends), _reader(view, items)
    return lambda row: [read(item) for item in range(at[row], at[row + 1])]


def _read_tuple(view: memoryview, ends: Column, items: Column) -> Reader:
    read = _read_list(view, ends, items)
    return lambda row: tuple(read(row))


def _read_dict(view: memoryview, ends: Column, keys: Column, values: Column) -> Reader:
    read_keys, read_values = _read_list(view, ends, keys), _read_list(view, ends, values)
    return lambda row: dict(zip(read_keys(row), read_values(row), strict=True))


def _read_dict_of_columns(view: memoryview, keys: tuple[str, ...], parts: tuple[Column, ...]) -> Reader:
    readers = [(key, _reader(view, part)) for key, part in zip(keys, parts, strict=True)]
    return lambda row: {key: read(row) for key, read in readers}


def _read_mixed(view: memoryview, begin: int, number: int, before: Column, parts: tuple[Column, ...]) -> Reader:
    tags, rows = view[begin : begin + number], _reader(view, before)
    readers = [_reader(view, part) for part in parts]

    def read(row: int) -> Any:
        tag = tags[row]
        block = row // _BLOCK
        return readers[tag](rows(block * len(readers) + tag) + bytes(tags[block * _BLOCK : row]).count(tag))

    return read


_READERS: dict[str, Callable[..., Reader]] = {
    "same": _read_same,
    "cast": _read_cast,
    "bool": _read_bool,
    "complex": _read_complex,
    "number": _read_number,
    "text": _read_text,
    "path": _read_path,
    "bytes": _read_bytes,
    "big": _read_big,
    "array": _read_array,
    "tuple of columns": _read_tuple_of_columns,
    "list of columns": _read_list_of_columns,
    "tuple": _read_tuple,
    "list": _read_list,
    "dict": _read_dict,
    "dict of columns": _read_dict_of_columns,
    "mixed": _read_mixed,
}
