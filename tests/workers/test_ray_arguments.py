"""What ``ray_options`` may be, and how long the tasks of Ray's workers are. Nothing is started."""

from __future__ import annotations

import re

import pytest

from fastload import ConfigError, DataLoader
from fastload.work import choose_chunk_size
from fastload.workers.ray.options import RayOptions, options_of
from fastload.workers.ray.pool import task_cost


@pytest.fixture(autouse=True)
def with_ray(monkeypatch):
    """Let Ray be installed, whether it is or not: nothing is imported."""
    monkeypatch.setattr("fastload.options.find_spec", lambda name: object())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"ray_options": {}}, "ray_options={} is for worker_method='ray'"),
        ({"worker_method": "ray", "ray_options": [1]}, "ray_options must be a dict"),
        ({"worker_method": "ray", "ray_options": {"max_restarts": 3}}, "ray_options has 'max_restarts'"),
        ({"worker_method": "ray", "ray_options": {"placement_timeout": 0}}, "must be a number of seconds above 0"),
        (
            {"worker_method": "ray", "num_workers": 1, "multiprocessing_context": "fork"},
            "has no meaning; leave one out",
        ),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        DataLoader([1, 2], **arguments)


def test_a_loader_that_names_ray_and_has_no_workers_says_so_at_the_users_line():
    with pytest.warns(UserWarning, match=r"worker_method='ray' with num_workers=0: .* loads the sam") as told:
        loader = DataLoader([1, 2], worker_method="ray")
    assert [one.filename for one in told] == [__file__]
    assert len(list(loader)) == 2


def test_a_missing_ray_is_named_with_what_to_install(monkeypatch):
    monkeypatch.setattr("fastload.options.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"worker_method='ray' needs Ray, .* pip install ray"):
        DataLoader([1], worker_method="ray")


def test_options_of_ray_and_ours_are_told_apart():
    assert options_of(None) == RayOptions(actor={"num_cpus": 1}, placement_timeout=120.0)
    found = options_of({"resources": {"x": 1}, "placement_timeout": 5})
    assert found.actor == {"num_cpus": 1, "resources": {"x": 1}}
    assert found.placement_timeout == 5.0


@pytest.mark.parametrize(("num_workers", "seconds"), [(64, 0.128), (1000, 2.0)])
def test_a_task_takes_two_milliseconds_for_each_worker_where_there_are_many(num_workers, seconds):
    sample_ns = 1e6
    size = choose_chunk_size(10_000, num_workers, sample_ns / task_cost(num_workers))
    assert size * sample_ns / 1e9 == pytest.approx(seconds, rel=0.02)


def test_a_task_of_few_workers_is_longer_than_a_local_one():
    assert choose_chunk_size(32, 8, 20e6) == 1
    assert choose_chunk_size(32, 8, 20e6 / task_cost(8)) == 4


def test_all_of_many_workers_share_the_first_batch() -> None:
    assert choose_chunk_size(256, 8, 1e6 / task_cost(8), awaited=True) == 32
