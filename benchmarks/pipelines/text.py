"""Language: tokens, tokenizers, and windows of a file of tokens."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch.utils.data import Dataset
from transformers import DataCollatorForLanguageModeling, DataCollatorWithPadding, PreTrainedTokenizerFast

from benchmarks.pipelines.source import Source

_NUM_TEXTS = 4_000


def _texts(num_texts: int = _NUM_TEXTS) -> list[str]:
    """Return texts of 20 to 150 words of a vocabulary of 2,000."""
    generator = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwyp"))
    words = ["".join(generator.choice(letters, length)) for length in generator.integers(2, 9, 2000)]
    return [" ".join(generator.choice(words, length)) for length in generator.integers(20, 150, num_texts)]


def _tokenizer(source: Source) -> PreTrainedTokenizerFast:
    def make(folder: Path) -> None:
        tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer = trainers.BpeTrainer(vocab_size=1500, special_tokens=["[UNK]", "[PAD]", "[MASK]"], show_progress=False)
        tokenizer.train_from_iterator(_texts(500), trainer)
        tokenizer.save(str(folder / "tokenizer.json"))

    file = source.folder("tokenizer", make) / "tokenizer.json"
    return PreTrainedTokenizerFast(tokenizer_file=str(file), unk_token="[UNK]", pad_token="[PAD]", mask_token="[MASK]")


def _tokens(source: Source, tokenizer: PreTrainedTokenizerFast) -> datasets.Dataset:
    def make(folder: Path) -> None:
        encoded = tokenizer(_texts(), truncation=True, max_length=256)
        columns = {name: encoded[name] for name in ("input_ids", "attention_mask")}
        datasets.Dataset.from_dict({**columns, "label": [0, 1] * (_NUM_TEXTS // 2)}).save_to_disk(folder)

    return datasets.load_from_disk(str(source.folder("hf_tokens", make)))


def hf_tokens(source: Source, loader_class: Any, num_workers: int) -> Any:
    tokenizer = _tokenizer(source)
    dataset, collator = _tokens(source, tokenizer), DataCollatorWithPadding(tokenizer)
    return loader_class(dataset, batch_size=32, shuffle=True, num_workers=num_workers, collate_fn=collator)


def hf_masked_tokens(source: Source, loader_class: Any, num_workers: int) -> Any:
    tokenizer = _tokenizer(source)
    dataset, collator = _tokens(source, tokenizer).remove_columns("label"), DataCollatorForLanguageModeling(tokenizer)
    return loader_class(dataset, batch_size=32, shuffle=True, num_workers=num_workers, collate_fn=collator)


class Texts(Dataset[Any]):
    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Any:
        return self.texts[index], index % 2


def tokenizer_collate(source: Source, loader_class: Any, num_workers: int) -> Any:
    tokenizer = _tokenizer(source)

    def collate(batch: list[tuple[str, int]]) -> Any:
        texts, labels = zip(*batch, strict=True)
        encoded = tokenizer(list(texts), padding=True, truncation=True, max_length=256, return_tensors="pt")
        encoded["labels"] = torch.tensor(labels)
        return encoded

    dataset = Texts(_texts())
    return loader_class(dataset, batch_size=32, shuffle=True, num_workers=num_workers, collate_fn=collate)


class TokenizedTexts(Texts):
    def __init__(self, texts: list[str], tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__(texts)
        self.tokenizer = tokenizer

    def __getitem__(self, index: int) -> Any:
        text, label = super().__getitem__(index)
        encoded = self.tokenizer(text, padding="max_length", truncation=True, max_length=256, return_tensors="pt")
        return {
            "input_ids": encoded["input_ids"].flatten(),
            "attention_mask": encoded["attention_mask"].flatten(),
            "labels": torch.tensor(label),
        }


def tokenizer_getitem(source: Source, loader_class: Any, num_workers: int) -> Any:
    dataset = TokenizedTexts(_texts(), _tokenizer(source))
    return loader_class(dataset, batch_size=32, shuffle=True, num_workers=num_workers)


class TokenWindows(Dataset[Any]):
    """Windows of a file of tokens, as small language-model trainers read them."""

    def __init__(self, file: Path, block_size: int) -> None:
        self.data = np.memmap(file, dtype=np.uint16, mode="r")
        self.block_size = block_size

    def __len__(self) -> int:
        return (len(self.data) - 1) // self.block_size

    def __getitem__(self, index: int) -> Any:
        start = index * self.block_size
        x = torch.from_numpy(self.data[start : start + self.block_size].astype(np.int64))
        y = torch.from_numpy(self.data[start + 1 : start + 1 + self.block_size].astype(np.int64))
        return x, y


def memmap(source: Source, loader_class: Any, num_workers: int) -> Any:
    def make(folder: Path) -> None:
        np.random.default_rng(0).integers(0, 50_000, 10_000_001, dtype=np.uint16).tofile(folder / "train.bin")

    dataset = TokenWindows(source.folder("memmap", make) / "train.bin", block_size=256)
    return loader_class(dataset, batch_size=32, shuffle=True, num_workers=num_workers)
