"""DataPipes, which torch's loader still takes: sharded over the workers, shuffled by a shared seed."""

from typing import Any

import contract_ways as ways
import pytest
from contract_harness import as_in_torch, epochs, generator, outcome, random_states
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


@as_in_torch(ways.with_workers(ways.INLINE, ways.ONE, ways.TWO_PERSISTENT, ways.THREE_THREADS))
@pytest.mark.parametrize("shuffle", [None, True, False])
@pytest.mark.parametrize("name", PIPES)
def test_a_pipe(load, name, shuffle):
    drawn = generator()
    loader = load(PIPES[name](), batch_size=3, shuffle=shuffle, generator=drawn)
    return epochs(loader, 2), type(loader.dataset).__name__, outcome(len, loader), random_states(drawn)


@as_in_torch(ways.with_workers(ways.INLINE, ways.TWO))
def test_a_pipe_without_batches(load):
    return epochs(load(PIPES["shuffled and sharded stream"](), batch_size=None), 2)
