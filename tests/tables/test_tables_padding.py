"""What transformers' collators pad from a table's columns is what they make of its samples, bit for bit."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from kit.comparison import difference
from torch.utils.data import DataLoader as TorchDataLoader

import fastload
from fastload.tables import padding

datasets = pytest.importorskip("datasets")
tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

VOCABULARY = {"[PAD]": 0, "[MASK]": 1, **{f"w{number}": number for number in range(2, 500)}}


def tokenizer(kind: type = transformers.PreTrainedTokenizerFast, **settings: Any) -> Any:
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(VOCABULARY, unk_token="w2"))
    return kind(tokenizer_object=model, pad_token="[PAD]", mask_token="[MASK]", **settings)


def table(**more: Any) -> datasets.Dataset:
    """Return rows of unequal lengths; in the last of each four batches, of equal ones."""
    generator = np.random.default_rng(0)
    lengths = [6 if row % 16 >= 12 else generator.integers(0, 20) for row in range(64)]
    rows = [generator.integers(2, 500, length).tolist() for length in lengths]
    made = {"input_ids": rows}
    for name, value in more.items():
        made[name] = [value(len(row)) for row in rows]
    return datasets.Dataset.from_dict(made)


def ones(length: int) -> list[int]:
    return [1] * length


def batches(kind: Any, dataset: Any, collate_fn: Any, **settings: Any) -> list[Any]:
    torch.manual_seed(0)
    loader = kind(dataset, batch_size=4, collate_fn=collate_fn, **settings)
    return list(loader)


def assert_equal_to_torch(dataset: Any, collate_fn: Any, **settings: Any) -> None:
    theirs = batches(TorchDataLoader, dataset, collate_fn)
    assert difference(batches(fastload.DataLoader, dataset, collate_fn), theirs) is None
    if settings:
        ours = batches(fastload.DataLoader, dataset, collate_fn, **settings)
        assert len(ours) == len(theirs)
        assert all(torch.equal(a[name], b[name]) for a, b in zip(ours, theirs, strict=True) for name in b)


COLUMNS = {
    "tokens": {},
    "a mask and labels": {"attention_mask": ones, "label": lambda length: length},
    "all that is padded": {"token_type_ids": ones, "attention_mask": ones, "special_tokens_mask": ones},
    "labels in lists": {"label_ids": lambda length: [1, 2, 3]},
    "floats": {"label": lambda length: length / 3},
}


@pytest.mark.parametrize("form", [None, "numpy", "torch"])
@pytest.mark.parametrize("columns", COLUMNS)
def test_padded_batches_are_those_of_the_collator(columns, form):
    collator = transformers.DataCollatorWithPadding(tokenizer())
    assert_equal_to_torch(table(**COLUMNS[columns]).with_format(form), collator, num_workers=2)


SETTINGS: list[dict[str, Any]] = [
    {"padding_side": "left"},
    {"pad_token_type_id": 3},
    {"model_input_names": ["input_ids"]},
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("multiple", [None, 8])
def test_the_tokenizers_settings_hold(settings, multiple):
    collator = transformers.DataCollatorWithPadding(tokenizer(**settings), pad_to_multiple_of=multiple)
    assert_equal_to_torch(table(token_type_ids=ones), collator)
    language = transformers.DataCollatorForLanguageModeling(tokenizer(**settings), mlm=False)
    assert_equal_to_torch(table(), language, num_workers=2)


def test_other_collators_pad_in_their_own_way():
    assert_equal_to_torch(table(labels=ones), transformers.DataCollatorForTokenClassification(tokenizer()))


def test_a_pad_that_a_user_has_replaced_pads_all_batches(monkeypatch):
    padded, own = [], transformers.PreTrainedTokenizerBase.pad

    @functools.wraps(own)
    def pad(*arguments: Any, **named: Any) -> Any:
        padded.append(own(*arguments, **named))
        return padded[-1]

    monkeypatch.setattr(transformers.PreTrainedTokenizerBase, "pad", pad)
    assert_equal_to_torch(table(), transformers.DataCollatorWithPadding(tokenizer()))
    assert len(padded) == 2 * 16


@pytest.mark.parametrize("settings", [{"padding": "max_length", "max_length": 24}, {"return_tensors": "np"}])
def test_other_settings_are_left_to_the_tokenizer(settings):
    collator = transformers.DataCollatorWithPadding(tokenizer(), **settings)
    ours, theirs = (batches(kind, table(), collator) for kind in (fastload.DataLoader, TorchDataLoader))
    assert all(np.array_equal(a[name], b[name]) for a, b in zip(ours, theirs, strict=True) for name in b)


@pytest.mark.parametrize("seed", [None, 5])
def test_masked_tokens_are_the_same_as_of_samples_that_are_padded_by_the_tokenizer(seed):
    collator = transformers.DataCollatorForLanguageModeling(tokenizer(), seed=seed)
    ours = batches(fastload.DataLoader, table(), collator, seed=3)
    theirs = batches(fastload.DataLoader, table(), lambda samples: collator(samples), seed=3)
    assert difference(ours, theirs) is None
    assert any((batch["labels"] >= 0).any() for batch in ours)


def test_the_tokenizer_pads_one_batch_of_each_kind(monkeypatch):
    compared, alike = [], padding._alike
    monkeypatch.setattr(padding, "_alike", lambda ours, theirs: compared.append(alike(ours, theirs)) or compared[-1])
    batches(fastload.DataLoader, table(attention_mask=ones), transformers.DataCollatorWithPadding(tokenizer()))
    assert compared == [True, True]  # one of unequal rows, one of equal ones


@pytest.mark.parametrize("of_a_subclass", [True, False])
def test_where_a_subclass_or_another_version_pads_in_another_way_it_pads_all_batches(of_a_subclass, monkeypatch):
    kind = transformers.PreTrainedTokenizerFast
    own = transformers.PreTrainedTokenizerBase._pad

    def pad(self: Any, *arguments: Any, **named: Any) -> Any:
        padded = own(self, *arguments, **named)
        padded["attention_mask"] = [2 * number for number in padded["attention_mask"]]
        return padded

    if of_a_subclass:
        kind = type("Derived", (kind,), {"_pad": pad})
    else:
        monkeypatch.setattr(transformers.PreTrainedTokenizerBase, "_pad", pad)
    collator = transformers.DataCollatorWithPadding(tokenizer(kind))
    assert_equal_to_torch(table(attention_mask=ones), collator)
    assert max(batch["attention_mask"].max() for batch in batches(fastload.DataLoader, table(), collator)) == 2


def test_the_tokenizer_is_as_before_after_a_batch_and_after_an_error():
    own = tokenizer()
    before = dict(vars(own))
    batches(fastload.DataLoader, table(), transformers.DataCollatorWithPadding(own))
    with pytest.raises(ValueError, match="Unable to create tensor"):
        batches(fastload.DataLoader, table(extra=ones), transformers.DataCollatorWithPadding(own))
    assert vars(own).keys() == before.keys()


def test_a_tokenizer_that_changes_is_followed():
    collator = transformers.DataCollatorWithPadding(tokenizer())
    loader = fastload.DataLoader(table(), batch_size=4, collate_fn=collator)
    first = list(loader)
    collator.tokenizer.padding_side = "left"
    assert difference(list(loader), batches(TorchDataLoader, table(), collator)) is None
    assert any(not torch.equal(a["input_ids"], b["input_ids"]) for a, b in zip(first, loader, strict=True))


def test_worker_threads_share_a_tokenizer():
    collator = transformers.DataCollatorWithPadding(tokenizer())
    settings = {"num_workers": 3, "worker_method": "thread"}
    assert_equal_to_torch(table(attention_mask=ones), collator, **settings)
    assert "pad" not in vars(collator.tokenizer)
