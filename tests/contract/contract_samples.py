"""Every kind of sample that the collation cases know, by name.

A kind is a function from the sample's index to the sample. The sets at the end name what torch itself cannot carry
from a worker to the main process (there it hangs, so there is nothing to compare with).
"""

import array
import collections
import collections.abc
import dataclasses
import datetime
import enum
import functools
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from kit.datasets import Sized

# torchvision and Pillow are imported where they are needed: a spawned worker imports this module.

SAMPLES: dict[str, Callable[[int], Any]] = {}


def _tv_tensors() -> Any:
    from torchvision import tv_tensors

    return tv_tensors


def _pillow() -> Any:
    from PIL import Image

    return Image


class SamplesOfManyKinds(Sized):
    """A dataset with ``per_kind`` samples of each kind in turn."""

    def __init__(self, names: list[str], per_kind: int) -> None:
        super().__init__(len(names) * per_kind)
        self.names = names
        self.per_kind = per_kind

    def __getitem__(self, index: int) -> Any:
        return SAMPLES[self.names[index // self.per_kind]](index % self.per_kind)


def SamplesOfKind(name: str, length: int = 7) -> SamplesOfManyKinds:
    """Return a dataset of samples of one kind."""
    return SamplesOfManyKinds([name], length)


# Containers of the user's own.


Point = collections.namedtuple("Point", ["x", "y"])


class Labelled(typing.NamedTuple):
    image: Any
    label: Any
    name: str = "unnamed"


class PointWithMethod(Point):
    def norm(self) -> Any:
        return self.x + self.y


class PlainTuple(tuple):
    """A tuple's subclass that is no named tuple."""


class ListWithName(list):
    def __init__(self, items: Any = (), name: str = "") -> None:
        super().__init__(items)
        self.name = name


class DictWithName(dict):
    """A dict's subclass with an attribute, and without a constructor that takes a mapping."""

    name = "class"

    @classmethod
    def named(cls, name: str, **items: Any) -> "DictWithName":
        made = cls(items)
        made.name = name
        return made


class FrozenMapping(collections.abc.Mapping):
    """A mapping that cannot be changed; its constructor takes a mapping."""

    def __init__(self, items: Any) -> None:
        self.items_ = dict(items)

    def __getitem__(self, key: Any) -> Any:
        return self.items_[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items_)

    def __len__(self) -> int:
        return len(self.items_)


class PickyMapping(FrozenMapping):
    """A mapping whose constructor takes no mapping: torch falls back to a dict."""

    def __init__(self, first: Any, second: Any) -> None:
        super().__init__({"first": first, "second": second})


class AttributeMapping(collections.abc.MutableMapping):
    """A mapping that can be changed, and carries more than its items."""

    def __init__(self, tag: str, **items: Any) -> None:
        self.tag = tag
        self.items_: dict[Any, Any] = items

    def __getitem__(self, key: Any) -> Any:
        return self.items_[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items_[key] = value

    def __delitem__(self, key: Any) -> None:
        del self.items_[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items_)

    def __len__(self) -> int:
        return len(self.items_)

    def __copy__(self) -> "AttributeMapping":
        return AttributeMapping(self.tag, **self.items_)


class FrozenSequence(collections.abc.Sequence):
    """A sequence that cannot be changed; its constructor takes an iterable."""

    def __init__(self, items: Any) -> None:
        self.items_ = list(items)

    def __getitem__(self, place: Any) -> Any:
        return self.items_[place]

    def __len__(self) -> int:
        return len(self.items_)


class PickySequence(FrozenSequence):
    """A sequence whose constructor takes no iterable: torch falls back to a list."""

    def __init__(self, first: Any, second: Any) -> None:
        super().__init__([first, second])


# Default collation knows neither a data class nor a plain object nor an enumeration.


@dataclasses.dataclass
class Record:
    image: Any
    label: int


class Plain:
    def __init__(self, value: Any) -> None:
        self.value = value


class TaggedTensor(torch.Tensor):
    """A tensor's subclass."""


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(str):
    """A str's subclass."""


class Count(int):
    """An int's subclass."""


class Weight(float):
    """A float's subclass."""


def _ramp(index: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    count = int(np.prod(shape))
    return (torch.arange(count) + 10 * index).reshape(shape).to(dtype)


def _array_ramp(index: int, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    return (np.arange(int(np.prod(shape))) + 10 * index).reshape(shape).astype(dtype)


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


# Python scalars.


SAMPLES |= {
    "scalar_int": lambda i: i * 3 - 4,
    "scalar_bool": lambda i: i % 2 == 0,
    "scalar_float": lambda i: [0.1, -0.0, float("inf"), float("nan"), 1e-310, 5.0, -7.25][i % 7],
    "scalar_complex": lambda i: complex(i, 1),
    "scalar_none": lambda i: None,
    "scalar_int_of_64_bits": lambda i: 2**63 + i,
    "scalar_huge_int": lambda i: 2**70,
    "scalar_huge_int_once": lambda i: 2**70 if i == 4 else i,
    "scalar_int_subclass": lambda i: Count(i),
    "scalar_float_subclass": lambda i: Weight(i),
    "scalar_int_enum": lambda i: Level.LOW if i % 2 else Level.HIGH,
    "scalar_enum": lambda i: Colour.RED,
    "text": lambda i: ["", "a", "žluťoučký kůň", "🐎" * 5, "line\nbreak", "nul\0", "x" * 1000][i % 7],
    "text_subclass": lambda i: Word(f"word {i}"),
    "text_long": lambda i: chr(ord("a") + i % 26) * 300_000,
    "octets": lambda i: bytes(range(i)) + b"\0",
    "octets_long": lambda i: bytes([i % 256]) * 1_000_000,
    "date": lambda i: datetime.date(2020, 1, 1 + i),
    "plain_object": lambda i: Plain(i),
    "data_class": lambda i: Record(_ramp(i, 2), i),
    "image_of_pillow": lambda i: _pillow().new("RGB", (4, 3), (i, 0, 255)),
}


# NumPy scalars and arrays.


def _numpy_scalar(name: str, index: int) -> Any:
    return getattr(np, name)({"bool_": index % 2, "bytes_": b"%d" % index}.get(name, index))


def _array(name: str, index: int) -> Any:
    return _array_ramp(index, 2, 3, dtype=name if name != "bool" else np.uint8).astype(name)


def _tensor(name: str, index: int) -> Any:
    return (torch.arange(6).reshape(2, 3) + index).to(torch.float32).to(getattr(torch, name))


def _of_each_dtype(kind: str, make: Callable[[str, int], Any], names: str) -> dict[str, Callable[[int], Any]]:
    return {f"{kind}_{name}": functools.partial(make, name) for name in names.split()}


_INTEGERS = "int8 int16 int32 int64 uint8 uint16 uint32 uint64"
_FLOATS = "float16 float32 float64 complex64 complex128"
SAMPLES |= _of_each_dtype("numpy_scalar", _numpy_scalar, f"bool_ {_INTEGERS} {_FLOATS} longdouble str_ bytes_")
SAMPLES |= _of_each_dtype("array", _array, f"bool {_INTEGERS} {_FLOATS} longdouble >i4 >f8 U5 S5 datetime64[D]")


SAMPLES |= {
    "array_object": lambda i: np.array([i, "a", None], dtype=object),
    "array_structured": lambda i: np.array([(i, 1.0)], dtype=[("a", "i4"), ("b", "f4")]),
    "array_record": lambda i: np.rec.array([(i, 1.0)], dtype=[("a", "i4"), ("b", "f4")]),
    "array_of_no_dimension": lambda i: np.array(i, dtype=np.int32),
    "array_empty_matrix": lambda i: np.zeros((3, 0, 2), dtype=np.int64),
    "array_every_second": lambda i: _array_ramp(i, 6, 4)[::2, 1::2],
    "array_transposed": lambda i: _array_ramp(i, 3, 4).T,
    "array_fortran": lambda i: np.asfortranarray(_array_ramp(i, 3, 4)),
    "array_broadcast": lambda i: np.broadcast_to(_array_ramp(i, 1, 3), (4, 3)),
    "array_of_no_dimension_masked": lambda i: np.ma.masked if i % 3 == 1 else np.float64(i),
    "array_masked": lambda i: np.ma.masked_array(_array_ramp(i, 4), mask=[0, 1, 0, 0]),
    # One field of a structured array: aligned to nothing.
    "array_of_a_field": lambda i: np.array([(1, i), (2, i + 1)], dtype=[("a", "i1"), ("b", "i1")])["b"],
    "array_read_only": lambda i: _read_only(_array_ramp(i, 4)),
}


# Tensors.


SAMPLES |= _of_each_dtype("tensor", _tensor, f"bool {_INTEGERS} bfloat16 {_FLOATS} complex32 float8_e4m3fn float8_e5m2")
SAMPLES |= {
    "tensor_special_values": lambda i: torch.tensor([float("nan"), -0.0, float("inf"), float(i)]),
    "tensor_empty_matrix": lambda i: torch.empty(2, 0, 3, dtype=torch.int32),
    "tensor_transposed": lambda i: _ramp(i, 3, 4).t(),
    "tensor_permuted": lambda i: _ramp(i, 4, 5, 3).permute(2, 0, 1),
    "tensor_channels_last": lambda i: _ramp(i, 2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "tensor_every_second": lambda i: _ramp(i, 6, 4)[::2, 1::2],
    "tensor_expanded": lambda i: _ramp(i, 1, 3).expand(4, 3),
    "tensor_layout_changes": lambda i: _ramp(i, 3, 3).t() if i % 2 else _ramp(i, 3, 3),
    "tensor_slice_of_a_large_one": lambda i: _ramp(0, 50, 20)[i],
    "tensor_conjugate": lambda i: torch.tensor([complex(i, 1), complex(0, -i)]).conj(),
    "tensor_negative_view": lambda i: torch.tensor([complex(i, 1), complex(0, -i)]).conj().imag,
    "tensor_with_gradient": lambda i: _ramp(i, 3).requires_grad_(),
    "tensor_with_gradient_function": lambda i: _ramp(i, 3).requires_grad_() * 2,
    "tensor_with_gradient_once": lambda i: _ramp(i, 3).requires_grad_(i == 4),
    "parameter": lambda i: torch.nn.Parameter(_ramp(i, 3)),
    "parameter_frozen": lambda i: torch.nn.Parameter(_ramp(i, 3), requires_grad=False),
    "tensor_subclass": lambda i: _ramp(i, 2, 2).as_subclass(TaggedTensor),
    "tensor_subclass_now_and_then": lambda i: _ramp(i, 2).as_subclass(TaggedTensor) if i % 2 else _ramp(i, 2),
    "tensor_sparse": lambda i: _ramp(i, 2, 2).to_sparse(),
    "tensor_sparse_once": lambda i: _ramp(i, 2, 2).to_sparse() if i == 4 else _ramp(i, 2, 2),
    "tensor_nested": lambda i: torch.nested.nested_tensor([_ramp(i, 2), _ramp(i, 3)]),
    "tensor_quantized": lambda i: torch.quantize_per_tensor(_ramp(i, 3), 0.5, 0, torch.quint8),
    "tv_image": lambda i: _tv_tensors().Image(_ramp(i, 3, 2, 2, dtype=torch.uint8)),
    "tv_boxes": lambda i: _tv_tensors().BoundingBoxes(_ramp(i, 2, 4), format="XYXY", canvas_size=(100, 100)),
    "tv_image_and_label": lambda i: (SAMPLES["tv_image"](i), i),
    "tv_detection": lambda i: (SAMPLES["tv_image"](i), {"boxes": SAMPLES["tv_boxes"](i)}),
}


# Types, dtypes and shapes that change within a batch.


SAMPLES |= {
    "mixed_int_float": lambda i: i if i % 2 == 0 else i + 0.5,
    "mixed_bool_int": lambda i: i % 4 == 0 if i % 2 == 0 else i,
    "mixed_bool_float": lambda i: True if i % 2 == 0 else i + 0.25,
    "mixed_int_none": lambda i: i if i % 2 == 0 else None,
    "mixed_text_int": lambda i: "text" if i % 2 == 0 else i,
    "mixed_text_octets": lambda i: "text" if i % 2 == 0 else b"octets",
    "mixed_int_tensor": lambda i: i if i % 2 == 0 else torch.tensor(i),
    "mixed_tensor_int": lambda i: torch.tensor(i) if i % 2 == 0 else i,
    "mixed_tensor_array": lambda i: _ramp(i, 3) if i % 2 == 0 else _array_ramp(i, 3),
    "mixed_array_dtypes": lambda i: _array_ramp(i, 3, dtype=np.int32 if i % 2 else np.int64),
    "mixed_dtype_once": lambda i: _ramp(i, 3, dtype=torch.float64 if i == 4 else torch.float32),
    "mixed_list_tuple": lambda i: [i, 1] if i % 2 == 0 else (i, 1),
    "mixed_tuple_list": lambda i: (i, 1) if i % 2 == 0 else [i, 1],
    "mixed_dict_list": lambda i: {"a": i} if i % 2 == 0 else [i],
    "mixed_named_tuple_and_tuple": lambda i: Point(i, 1) if i % 2 == 0 else (i, 1),
    "ragged_tensor": lambda i: _ramp(i, 1 + i % 3),
    "ragged_tensor_once": lambda i: _ramp(i, 3 if i == 4 else 2),
    "ragged_number_of_dimensions": lambda i: _ramp(i, 3) if i % 2 == 0 else _ramp(i, 1, 3),
    "ragged_same_size": lambda i: _ramp(i, 2, 3) if i % 2 == 0 else _ramp(i, 3, 2),
    "ragged_list": lambda i: [i] * (1 + i % 2),
    "ragged_tuple_once": lambda i: (i, 1) if i != 4 else (i, 1, 2),
    "ragged_inside_a_dict": lambda i: {"image": _ramp(i, 2, 2), "tokens": _ramp(i, 1 + i % 2, dtype=torch.int64)},
    # Progressive resizing: the batches of three samples are uniform, and different from each other.
    "shape_by_batch_of_three": lambda i: (_ramp(i, 3, 2 + i // 3, 2), i),
    "type_by_batch_of_three": lambda i: [_ramp(i, 2), _array_ramp(i, 2), {"a": i}, f"text {i}"][(i // 3) % 4],
}


# Containers.


SAMPLES |= {
    "tuple_of_two": lambda i: (_ramp(i, 2, 3), i),
    "tuple_subclass": lambda i: PlainTuple((i, 2.5)),
    "list_subclass": lambda i: ListWithName([i, "text"], name=f"sample {i}"),
    "list_empty": lambda i: [],
    "tuple_empty": lambda i: (),
    "dict_empty": lambda i: {},
    "named_tuple": lambda i: Point(_ramp(i, 2), i),
    "named_tuple_typed": lambda i: Labelled(_ramp(i, 2), i),
    "named_tuple_subclass": lambda i: PointWithMethod(i, i + 1),
    "dict_plain": lambda i: {"image": _ramp(i, 3, 2, 2), "label": i, "name": f"sample {i}"},
    "dict_of_other_keys": lambda i: {1: i, (2, 3): float(i), None: "text", b"k": [i]},
    "dict_ordered": lambda i: collections.OrderedDict([("b", i), ("a", _ramp(i, 2))]),
    "dict_subclass": lambda i: DictWithName.named(f"sample {i}", a=i, b=_ramp(i, 2)),
    "dict_of_user": lambda i: collections.UserDict(a=i, b=_ramp(i, 2)),
    "dict_chain_map": lambda i: collections.ChainMap({"a": i}, {"b": i + 1}),
    "dict_proxy": lambda i: types.MappingProxyType({"a": i}),
    "mapping_frozen": lambda i: FrozenMapping({"a": i, "b": _ramp(i, 2)}),
    "mapping_picky": lambda i: PickyMapping(i, _ramp(i, 2)),
    "sequence_frozen": lambda i: FrozenSequence([i, _ramp(i, 2)]),
    "sequence_picky": lambda i: PickySequence(i, _ramp(i, 2)),
    "sequence_deque": lambda i: collections.deque([i, _ramp(i, 2)], maxlen=4),
    "sequence_of_user": lambda i: collections.UserList([i, 2.5]),
    "sequence_array": lambda i: array.array("i", [i, i + 1]),
    "sequence_range": lambda i: range(i, i + 3),
    "keys_in_another_order": lambda i: {"a": i, "b": 2 * i} if i % 2 == 0 else {"b": 2 * i, "a": i},
    "keys_in_another_order_by_batch": lambda i: {"a": i, "b": 2} if (i // 3) % 2 == 0 else {"b": 2, "a": i},
    "keys_missing_later": lambda i: {"a": i, "b": 1} if i % 3 == 0 else {"a": i},
    "keys_missing_once": lambda i: {"a": i, "b": _ramp(i, 2)} if i != 4 else {"a": i},
    "keys_by_batch_of_three": lambda i: {f"key {i // 3}": _ramp(i, 2)},
    "nested_deeply": lambda i: {
        "view": [
            (_ramp(i, 2, 2), {"mask": _array_ramp(i, 2, dtype=np.bool_)}),
            (_ramp(i + 1, 2, 2), {"mask": _array_ramp(i, 2, dtype=np.bool_)}),
        ],
        "meta": collections.OrderedDict(id=i, point=Point(float(i), [np.float32(i), f"{i}", b"octets", True])),
        "more": [[[[i]]]],
    },
    "nested_without_tensors": lambda i: {"question": f"why {i}?", "answers": [f"{i}", "so"], "raw": (b"1", b"2")},
    "nested_none": lambda i: {"image": _ramp(i, 2), "box": None},
    "nested_none_once": lambda i: {"image": _ramp(i, 2), "box": None if i == 4 else i},
    "nested_object": lambda i: [_ramp(i, 2), Plain(i)],
    "many_tensors": lambda i: {f"leaf {leaf}": _ramp(i + leaf, 2) for leaf in range(300)},
    "dict_default": lambda i: collections.defaultdict(list, a=[i], b=_ramp(i, 2)),
    "mapping_with_attribute": lambda i: AttributeMapping(f"tag {i}", a=i),
    "dict_classes_differ": lambda i: (collections.OrderedDict if i % 2 == 0 else dict)(a=i, b=1),
    "same_tensor_twice": lambda i: (lambda one: {"a": one, "b": one, "c": [one, one[:2]]})(_ramp(i, 3)),
    "same_dict_twice": lambda i: [{"a": i}] * 2,
}


HANGS_TORCH_WHEN_COLLATED = frozenset({"dict_proxy"})
"""Kinds whose collated batch torch's workers cannot pickle."""

HANGS_TORCH_WHEN_RAW = frozenset({"dict_proxy", "tensor_with_gradient_function"})
"""Kinds that torch's workers cannot pickle as they are."""

CHANGED_BY_TORCH_WHEN_RAW = frozenset({"tensor_conjugate", "tensor_negative_view", "array_>i4", "array_>f8"})
"""Kinds that torch's workers change on the way: a lazy conjugation or negation is lost, and a foreign byte order."""

FAILS_IN_TORCHS_WORKERS = {"tensor_conjugate", "tensor_negative_view", "tensor_quantized", "mixed_array_tensor"}
FAILS_IN_TORCHS_WORKERS |= {"mixed_int_tensor", "mixed_tensor_array", "mixed_tensor_int", "parameter"}
FAILS_IN_TORCHS_WORKERS |= {"ragged_inside_a_dict", "tensor_with_gradient_function"}
"""Kinds that torch collates or refuses clearly in the main process, while its workers fail at something else."""

DEPENDS_ON_WORKERS = {"tensor_channels_last", "tensor_conjugate", "tensor_negative_view"}
DEPENDS_ON_WORKERS |= {"tensor_quantized", "tensor_with_gradient", "tensor_with_gradient_function"}
DEPENDS_ON_WORKERS |= {"tensor_with_gradient_once", "parameter", "mixed_tensor_array", "mixed_tensor_int"}
"""Kinds that torch collates in one way in the main process and in another in a worker process."""

MIXED_DTYPES = {"mixed_array_dtypes", "mixed_dtype_once"}
"""Kinds of which torch's workers give another dtype than its main process, or fail."""
