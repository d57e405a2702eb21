"""The record of fastload's own arguments is what the loader's signature, attributes, command line and checks say."""

from __future__ import annotations

import inspect

import pytest
import torch
from kit.datasets import Stream

import fastload
from fastload import cli
from fastload.errors import ConfigError
from fastload.options import OPTIONS, REFUSALS, checked
from fastload.spec import spec_of

DATA = torch.arange(6)
STREAM = Stream(lambda: range(3))
TORCHS = inspect.signature(fastload.DataLoader.__base__.__init__).parameters


class Source:
    def fastload_source(self, job, counts): ...

    def __len__(self):
        return 3


def test_the_signature_has_each_option_with_its_default_and_the_order_of_the_record():
    written = inspect.signature(fastload.DataLoader.__init__).parameters
    own = {name: one.default for name, one in written.items() if name not in TORCHS}
    assert list(own.items()) == [(name, option.default) for name, option in OPTIONS.items()]
    assert all(written[name].kind is inspect.Parameter.KEYWORD_ONLY for name in own)


def test_each_option_is_an_attribute_and_described_in_the_class():
    loader = fastload.DataLoader(DATA)
    assert {name: getattr(loader, name) for name in OPTIONS} == {name: one.default for name, one in OPTIONS.items()}
    described = [line.strip().partition(":")[0] for line in fastload.DataLoader.__doc__.splitlines()]
    assert [name for name in OPTIONS if name not in described] == []


def test_each_option_that_takes_a_plain_value_is_one_of_the_command_line():
    words = cli._parsers()[1]["run"].format_help()
    named = {name for name in OPTIONS if f"--{name.replace('_', '-')} " in words}
    assert named == {*OPTIONS} - {"batch_transform", "keep_on_host", "ray_options"}
    assert {name for name in OPTIONS if OPTIONS[name].is_flag} == {
        name for name, option in OPTIONS.items() if isinstance(option.default, bool)
    } | {"fuse"}


def test_integers_of_other_types_become_pythons():
    loader = fastload.DataLoader(DATA, seed=torch.tensor(3), chunk_size=torch.tensor(2), prefetch_to_device=DATA[2])
    assert [type(value) for value in (loader.seed, loader.chunk_size, loader.prefetch_to_device)] == [int] * 3


# For each refusal that needs no Ray: the argument, all that it takes, and of the words that say why.
REFUSED = [
    ("worker_method", {"worker_method": "thread", "multiprocessing_context": "fork", "num_workers": 1}, "no processes"),
    ("ray_options", {"ray_options": {"num_cpus": 1}}, "is for worker_method='ray'"),
    ("seeding", {"seeding": "torch", "seed": 1}, "cannot be combined with seed=1"),
    ("seeding", {"seeding": "torch", "chunk_size": 2}, "leave chunk_size=2 out"),
    ("keep_on_host", {"keep_on_host": ["lengths"]}, "needs a device"),
    ("channels_last", {"channels_last": True}, "needs a device"),
    ("fixed_buffers", {"fixed_buffers": True}, "needs a device"),
    ("resident", {"resident": "host", "dataset": STREAM}, "got an IterableDataset (Stream)"),
    ("resident", {"resident": "host", "batch_size": None}, "got batch_size=None"),
    ("resident", {"resident": "host", "collate_fn": list}, "got collate_fn=<class 'list'>"),
    ("resident", {"resident": "device"}, "use resident='host'"),
    ("fuse", {"fuse": True, "seeding": "torch"}, "seeding='torch' from torch's streams"),
    ("on_error", {"on_error": "skip", "dataset": STREAM}, "got an IterableDataset (Stream)"),
    ("on_error", {"on_error": "skip", "dataset": Source()}, "Source.fastload_source gives batches"),
    ("on_error", {"on_error": "replace", "batch_size": None}, "got batch_size=None"),
    ("on_error", {"on_error": "skip", "resident": "host"}, "resident='host' reads the samples once"),
    ("on_error", {"on_error": "skip", "fixed_buffers": True, "device": "cpu"}, "or use on_error='replace'"),
    ("on_error", {"on_error": fastload.retry(), "seeding": "torch"}, "or use on_error='skip'"),
    ("cache", {"cache": "2MiB", "fuse": False}, "fuse=False decodes files"),
    ("cache", {"cache": "2MiB", "dataset": Source()}, "Source.fastload_source gives batches"),
    ("cache_size", {"cache_size": "2MiB", "cache": "4MiB"}, "got cache='4MiB'"),
    ("worker_threads", {"worker_threads": 2, "seeding": "torch"}, "seeding='torch'"),
    ("worker_threads", {"worker_threads": 2, "dataset": STREAM}, "an IterableDataset"),
    ("worker_threads", {"worker_threads": 2, "worker_method": "thread"}, "add to num_workers"),
]


@pytest.mark.parametrize(("name", "arguments", "why"), REFUSED)
def test_an_argument_that_cannot_be_combined_is_refused_by_its_name_and_value_with_the_reason(name, arguments, why):
    with pytest.raises(ConfigError) as refused:
        fastload.DataLoader(**{"dataset": DATA, **arguments})
    assert str(refused.value).startswith(f"{name}={arguments[name]!r} ")
    assert why in str(refused.value)


def test_each_refusal_has_its_case():
    of_ray = [words for _, _, words in REFUSALS if "Ray's" in words or "needs Ray" in words]
    assert len(of_ray) == 3
    assert [name for name, _, words in REFUSALS if words not in of_ray] == [name for name, _, _ in REFUSED]


OUT_OF_RANGE = {
    "worker_method must be 'multiprocessing', 'thread' or 'ray', got ": {"worker_method": ["threads", None]},
    "seed must be an integer of at most 128 bits, signed, got ": {"seed": [True, 1 << 127, "1"]},
    "seeding must be None, 'sample' or 'torch', got ": {"seeding": ["tree"]},
    "chunk_size must be None, 'batch' or a positive integer, got ": {"chunk_size": [0, True, "all", 1.5]},
    "overlap_epochs must be True or False, got ": {"overlap_epochs": [None, 1]},
    "prefetch_to_device must be an integer of at least 1, got ": {"prefetch_to_device": [0, True, 1.5]},
    "keep_on_host must be a collection of keys or places, ": {"keep_on_host": ["lengths", 3]},
    "keep_on_host must hold keys or places, ": {"keep_on_host": [[True]]},
    "channels_last must be True or False, got ": {"channels_last": ["yes"]},
    "batch_transform must be callable with a batch, got ": {"batch_transform": [3]},
    "batch_transform must be an instance, got the class list": {"batch_transform": [list]},
    "resident must be None, 'device', 'host' or 'auto', got ": {"resident": ["gpu", True]},
    "fuse must be 'auto', True or False, got ": {"fuse": [1, "yes"]},
    "on_error must be 'raise', 'skip', 'replace' or fastload.retry(...), got ": {"on_error": ["ignore", "retry", None]},
    "max_errors must be an integer of at least 0, got ": {"max_errors": [-1, True, None]},
    "worker_threads must be an integer of at least 1, got ": {"worker_threads": [0, True, 1.5]},
}


@pytest.mark.parametrize(("message", "values"), OUT_OF_RANGE.items())
def test_a_value_out_of_range_is_refused(message, values):
    for name, value in ((name, value) for name, several in values.items() for value in several):
        with pytest.raises(ConfigError) as refused:
            fastload.DataLoader(DATA, **{name: value})
        assert str(refused.value).startswith(message)


def test_a_default_for_a_whole_script_is_dropped_only_where_that_is_possible():
    asked = spec_of(fastload.DataLoader(DATA, fuse=False))
    with_cache = {"cache": "2MiB", "cache_size": "2MiB"}
    changed = type(asked)(**{name: with_cache.get(name, getattr(asked, name)) for name in asked.__dataclass_fields__})
    dropped = checked(changed, with_cache)
    assert (dropped.cache, dropped.cache_size) == (None, None)
    with pytest.raises(ConfigError, match="cache='2MiB' keeps what fastload decodes, and fuse=False"):
        checked(changed, {"cache_size": "2MiB"})
