"""What goes in is wrong: the sampler raises, lengths lie, indices lead nowhere."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from fault_tools import (
    PACKETS,
    PIPES,
    Draw,
    Kind,
    Numbers,
    batches_of,
    draws,
    everywhere,
    loader_of,
    numbers,
    of_kinds,
    outcomes,
    with_workers,
)
from torch.utils.data import IterableDataset


class Breaks:
    """Gives items of a sequence, and raises in the place of one."""

    def __init__(self, items: Sequence[Any], at: int) -> None:
        self.items, self.at = items, at
        self.broken = True

    def __iter__(self) -> Iterator[Any]:
        for place, item in enumerate(self.items):
            if place == self.at and self.broken:
                raise LookupError("the order is lost")
            yield item

    def __len__(self) -> int:
        return len(self.items)


@everywhere
@draws(4)
def test_what_a_sampler_raises_comes_after_the_batches_before_it(kind: Kind, draw: Draw) -> None:
    length = draw.randint(1, 50)
    at = draw.randrange(length)
    options = draw.loading(kind)
    sampler = Breaks(range(length), at)
    draw.show(length=length, at=at)
    loader = loader_of(Numbers(length), sampler=sampler, **options)
    whole = at // options["batch_size"]
    found = outcomes(iter(loader))
    assert found[:whole] == batches_of(length, options["batch_size"])[:whole]
    assert [type(outcome) for outcome in found[whole:]] == [LookupError]
    sampler.broken = False
    assert outcomes(iter(loader)) == batches_of(length, options["batch_size"])
    loader.close()


@everywhere
@draws(3)
def test_what_a_batch_sampler_raises_comes_after_the_batches_before_it(kind: Kind, draw: Draw) -> None:
    batches = [[draw.randrange(30) for _ in range(draw.randint(1, 6))] for _ in range(draw.randint(1, 12))]
    at = draw.randrange(len(batches))
    options = draw.loading(kind)
    del options["batch_size"]
    batch_sampler = Breaks(batches, at)
    draw.show(batches=batches, at=at)
    loader = loader_of(Numbers(30), batch_sampler=batch_sampler, **options)
    found = outcomes(iter(loader))
    assert found[:at] == batches[:at]
    assert [type(outcome) for outcome in found[at:]] == [LookupError]
    batch_sampler.broken = False
    assert outcomes(iter(loader)) == batches
    loader.close()


@everywhere
def test_what_a_samplers_iter_or_len_raises_comes_out_and_leaves_nothing(kind: Kind) -> None:
    class NoIter:
        def __iter__(self) -> Iterator[int]:
            raise LookupError("no order today")

    class NoLen:
        def __iter__(self) -> Iterator[int]:
            return iter(range(8))

        def __len__(self) -> int:
            raise LookupError("no length today")

    with pytest.raises(LookupError):
        list(loader_of(Numbers(8), sampler=NoIter(), batch_size=4, **kind.options()))
    loader = loader_of(Numbers(8), sampler=NoLen(), batch_size=4, **kind.options())
    assert outcomes(iter(loader)) == batches_of(8, 4)


@everywhere
@draws(3)
def test_indices_beyond_the_dataset_are_errors_of_their_own_batches(kind: Kind, draw: Draw) -> None:
    class Short(Numbers):
        def __getitem__(self, index: int) -> Any:
            if index >= 20:
                raise IndexError(f"index {index} of 20")
            return super().__getitem__(index)

    order = [draw.randrange(25) for _ in range(40)]
    options = draw.loading(kind)
    draw.show(order=order)
    found = outcomes(iter(loader_of(Short(20), sampler=order, **options)))
    size = options["batch_size"]
    expected = [order[start : start + size] for start in range(0, 40, size)]
    assert len(found) == len(expected)
    for outcome, batch in zip(found, expected, strict=True):
        if max(batch) < 20:
            assert outcome == batch
        else:
            assert isinstance(outcome, IndexError)


@everywhere
@draws(3)
def test_a_dataset_longer_than_it_says_gives_what_it_says(kind: Kind, draw: Draw) -> None:
    said = draw.randint(1, 20)
    options = draw.loading(kind)
    dataset = Numbers(said)  # it would answer to any index
    assert outcomes(iter(loader_of(dataset, **options))) == batches_of(said, options["batch_size"])


@everywhere
@draws(3)
def test_a_dataset_shorter_than_it_says_gives_what_it_has_and_then_errors(kind: Kind, draw: Draw) -> None:
    has, says = draw.randint(0, 20), draw.randint(21, 40)
    options = draw.loading(kind)
    draw.show(has=has, says=says)
    data = torch.arange(has)

    class Lies(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return says

        def __getitem__(self, index: int) -> torch.Tensor:
            return data[index]

    size = options["batch_size"]
    found = outcomes(iter(loader_of(Lies(), **options)))
    assert len(found) == -(-says // size)
    assert found[: has // size] == batches_of(has, size)[: has // size]
    assert all(isinstance(outcome, IndexError) for outcome in found[has // size :])


@everywhere
@pytest.mark.parametrize("says", [0, 3, 1000])
def test_a_sampler_whose_length_lies_gives_what_it_has(kind: Kind, says: int) -> None:
    class Lies:
        def __iter__(self) -> Iterator[int]:
            return iter(range(20))

        def __len__(self) -> int:
            return says

    loader = loader_of(Numbers(20), sampler=Lies(), batch_size=3, **kind.options())
    assert outcomes(iter(loader)) == batches_of(20, 3)
    assert len(loader) == -(-says // 3)


class LyingBatch(list[int]):
    """A batch of indices that says that it has another number of them."""

    def __init__(self, indices: list[int], says: int) -> None:
        super().__init__(indices)
        self.says = says

    def __len__(self) -> int:
        return self.says

    def __reduce__(self) -> Any:
        return LyingBatch, (list(itertools.islice(self, None)), self.says)


@everywhere
@pytest.mark.parametrize("chunk_size", [None, 1, 2, "batch"])
def test_a_batch_of_indices_whose_length_lies_gives_its_samples_or_an_error(kind: Kind, chunk_size: Any) -> None:
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


@everywhere
@pytest.mark.parametrize("form", ["number", "tensor", "dict", "ragged"])
@draws(3)
def test_a_getitems_that_gives_more_or_fewer_samples_than_asked_makes_batches_of_what_it_gave(
    kind: Kind, form: str, draw: Draw
) -> None:
    options = draw.loading(kind) | {"batch_size": draw.randint(2, 6)}
    if draw.random() < 0.5:
        dropped, added = {index for index in range(30) if index % options["batch_size"] and draw.random() < 0.4}, 0
    else:
        dropped, added = set(), draw.randint(1, 2)
    draw.show(dropped=dropped, added=added)
    dataset = Replaces(30, form, dropped, added)
    expected = [
        [index for index in batch if index not in dropped] + batch[:added]
        for batch in batches_of(30, options["batch_size"])
    ]
    assert outcomes(iter(loader_of(dataset, **options))) == expected


@everywhere
@pytest.mark.parametrize("given", [None, 5, "none at all"])
def test_a_getitems_that_gives_no_samples_is_an_error_in_its_place(kind: Kind, given: Any) -> None:
    class Odd(Numbers):
        def __getitems__(self, indices: list[int]) -> Any:
            if 4 in indices:
                return [] if given == "none at all" else given
            return [self.sample(index) for index in indices]

    found = outcomes(iter(loader_of(Odd(12), batch_size=4, **kind.options())))
    assert found[0] == [0, 1, 2, 3]
    assert isinstance(found[1], Exception)
    assert found[2] == [8, 9, 10, 11]


class BadBatch:
    """Has a length, but no items."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, place: int) -> int:
        raise LookupError("no items")

    def __repr__(self) -> str:
        return "BadBatch()"


@everywhere
def test_a_batch_of_indices_that_is_none_is_an_error_in_its_place(kind: Kind) -> None:
    bad = [5, None, BadBatch(), ["a"], [None], [1.5], [[1, 2]]]
    order = [batch for one in bad for batch in ([0, 1], one, [2, 3])]
    found = outcomes(iter(loader_of(list(range(12)), batch_sampler=order, **kind.options())))
    assert len(found) == len(order), found
    for place, one in enumerate(bad):
        before, seen, after = found[3 * place : 3 * place + 3]
        assert isinstance(seen, Exception), one
        assert (before, after) == ([0, 1], [2, 3]), one


@with_workers
def test_a_batch_sampler_may_give_the_same_list_again_and_again(kind: Kind) -> None:
    def order() -> Iterator[list[int]]:
        batch = [0, 0, 0]
        for start in range(0, 60, 3):
            batch[:] = [start, start + 1, start + 2]
            yield batch

    assert outcomes(iter(loader_of(Numbers(60), batch_sampler=order(), **kind.options(3)))) == batches_of(60, 3)


@everywhere
@pytest.mark.parametrize("says", [0, 5, 1000])
@pytest.mark.filterwarnings("ignore:Length of IterableDataset:UserWarning")
def test_a_stream_whose_length_lies_gives_what_it_has(kind: Kind, says: int) -> None:
    class Lies(IterableDataset):
        def __iter__(self) -> Iterator[int]:
            return iter(range(10))

        def __len__(self) -> int:
            return says

    assert outcomes(iter(loader_of(Lies(), batch_size=4, **kind.options(1)))) == batches_of(10, 4)


@of_kinds(PACKETS, PIPES)
@draws(4)
def test_replicas_of_a_stream_that_end_early_late_or_with_an_error_lose_nothing_of_the_others(
    kind: Kind, draw: Draw
) -> None:
    num_workers = draw.randint(2, 4)
    lengths = [draw.choice([0, 1, 3, 10, 40]) for _ in range(num_workers)]
    failing = draw.randrange(num_workers)
    draw.show(lengths=lengths, failing=failing)

    class Uneven(IterableDataset):
        def __iter__(self) -> Iterator[int]:
            info = torch.utils.data.get_worker_info()
            yield from range(100 * info.id, 100 * info.id + lengths[info.id])
            if info.id == failing:
                raise LookupError("the file is damaged")

    loader = loader_of(Uneven(), batch_size=3, persistent_workers=True, **kind.options(num_workers))
    for _ in range(3):
        found = outcomes(iter(loader))
        given = sorted(itertools.chain(*(outcome for outcome in found if isinstance(outcome, list))))
        # The batch in which the error came is lost, as in torch.
        whole = lengths[failing] // 3 * 3
        kept = [whole if worker == failing else length for worker, length in enumerate(lengths)]
        assert given == [100 * worker + place for worker in range(num_workers) for place in range(kept[worker])]
        assert [type(outcome) for outcome in found if not isinstance(outcome, list)] == [LookupError]
    loader.close()


@everywhere
def test_an_infinite_sampler_is_never_asked_for_more_than_is_needed(kind: Kind) -> None:
    asked = itertools.count()

    def order() -> Iterator[int]:
        for place in itertools.count():
            next(asked)
            yield place % 10

    iterator = iter(loader_of(Numbers(10), sampler=order(), batch_size=2, **kind.options()))
    assert [numbers(next(iterator)) for _ in range(7)] == [[2 * (i % 5), 2 * (i % 5) + 1] for i in range(7)]
    del iterator
    assert next(asked) <= 2 * (7 + 4 + 1)
