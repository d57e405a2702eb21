"""Every batch is torch's, bit for bit, as are the generators after it: any loader, in any way, also left early."""

from pathlib import Path
from typing import Any

import contract_loaders as loaders
import contract_pipelines as pipelines
import contract_ways as ways
import pytest
from contract_datasets import FailingInTurn, Range, Squares, divide_range, init_that_draws
from contract_harness import as_in_torch, assert_same_as_torch, consume, outcome, trained
from contract_samples import SamplesOfManyKinds
from contract_ways import Workers
from kit.comparison import difference
from kit.outcomes import outcomes

import fastload

LEFT = 3
"""Batches after which a loop is left."""
STOPS = (LEFT, None, LEFT, None)
"""Epochs: None is a whole one."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    pipelines.write_files(folder)
    return folder


def _seen(load: Any, dataset: Any, stops: tuple[int | None, ...] = STOPS, **arguments: Any) -> Any:
    if not load.workers.count:
        for name in ("prefetch_factor", "timeout"):
            arguments.pop(name, None)
    loader = load(dataset, **arguments)
    return outcome(len, loader), trained(loader, stops, arguments.get("generator")), getattr(dataset, "accesses", None)


def _without_draws(seen: Any) -> Any:
    length, found, _ = seen
    return length, [[step[0] for step in steps] for _, steps, _ in found]


_KEPT = [ways.INLINE, ways.TWO_PERSISTENT, ways.TWO_PERSISTENT_THREADS, ways.TWO_PERSISTENT_OF_FOUR]
_KEPT_ALONE = [ways.INLINE, ways.TWO_PERSISTENT, ways.TWO_PERSISTENT_THREADS, ways.THREE]
_PROCESSES = [ways.INLINE, ways.TWO_PERSISTENT, ways.THREE]


def _of_each(rows: loaders.Rows, settings: list[Workers]) -> list[Any]:
    # MONAI takes seconds to import.
    return [
        pytest.param(
            one,
            name,
            id=f"{name}-{one}",
            marks=[pytest.mark.slow] if name == "monai" else ways.marked(one, *settings),
        )
        for name in rows
        for one in settings
    ]


@pytest.mark.parametrize(
    ("workers", "name"), [*_of_each(loaders.LOADERS, _KEPT), *_of_each(loaders.STREAMS, _KEPT_ALONE)]
)
def test_a_loader_whose_samples_draw_nothing_gives_what_torchs_gives(workers, name):
    # Worker processes with threads have more batches under way; so a sampler is read further at each batch.
    reads_further = workers.worker_threads > 1
    stops = (None, None) if reads_further else STOPS

    def case(load: Any) -> Any:
        return _seen(load, **{**loaders.LOADERS, **loaders.STREAMS}[name](), stops=stops)

    if name in loaders.AS_WITHOUT_WORKERS:
        assert_same_as_torch(case, workers, reference=ways.INLINE, view=_without_draws)
    elif reads_further:
        assert_same_as_torch(case, workers, view=_without_draws)
    else:
        assert_same_as_torch(case, workers)


@pytest.mark.parametrize("name", loaders.DATASETS)
def test_with_a_seed_any_dataset_gives_the_same_with_any_workers_and_after_a_resume(name):
    def rest(loader: Any) -> list[Any]:
        found = outcomes(iter(loader))  # a worker's errors have its traceback in their text
        return [type(one) if isinstance(one, Exception) else one for one in found]

    def loader(**arguments: Any) -> Any:
        return fastload.DataLoader(loaders.DATASETS[name](), 2, seed=1, **arguments)

    threads = loader(num_workers=2, worker_method="thread")
    expected = [rest(one) for one in [loader()] * 2]
    assert difference([rest(threads), rest(threads)], expected) is None
    stopped, resumed = loader(), loader(num_workers=1)
    outcome(lambda: next(iter(stopped)))
    resumed.load_state_dict(stopped.state_dict())
    assert difference([rest(resumed), rest(resumed)], [expected[0][1:], expected[1]]) is None


@as_in_torch(pytest.mark.parametrize(("workers", "name"), _of_each(loaders.DRAWING, _PROCESSES)))
def test_a_loader_whose_samples_draw_gives_what_torchs_gives(load, name):
    return _seen(load, **{"dataset": loaders.drawing(), **loaders.DRAWING[name]()})


_ANY_NUMBER = [*_PROCESSES, ways.ONE, ways.TWO, Workers(count=5, persistent=True)]
_FORKSERVER = Workers(count=2, persistent=True, start_method="forkserver")
_SPAWN = Workers(count=2, persistent=True, start_method="spawn")
_AGAIN_BY_FORKSERVER = ["image_folder", "yolo", "text", "own_generators", "stream", "errors_of_samples"]
_AGAIN_BY_SPAWN = ["monai", "memmap", "long_stream"]
_PIPELINES = [
    *_of_each(pipelines.PIPELINES, _ANY_NUMBER),
    *(pytest.param(_FORKSERVER, name, marks=pytest.mark.thorough) for name in _AGAIN_BY_FORKSERVER),
    *(pytest.param(_SPAWN, name, marks=pytest.mark.thorough) for name in _AGAIN_BY_SPAWN),
]


@as_in_torch(pytest.mark.parametrize(("workers", "name"), _PIPELINES, ids=str))
def test_a_pipeline_as_people_write_them_gives_what_torchs_gives(load, name, files):
    if name in pipelines.NEEDED:
        pytest.importorskip(pipelines.NEEDED[name])
    return _seen(load, **pipelines.PIPELINES[name](files))


_KINDS = ["tuple_of_two", "nested_deeply", "named_tuple", "mapping_with_attribute", "tensor_subclass", "text"]
_KINDS += ["array_int16", "list_subclass", "ragged_tensor", "scalar_none", "dict_default", "scalar_float"]
_STARTED_ANEW: loaders.Rows = {
    "kinds": lambda: {"dataset": SamplesOfManyKinds(_KINDS, 3), "batch_size": 3, "sampler": [*range(36), 0, 5, 1]},
    "errors": lambda: {"dataset": FailingInTurn(), "batch_size": 2, "shuffle": True, "worker_init_fn": init_that_draws},
    "stream": lambda: {"dataset": Range(3, 10), "batch_size": 2, "worker_init_fn": divide_range},
}


@pytest.mark.slow
@as_in_torch(
    pytest.mark.parametrize(
        ("workers", "name"),
        [(_SPAWN, "kinds"), (_FORKSERVER, "kinds"), (_SPAWN, "errors"), (_FORKSERVER, "stream")],
        ids=str,
    )
)
def test_a_loader_whose_workers_are_started_anew_gives_what_torchs_gives(load, name):
    return _seen(load, **_STARTED_ANEW[name]())


@pytest.mark.slow
@as_in_torch(Workers(count=1, start_method="spawn"))
@pytest.mark.parametrize("arguments", [{"collate_fn": lambda batch: batch}, {"worker_init_fn": lambda worker: None}])
def test_what_cannot_be_pickled_for_new_workers_is_refused_as_by_torch(load, arguments):
    return outcome(lambda: consume(iter(load(Squares(4), **arguments)))).kind


@as_in_torch(ways.with_workers(*_PROCESSES), seeding="torch", chunk_size="batch")
def test_what_is_so_without_a_seed_can_be_asked_for(load):
    return _seen(load, loaders.drawing(), batch_size=2, shuffle=True)


_IN_CHUNKS = ["batched, one too few", "batched, one too many", "batched, none", "subset of a batched one"]
_IN_CHUNKS += ["samples [3, 4, 5, 9] fail", "batches that grow and shrink", "tensors"]


@as_in_torch(ways.with_workers(ways.TWO_PERSISTENT, ways.TWO_PERSISTENT_THREADS), chunk_size=1)
@pytest.mark.parametrize("name", _IN_CHUNKS)
def test_chunks_of_one_sample_change_nothing(load, name):
    return _seen(load, **loaders.LOADERS[name]())


@as_in_torch(ways.with_workers(*_PROCESSES))
@pytest.mark.parametrize("make", [loaders.drawing, lambda: pipelines.Shards(40)], ids=["map", "stream"])
def test_training_and_validation_in_turns_give_what_torchs_give(load, make):
    train, validation = load(make(), batch_size=2), load(loaders.drawing(11), batch_size=4)
    return [trained(train, (stop,)) + trained(validation, (stop, None)) for stop in STOPS]


@as_in_torch(ways.with_workers(ways.ONE, Workers(count=1, persistent=True)))
@pytest.mark.parametrize("name", ["counted", "stream", "errors_of_samples"])
def test_one_worker_without_order_gives_what_torchs_gives(load, name, files):
    return _seen(load, **pipelines.PIPELINES[name](files), in_order=False)
