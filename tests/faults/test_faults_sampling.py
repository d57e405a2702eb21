"""What goes in is wrong: the sampler raises, lengths lie, indices lead nowhere."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import fault_kinds as kinds
import pytest
from fault_tools import Numbers, batches_of, loader_of, outcomes


@kinds.everywhere
@pytest.mark.parametrize("says", [0, 3, 1000, None])
def test_a_sampler_whose_length_lies_or_raises_gives_what_it_has(kind, says):
    class Lies:
        def __iter__(self) -> Iterator[int]:
            return iter(range(20))

        def __len__(self) -> int:
            if says is None:
                raise LookupError("no length today")
            return says

    loader = loader_of(Numbers(20), sampler=Lies(), batch_size=3, **kind.options())
    assert outcomes(iter(loader)) == batches_of(20, 3)
    assert says is None or len(loader) == -(-says // 3)


class LyingBatch(list[int]):
    """A batch of indices that says that it has another number of them."""

    def __init__(self, indices: list[int], says: int) -> None:
        super().__init__(indices)
        self.says = says

    def __len__(self) -> int:
        return self.says

    def __reduce__(self) -> Any:
        return LyingBatch, (list(itertools.islice(self, None)), self.says)


@kinds.everywhere
@pytest.mark.parametrize("chunk_size", [None, 1, 2, "batch"])
def test_a_batch_of_indices_whose_length_lies_gives_its_samples_or_an_error(kind, chunk_size):
    """Whatever it says: no row that nobody wrote, no hang, and the batches beside it are right."""
    lengths = [0, 1, 3, 5, 9]
    batches = [batch for says in lengths for batch in ([0, 1, 2, 3], LyingBatch([4, 5, 6, 7], says), [8, 9, 10, 11])]
    loader = loader_of(Numbers(12), batch_sampler=batches, chunk_size=chunk_size, **kind.options())
    found = outcomes(iter(loader))
    assert len(found) == 3 * len(lengths), found
    for place, says in enumerate(lengths):
        before, lying, after = found[3 * place : 3 * place + 3]
        assert before == [0, 1, 2, 3], says
        assert lying == [4, 5, 6, 7] or isinstance(lying, Exception), (says, lying)
        assert after == [8, 9, 10, 11], says


class Replaces(Numbers):
    """Loads batches itself, and leaves samples out or adds some, as datasets do that drop what is damaged."""

    def __init__(self, length: int, form: str, dropped: set[int], added: int) -> None:
        super().__init__(length, form)
        self.dropped, self.added = dropped, added

    def __getitems__(self, indices: list[int]) -> list[Any]:
        given = [index for index in indices if index not in self.dropped] + list(indices[: self.added])
        return [self.sample(index) for index in given]


@kinds.everywhere
@pytest.mark.parametrize("form", ["number", "tensor", "dict", "ragged"])
@kinds.draws(3)
def test_a_getitems_that_gives_more_or_fewer_samples_than_asked_makes_batches_of_what_it_gave(kind, form, draw):
    options = draw.loading(kind) | {"batch_size": draw.randint(2, 6)}
    if draw.random() < 0.5:
        dropped, added = {index for index in range(30) if index % options["batch_size"] and draw.random() < 0.4}, 0
    else:
        dropped, added = set(), draw.randint(1, 2)
    dataset = Replaces(30, form, dropped, added)
    expected = [
        [index for index in batch if index not in dropped] + batch[:added]
        for batch in batches_of(30, options["batch_size"])
    ]
    assert outcomes(iter(loader_of(dataset, **options))) == expected
