"""A bounded queue: items and errors come in order, and nothing is left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from producer_consumer import Ahead


def producers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ahead"]


@pytest.mark.parametrize("capacity", [1, 2, 100])
def test_every_item_comes_once_in_order_in_every_iteration(capacity: int) -> None:
    ahead = Ahead(lambda: range(50), capacity)
    assert list(ahead) == list(ahead) == list(range(50))
    assert not producers()


def test_it_produces_ahead_and_no_further_than_the_bound() -> None:
    made = threading.Semaphore(0)
    count: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(100):
            count.append(number)
            made.release()
            yield number

    iterator = iter(Ahead(numbers, 3))
    assert next(iterator) == 0
    for _ in range(5):  # the one taken, three in the queue, one that waits to be put there
        assert made.acquire(timeout=60)
    assert count == [0, 1, 2, 3, 4]
    iterator.close()  # type: ignore[attr-defined]  # it is a generator
    assert not producers()
    assert len(count) <= 6


def test_an_error_is_raised_after_the_items_before_it() -> None:
    def numbers() -> Iterator[int]:
        yield 1
        yield 2
        raise OSError("the disk is gone")

    iterator = iter(Ahead(numbers, 10))
    assert [next(iterator), next(iterator)] == [1, 2]
    with pytest.raises(OSError, match="the disk is gone"):
        next(iterator)
    assert not producers()


def test_an_error_before_the_first_item_is_no_hang() -> None:
    def nothing() -> list[int]:
        raise ValueError("no files")

    with pytest.raises(ValueError, match="no files"):
        list(Ahead(nothing, 1))


@pytest.mark.parametrize("capacity", [1, 4])
@pytest.mark.parametrize("taken", [1, 2, 7])
def test_a_break_ends_the_producer_even_if_it_waits_for_room(capacity: int, taken: int) -> None:
    for number in Ahead(lambda: iter(int, 1), capacity):  # zeros without end
        assert number == 0
        taken -= 1
        if not taken:
            break
    assert not producers()


def test_a_queue_without_a_bound_is_an_error() -> None:
    with pytest.raises(ValueError, match="capacity must be at least 1"):
        Ahead(lambda: [1], 0)
