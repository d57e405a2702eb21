"""The learning rate, the image size and the micro-batches of a step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import trainings  # noqa: F401  # puts examples/ on the path
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from training.recipe import Recipe
from training.schedule import image_size, lr_factor, micro_batches


@given(st.integers(1, 3000), st.none() | st.integers(1, 400))
def test_micro_batches_cover_all_images_in_order_with_nearly_equal_sizes(num_images: int, max_size: int | None) -> None:
    found = micro_batches(num_images, max_size)
    assert [index for one in found for index in range(num_images)[one]] == list(range(num_images))
    sizes = [one.stop - one.start for one in found]
    assert len(found) == (1 if max_size is None else -(-num_images // max_size))
    assert max(sizes) <= (max_size or num_images)
    assert max(sizes) - min(sizes) <= 1
    assert sum(size / num_images for size in sizes) == pytest.approx(1)


@given(st.integers(1, 60), st.integers(1, 70))
def test_accumulated_gradients_equal_the_gradient_of_the_whole_batch(num_images: int, max_size: int) -> None:
    torch.manual_seed(num_images)
    network, images, labels = nn.Linear(4, 3), torch.randn(num_images, 4), torch.randint(3, (num_images,))
    (whole,) = torch.autograd.grad(nn.functional.cross_entropy(network(images), labels), [network.weight])
    total = torch.zeros_like(whole)
    for one in micro_batches(num_images, max_size):
        loss = nn.functional.cross_entropy(network(images[one]), labels[one])
        total += torch.autograd.grad(loss, [network.weight])[0] * ((one.stop - one.start) / num_images)
    torch.testing.assert_close(total, whole, rtol=1e-4, atol=1e-6)


@given(
    st.integers(1, 5000),
    st.floats(0, 0.99),
    st.sampled_from(["cosine", "linear", "constant"]),
    st.floats(0, 0.9),
    st.floats(0, 0.9),
)
def test_the_learning_rate_rises_to_its_peak_and_falls_to_its_final_value(
    num_steps: int, warmup: float, shape: str, final: float, first: float
) -> None:
    recipe = Recipe(source="", warmup=warmup, schedule=shape, final_lr=final, first_lr=first)
    factors = [lr_factor(step, num_steps, recipe) for step in range(0, num_steps, max(1, num_steps // 40))]
    assert all(0 < factor <= 1 for factor in factors)
    assert factors[0] > first
    peak = factors.index(max(factors))
    assert factors[: peak + 1] == sorted(factors[: peak + 1])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)
    assert lr_factor(int(num_steps * warmup), num_steps, recipe) == pytest.approx(1)
    last = lr_factor(num_steps - 1, num_steps, recipe)
    assert last >= final if shape != "constant" else last == pytest.approx(1)


@pytest.mark.parametrize("final", [0.0, 0.1])
@pytest.mark.parametrize("shape", ["cosine", "linear", "constant"])
def test_the_learning_rate_equals_that_of_torchs_schedulers(shape: str, final: float) -> None:
    def optimizer() -> torch.optim.SGD:
        return torch.optim.SGD([nn.Parameter(torch.zeros(()))], 1.0)

    steps, rising = 40, 8  # a warm-up of 0.2
    falling: Any = {
        "cosine": lambda one: torch.optim.lr_scheduler.CosineAnnealingLR(one, steps - rising, eta_min=final),
        "linear": lambda one: torch.optim.lr_scheduler.LinearLR(one, 1.0, final, steps - rising),
        "constant": lambda one: torch.optim.lr_scheduler.ConstantLR(one, 1.0),
    }
    parts: list[Any] = [torch.optim.lr_scheduler.LinearLR(optimizer(), 1 / (rising + 1), 1.0, rising)]
    parts += [falling[shape](optimizer())]
    expected = []
    for part, count in zip(parts, (rising, steps - rising), strict=True):
        for _ in range(count):
            expected.append(part.get_last_lr()[0])
            part.optimizer.step()
            part.step()
    recipe = Recipe(source="", warmup=0.2, schedule=shape, final_lr=final)
    found = [lr_factor(step, steps, recipe) for step in range(steps)]
    assert found == pytest.approx(expected)
    assert parts[1].get_last_lr()[0] == pytest.approx(1.0 if shape == "constant" else final)  # after the last step


@given(st.integers(1, 100), st.integers(8, 300), st.integers(8, 300))
def test_images_grow_from_the_first_size_to_the_last_in_multiples_of_8(epochs: int, first: int, last: int) -> None:
    recipe = Recipe(source="", epochs=epochs, first_image_size=first, image_size=last)
    sizes = [image_size(epoch, recipe) for epoch in range(epochs)]
    assert sizes == sorted(sizes, reverse=first > last)
    assert sizes[-1] == last
    assert sizes[0] == first or epochs < 3
    assert all(size % 8 == 0 or size in (first, last) for size in sizes)
    constant = Recipe(source="", epochs=epochs, image_size=last)
    assert [image_size(epoch, constant) for epoch in range(epochs)] == [last] * epochs
