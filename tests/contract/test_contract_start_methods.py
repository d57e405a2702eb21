"""The same under spawn and forkserver: few cases, as every worker has to import torch."""

import contract_ways as ways
import pytest
from contract_datasets import Failing, Range, Squares, divide_range, init_that_marks_dataset
from contract_harness import as_in_torch, consume, epochs, generator, outcome
from contract_samples import SamplesOfManyKinds

pytestmark = pytest.mark.slow

SPAWN = ways.Workers(count=1, start_method="spawn")
TWO_SPAWN = ways.Workers(count=2, start_method="spawn", persistent=True)
FORKSERVER = ways.Workers(count=1, start_method="forkserver")
TWO_FORKSERVER = ways.Workers(count=2, start_method="forkserver", persistent=True)

KINDS = ["tuple_of_two", "nested_deeply", "named_tuple", "mapping_with_attribute", "tensor_subclass", "text"]
KINDS += ["array_int16", "list_subclass", "ragged_tensor", "scalar_none", "dict_default", "scalar_float"]


@as_in_torch(ways.with_workers(TWO_SPAWN, TWO_FORKSERVER))
def test_order_and_every_kind_of_container(load):
    dataset = SamplesOfManyKinds(KINDS, per_kind=3)
    loader = load(dataset, batch_size=3, sampler=[*range(36), 0, 5, 1], generator=generator())
    return epochs(loader, 2)


@as_in_torch(SPAWN)
def test_errors_and_an_init_function(load):
    dataset = Failing(at=[4, 9], failure="two_arguments")
    drawn = generator()
    loader = load(dataset, batch_size=2, shuffle=True, generator=drawn, worker_init_fn=init_that_marks_dataset)
    return epochs(loader), drawn.get_state()


@as_in_torch(FORKSERVER)
def test_a_stream_divided_by_an_init_function(load):
    return epochs(load(Range(3, 10), batch_size=2, worker_init_fn=divide_range))


@as_in_torch(SPAWN)
def test_what_cannot_be_pickled_is_refused_as_by_torch(load):
    seen = []
    for arguments in ({"collate_fn": lambda batch: batch}, {"worker_init_fn": lambda worker_id: None}):
        result = outcome(lambda arguments=arguments: consume(iter(load(Squares(4), **arguments))))
        seen.append(result.kind)
    return seen
