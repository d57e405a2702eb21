"""DataPipes, which torch's loader still takes: sharded over the workers, shuffled by a shared seed."""

from typing import Any

import pytest
from contract_harness import (
    INLINE,
    ONE,
    TWO,
    TWO_PERSISTENT,
    assert_same_as_torch,
    epochs,
    generator,
    outcome,
    random_states,
    with_workers,
)
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.map import SequenceWrapper

pytestmark = pytest.mark.filterwarnings("ignore")


def _doubled(value: int) -> int:
    return 2 * value


PIPES: dict[str, Any] = {
    "stream": lambda: IterableWrapper(range(11)),
    "sharded stream": lambda: IterableWrapper(range(11)).sharding_filter(),
    "shuffled and sharded stream": lambda: IterableWrapper(range(11)).shuffle().sharding_filter(),
    "mapped stream": lambda: IterableWrapper(range(11)).shuffle().sharding_filter().map(_doubled),
    "batched stream": lambda: IterableWrapper(range(11)).sharding_filter().batch(2),
    "sequence": lambda: SequenceWrapper(range(11)),
    "mapped sequence": lambda: SequenceWrapper(range(11)).map(_doubled),
}


@with_workers(INLINE, ONE, TWO_PERSISTENT)
@pytest.mark.parametrize("shuffle", [None, True, False])
@pytest.mark.parametrize("name", PIPES)
def test_a_pipe(name, shuffle, workers):
    def case(load):
        drawn = generator()
        loader = load(PIPES[name](), batch_size=3, shuffle=shuffle, generator=drawn)
        return epochs(loader, 2), type(loader.dataset).__name__, outcome(len, loader), random_states(drawn)

    assert_same_as_torch(case, workers)


@with_workers(INLINE, TWO)
def test_a_pipe_without_batches(workers):
    def case(load):
        return epochs(load(PIPES["shuffled and sharded stream"](), batch_size=None), 2)

    assert_same_as_torch(case, workers)
