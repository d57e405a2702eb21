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
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

# torchvision and Pillow are imported where they are needed: a spawned worker imports this module.

SAMPLES: dict[str, Callable[[int], Any]] = {}


def kind(function: Callable[[int], Any]) -> Callable[[int], Any]:
    """Register a kind of sample under its function's name."""
    SAMPLES[function.__name__] = function
    return function


class SamplesOfKind(Dataset):
    """A dataset of samples of one kind."""

    def __init__(self, name: str, length: int = 7) -> None:
        self.name = name
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return SAMPLES[self.name](index)


class SamplesOfManyKinds(Dataset):
    """A dataset with ``per_kind`` samples of each kind in turn."""

    def __init__(self, names: list[str], per_kind: int) -> None:
        self.names = names
        self.per_kind = per_kind

    def __len__(self) -> int:
        return len(self.names) * self.per_kind

    def __getitem__(self, index: int) -> Any:
        return SAMPLES[self.names[index // self.per_kind]](index % self.per_kind)


# Containers of the user's own.


Point = collections.namedtuple("Point", ["x", "y"])


class Labelled(typing.NamedTuple):
    """A named tuple with types and a default."""

    image: Any
    label: Any
    name: str = "unnamed"


class PointWithMethod(Point):
    """A subclass of a named tuple."""

    def norm(self) -> Any:
        """Return the sum of the coordinates."""
        return self.x + self.y


class PlainTuple(tuple):
    """A tuple's subclass that is no named tuple."""


class ListWithName(list):
    """A list's subclass with an attribute."""

    def __init__(self, items: Any = (), name: str = "") -> None:
        super().__init__(items)
        self.name = name


class DictWithName(dict):
    """A dict's subclass with an attribute, and without a constructor that takes a mapping."""

    name = "class"

    @classmethod
    def named(cls, name: str, **items: Any) -> "DictWithName":
        """Make one with a name."""
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

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.items_: dict[Any, Any] = {}

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
        made = AttributeMapping(self.tag)
        made.items_ = dict(self.items_)
        return made


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


@dataclasses.dataclass
class Record:
    """A dataclass, which default collation does not know."""

    image: Any
    label: int


class Plain:
    """An object that default collation does not know."""

    def __init__(self, value: Any) -> None:
        self.value = value


class TaggedTensor(torch.Tensor):
    """A tensor's subclass."""


class Colour(enum.Enum):
    """An enumeration, which default collation does not know."""

    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    """An enumeration that is an int."""

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


# Python scalars.


@kind
def scalar_int(index: int) -> Any:
    return index * 3 - 4


@kind
def scalar_bool(index: int) -> Any:
    return index % 2 == 0


@kind
def scalar_float(index: int) -> Any:
    return [0.1, -0.0, float("inf"), float("nan"), 1e-310, 5.0, -7.25][index % 7]


@kind
def scalar_complex(index: int) -> Any:
    return complex(index, 1)


@kind
def scalar_none(index: int) -> Any:
    return None


@kind
def scalar_large_int(index: int) -> Any:
    return 2**63 - 1 - index


@kind
def scalar_int_of_64_bits(index: int) -> Any:
    return 2**63 + index


@kind
def scalar_huge_int(index: int) -> Any:
    return 2**70


@kind
def scalar_huge_int_once(index: int) -> Any:
    return 2**70 if index == 4 else index


@kind
def scalar_negative_huge_int(index: int) -> Any:
    return -(2**63) - 1


@kind
def scalar_int_subclass(index: int) -> Any:
    return Count(index)


@kind
def scalar_float_subclass(index: int) -> Any:
    return Weight(index)


@kind
def scalar_int_enum(index: int) -> Any:
    return Level.LOW if index % 2 else Level.HIGH


@kind
def scalar_enum(index: int) -> Any:
    return Colour.RED


@kind
def text(index: int) -> Any:
    return ["", "a", "žluťoučký kůň", "🐎" * 5, "line\nbreak", "nul\0", "x" * 1000][index % 7]


@kind
def text_subclass(index: int) -> Any:
    return Word(f"word {index}")


@kind
def text_long(index: int) -> Any:
    return chr(ord("a") + index % 26) * 300_000


@kind
def octets(index: int) -> Any:
    return bytes(range(index)) + b"\0"


@kind
def octets_long(index: int) -> Any:
    return bytes([index % 256]) * 1_000_000


@kind
def octets_mutable(index: int) -> Any:
    return bytearray([index, index + 1])


@kind
def date(index: int) -> Any:
    return datetime.date(2020, 1, 1 + index)


@kind
def plain_object(index: int) -> Any:
    return Plain(index)


@kind
def data_class(index: int) -> Any:
    return Record(_ramp(index, 2), index)


@kind
def image_of_pillow(index: int) -> Any:
    from PIL import Image

    return Image.new("RGB", (4, 3), (index, 0, 255))


# NumPy scalars and arrays.


def _numpy_scalars() -> None:
    names = ["bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32"]
    names += ["float64", "complex64", "complex128", "longdouble", "str_", "bytes_"]
    for name in names:

        def sample(index: int, name: str = name) -> Any:
            value = {"bool_": index % 2, "bytes_": b"%d" % index}.get(name, index)
            return getattr(np, name)(value)

        SAMPLES[f"numpy_scalar_{name}"] = sample


def _numpy_arrays() -> None:
    dtypes = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32"]
    dtypes += ["float64", "complex64", "complex128", "longdouble", ">i4", ">f8", "U5", "S5", "datetime64[D]"]
    for name in dtypes:

        def sample(index: int, name: str = name) -> Any:
            return _array_ramp(index, 2, 3, dtype=name if name != "bool" else np.uint8).astype(name)

        SAMPLES[f"array_{name}"] = sample


_numpy_scalars()
_numpy_arrays()


@kind
def array_object(index: int) -> Any:
    return np.array([index, "a", None], dtype=object)


@kind
def array_structured(index: int) -> Any:
    return np.array([(index, 1.0)], dtype=[("a", "i4"), ("b", "f4")])


@kind
def array_record(index: int) -> Any:
    return np.rec.array([(index, 1.0)], dtype=[("a", "i4"), ("b", "f4")])


@kind
def array_of_no_dimension(index: int) -> Any:
    return np.array(index, dtype=np.int32)


@kind
def array_empty(index: int) -> Any:
    return np.zeros((0,), dtype=np.float32)


@kind
def array_empty_matrix(index: int) -> Any:
    return np.zeros((3, 0, 2), dtype=np.int64)


@kind
def array_every_second(index: int) -> Any:
    return _array_ramp(index, 6, 4)[::2, 1::2]


@kind
def array_transposed(index: int) -> Any:
    return _array_ramp(index, 3, 4).T


@kind
def array_fortran(index: int) -> Any:
    return np.asfortranarray(_array_ramp(index, 3, 4))


@kind
def array_reversed(index: int) -> Any:
    return _array_ramp(index, 5)[::-1]


@kind
def array_broadcast(index: int) -> Any:
    return np.broadcast_to(_array_ramp(index, 1, 3), (4, 3))


@kind
def array_read_only(index: int) -> Any:
    made = _array_ramp(index, 4)
    made.flags.writeable = False
    return made


@kind
def array_matrix(index: int) -> Any:
    return np.asmatrix(_array_ramp(index, 2, 2))


@kind
def array_masked(index: int) -> Any:
    return np.ma.masked_array(_array_ramp(index, 4), mask=[0, 1, 0, 0])


@kind
def array_of_a_field(index: int) -> Any:
    # One field of a structured array: aligned to nothing.
    return np.array([(1, index), (2, index + 1)], dtype=[("a", "i1"), ("b", "i1")])["b"]


# Tensors.


def _tensors() -> None:
    names = ["bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "bfloat16"]
    names += ["float32", "float64", "complex64", "complex128", "complex32", "float8_e4m3fn", "float8_e5m2"]
    for name in names:

        def sample(index: int, name: str = name) -> Any:
            return (torch.arange(6).reshape(2, 3) + index).to(torch.float32).to(getattr(torch, name))

        SAMPLES[f"tensor_{name}"] = sample


_tensors()


@kind
def tensor_special_values(index: int) -> Any:
    return torch.tensor([float("nan"), -0.0, float("inf"), float(index)])


@kind
def tensor_of_no_dimension(index: int) -> Any:
    return torch.tensor(float(index))


@kind
def tensor_of_one_element(index: int) -> Any:
    return torch.tensor([[float(index)]])


@kind
def tensor_empty(index: int) -> Any:
    return torch.empty(0)


@kind
def tensor_empty_matrix(index: int) -> Any:
    return torch.empty(2, 0, 3, dtype=torch.int32)


@kind
def tensor_transposed(index: int) -> Any:
    return _ramp(index, 3, 4).t()


@kind
def tensor_permuted(index: int) -> Any:
    return _ramp(index, 4, 5, 3).permute(2, 0, 1)


@kind
def tensor_channels_last(index: int) -> Any:
    return _ramp(index, 2, 3, 4, 5).contiguous(memory_format=torch.channels_last)


@kind
def tensor_every_second(index: int) -> Any:
    return _ramp(index, 6, 4)[::2, 1::2]


@kind
def tensor_expanded(index: int) -> Any:
    return _ramp(index, 1, 3).expand(4, 3)


@kind
def tensor_layout_changes(index: int) -> Any:
    return _ramp(index, 3, 3).t() if index % 2 else _ramp(index, 3, 3)


@kind
def tensor_slice_of_a_large_one(index: int) -> Any:
    return _ramp(0, 50, 20)[index]


@kind
def tensor_conjugate(index: int) -> Any:
    return torch.tensor([complex(index, 1), complex(0, -index)]).conj()


@kind
def tensor_negative_view(index: int) -> Any:
    return torch.tensor([complex(index, 1), complex(0, -index)]).conj().imag


@kind
def tensor_with_gradient(index: int) -> Any:
    return _ramp(index, 3).requires_grad_()


@kind
def tensor_with_gradient_function(index: int) -> Any:
    return _ramp(index, 3).requires_grad_() * 2


@kind
def tensor_with_gradient_once(index: int) -> Any:
    return _ramp(index, 3).requires_grad_(index == 4)


@kind
def parameter(index: int) -> Any:
    return torch.nn.Parameter(_ramp(index, 3))


@kind
def parameter_frozen(index: int) -> Any:
    return torch.nn.Parameter(_ramp(index, 3), requires_grad=False)


@kind
def tensor_subclass(index: int) -> Any:
    return _ramp(index, 2, 2).as_subclass(TaggedTensor)


@kind
def tensor_subclass_now_and_then(index: int) -> Any:
    return _ramp(index, 2).as_subclass(TaggedTensor) if index % 2 else _ramp(index, 2)


@kind
def tensor_sparse(index: int) -> Any:
    return _ramp(index, 2, 2).to_sparse()


@kind
def tensor_sparse_rows(index: int) -> Any:
    return _ramp(index, 2, 2).to_sparse_csr()


@kind
def tensor_sparse_once(index: int) -> Any:
    return _ramp(index, 2, 2).to_sparse() if index == 4 else _ramp(index, 2, 2)


@kind
def tensor_nested(index: int) -> Any:
    return torch.nested.nested_tensor([_ramp(index, 2), _ramp(index, 3)])


@kind
def tensor_quantized(index: int) -> Any:
    return torch.quantize_per_tensor(_ramp(index, 3), 0.5, 0, torch.quint8)


@kind
def tv_image(index: int) -> Any:
    from torchvision import tv_tensors

    return tv_tensors.Image(_ramp(index, 3, 2, 2, dtype=torch.uint8))


@kind
def tv_mask(index: int) -> Any:
    from torchvision import tv_tensors

    return tv_tensors.Mask(_ramp(index, 2, 2, dtype=torch.int64))


@kind
def tv_video(index: int) -> Any:
    from torchvision import tv_tensors

    return tv_tensors.Video(_ramp(index, 2, 3, 2, 2, dtype=torch.uint8))


@kind
def tv_boxes(index: int) -> Any:
    from torchvision import tv_tensors

    return tv_tensors.BoundingBoxes(_ramp(index, 2, 4), format="XYXY", canvas_size=(100, 100))


@kind
def tv_image_and_label(index: int) -> Any:
    return tv_image(index), index


@kind
def tv_detection(index: int) -> Any:
    return tv_image(index), {"boxes": tv_boxes(index), "labels": torch.tensor([index, 1])}


# Types, dtypes and shapes that change within a batch.


@kind
def mixed_int_float(index: int) -> Any:
    return index if index % 2 == 0 else index + 0.5


@kind
def mixed_float_int(index: int) -> Any:
    return index + 0.5 if index % 2 == 0 else index


@kind
def mixed_bool_int(index: int) -> Any:
    return index % 4 == 0 if index % 2 == 0 else index


@kind
def mixed_int_bool(index: int) -> Any:
    return index if index % 2 == 0 else True


@kind
def mixed_bool_float(index: int) -> Any:
    return True if index % 2 == 0 else index + 0.25


@kind
def mixed_int_none(index: int) -> Any:
    return index if index % 2 == 0 else None


@kind
def mixed_int_text(index: int) -> Any:
    return index if index % 2 == 0 else "text"


@kind
def mixed_text_int(index: int) -> Any:
    return "text" if index % 2 == 0 else index


@kind
def mixed_text_octets(index: int) -> Any:
    return "text" if index % 2 == 0 else b"octets"


@kind
def mixed_int_tensor(index: int) -> Any:
    return index if index % 2 == 0 else torch.tensor(index)


@kind
def mixed_tensor_int(index: int) -> Any:
    return torch.tensor(index) if index % 2 == 0 else index


@kind
def mixed_tensor_array(index: int) -> Any:
    return _ramp(index, 3) if index % 2 == 0 else _array_ramp(index, 3)


@kind
def mixed_array_tensor(index: int) -> Any:
    return _array_ramp(index, 3) if index % 2 == 0 else _ramp(index, 3)


@kind
def mixed_numpy_scalar_and_float(index: int) -> Any:
    return np.float32(index) if index % 2 == 0 else float(index)


@kind
def mixed_float_and_numpy_scalar(index: int) -> Any:
    return float(index) if index % 2 == 0 else np.float32(index)


@kind
def mixed_numpy_scalars(index: int) -> Any:
    return np.float32(index) if index % 2 == 0 else np.int64(index)


@kind
def mixed_float32_float64(index: int) -> Any:
    return _ramp(index, 3, dtype=torch.float64 if index % 2 else torch.float32)


@kind
def mixed_float64_float32(index: int) -> Any:
    return _ramp(index, 3, dtype=torch.float32 if index % 2 else torch.float64)


@kind
def mixed_int64_float32(index: int) -> Any:
    return _ramp(index, 3, dtype=torch.float32 if index % 2 else torch.int64)


@kind
def mixed_float32_int64(index: int) -> Any:
    return _ramp(index, 3, dtype=torch.int64 if index % 2 else torch.float32)


@kind
def mixed_uint8_int64(index: int) -> Any:
    return _ramp(index, 3, dtype=torch.int64 if index % 2 else torch.uint8)


@kind
def mixed_bool_uint8(index: int) -> Any:
    return _ramp(index, 3, dtype=torch.uint8 if index % 2 else torch.bool)


@kind
def mixed_array_dtypes(index: int) -> Any:
    return _array_ramp(index, 3, dtype=np.int32 if index % 2 else np.int64)


@kind
def mixed_dtype_once(index: int) -> Any:
    return _ramp(index, 3, dtype=torch.float64 if index == 4 else torch.float32)


@kind
def mixed_list_tuple(index: int) -> Any:
    return [index, 1] if index % 2 == 0 else (index, 1)


@kind
def mixed_tuple_list(index: int) -> Any:
    return (index, 1) if index % 2 == 0 else [index, 1]


@kind
def mixed_dict_list(index: int) -> Any:
    return {"a": index} if index % 2 == 0 else [index]


@kind
def mixed_named_tuple_and_tuple(index: int) -> Any:
    return Point(index, 1) if index % 2 == 0 else (index, 1)


@kind
def ragged_tensor(index: int) -> Any:
    return _ramp(index, 1 + index % 3)


@kind
def ragged_tensor_once(index: int) -> Any:
    return _ramp(index, 3 if index == 4 else 2)


@kind
def ragged_array(index: int) -> Any:
    return _array_ramp(index, 1 + index % 3)


@kind
def ragged_number_of_dimensions(index: int) -> Any:
    return _ramp(index, 3) if index % 2 == 0 else _ramp(index, 1, 3)


@kind
def ragged_same_size(index: int) -> Any:
    return _ramp(index, 2, 3) if index % 2 == 0 else _ramp(index, 3, 2)


@kind
def ragged_list(index: int) -> Any:
    return [index] * (1 + index % 2)


@kind
def ragged_tuple_once(index: int) -> Any:
    return (index, 1) if index != 4 else (index, 1, 2)


@kind
def ragged_inside_a_dict(index: int) -> Any:
    return {"image": _ramp(index, 2, 2), "tokens": _ramp(index, 1 + index % 2, dtype=torch.int64)}


@kind
def shape_by_batch_of_three(index: int) -> Any:
    # Progressive resizing: the batches of three samples are uniform, and different from each other.
    return _ramp(index, 3, 2 + index // 3, 2), index


@kind
def shape_back_and_forth(index: int) -> Any:
    return _ramp(index, 2 + (index // 3) % 2)


@kind
def type_by_batch_of_three(index: int) -> Any:
    return [_ramp(index, 2), _array_ramp(index, 2), {"a": index}, f"text {index}"][(index // 3) % 4]


# Containers.


@kind
def tuple_of_two(index: int) -> Any:
    return _ramp(index, 2, 3), index


@kind
def tuple_of_one(index: int) -> Any:
    return (index,)


@kind
def tuple_subclass(index: int) -> Any:
    return PlainTuple((index, 2.5))


@kind
def list_of_two(index: int) -> Any:
    return [_ramp(index, 2), float(index)]


@kind
def list_subclass(index: int) -> Any:
    return ListWithName([index, "text"], name=f"sample {index}")


@kind
def list_empty(index: int) -> Any:
    return []


@kind
def tuple_empty(index: int) -> Any:
    return ()


@kind
def dict_empty(index: int) -> Any:
    return {}


@kind
def containers_empty_inside(index: int) -> Any:
    return {"a": [], "b": (), "c": {}, "d": index}


@kind
def named_tuple(index: int) -> Any:
    return Point(_ramp(index, 2), index)


@kind
def named_tuple_typed(index: int) -> Any:
    return Labelled(_ramp(index, 2), index)


@kind
def named_tuple_subclass(index: int) -> Any:
    return PointWithMethod(index, index + 1)


@kind
def named_tuple_nested(index: int) -> Any:
    return Point(Point(index, "a"), Labelled(_array_ramp(index, 2), {"z": index}))


@kind
def dict_plain(index: int) -> Any:
    return {"image": _ramp(index, 3, 2, 2), "label": index, "name": f"sample {index}"}


@kind
def dict_of_other_keys(index: int) -> Any:
    return {1: index, (2, 3): float(index), None: "text", b"k": [index]}


@kind
def dict_ordered(index: int) -> Any:
    return collections.OrderedDict([("b", index), ("a", _ramp(index, 2))])


@kind
def dict_default(index: int) -> Any:
    made: Any = collections.defaultdict(list)
    made["a"] = [index]
    made["b"] = _ramp(index, 2)
    return made


@kind
def dict_subclass(index: int) -> Any:
    return DictWithName.named(f"sample {index}", a=index, b=_ramp(index, 2))


@kind
def dict_of_user(index: int) -> Any:
    return collections.UserDict(a=index, b=_ramp(index, 2))


@kind
def dict_counter(index: int) -> Any:
    return collections.Counter({"a": index, "b": 2})


@kind
def dict_chain_map(index: int) -> Any:
    return collections.ChainMap({"a": index}, {"b": index + 1})


@kind
def dict_proxy(index: int) -> Any:
    return types.MappingProxyType({"a": index})


@kind
def mapping_frozen(index: int) -> Any:
    return FrozenMapping({"a": index, "b": _ramp(index, 2)})


@kind
def mapping_picky(index: int) -> Any:
    return PickyMapping(index, _ramp(index, 2))


@kind
def mapping_with_attribute(index: int) -> Any:
    made = AttributeMapping(f"tag {index}")
    made["a"] = index
    return made


@kind
def sequence_frozen(index: int) -> Any:
    return FrozenSequence([index, _ramp(index, 2)])


@kind
def sequence_picky(index: int) -> Any:
    return PickySequence(index, _ramp(index, 2))


@kind
def sequence_deque(index: int) -> Any:
    return collections.deque([index, _ramp(index, 2)], maxlen=4)


@kind
def sequence_of_user(index: int) -> Any:
    return collections.UserList([index, 2.5])


@kind
def sequence_array(index: int) -> Any:
    return array.array("i", [index, index + 1])


@kind
def sequence_range(index: int) -> Any:
    return range(index, index + 3)


@kind
def set_plain(index: int) -> Any:
    return {index}


@kind
def keys_in_another_order(index: int) -> Any:
    return {"a": index, "b": 2 * index} if index % 2 == 0 else {"b": 2 * index, "a": index}


@kind
def keys_in_another_order_by_batch(index: int) -> Any:
    return {"a": index, "b": 2} if (index // 3) % 2 == 0 else {"b": 2, "a": index}


@kind
def keys_missing_later(index: int) -> Any:
    return {"a": index, "b": 1} if index % 3 == 0 else {"a": index}


@kind
def keys_more_later(index: int) -> Any:
    return {"a": index} if index % 3 == 0 else {"a": index, "b": _ramp(index, 2)}


@kind
def keys_missing_once(index: int) -> Any:
    return {"a": index, "b": _ramp(index, 2)} if index != 4 else {"a": index}


@kind
def keys_by_batch_of_three(index: int) -> Any:
    return {f"key {index // 3}": _ramp(index, 2)}


@kind
def dict_classes_differ(index: int) -> Any:
    items = {"a": index, "b": 1}
    return collections.OrderedDict(items) if index % 2 == 0 else items


@kind
def nested_deeply(index: int) -> Any:
    return {
        "view": [
            (_ramp(index, 2, 2), {"mask": _array_ramp(index, 2, dtype=np.bool_)}),
            (_ramp(index + 1, 2, 2), {"mask": _array_ramp(index, 2, dtype=np.bool_)}),
        ],
        "meta": collections.OrderedDict(
            id=index,
            point=Point(float(index), [np.float32(index), f"{index}", b"octets", True]),
        ),
        "more": [[[[index]]]],
    }


@kind
def nested_without_tensors(index: int) -> Any:
    return {"question": f"why {index}?", "answers": [f"because {index}", "so"], "raw": (b"1", b"2")}


@kind
def nested_none(index: int) -> Any:
    return {"image": _ramp(index, 2), "box": None}


@kind
def nested_none_once(index: int) -> Any:
    return {"image": _ramp(index, 2), "box": None if index == 4 else index}


@kind
def nested_object(index: int) -> Any:
    return [_ramp(index, 2), Plain(index)]


@kind
def many_tensors(index: int) -> Any:
    return {f"leaf {leaf}": _ramp(index + leaf, 2) for leaf in range(40)}


@kind
def same_tensor_twice(index: int) -> Any:
    tensor = _ramp(index, 3)
    return {"a": tensor, "b": tensor, "c": [tensor, tensor[:2]]}


@kind
def same_array_twice(index: int) -> Any:
    made = _array_ramp(index, 3)
    return made, made, made[1:]


@kind
def same_dict_twice(index: int) -> Any:
    inner = {"a": index}
    return [inner, inner]


HANGS_TORCH_WHEN_COLLATED = frozenset({"dict_proxy"})
"""Kinds whose collated batch torch's workers cannot pickle."""

HANGS_TORCH_WHEN_RAW = frozenset({"dict_proxy", "tensor_with_gradient_function"})
"""Kinds that torch's workers cannot pickle as they are."""

CHANGED_BY_TORCH_WHEN_RAW = frozenset({"tensor_conjugate", "tensor_negative_view", "array_>i4", "array_>f8"})
"""Kinds that torch's workers change on the way: a lazy conjugation or negation is lost, and a foreign byte order."""

FAILS_IN_TORCHS_WORKERS = frozenset(
    {
        "tensor_conjugate",
        "tensor_negative_view",
        "tensor_quantized",
        "mixed_array_tensor",
        "mixed_int_tensor",
        "mixed_tensor_array",
        "mixed_tensor_int",
        "parameter",
        "ragged_inside_a_dict",
        "tensor_with_gradient_function",
    }
)
"""Kinds that torch collates or refuses clearly in the main process, while its workers fail at something else."""

DEPENDS_ON_WORKERS = frozenset(
    {
        "tensor_channels_last",
        "tensor_conjugate",
        "tensor_negative_view",
        "tensor_quantized",
        "tensor_with_gradient",
        "tensor_with_gradient_function",
        "tensor_with_gradient_once",
        "parameter",
        "mixed_tensor_array",
        "mixed_tensor_int",
    }
)
"""Kinds that torch collates in one way in the main process and in another in a worker process."""

MIXED_DTYPES = frozenset(
    {
        "mixed_array_dtypes",
        "mixed_bool_uint8",
        "mixed_dtype_once",
        "mixed_float32_float64",
        "mixed_float32_int64",
        "mixed_float64_float32",
        "mixed_int64_float32",
        "mixed_uint8_int64",
    }
)
"""Kinds of which torch's workers give another dtype than its main process, or fail."""
