"""The same under spawn and forkserver: few cases, as every worker has to import torch."""

import pytest
from contract_datasets import Failing, Shards, Squares, divide_range, identity, init_that_marks_dataset
from contract_harness import Workers, assert_same_as_torch, consume, epochs, generator, outcome
from contract_samples import SamplesOfManyKinds

SPAWN = Workers(count=1, start_method="spawn")
SPAWN_PERSISTENT = Workers(count=2, start_method="spawn", persistent=True)
FORKSERVER_PERSISTENT = Workers(count=2, start_method="forkserver", persistent=True)

KINDS = ["tuple_of_two", "nested_deeply", "named_tuple", "mapping_with_attribute", "tensor_subclass", "tv_boxes"]
KINDS += ["array_int16", "text", "list_subclass", "ragged_tensor", "scalar_none", "dict_default"]


@pytest.mark.parametrize("workers", [SPAWN_PERSISTENT, FORKSERVER_PERSISTENT], ids=str)
def test_order_errors_and_every_kind_of_container(workers):
    class Together:
        """Not sent to a worker: it only names the parts."""

    def case(load):
        dataset = SamplesOfManyKinds(KINDS, per_kind=3)
        shuffled = load(Squares(10), batch_size=3, shuffle=True, generator=generator())
        return epochs(load(dataset, batch_size=3), 2) + epochs(shuffled, 2)

    assert Together.__doc__
    assert_same_as_torch(case, workers)


@pytest.mark.parametrize("workers", [SPAWN_PERSISTENT], ids=str)
def test_errors_collate_and_init_functions(workers):
    def case(load):
        return [
            epochs(load(Failing(at=[4], failure="two_arguments"), batch_size=3, worker_init_fn=init_that_marks_dataset), 2),
            epochs(load(SamplesOfManyKinds(KINDS, per_kind=2), batch_size=2, collate_fn=identity)),
        ]

    assert_same_as_torch(case, workers)


@pytest.mark.parametrize("workers", [FORKSERVER_PERSISTENT], ids=str)
def test_streams(workers):
    def case(load):
        return epochs(load(Shards(9), batch_size=2), 2)

    assert_same_as_torch(case, workers)


@pytest.mark.parametrize("workers", [SPAWN], ids=str)
def test_what_cannot_be_pickled_is_refused_as_by_torch(workers):
    def case(load):
        seen = []
        for arguments in ({"collate_fn": lambda batch: batch}, {"worker_init_fn": lambda worker_id: None}):
            result = outcome(lambda arguments=arguments: consume(iter(load(Squares(4), **arguments))))
            seen.append(result.kind)
        return seen

    assert_same_as_torch(case, workers)


@pytest.mark.parametrize("workers", [SPAWN], ids=str)
def test_a_range_is_divided(workers):
    from contract_datasets import Range

    def case(load):
        return epochs(load(Range(3, 10), batch_size=2, worker_init_fn=divide_range))

    assert_same_as_torch(case, workers)
