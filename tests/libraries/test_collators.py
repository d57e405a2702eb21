"""The masks of transformers' collators with a seed of their own do not depend on who takes the batch."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from kit.comparison import difference

import fastload

datasets = pytest.importorskip("datasets")
tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

VOCABULARY = {"[PAD]": 0, "[MASK]": 1, **{f"w{number}": number for number in range(2, 500)}}


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(VOCABULARY, unk_token="w2"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=model, pad_token="[PAD]", mask_token="[MASK]")


def collator(seed: int | None = 7, return_tensors: str = "pt") -> transformers.DataCollatorForLanguageModeling:
    return transformers.DataCollatorForLanguageModeling(tokenizer(), seed=seed, return_tensors=return_tensors)


def tokens(form: str | None = None) -> datasets.Dataset:
    generator = np.random.default_rng(0)
    rows = [generator.integers(2, 500, length).tolist() for length in generator.integers(5, 40, 64)]
    return datasets.Dataset.from_dict({"input_ids": rows}).with_format(form)


def collate(samples, own):
    return own(samples)


def epochs(collate_fn, **settings):
    """Return the batches of two epochs."""
    loader = fastload.DataLoader(tokens(), batch_size=4, collate_fn=collate_fn, **{"seed": 3} | settings)
    try:
        return [[{name: torch.as_tensor(value) for name, value in batch.items()} for batch in loader] for _ in range(2)]
    finally:
        loader.close()


WAYS = {
    "one process": {"num_workers": 1},
    "three processes": {"num_workers": 3, "persistent_workers": True},
    "two threads": {"num_workers": 2, "worker_method": "thread"},
    "two threads in each of two processes": {"num_workers": 2, "worker_threads": 2},
}


def collate_to_both(samples, own):
    """Collate twice, in both kinds, of which one is not the collator's own."""
    made = {kind: own(samples, return_tensors=kind)["labels"] for kind in ("np", "pt")}
    return made | {"pt again": own(samples, return_tensors="pt")["labels"]}


COLLATE = {
    "pt": collator,
    "np": lambda: collator(return_tensors="np"),
    "both": lambda: functools.partial(collate_to_both, own=collator()),
}


@pytest.mark.parametrize("made", COLLATE)
@pytest.mark.parametrize("way", WAYS)
def test_masks_are_the_same_however_batches_are_made(way, made):
    first, second = epochs(COLLATE[made]())
    its_first, its_second = epochs(COLLATE[made](), **WAYS[way])
    assert difference(its_first, first) is None
    assert difference(its_second, second) is None
    assert difference(first, second) is not None


def test_a_call_with_return_tensors_of_its_own_has_masks_of_its_batch_too():
    first, second = epochs(COLLATE["both"]())
    for kind in ("np", "pt"):
        masks = [tuple((batch[kind] != -100).flatten().tolist()) for batch in first + second]
        assert len(set(masks)) == len(masks)
    assert not any(torch.equal(batch["pt"], batch["pt again"]) for batch in first)


def test_masks_are_those_of_the_collators_seed_and_the_loaders():
    first, _ = epochs(collator(7))
    assert difference(epochs(collator(7))[0], first) is None
    assert difference(epochs(collator(8))[0], first) is not None
    assert difference(epochs(collator(7), seed=4)[0], first) is not None


def test_a_collator_inside_of_another_function_is_found_and_left_as_it_was():
    own = collator()
    first, _ = epochs(collator())
    assert difference(epochs(functools.partial(collate, own=own))[0], first) is None
    assert own.generator is None
    assert own._generator_pid is None


def test_torchs_seeding_leaves_the_collators_generators_to_them():
    theirs = list(torch.utils.data.DataLoader(tokens(), batch_size=4, collate_fn=collator()))
    ours = list(fastload.DataLoader(tokens(), batch_size=4, collate_fn=collator(), seeding="torch"))
    assert difference(ours, theirs) is None


SHARED = collator()


def with_a_global_collator(samples):
    return SHARED(samples)


def test_threads_that_share_a_collator_are_warned_of():
    with pytest.warns(RuntimeWarning, match="DataCollatorForLanguageModeling"):
        epochs(with_a_global_collator, num_workers=2, worker_method="thread")
