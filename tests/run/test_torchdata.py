"""torchdata's ``StatefulDataLoader`` under ``fastload.install``: fastload's engine and state, or a warning why not."""

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from kit.resuming import assert_resumes

import fastload
from fastload.errors import StateError
from fastload.run.installation import install, uninstall

torchdata = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
StatefulDataLoader: Any = torchdata.StatefulDataLoader

# What torchdata itself calls of torch.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    uninstall()


class Drawing(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> Any:
        return index, torch.rand(())


class Counting(StatefulDataLoader):
    """A user's subclass."""

    num_begun = 0

    def __iter__(self) -> Any:
        self.num_begun += 1
        return super().__iter__()


def values(loader: Any) -> list[Any]:
    return [[part.tolist() for part in batch] for batch in loader]


def indices(batches: Any) -> list[list[int]]:
    return [batch[0].tolist() if isinstance(batch, list) else batch.tolist() for batch in batches]


@pytest.mark.parametrize("loader_class", [StatefulDataLoader, Counting])
@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_batches_are_torchdatas_and_a_state_continues_where_it_was_taken(loader_class, workers):
    arguments = {"dataset": Drawing(), "batch_size": 4, "snapshot_every_n_steps": 2, **workers}
    expected = indices(loader_class(**arguments))
    install(seed=5)
    loader = loader_class(**arguments)
    assert isinstance(loader, fastload.DataLoader)
    assert isinstance(loader, loader_class)
    assert loader.snapshot_every_n_steps == 2
    assert loader_class(Drawing()).snapshot_every_n_steps == 1
    loader.load_state_dict({})  # none, for torchdata
    assert indices(loader) == expected
    if loader_class is Counting:
        assert loader.num_begun == 1
    assert_resumes(lambda: loader_class(**arguments), ((0, 2), (1, 2)), view=values)


class Ordered(torch.utils.data.Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))

    def __len__(self) -> int:
        return 3

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


class WithState(Drawing):
    state_dict, load_state_dict = Ordered.state_dict, Ordered.load_state_dict


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dataset": Drawing(), "sampler": Ordered()}, "sampler=Ordered has a state_dict of its own"),
        ({"dataset": WithState()}, "dataset=WithState has a state_dict of its own"),
    ],
    ids=["sampler", "dataset"],
)
def test_where_the_state_would_lack_something_torchdatas_engine_stays_and_a_warning_says_why(arguments, words):
    install()
    with pytest.warns(RuntimeWarning, match=words):
        loader = StatefulDataLoader(**arguments)
    assert type(loader) is StatefulDataLoader
    assert len(list(loader)) == len(loader)
    assert "_snapshot" in loader.state_dict() or "_num_yielded" in loader.state_dict()


def test_a_state_of_torchdata_is_refused():
    stateful = StatefulDataLoader(Drawing(), batch_size=4)
    next(iter(stateful))
    state = stateful.state_dict()
    install()
    with pytest.raises(StateError, match="no state of a fastload loader"):
        StatefulDataLoader(Drawing(), batch_size=4).load_state_dict(state)


def test_wrong_calls_raise_torchdatas_errors():
    install()
    with pytest.raises(TypeError, match="no_such_argument"):
        StatefulDataLoader(Drawing(), no_such_argument=1)
    with pytest.raises(ValueError, match="mutually exclusive"):
        StatefulDataLoader(Drawing(), shuffle=True, sampler=range(3))


@pytest.mark.parametrize("loader_class", [StatefulDataLoader, Counting])
def test_a_loader_can_be_pickled_and_uninstall_gives_torchdatas_again(loader_class):
    install()
    loader = pickle.loads(pickle.dumps(loader_class(Drawing(), batch_size=4)))
    assert isinstance(loader, loader_class)
    assert isinstance(loader, fastload.DataLoader)
    assert len(indices(loader)) == 6
    uninstall()
    assert type(loader_class(Drawing())) is loader_class


def test_accelerate_keeps_torchdatas_loader_as_configured():
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    configuration = accelerate.utils.DataLoaderConfiguration(use_stateful_dataloader=True)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=configuration)
    install()
    with pytest.warns(RuntimeWarning, match="Accelerate changes its state"):
        prepared = accelerator.prepare_data_loader(torch.utils.data.DataLoader(Drawing(), batch_size=4))
    assert isinstance(prepared.base_dataloader, StatefulDataLoader)
    assert not isinstance(prepared.base_dataloader, fastload.DataLoader)
