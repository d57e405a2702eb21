"""Rows of packed samples are those of transformers, and train as the samples would alone."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastload import collate_packed
from fastload.errors import ConfigError, DatasetError

SHORT: list[dict[str, Any]] = [{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}]


@functools.cache
def of_transformers() -> Any:
    from transformers import DataCollatorWithFlattening

    return DataCollatorWithFlattening


def plain(batch: Any) -> dict[str, Any]:
    return {
        name: (value.dtype, value.tolist()) if isinstance(value, torch.Tensor) else value
        for name, value in batch.items()
    }


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=9).filter(any),
    st.booleans(),
    st.sampled_from([list, np.array, torch.tensor]),
    st.integers(0, 2),
)
@settings(max_examples=40, deadline=None)
def test_without_padding_a_row_is_that_of_transformers(lengths, labelled, kind, positions_from):
    values = iter(range(1000))
    samples: list[dict[str, Any]] = []
    for length in lengths:
        ids = [next(values) for _ in range(length)]
        labels = {"labels": kind([-100 if one % 3 else one for one in ids])} if labelled else {}
        samples.append({"input_ids": kind(ids), **labels})
    collator = of_transformers()(return_flash_attn_kwargs=True, return_seq_idx=True, position_ids_start=positions_from)
    made = collate_packed(samples, positions_from=positions_from, seq_idx=True)
    assert plain(made) == plain(collator(samples))


def test_a_padded_row_has_one_document_more_and_fixed_shapes():
    made = collate_packed(SHORT, pad_to=8, pad_id=1, max_documents=5, seq_idx=True)
    assert {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in made.items()} == {
        "input_ids": [[5, 6, 7, 8, 9, 1, 1, 1]],
        "labels": [[-100, 6, 7, -100, 9, -100, -100, -100]],
        "position_ids": [[0, 1, 2, 0, 1, 0, 1, 2]],
        "seq_idx": [[0, 0, 0, 1, 1, 2, 2, 2]],
        "cu_seq_lens_q": [0, 3, 5, 8, 8, 8],
        "cu_seq_lens_k": [0, 3, 5, 8, 8, 8],
        "max_length_q": 8,
        "max_length_k": 8,
    }


def test_labels_are_shifted_and_documents_are_aligned_on_request():
    made = collate_packed(SHORT, shift_labels=True, align=4)
    assert made["labels"].tolist() == [[6, 7, -100, -100, 9, -100, -100, -100]]
    assert (made["input_ids"].tolist(), made["cu_seq_lens_q"].tolist()) == ([[5, 6, 7, 0, 8, 9, 0, 0]], [0, 4, 8])
    assert made["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("samples", "more", "error", "message"),
    [
        (
            SHORT,
            {"pad_to": 4},
            DatasetError,
            "takes 1 to 4 tokens, and these 2 samples have 5, the longest 3: other lengths",
        ),
        (SHORT, {"max_tokens": 4}, DatasetError, "max_tokens=4, pad_to=None takes 1 to 4 tokens"),
        (SHORT, {"max_documents": 2}, ConfigError, "max_documents needs pad_to"),
        (SHORT, {"max_documents": 2, "pad_to": 6}, DatasetError, "3 documents, padding included, .* max_samples=1"),
        (SHORT[:1], {"max_documents": 1, "pad_to": 6}, DatasetError, "2 documents, .* give at least 2$"),
        (SHORT, {"align": 0}, ConfigError, "align must be"),
        (SHORT, {"align": None}, ConfigError, "align must be"),
        (SHORT, {"pad_to": 8.0}, ConfigError, "pad_to must be"),
        (SHORT, {"max_tokens": 0}, ConfigError, "max_tokens must be"),
        ([torch.ones(3)], {}, DatasetError, "a sample must be a mapping that has input_ids, got a Tensor"),
        ([{"ids": [1]}], {}, DatasetError, "input_ids must be .* got NoneType .* in a sample with ids"),
        ([{"input_ids": [1.5]}], {}, DatasetError, "got list of shape .* and float64"),
        ([{"input_ids": []}], {}, DatasetError, "these 1 samples have 0"),
        ([{"input_ids": [1, 2], "labels": [1]}], {}, DatasetError, "2 input_ids and 1 labels"),
    ],
)
def test_what_does_not_fit_is_an_error(samples, more, error, message):
    with pytest.raises(error, match=message):
        collate_packed(samples, **more)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_llamas_loss_on_a_pack_is_the_mean_over_its_samples_padding_or_not(attention):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    config._attn_implementation = attention
    model = LlamaForCausalLM(config).eval().double()
    samples = [{"input_ids": torch.randint(0, 50, (length,))} for length in (3, 11, 6, 1, 8)]
    with torch.no_grad():
        alone = sum(
            float(model(ids[None], labels=ids[None]).loss) * (len(ids) - 1)
            for ids in (one["input_ids"] for one in samples)
            if len(ids) > 1
        )
        for pad_to in (None, 40):
            batch = collate_packed(samples, pad_to=pad_to)
            names = ("input_ids", "labels", "position_ids")
            loss = float(model(**{name: batch[name] for name in names}, use_cache=False).loss)
            assert loss == pytest.approx(alone / (29 - 5), abs=1e-6)
