"""autocast and the scaler, on the CPU."""

from __future__ import annotations

import mixed_precision as example
import pytest
import torch


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_only_outputs_have_16_bits(dtype: torch.dtype) -> None:
    found = example.dtypes("cpu", dtype)
    assert found.pop("outputs") == dtype
    assert set(found.values()) == {torch.float32}


def test_a_step_that_overflows_is_skipped_and_the_scale_halved() -> None:
    assert example.overflow("cpu") == (True, 1024.0, 512.0)


def test_clipping_must_come_after_unscaling() -> None:
    norm, way = example.clipped("cpu", unscale=True)
    scaled_norm, short_way = example.clipped("cpu", unscale=False)
    assert norm > 1
    assert scaled_norm == pytest.approx(1024 * norm, rel=1e-4)
    assert way == pytest.approx(1.0, rel=1e-3)
    assert short_way == pytest.approx(1 / 1024, rel=1e-3)


def test_a_scaler_that_is_off_changes_nothing() -> None:
    steps = []
    for scaler in (torch.amp.GradScaler("cpu", enabled=False), torch.amp.GradScaler("cpu", init_scale=2.0**10)):
        network = example.make_network()
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        example.step(network, optimizer, scaler, lambda net=network: net(torch.ones(2, 8)).square().sum())  # type: ignore[misc]
        steps.append(torch.cat([parameter.detach().flatten() for parameter in network.parameters()]))
    assert torch.allclose(*steps, rtol=1e-5)
