"""What ``ray_options`` may be, and how long the tasks of Ray's workers are. Nothing is started."""

from __future__ import annotations

import re

import pytest

from fastload import ConfigError, DataLoader
from fastload.work import choose_chunk_size
from fastload.workers.ray.options import RayOptions, options_of
from fastload.workers.ray.pool import task_cost


def test_a_missing_ray_is_named_with_what_to_install(monkeypatch):
    monkeypatch.setattr("fastload.options.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"worker_method='ray' needs Ray, .* pip install ray"):
        DataLoader([1], worker_method="ray")


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


def test_options_of_ray_and_ours_are_told_apart():
    assert options_of(None) == RayOptions(actor={"num_cpus": 1}, placement_timeout=120.0)
    found = options_of({"resources": {"x": 1}, "placement_timeout": 5})
    assert found.actor == {"num_cpus": 1, "resources": {"x": 1}}
    assert found.placement_timeout == 5.0


@pytest.mark.parametrize(
    ("num_rows", "num_workers", "sample_ns", "awaited", "expected"),
    [
        (10_000, 64, 1e6, False, 128),  # two milliseconds for each worker
        (10_000, 1000, 1e6, False, 2000),
        (32, 8, 20e6, False, 4),  # where a local task has one sample
        (256, 8, 1e6, True, 32),
    ],
)
def test_tasks_are_longer_than_local_ones_where_there_are_many_workers(
    num_rows, num_workers, sample_ns, awaited, expected
):
    size = choose_chunk_size(num_rows, num_workers, sample_ns / task_cost(num_workers), awaited=awaited)
    assert size == pytest.approx(expected, rel=0.02)
