"""``fastload.share``: a list's values in memory that processes share, so that workers hold them once.

A forked worker that reads an object of Python's writes its reference count, and the kernel copies the page; here there
are no objects to write to: values are made anew at each access.

Numbers of one type lie as an array. Strings in UTF-8, or else pickles of the values, lie one after the other, and
behind them an array of the places where each ends.
"""

from __future__ import annotations

import mmap
import operator
import os
import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from multiprocessing import context, reduction
from typing import Any, SupportsIndex, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt

from .memory import in_words

T = TypeVar("T")
Form: TypeAlias = tuple[type, np.dtype[Any], int]
"""(type of all values, or ``object`` for pickles; dtype of the numbers or offsets; start of the offsets)."""
_NUMBERS: dict[type, type] = {int: np.int64, float: np.float64, bool: np.bool_}
_utf8: Callable[[Any], bytes] = operator.methodcaller("encode", "utf-8", "surrogatepass")
_PROTOCOL = 3  # of pickles; later ones add nine bytes to each value


def share(values: Iterable[T], /) -> SharedSequence[T]:
    """Return a read-only sequence, equal to a list, whose values lie in memory that processes share.

    Forked workers copy the lists that they read, page by page, because reading an object counts a reference to it. Of
    what is returned here they copy nothing: objects are made at each access, and nobody keeps them.

    Args:
        values: whatever can be pickled.

    Raises:
        TypeError: a value cannot be pickled.
        OSError: the system has no memory for them.

    Cost:
        Each process that the sequence is given to by fork or spawn uses the same memory: the text in UTF-8 or pickles,
        with 4 to 8 bytes for each; 1 to 8 bytes for each of numbers of one type. Any other pickle of the sequence holds
        its bytes. Nothing remains when the processes have ended, however they end.
    """
    if isinstance(values, SharedSequence):
        return values
    if isinstance(values, (str, bytes, bytearray, Mapping, Set)):
        raise TypeError(f"share() takes a list or another sequence, not a {type(values).__name__}; give it list(...)")
    held = values if type(values) is list else list(values)
    file = _new_file()
    try:
        return SharedSequence(len(held), _write(file, held), file, None)
    except BaseException:
        os.close(file)
        raise


class SharedSequence(Sequence[T]):
    """Result of :func:`share`: a read-only sequence. A slice is a list, as that of a list is.

    Each access makes the value anew: changing it, say writing to an array, changes nothing for the next access.
    """

    def __init__(self, length: int, form: Form, file: Any, data: Any) -> None:
        """Take over the descriptor of a memory file, or multiprocessing's duplicate; None: hold ``data``, its bytes."""
        file = file.detach() if hasattr(file, "detach") else file
        self._length = length
        self._form = form
        self._view = memoryview(data if file is None else _mapped(file)).toreadonly()
        self._get = _reader(self._view, length, form)
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

    def __copy__(self, _memo: object = None) -> SharedSequence[T]:
        return self  # nothing in it changes

    __deepcopy__ = __copy__

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        if self._file is not None and context.get_spawning_popen() is not None and hasattr(reduction, "DupFd"):
            return SharedSequence, (self._length, self._form, reduction.DupFd(self._file), None)
        data: Any = pickle.PickleBuffer(self._view) if operator.index(protocol) >= 5 else bytes(self._view)
        return SharedSequence, (self._length, self._form, None, data)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # Bound here, since the module's names may be gone when an interpreter ends.
        file = self.__dict__.get("_file")
        if file is not None:
            close(file)


def _new_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fastload-share", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # without a name, so that nothing is left of it
        return os.dup(file.fileno())


def _mapped(file: int) -> Any:
    import torch

    size = os.fstat(file).st_size
    if os.name != "posix":
        return mmap.mmap(file, size, access=mmap.ACCESS_READ)
    # Python's mmap would keep a second descriptor of each list.
    try:
        return torch.from_file(f"/dev/fd/{file}", shared=True, size=size, dtype=torch.uint8, device="cpu").numpy()
    except RuntimeError as error:
        raise OSError(str(error)) from error


def _write(file: int, values: list[Any]) -> Form:
    kind, *others = set(map(type, values)) or {object}
    kind = object if others else kind
    with open(file, "wb", closefd=False) as out:
        numbers = _numbers(kind, values)
        if numbers is not None:
            out.write(numbers.tobytes() + b"\0")  # no empty file can be mapped
            return kind, numbers.dtype, 0
        encode = _utf8 if kind is str else _pickled
        lengths = np.fromiter(map(out.write, map(encode, values)), np.int64, len(values))
        places = _narrowed(np.concatenate([[0], np.cumsum(lengths)]))
        out.write(places.tobytes())
    return str if kind is str else object, places.dtype, int(places[-1])


def _numbers(kind: type, values: list[Any]) -> npt.NDArray[Any] | None:
    """Return numbers that are all of one type as an array; None if they are not, or have more than 64 bits."""
    if kind in _NUMBERS:
        try:
            numbers: npt.NDArray[Any] = np.fromiter(values, _NUMBERS[kind], len(values))
        except OverflowError:
            return None
        return _narrowed(numbers) if kind is int else numbers
    is_numpys = issubclass(kind, (np.number, np.bool_)) and not issubclass(kind, np.timedelta64)
    return np.array(values, kind) if is_numpys else None


def _narrowed(numbers: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return integers in as few bytes as the largest needs."""
    least, most = int(numbers.min(initial=0)), int(numbers.max(initial=0))
    return numbers.astype(np.min_scalar_type(min(least, ~most)))


def _pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value, _PROTOCOL)
    except Exception as error:
        raise TypeError(
            f"share() takes what can be pickled, and a {type(value).__qualname__} cannot: {error}"
        ) from error


def _reader(view: memoryview, length: int, form: Form) -> Callable[[int], Any]:
    """Return the function that makes the value of a place."""
    kind, dtype, begin = form
    if issubclass(kind, np.generic):
        return np.frombuffer(view, dtype, length).__getitem__
    code: Any = dtype.char
    if kind in _NUMBERS:
        return view[: length * dtype.itemsize].cast(code).__getitem__
    at = view[begin : begin + (length + 1) * dtype.itemsize].cast(code)
    if kind is str:
        return lambda row: str(view[at[row] : at[row + 1]], "utf-8", "surrogatepass")
    return lambda row: pickle.loads(view[at[row] : at[row + 1]])
