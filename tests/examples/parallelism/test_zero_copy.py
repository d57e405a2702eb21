"""What shares memory and what copies."""

from __future__ import annotations

import zero_copy as example

COPIES_OF_ARRAYS = {"torch.tensor(array)", "torch.as_tensor(array, dtype=torch.float64)"}
COPIES_OF_TENSORS = {
    "tensor.t().reshape(-1)",
    "tensor.t().contiguous()",
    "tensor[[0, 1]]",
    "tensor.clone()",
    "torch.stack([tensor])",
}


def test_only_these_operations_copy_an_array() -> None:
    copies = {name for name, make in example.FROM_AN_ARRAY.items() if not example.shared_with_an_array(make)}
    assert copies == COPIES_OF_ARRAYS


def test_only_these_operations_copy_a_tensor() -> None:
    copies = {name for name, make in example.FROM_A_TENSOR.items() if not example.shared_with_a_tensor(make)}
    assert copies == COPIES_OF_TENSORS


def test_a_saved_view_contains_its_whole_base() -> None:
    import torch

    one = torch.zeros(100_000)[:1]
    assert example.saved_bytes(one) > 400_000
    assert example.saved_bytes(one.clone()) < 10_000
