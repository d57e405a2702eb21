"""What ``ray_options`` may be. Nothing is started."""

from __future__ import annotations

import re

import pytest

from fastload import ConfigError, DataLoader


@pytest.fixture(autouse=True)
def with_ray(monkeypatch):
    """Let Ray be installed, whether it is or not: nothing is imported."""
    monkeypatch.setattr("fastload.arguments.find_spec", lambda name: object())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"ray_options": {}}, "ray_options is for Ray's workers, and there are none"),
        ({"worker_method": "ray", "ray_options": [1]}, "ray_options must be a dict"),
        ({"worker_method": "ray", "ray_options": {"max_restarts": 3}}, "ray_options has 'max_restarts'"),
        ({"worker_method": "ray", "ray_options": {"placement_timeout": 0}}, "must be a number of seconds above 0"),
        ({"worker_method": "ray", "ray_options": {"share_memory": 1}}, "must be True or False, got 1"),
        ({"worker_method": "ray", "num_workers": 1, "multiprocessing_context": "fork"}, "has no meaning with"),
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
    monkeypatch.setattr("fastload.arguments.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"worker_method='ray' needs Ray, .* pip install ray"):
        DataLoader([1], worker_method="ray")


def test_options_of_ray_and_ours_are_told_apart():
    from fastload.workers.ray.options import Options, options_of

    assert options_of(None) == Options(actor={"num_cpus": 1}, placement_timeout=120.0, share_memory=True)
    found = options_of({"resources": {"x": 1}, "placement_timeout": 5, "share_memory": False})
    assert found.actor == {"num_cpus": 1, "resources": {"x": 1}}
    assert (found.placement_timeout, found.share_memory) == (5.0, False)
