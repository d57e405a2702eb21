"""The covering set of settings."""

from __future__ import annotations

from itertools import chain, combinations
from typing import Any

import pytest

from fastload.verification.plan import METHODS, REFERENCE, plan_checks, plan_iterable_checks


def test_every_value_of_every_axis_comes_at_least_once():
    settings = [one.setting for one in plan_checks(METHODS, num_batches=8, seed=0)] + [REFERENCE]
    expected: dict[str, set[Any]] = {
        "num_workers": {0, 1, 3},
        "method": set(METHODS),
        "chunk_size": {1, 3, "batch", None},
        "prefetch_factor": {1, 4},
        "persistent": {True, False},
        "num_epochs": {1, 2},
        "world_size": {1, 2, 4},
        "engine": {"fastload", "torch"},
        "seeding": {"sample", "torch"},
    }
    for axis, values in expected.items():
        references = [one.reference for one in plan_checks(METHODS, num_batches=8, seed=0)]
        assert values <= {getattr(setting, axis) for setting in settings + references}, axis
    assert any(setting.resume_after for setting in settings)


@pytest.mark.parametrize("methods", list(chain.from_iterable(combinations(METHODS, n) for n in range(1, 5))))
def test_only_the_methods_that_are_asked_for_are_used(methods: Any):
    for planned in (plan_checks(methods, num_batches=4, seed=1), plan_iterable_checks(methods)):
        assert planned
        used = {setting.method for one in planned for setting in (one.setting, one.reference)}
        assert used <= {*methods, "inline"}
        for one in planned:
            assert (one.setting.num_workers or one.setting.resumed_by) == 0 or one.setting.method != "inline"


@pytest.mark.parametrize("num_batches", [1, 2, 3, 50])
def test_the_resume_is_inside_of_the_epoch_and_chosen_by_the_seed(num_batches: int):
    steps = []
    for seed in range(40):
        resumes = [
            one.setting for one in plan_checks(METHODS, num_batches=num_batches, seed=seed) if one.name == "resume"
        ]
        assert len(resumes) == (2 if num_batches > 1 else 0)
        for setting in resumes:
            assert setting.resume_after is not None
            assert 0 < setting.resume_after < num_batches
            assert setting.num_workers != setting.resumed_by
            steps.append(setting.resume_after)
    assert num_batches < 3 or len(set(steps)) > 1


def test_no_check_compares_a_setting_with_itself_but_the_one_that_is_to():
    for planned in (plan_checks(METHODS, num_batches=4, seed=0), plan_iterable_checks(METHODS)):
        assert [one.name for one in planned if one.setting == one.reference] == ["again"]
