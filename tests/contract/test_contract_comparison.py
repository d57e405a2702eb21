"""The comparison itself: it must notice what is subtly wrong, or the whole suite proves nothing."""

import collections
import warnings
from collections.abc import Callable
from typing import Any

import contract_ways as ways
import numpy as np
import pytest
import torch
from contract_datasets import Failing, Squares
from contract_harness import Load, assert_same_as_torch, epochs, generator, raised
from contract_samples import SAMPLES, AttributeMapping, DictWithName, ListWithName, Point, PointWithMethod
from kit.comparison import difference
from torch.utils.data import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore")


def _tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values)


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def _sparse_rows(dense: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        # "Sparse CSR tensor support is in beta state".
        warnings.simplefilter("ignore")
        return dense.to_sparse_csr()


DIFFERENT = {
    "dtype": (_tensor(1.0), _tensor(1.0).double()),
    "shape": (_tensor(1.0), _tensor(1.0)[None]),
    "a value": (_tensor(1.0, 2.0), _tensor(1.0, 2.0 + 2e-7)),
    "sign of zero": (_tensor(0.0), _tensor(-0.0)),
    "sign of a float's zero": (0.0, -0.0),
    "stride": (torch.zeros(2, 3), torch.zeros(3, 2).t()),
    "requires_grad": (_tensor(1.0), _tensor(1.0).requires_grad_()),
    "layout": (torch.eye(2), torch.eye(2).to_sparse()),
    "sparse values": (torch.eye(2).to_sparse(), (torch.eye(2) * 2).to_sparse()),
    "sparse rows": (_sparse_rows(torch.eye(2)), _sparse_rows(torch.eye(2).flip(0))),
    "class of a tensor": (_tensor(1.0), torch.nn.Parameter(_tensor(1.0), requires_grad=False)),
    "tensor or array": (_tensor(1.0), np.ones(1, dtype=np.float32)),
    "byte order": (np.ones(2, dtype="<f4"), np.ones(2, dtype=">f4")),
    "an array that cannot be written to": (np.ones(2), _read_only(np.ones(2))),
    "order in memory of an array": (np.zeros((2, 3)), np.zeros((2, 3), order="F")),
    "kind of a NumPy scalar": (np.float32(1), np.float64(1)),
    "NumPy or Python scalar": (np.float64(1), 1.0),
    "bool or int": (True, 1),
    "int or float": (1, 1.0),
    "str or bytes": ("a", b"a"),
    "str or its subclass": ("a", np.str_("a")),
    "list or tuple": ([1], (1,)),
    "order of a list": ([1, 2], [2, 1]),
    "length of a list": ([1, 2], [1, 2, 3]),
    "length of a tuple": ((1, 2), (1,)),
    "tuple or named tuple": ((1, 2), Point(1, 2)),
    "named tuple or its subclass": (Point(1, 2), PointWithMethod(1, 2)),
    "order of keys": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "a key": ({"a": 1}, {"b": 1}),
    "type of a key": ({1: 1}, {True: 1}),
    "a missing key": ({"a": 1}, {"a": 1, "b": 2}),
    "value of a key": ({"a": [1]}, {"a": [2]}),
    "dict or OrderedDict": ({"a": 1}, collections.OrderedDict(a=1)),
    "dict or defaultdict": ({"a": 1}, collections.defaultdict(int, a=1)),
    "default_factory": (collections.defaultdict(int, a=1), collections.defaultdict(list, a=1)),
    "maxlen": (collections.deque([1], maxlen=3), collections.deque([1])),
    "attribute of a list": (ListWithName([1], "a"), ListWithName([1], "b")),
    "attribute of a dict": (DictWithName.named("a", x=1), DictWithName.named("b", x=1)),
    "attribute of a mapping": (AttributeMapping("a"), AttributeMapping("b")),
    "class of an error": (raised(ValueError("a")), raised(TypeError("a"))),
    "subclass of an error": (raised(KeyError("a")), raised(LookupError("a"))),
    "text of an error": (raised(ValueError("a")), raised(ValueError("b"))),
    "None": (None, 0),
    "nested deeply": ([{"a": (1, [2, _tensor(3.0)])}], [{"a": (1, [2, _tensor(4.0)])}]),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_a_difference_is_noticed_in_both_directions_and_none_where_there_is_none(what):
    left, right = DIFFERENT[what]
    assert difference(left, right)
    assert difference(right, left)
    assert difference([0, left], [0, right])
    assert difference({"a": left}, {"a": right})
    assert difference([left, right], [left, right]) is None


CONSTANT = {"scalar_none", "scalar_enum", "array_of_no_dimension_masked"}
"""Kinds whose samples are alike, beside empty ones, bools and huge integers."""


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_equals_the_same_sample_made_again_and_differs_from_another(name):
    assert difference(SAMPLES[name](1), SAMPLES[name](1)) is None
    constant = name in CONSTANT or "empty" in name or "huge" in name or name.endswith("_bool")
    assert constant or difference(SAMPLES[name](1), SAMPLES[name](4))


def _wrong(change: Callable[[list[Any]], Any]) -> type[DataLoader]:
    """Return torch's loader with something changed of the batches of an epoch."""

    class Wrong(DataLoader):
        def __iter__(self):
            return iter(change(list(super().__iter__())))

    return Wrong


class _EndsAfterAnError(DataLoader):
    def __iter__(self):
        for batch in self.batch_sampler:
            yield self.collate_fn([self.dataset[index] for index in batch])


def _shuffled(load: Load) -> Any:
    return epochs(load(Squares(), batch_size=3, shuffle=True, generator=generator()), 2)


def _failing(load: Load) -> Any:
    return epochs(load(Failing(at=[7]), batch_size=2))


WRONG = {
    "dtype once": (_wrong(lambda batches: [*batches[:-1], [batches[-1][0], batches[-1][1].int()]]), _shuffled),
    "order": (_wrong(lambda batches: [batches[1], batches[0], *batches[2:]]), _shuffled),
    "last batch lost": (_wrong(lambda batches: batches[:-1]), _shuffled),
    "end after an error": (_EndsAfterAnError, _failing),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_loader_that_is_subtly_wrong_is_noticed(wrong):
    loader_class, case = WRONG[wrong]
    with pytest.raises(AssertionError, match=r"differs from torch's DataLoader"):
        assert_same_as_torch(case, loader_class=loader_class)


def test_a_loader_that_is_right_passes():
    assert_same_as_torch(_shuffled, ways.TWO, loader_class=_wrong(list))
